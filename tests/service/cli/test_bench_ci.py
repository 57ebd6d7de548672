"""`whitesmoke bench ci` at small size: real processes and requests, nothing lost, nothing run twice."""

from __future__ import annotations

import json

import service.bench.ci as bench


def test_every_job_is_run_once_and_the_table_says_so() -> None:
    figures = bench.run(hosts=5, queued=20, singles=2, idle_seconds=0.5)
    assert (figures.lost, figures.twice, figures.failed) == (0, 0, ())
    assert figures.decisions >= 1
    assert figures.claim_max > 0
    shown = bench.render(figures)
    assert "| decision, 20 jobs and 5 runners |" in shown
    assert "0 jobs lost, 0 run twice" in shown
    assert json.loads(bench.render_json(figures))["runners"] == 5
