"""SARIF 2.1.0: findings for code scanning and editors."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from reviewer.model import Outcome, ReportedFinding, RoundReport, Severity, Side, State
from reviewer.report.escape import PRODUCT, block, inline, plain, visible
from reviewer.report.redacted import redacted
from reviewer.text import Text, load_text

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

Json = dict[str, Any]


def to_sarif(report: RoundReport, *, repository_uri: str = "") -> str:
    """One run, ending in a newline. Rules are the checklist's items, and for findings under none of them their
    category. `repository_uri` is where the repository is cloned from; without it a URN is made of its name.
    """
    report = redacted(report.model_copy(update={"fates": ()}))
    text = load_text("report/text", report.language)
    findings = (*report.blocking, *report.non_blocking, *report.closed)
    rules = _rules(report, findings)
    index = {rule["id"]: position for position, rule in enumerate(rules)}
    run: Json = {
        "tool": {"driver": {"name": PRODUCT, "version": version(PRODUCT), "rules": rules}},
        "language": "zh-CN" if report.language == "zh" else "en-US",
        "columnKind": "utf16CodeUnits",
        "automationDetails": {"id": f"{PRODUCT}/review/{report.pull.number}/{report.round_index}"},
        "invocations": [_invocation(report, text)],
        "versionControlProvenance": [
            {
                "repositoryUri": repository_uri or f"urn:git:{quote(report.pull.repo)}",
                "revisionId": report.pull.head_sha,
            }
        ],
        "results": [_result(finding, report, index, text) for finding in findings],
        "properties": {"verdict": str(report.verdict), "round": report.round_index},
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rules(report: RoundReport, findings: tuple[ReportedFinding, ...]) -> list[Json]:
    rules: dict[str, Json] = {
        item.id: {
            "id": item.id,
            "shortDescription": {"text": plain(item.text)},
            "properties": {"checklist": item.checklist, "section": item.section, "answer": item.answer.value},
        }
        for item in report.checklist
    }
    for finding in findings:
        for id_ in (_rule_id(finding), *finding.checklist_ids):
            rules.setdefault(id_, {"id": id_, "shortDescription": {"text": id_}})
    return list(rules.values())


def _rule_id(finding: ReportedFinding) -> str:
    return finding.checklist_ids[0] if finding.checklist_ids else f"category.{plain(finding.category)}"


def _invocation(report: RoundReport, text: Text) -> Json:
    """An inconclusive round is a failed execution: it must not pass for one that found nothing."""
    notifications: list[Json] = [
        {"level": "error", "message": {"text": plain(reason)}} for reason in report.verdict.reasons
    ]
    notifications += ({"level": "warning", "message": {"text": plain(one)}} for one in report.warnings)
    if report.verdict.detectors_only:
        notifications.append({"level": "warning", "message": {"text": text("detectors_only")}})
    notifications += (
        {
            "level": "note",
            "message": {"text": plain(one.reason)},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(one.path)}}],
        }
        for one in report.unreviewed
    )
    return {
        "executionSuccessful": report.verdict.outcome is not Outcome.INCONCLUSIVE,
        "toolExecutionNotifications": notifications,
    }


def _result(finding: ReportedFinding, report: RoundReport, index: dict[str, int], text: Text) -> Json:
    rule = _rule_id(finding)
    parts = [(finding.title, inline(finding.title)), (finding.body, block(finding.body))]
    if finding.suggestion:
        label = f"{text('suggestion')}{text('separator')}"
        parts.append((label + finding.suggestion, f"{label}\n\n{block(finding.suggestion)}"))
    result: Json = {
        "ruleId": rule,
        "ruleIndex": index[rule],
        "level": _level(finding),
        "baselineState": _baseline(finding, report.round_index),
        "message": {
            "text": "\n\n".join(visible(raw) for raw, _ in parts if raw),
            "markdown": "\n\n".join(safe for _, safe in parts if safe),
        },
        "locations": [{"physicalLocation": _place(finding)}],
        # An id is unique within its pull request alone.
        "partialFingerprints": {
            f"{PRODUCT}/finding": f"{report.pull.repo}#{report.pull.number}/{finding.id}"
        },
        "properties": {
            "severity": finding.severity.value,
            "blocking": finding.blocking,
            "support": finding.support,
            "of": finding.of,
            "factCheck": finding.fact_check and finding.fact_check.value,
            "evidence": finding.evidence,
            "recheck": finding.recheck and finding.recheck.value,
            "demoted": finding.demoted,
            "side": finding.side.value,
            "source": finding.source,
            "firstRound": finding.first_round,
            "lastRound": finding.last_round,
            "checklist": list(finding.checklist_ids),
            "tags": [finding.category],
        },
    }
    if finding.state in (State.DISMISSED, State.REFUTED):
        result["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": finding.evidence or finding.demoted or finding.state.value,
            }
        ]
    return result


def _place(finding: ReportedFinding) -> Json:
    place: Json = {"artifactLocation": _artifact(finding.path)}
    if finding.line_start:
        place["region"] = {"startLine": finding.line_start, "endLine": finding.line_end}
        # Lines of the base are not the head's: a viewer would show others than are meant.
        if finding.side is Side.LEFT:
            del place["region"]
        elif finding.quoted_code:
            place["region"]["snippet"] = {"text": finding.quoted_code}
    return place


def _artifact(path: str) -> Json:
    return {"uri": quote(path.lstrip("/").encode("utf-8", "replace")) or ".", "uriBaseId": "%SRCROOT%"}


def _level(finding: ReportedFinding) -> str:
    if finding.blocking:
        return "error"
    return "note" if finding.severity is Severity.P3 else "warning"


def _baseline(finding: ReportedFinding, round_index: int) -> str:
    if finding.state is State.FIXED:
        return "absent"
    return "new" if finding.first_round >= round_index else "unchanged"
