"""`whitesmoke review` against an endpoint over real HTTP, from the command line to the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.checkouts import Repo
from tests.standin.openai_server import OpenAIServer, Reply

KEY = "sk-live-0123456789abcdefghijklmnop"
FAULT = {
    "path": "load.py",
    "line_start": 3,
    "line_end": 3,
    "severity": "P1",
    "title": "load returns what another caller cached",
    "body": "All calls share the default dict.",
    "quoted_code": "return cache[path]",
}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, run: Any) -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield server


def reviewer(server: OpenAIServer, findings: list[dict[str, Any]]) -> Any:
    """Finds the same in every pass, reads the file first where tools are offered, and lets the fact check hold."""

    def answer(body: dict[str, Any]) -> Reply:
        wanted = body["response_format"]["json_schema"]["schema"]["properties"]
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return server.tools(("read_file", '{"path": "load.py"}'))
        if "verdict" in wanted:
            return server.text('{"verdict": "hold", "evidence": "load.py:3"}')
        if "findings" in wanted:
            return server.text(json.dumps({"findings": findings}))
        return server.text(json.dumps({"title": FAULT["title"], "body": FAULT["body"]}))

    return answer


def test_a_finding_of_every_rep_blocks_and_the_tools_are_used(
    run, repo: Repo, endpoint: OpenAIServer
) -> None:
    endpoint.answer = reviewer(endpoint, [FAULT])
    ran = run("review", "--repo", repo.folder, "--model", "a", "--model", "b", "--format", "json")
    report = json.loads(ran.out)

    assert ran.status == 1
    assert (report["blocking"][0]["support"], report["blocking"][0]["of"]) == (5, 5)
    assert report["kpi"]["models"] == ["a", "b"]
    assert report["kpi"]["tokens_in"] > 0
    assert {call["name"] for call in report["tool_calls"]} == {"read_file"}
    assert all(call["ok"] for call in report["tool_calls"])


def test_a_review_without_findings_passes(run, repo: Repo, endpoint: OpenAIServer) -> None:
    endpoint.answer = reviewer(endpoint, [])
    ran = run("review", "--repo", repo.folder, "--model", "a", "--format", "summary")
    assert (ran.status, "round 1 - LGTM\n" in ran.out) == (0, True)


def test_an_endpoint_that_answers_nonsense_is_inconclusive_and_never_a_pass(
    run, repo: Repo, endpoint: OpenAIServer
) -> None:
    endpoint.answer = lambda body: endpoint.text("I think it is fine.")
    ran = run("review", "--repo", repo.folder, "--model", "a", "--format", "summary")
    assert ran.status == 3
    assert "only 0 of 5 reps answered" in ran.out


def test_a_recording_of_it_replays_the_same_report_and_the_key_is_nowhere(
    run, repo: Repo, endpoint: OpenAIServer, tmp_path: Any
) -> None:
    endpoint.answer = reviewer(endpoint, [{**FAULT, "body": f"The key {KEY} is in the log."}])
    arguments = ("review", "--repo", repo.folder, "--format", "json", "--recording", tmp_path / "round.jsonl")
    live = run(*arguments, "--model", "a")
    asked = len(endpoint.requests)
    replayed = run(*arguments, "--engine", "replay", "--data", tmp_path / "fresh")

    assert replayed.out == live.out
    assert len(endpoint.requests) == asked
    for text in (live.out, live.err, (tmp_path / "round.jsonl").read_text()):
        assert KEY not in text
