"""From a round report to what people and machines read."""

from __future__ import annotations

from reviewer.report.check import Annotation, CheckRun, annotate, check_run
from reviewer.report.inline import InlineComment, inline_comments
from reviewer.report.kpi import render_kpi
from reviewer.report.marker import read_marker
from reviewer.report.placement import Placement, place
from reviewer.report.review import render_review
from reviewer.report.round import render_round
from reviewer.report.sarif import to_sarif
from reviewer.report.serial import json_schema, to_json
from reviewer.report.summary import render_summary

__all__ = [
    "Annotation",
    "CheckRun",
    "InlineComment",
    "Placement",
    "annotate",
    "check_run",
    "inline_comments",
    "json_schema",
    "place",
    "read_marker",
    "render_kpi",
    "render_review",
    "render_round",
    "render_summary",
    "to_json",
    "to_sarif",
]
