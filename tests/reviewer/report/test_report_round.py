from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reviewer.diff import Diff
from reviewer.report import (
    check_run,
    inline_comments,
    read_marker,
    render_kpi,
    render_review,
    render_round,
    render_summary,
    to_json,
    to_sarif,
)

Make = Callable[..., Any]

SEED_KEYS = [
    *(
        "reps",
        "agentic_reps",
        "diff_truncated",
        "patch_bytes",
        "coverage",
        "shards",
        "discover_ok",
        "discover_fail",
    ),
    *(
        "discover_attempts",
        "clusters",
        "synth_fail",
        "confirm",
        "blocking_dedup_merged",
        "fact_check",
        "model",
    ),
    *("round_index", "delta_files", "full_files", "new_findings", "merged", "recheck", "blocking"),
    "blocking_on_unchanged",
]


@pytest.mark.parametrize(
    ("values", "heading"),
    [
        ({}, "## 🟢 PR #42 round 1 - LGTM"),
        ({"verdict": {"outcome": "BLOCKED", "blocking": 2}}, "## 🔴 PR #42 round 1 - BLOCKED(2)"),
        ({"verdict": {"outcome": "INCONCLUSIVE"}}, "## 🟡 PR #42 round 1 - INCONCLUSIVE"),
        (
            {"verdict": {"outcome": "LGTM", "detectors_only": True}},
            "## ⚪ PR #42 round 1 - LGTM (detectors only)",
        ),
        ({"round_index": 3, "language": "zh"}, "## 🟢 PR #42 第 3 轮评审 - LGTM"),
    ],
)
def test_the_heading_names_pull_request_round_and_verdict(
    make_report: Make, values: dict[str, Any], heading: str
) -> None:
    assert heading in render_round(make_report(**values)).split("\n")


def test_a_round_of_detectors_alone_says_that_no_model_reviewed_the_change(make_report: Make) -> None:
    for language, words in (("en", "No model reviewed this change"), ("zh", "没有任何模型评审过这次改动")):
        report = make_report(verdict={"outcome": "LGTM", "detectors_only": True}, language=language)
        for text in (render_round(report), render_review(report), render_summary(report)):
            assert words in text
        assert "100%" not in render_round(report)


def test_support_is_shown_over_the_number_of_reviewers_asked(make_report: Make, make_finding: Make) -> None:
    findings = [
        make_finding(),
        make_finding(id="F2", support=3, of=7),
        make_finding(id="F3", of=0, source="ruff:B006"),
    ]
    text = render_round(make_report(non_blocking=findings))
    assert "· 4/5 reviewers</summary>" in text
    assert "· 3/7 reviewers</summary>" in text
    assert "· detector ruff:B006</summary>" in text


def test_a_demoted_finding_says_why_before_it_is_opened(make_report: Make, make_finding: Make) -> None:
    text = render_round(make_report(non_blocking=[make_finding(demoted="said by 1 of 5; 3 are needed")]))
    (line,) = (line for line in text.split("\n") if line.startswith("<summary><b>"))
    assert "<i>said by 1 of 5; 3 are needed</i>" in line


def test_the_most_severe_come_first_and_the_refuted_last(make_report: Make, make_finding: Make) -> None:
    findings = [
        make_finding(id="F1", severity="P3", title="third"),
        make_finding(id="F2", severity="P0", title="last", state="refuted"),
        make_finding(id="F3", severity="P1", title="first"),
        make_finding(id="F4", severity="P2", title="second"),
    ]
    text = render_round(make_report(non_blocking=findings))
    assert re.findall(r"<summary><b>..</b> · (\w+)", text) == ["first", "second", "third", "last"]


def test_what_changed_since_the_last_round_is_said(make_report: Make, make_finding: Make) -> None:
    old = {"first_round": 1, "last_round": 1}
    report = make_report(
        round_index=2,
        blocking=[make_finding(id="F1", recheck="still_open", **old)],
        non_blocking=[
            make_finding(id="F2", recheck="cannot_substantiate", **old),
            make_finding(id="F3", recheck="fail", **old),
            make_finding(id="F4", first_round=1, last_round=2),
            make_finding(id="F5", first_round=2, last_round=2),
            make_finding(id="F6", first_round=2, last_round=2, state="refuted"),
        ],
        closed=[
            make_finding(id="F7", recheck="fixed", state="fixed", **old),
            make_finding(id="F8", state="dismissed", **old),
        ],
    )
    text = render_round(report)
    said = dict(re.findall(r"^- \S+ \*\*(.+)\*\* `(F\d)`", text, re.MULTILINE))
    assert said == {
        "Fixed": "F7",
        "Still open": "F1",
        "Cannot be substantiated, stays open": "F2",
        "No answer to the recheck, stays open": "F3",
        "Dismissed by a maintainer": "F8",
        "Refuted": "F6",
        "Found again": "F4",
        "New": "F5",
    }
    assert "since round 1 · Still open" in text


def test_a_first_round_has_no_history(make_report: Make, make_finding: Make) -> None:
    text = render_round(make_report(non_blocking=[make_finding()]))
    assert "Since round" not in text
    assert "since round" not in text


def test_files_not_reviewed_are_named_with_the_reason(make_report: Make) -> None:
    report = make_report(
        unreviewed=[
            {"path": "a.lock", "reason": "lock file", "lines": 7},
            {"path": "big.py", "reason": "too large", "lines": 100},
            {"path": "big.py", "reason": "too large", "lines": 50},
            {"path": "b.lock", "reason": "lock file"},
        ]
    )
    text = render_round(report)
    assert "**Not reviewed (3)**" in text
    assert "- lock file: `a.lock` (7 lines); `b.lock`" in text
    assert "- too large: `big.py` (150 lines)" in text


def test_a_share_is_never_rounded_to_all_or_nothing(make_report: Make) -> None:
    assert "99% of 412" in render_round(make_report(kpi={"coverage": 0.9999}))
    assert "1% of 412" in render_round(make_report(kpi={"coverage": 0.0001}))


def test_lost_answers_are_shown(make_report: Make) -> None:
    report = make_report(kpi={"discover_ok": 4, "discover_fail": 1}, warnings=["rep 3 said nothing"])
    text = render_round(report)
    assert "1 of 5 answers lost" in text
    assert "- rep 3 said nothing" in text


def test_many_blockers_are_listed_before_they_are_told(make_report: Make, make_finding: Make) -> None:
    blockers = [make_finding(id=f"F{n}", title=f"Fault {n}", blocking=True) for n in range(3)]
    text = render_round(make_report(blocking=blockers))
    assert text.index("- `F2` P1 Fault 2 — `kv/pages.py:11-12`") < text.index("#### `F0`")


def test_places_are_links_where_the_forge_shows_files(make_report: Make, make_finding: Make) -> None:
    head, base = "32497b255b44" + "0" * 28, "b" * 40
    findings = [make_finding(path="a b/ü#.py"), make_finding(id="F2", side="LEFT", line_start=3, line_end=3)]
    text = render_round(make_report(non_blocking=findings), blob_url="https://forge/blob")
    assert f"](https://forge/blob/{head}/a%20b/%C3%BC%23.py#L11-L12)" in text
    assert f"](https://forge/blob/{base}/kv/pages.py#L3)" in text
    assert "](" not in render_round(make_report(non_blocking=findings))


def test_the_kpi_has_the_keys_of_the_established_format_in_their_order_then_ours(make_report: Make) -> None:
    report = make_report()
    text = render_round(report)
    shown = json.loads(text.split("```json\n")[1].split("\n```")[0])
    assert list(shown)[: len(SEED_KEYS)] == SEED_KEYS
    assert shown == json.loads(render_kpi(report.kpi))
    assert list(shown["confirm"]) == ["candidates", "to_block", "confirm_fail"]
    assert list(shown["fact_check"]) == ["checked", "hold", "refuted", "parse_fail"]
    assert list(shown["recheck"]) == ["fixed", "still_open", "cannot_substantiate", "fail"]
    assert {"tokens_in", "tokens_out", "cost_usd"} <= set(shown)


def test_the_marker_names_pull_request_round_and_head(make_report: Make) -> None:
    head = "32497b255b44" + "0" * 28
    for render, kind in ((render_round, "round"), (render_review, "review")):
        assert read_marker(render(make_report())) == (kind, {"pull": 42, "round": 1, "head": head})


def test_secrets_are_redacted_from_all_that_is_posted(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    secret = "ghp_" + "a1B2" * 9
    says = dict.fromkeys(
        ("title", "body", "suggestion", "quoted_code", "evidence", "demoted"), f"token {secret}"
    )
    finding = make_finding(**says)
    report = make_report(
        blocking=[finding],
        warnings=[secret],
        strengths=[secret],
        unreviewed=[{"path": secret, "reason": secret}],
    )
    (comment,) = inline_comments(report, diff)
    outputs = [render_round(report), render_review(report), render_summary(report), comment.body]
    outputs += [to_json(report), to_sarif(report), str(check_run(report, diff))]
    for text in outputs:
        assert secret not in text
        assert secret.replace("_", "\\_") not in text
        assert "redacted:github-token" in text


words = st.lists(
    st.sampled_from(
        [
            *(
                "@octocat ",
                "fixes #12 ",
                "<img src=x>",
                "</details>",
                "<!-- whitesmoke:round {} -->",
                "```",
                "`",
                "~~~",
            ),
            *(
                "![a](http://x/y)",
                "[a](b)",
                "\n",
                "\n\n",
                "/ci",
                "\n/review\n",
                "lgtm",
                " ready",
                " to ci",
                "lgtm ready",
            ),
            *(
                "**",
                "|",
                "\n|-|\n",
                "\u200b",
                "\u202e",
                "\ud800",
                "\\",
                "&#64;u",
                "# ",
                "- ",
                "> ",
                "    ",
                "word ",
                "中",
            ),
        ]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=40, deadline=None)
@given(words, words, words, words)
def test_a_document_is_inert_whatever_the_models_say(
    diff: Diff, make_report: Make, make_finding: Make, page: Any, a: str, b: str, c: str, d: str
) -> None:
    hostile = make_finding(
        id=f"F{a}",
        title=f"t{a}",
        body=b,
        suggestion=c,
        evidence=d,
        quoted_code=a,
        path=b or "p",
        demoted=c,
        source=d,
    )
    item = {"id": "i", "checklist": a, "section": b, "text": c, "evidence": d, "findings": [hostile.id]}
    report = make_report(
        round_index=2,
        blocking=[hostile],
        non_blocking=[hostile.model_copy(update={"path": "kv/pages.py", "first_round": 2, "of": 0}), hostile],
        closed=[hostile],
        checklist=[{**item, "answer": "fail"}, {**item, "answer": "unsure", "id": "j", "findings": []}],
        strengths=[a, b],
        warnings=[c, d],
        unreviewed=[{"path": a or "p", "reason": d}],
        verdict={"outcome": "BLOCKED", "blocking": 1, "reasons": [a, c]},
    )
    documents = [render_round(report), render_review(report, diff)]
    documents += [comment.body for comment in inline_comments(report, diff)]
    assert len(documents) == 3
    for text in documents:
        text.encode()
        shown = page(text)
        tags = re.findall(
            r"<[^>]*>", re.sub(r"<code>.*?</code>|<!-- whitesmoke:\w+ .*? -->\n", "", "".join(shown.html))
        )
        assert set(tags) <= {
            "<details>",
            "<summary>",
            "</summary>",
            "</details>",
            "<b>",
            "</b>",
            "<i>",
            "</i>",
            "<sub>",
            "</sub>",
        }
        assert len(re.findall(r"<!--\s*whitesmoke", text, re.IGNORECASE)) == 1
        assert text.startswith("<!-- whitesmoke:")
        assert shown.calls in ([], ["#42"])
        assert not shown.kinds & {"image", "table_open", "code_block", "hr", "link_open"}
        assert not re.search(r"lgtm\s+ready\s+to\s+ci", text, re.IGNORECASE)
        assert not re.search(r"^/[a-z]+(\s|$)", text, re.MULTILINE)
