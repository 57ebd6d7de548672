"""Our own checks and ast-grep's rules, run in a process of their own: a parser that crashes on a stranger's file
takes down this process and not the review.

The job is JSON on standard input, the analysis JSON on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reviewer.detectors.analysis import TIMEOUT_SECONDS, Analysis, Hit, run_module
from reviewer.detectors.checks import CHECKS
from reviewer.detectors.source import Source

if TYPE_CHECKING:
    from ast_grep_py import SgRoot

WORK_SECONDS = 0.75 * TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rule of ast-grep; `id` names its hits."""

    id: str
    language: str
    rule: dict[str, Any]
    constraints: dict[str, Any]
    files: tuple[str, ...]


def analyse(
    folder: Path, files: Sequence[str], checks: Mapping[str, Collection[str]], patterns: Sequence[Pattern]
) -> Analysis:
    """Runs in a new process, over `files`, each check and pattern that is meant for them."""
    job = {
        "files": files,
        "checks": {name: sorted(names) for name, names in checks.items()},
        "patterns": [asdict(pattern) for pattern in patterns],
    }
    answer = json.loads(run_module(["reviewer.detectors.worker"], folder, stdin=json.dumps(job)))
    return Analysis([Hit(**hit) for hit in answer["hits"]], answer["unread"], answer["broken"])


def _work(job: dict[str, Any]) -> Analysis:
    """File by file, so that what was found before time runs out is kept."""
    analysis = Analysis()
    ends = time.monotonic() + WORK_SECONDS
    checks = {name: frozenset(files) for name, files in job["checks"].items()}
    patterns = [(pattern, frozenset(pattern["files"])) for pattern in job["patterns"]]
    for file in job["files"]:
        if time.monotonic() > ends:
            analysis.unread[file] = f"not reached within {WORK_SECONDS:.0f} s"
            continue
        source = Source(Path(file).read_bytes().decode())
        _check(source, file, [name for name, files in checks.items() if file in files], analysis)
        _match(source, file, [pattern for pattern, files in patterns if file in files], analysis)
    return analysis


def _check(source: Source, file: str, names: list[str], analysis: Analysis) -> None:
    for name in names:
        try:
            analysis.hits += [Hit(file, line, end, name) for line, end in CHECKS[name](source)]
        except SyntaxError as error:
            analysis.unread[file] = f"line {error.lineno}: {error.msg}"
        except (RecursionError, MemoryError):
            analysis.unread[file] = "nested too deeply"
        except Exception as error:  # noqa: BLE001  # a fault in one check must not cost the others
            analysis.broken[name] = f"{type(error).__name__}: {error}"


def _match(source: Source, file: str, patterns: list[dict[str, Any]], analysis: Analysis) -> None:
    from ast_grep_py import SgRoot

    roots: dict[str, SgRoot] = {}
    for pattern in patterns:
        language = pattern["language"]
        try:
            if language not in roots:
                roots[language] = SgRoot(source.text, language)
            analysis.hits += _hits(roots[language], file, pattern)
        except BaseException as error:  # noqa: BLE001  # ast-grep panics on some rules, which is no Exception
            analysis.broken[pattern["id"]] = f"{type(error).__name__}: {error}"


def _hits(root: SgRoot, file: str, pattern: dict[str, Any]) -> Iterator[Hit]:
    config = {"rule": pattern["rule"], "constraints": pattern["constraints"]}
    for node in root.root().find_all(config):  # type: ignore[call-overload]
        where = node.range()
        yield Hit(file, where.start.line + 1, where.end.line + 1, pattern["id"])


if __name__ == "__main__":
    json.dump(asdict(_work(json.load(sys.stdin))), sys.stdout)
