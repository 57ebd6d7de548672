from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from reviewer.diff import Diff, parse
from reviewer.model import (
    ChecklistKpi,
    FactCheckKpi,
    Kpi,
    RecheckKpi,
    ReportedFinding,
    RoundReport,
)

DATA = Path(__file__).parent / "data"

MakeFinding = Callable[..., ReportedFinding]
MakeReport = Callable[..., RoundReport]


@pytest.fixture(scope="session")
def make_finding() -> MakeFinding:
    def make(**values: Any) -> ReportedFinding:
        plain = {
            "id": "F1",
            "path": "kv/pages.py",
            "line_start": 11,
            "line_end": 12,
            "side": "RIGHT",
            "severity": "P1",
            "category": "correctness",
            "title": "A page index runs past the last page",
            "body": "The loop ends one page late.",
            "support": 4,
            "of": 5,
        }
        return ReportedFinding.model_validate(plain | values)

    return make


@pytest.fixture(scope="session")
def make_report() -> MakeReport:
    def make(**values: Any) -> RoundReport:
        blocking = tuple(values.pop("blocking", ()))
        outcome = "BLOCKED" if blocking else "LGTM"
        plain: dict[str, Any] = {
            "pull": {
                "repo": "acme/cache",
                "number": 42,
                "base_sha": "b" * 40,
                "head_sha": "32497b255b44" + "0" * 28,
                "title": "Batch the writes",
            },
            "round_index": 1,
            "reviewed_at": "2026-09-01T11:57:00+08:00",
            "language": "en",
            "verdict": {"outcome": outcome, "blocking": len(blocking)},
            "blocking": blocking,
            "non_blocking": (),
            "closed": (),
            "checklist": (),
            "strengths": (),
            "unreviewed": (),
            "fates": (),
            "tool_calls": (),
            "warnings": (),
            "kpi": _kpi(blocking=len(blocking), **values.pop("kpi", {})),
        }
        return RoundReport.model_validate(plain | values)

    return make


@pytest.fixture(scope="session")
def reports(make_report: MakeReport, make_finding: MakeFinding) -> dict[str, RoundReport]:
    """The rounds whose artifacts are kept as golden files, from data/rounds.yaml."""
    rounds: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "rounds.yaml").read_text("utf-8"))
    for values in rounds.values():
        for key in ("blocking", "non_blocking", "closed"):
            values[key] = tuple(make_finding(**{"body": "", **one}) for one in values.get(key, ()))
    return {name: make_report(**values) for name, values in rounds.items()}


@pytest.fixture(scope="session")
def diff() -> Diff:
    return parse((DATA / "change.patch").read_bytes())


def _kpi(**values: Any) -> Kpi:
    plain: dict[str, Any] = {
        "reps": 5,
        "agentic_reps": 2,
        "diff_truncated": False,
        "patch_bytes": 34169,
        "coverage": 1.0,
        "shards": 1,
        "discover_ok": 5,
        "discover_fail": 0,
        "discover_attempts": 5,
        "clusters": 6,
        "synth_fail": 0,
        "confirm": {"candidates": 1, "to_block": 0, "confirm_fail": 0},
        "blocking_dedup_merged": 0,
        "fact_check": FactCheckKpi(checked=2, hold=1, refuted=1),
        "model": "acme/reviewer-1",
        "round_index": 1,
        "delta_files": 6,
        "full_files": 6,
        "new_findings": 6,
        "merged": 0,
        "recheck": RecheckKpi(),
        "blocking": 0,
        "blocking_on_unchanged": 0,
        "delta_lines": 412,
        "models": ("acme/reviewer-1",),
        "detector_findings": 1,
        "checklist": ChecklistKpi(total=108, fail=2, unsure=1),
        "tool_calls": 7,
        "tokens_in": 91_204,
        "tokens_out": 6_377,
        "cost_usd": 0.31,
        "seconds": 48.2,
    }
    return Kpi.model_validate(plain | values)


class Page:
    """What a forge would make of a document: the parts of it that can do harm, found by parsing.

    `html` are the pieces of raw HTML; `words` the text between code, links and tags; `kinds` the token types.
    """

    def __init__(self, document: str) -> None:
        parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self.html: list[str] = []
        self.words: list[str] = []
        self.kinds: set[str] = set()
        self.code: list[str] = []
        linked = 0
        for token in parser.parse(document):
            for one in (token, *(token.children or ())):
                self.kinds.add(one.type)
                linked += (one.type == "link_open") - (one.type == "link_close")
                if one.type in ("html_block", "html_inline"):
                    self.html.append(one.content)
                elif one.type in ("code_inline", "code_block", "fence"):
                    self.code.append(one.content)
                elif one.type == "text" and not linked:
                    self.words.append(one.content)

    @property
    def calls(self) -> list[str]:
        """Mentions, references to issues and addresses, which a forge would act on or make live."""
        return [match[0] for text in self.words for match in _CALL.finditer(text)]


_CALL = re.compile(
    r"(?:^|[^A-Za-z0-9])@[A-Za-z0-9]\S*|#[0-9]+|(?:^|[^A-Za-z0-9])[Gg][Hh]-[0-9]+"
    r"|[A-Za-z][A-Za-z0-9+.-]+://\S+|(?:^|[^A-Za-z0-9])[wW]{3}\.[!-;=?-_a-~]"
)


@pytest.fixture(scope="session")
def page() -> type[Page]:
    return Page
