from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reviewer.report import render_summary

Make = Callable[..., Any]


def test_text_from_outside_cannot_steer_the_terminal(make_report: Make, make_finding: Make) -> None:
    bad = "x\x1b[2J\r\x07\u202e\ny"
    finding = make_finding(id=bad, title=bad, path=bad, demoted=bad, source=bad, of=0)
    report = make_report(
        non_blocking=[finding],
        warnings=[bad],
        unreviewed=[{"path": bad, "reason": bad}],
        verdict={"outcome": "INCONCLUSIVE", "reasons": [bad]},
    )
    text = render_summary(report)
    assert not set(text) & set("\x1b\r\x07\u202e")
    assert text.count("⟨U+001B⟩") == 8
    assert len(text.split("\n")) == 9


def test_many_files_not_reviewed_are_counted(make_report: Make) -> None:
    report = make_report(unreviewed=[{"path": f"f{n}", "reason": "r"} for n in range(11)])
    assert "Not reviewed (11): f0; f1; f2; f3; f4; f5; f6; f7 +3" in render_summary(report)
