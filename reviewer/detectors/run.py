"""Runs the detectors bound to checklist items over the head files of a change."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from reviewer.checklist import AstGrepDetector, Detector, Item, paths_of
from reviewer.detectors import bandit, ruff, worker
from reviewer.detectors.analysis import AnalyserFailed, Analysis, Hit, divide
from reviewer.detectors.tree import PYTHON, Tree, suffix, write
from reviewer.model import Finding, Language

MAX_SPAN = 10
"""A longer stretch is reported at its first line: a comment on a whole function helps nobody."""

_SECRET_CHECK = "committed-secret"


@dataclass(frozen=True, slots=True)
class DetectorRun:
    """`ran` holds the items that were checked in every file they apply to; `failures` says why others were not."""

    findings: tuple[Finding, ...]
    ran: frozenset[str]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Bound:
    """An item with a detector and the files in which it is looked for."""

    item: Item
    detector: Detector
    paths: frozenset[str]

    @property
    def rules(self) -> tuple[str, ...]:
        """The names that the analyser's hits carry."""
        return (self.item.id,) if isinstance(self.detector, AstGrepDetector) else self.detector.rules


def detect(
    files: Mapping[str, bytes],
    changed: Mapping[str, Container[int]],
    items: Sequence[Item],
    language: Language = "en",
) -> DetectorRun:
    """Findings on changed lines, in a fixed order, one per rule and line.

    `files` maps paths to their content at head; `changed` maps paths to the new side's line numbers that the change
    added or altered. The code is parsed and never executed. No file, however broken, makes this raise: what could
    not be examined is in `failures`.
    """
    bound = [
        _Bound(item, item.detector, paths)
        for item in items
        if item.detector is not None and (paths := frozenset(paths_of(item, files)))
    ]
    needed = {path: files[path] for each in bound for path in each.paths}
    findings: dict[tuple[str, str, int], Finding] = {}
    ran: set[str] = set()
    failures: set[str] = set()
    try:
        with tempfile.TemporaryDirectory(prefix="whitesmoke-") as folder:
            tree = write(Path(folder), needed)
            analyses = _analyse(tree, bound)
    except OSError as error:
        return DetectorRun((), frozenset(), (f"detectors need room for temporary files: {error.strerror}",))
    path_of = {name: path for path, name in tree.names.items()}
    failures.update(f"{path}: {reason}" for path, reason in tree.unread.items())
    for kind, analysis in analyses.items():
        if isinstance(analysis, AnalyserFailed):
            failures.add(f"{kind}: {analysis}")
            continue
        failures.update(f"{kind}: {rule}: {reason}" for rule, reason in analysis.broken.items())
        mine = [each for each in bound if each.detector.kind == kind]
        unread = {path_of[name]: reason for name, reason in analysis.unread.items()}
        failures.update(
            f"{path}: {reason}" for path, reason in unread.items() if any(path in each.paths for each in mine)
        )
        for each in mine:
            if not analysis.broken.keys() & set(each.rules) and not any(
                path in unread or path in tree.unread for path in each.paths
            ):
                ran.add(each.item.id)
            for hit in analysis.hits:
                path = path_of[hit.file]
                if hit.rule in each.rules and path in each.paths and _is_changed(hit, changed.get(path, ())):
                    finding = _finding(hit, path, files[path], each, language)
                    findings.setdefault((path, finding.source, hit.line), finding)
    ordered = sorted(findings.values(), key=lambda each: (each.path, each.line_start, each.source))
    return DetectorRun(tuple(ordered), frozenset(ran), tuple(sorted(failures)))


def _analyse(tree: Tree, bound: Sequence[_Bound]) -> dict[str, Analysis | AnalyserFailed]:
    """Asks each analyser that has something to do, all at once: each is a process of its own."""
    groups: dict[str, list[_Bound]] = {}
    for each in bound:
        groups.setdefault(each.detector.kind, []).append(each)
    askers: dict[str, Callable[[Tree, Sequence[_Bound]], Analysis]] = {
        "ruff": _ask_ruff,
        "bandit": _ask_bandit,
        "ast_grep": _ask_ast_grep,
        "own": _ask_own,
    }
    with ThreadPoolExecutor(max_workers=len(askers)) as pool:
        asked = {kind: pool.submit(askers[kind], tree, group) for kind, group in groups.items()}
        answers: dict[str, Analysis | AnalyserFailed] = {}
        for kind, future in asked.items():
            try:
                answers[kind] = future.result()
            except AnalyserFailed as failed:
                answers[kind] = failed
            except (ValueError, KeyError, TypeError) as error:
                answers[kind] = AnalyserFailed(f"answered in an unknown form: {error!r}")
    return answers


def _ask_ruff(tree: Tree, group: Sequence[_Bound]) -> Analysis:
    rules = {rule for each in group for rule in each.rules}
    return divide(lambda files: ruff.analyse(tree.folder, files, rules), _files(tree, group, PYTHON))


def _ask_bandit(tree: Tree, group: Sequence[_Bound]) -> Analysis:
    tests = {rule for each in group for rule in each.rules}
    return divide(lambda files: bandit.analyse(tree.folder, files, tests), _files(tree, group, PYTHON))


def _ask_ast_grep(tree: Tree, group: Sequence[_Bound]) -> Analysis:
    patterns = [
        worker.Pattern(each.item.id, rule.language, rule.rule, rule.constraints, _files(tree, [each]))
        for each in group
        if isinstance(each.detector, AstGrepDetector)
        for rule in each.detector.rules
    ]
    return divide(lambda files: worker.analyse(tree.folder, files, {}, patterns), _files(tree, group))


def _ask_own(tree: Tree, group: Sequence[_Bound]) -> Analysis:
    checks: dict[str, set[str]] = {}
    for each in group:
        for rule in each.rules:
            checks.setdefault(rule, set()).update(_files(tree, [each]))
    return divide(lambda files: worker.analyse(tree.folder, files, checks, ()), _files(tree, group))


def _files(tree: Tree, group: Sequence[_Bound], kinds: Container[str] | None = None) -> tuple[str, ...]:
    """The names of the files that the items apply to, of certain suffixes only where `kinds` is given."""
    paths = {path for each in group for path in each.paths if path in tree.names}
    return tuple(sorted(tree.names[path] for path in paths if kinds is None or suffix(path) in kinds))


def _is_changed(hit: Hit, lines: Container[int]) -> bool:
    return any(line in lines for line in range(hit.line, hit.end + 1))


def _finding(hit: Hit, path: str, content: bytes, bound: _Bound, language: Language) -> Finding:
    item, detector = bound.item, bound.detector
    end = hit.end if hit.end - hit.line < MAX_SPAN else hit.line
    quoted = [line.rstrip("\r") for line in content.decode().split("\n")[hit.line - 1 : end]]
    return Finding(
        path=path,
        line_start=hit.line,
        line_end=end,
        severity=item.severity,
        category=item.id.partition(".")[0],
        title=detector.title.say(language),
        body=detector.why.say(language),
        suggestion=detector.fix.say(language),
        # A report is read by more people than the code: it never repeats a secret.
        quoted_code="" if hit.rule == _SECRET_CHECK else "\n".join(quoted),
        checklist_ids=(item.id,),
        source=f"{detector.kind.replace('_', '-')}:{hit.rule}",
    )
