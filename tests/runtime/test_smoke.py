"""The smoke suite: it passes here, through servers and without, and every way in which it must fail does fail."""

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.__main__ import main
from runtime.server.process import ServerProcess
from runtime.smoke import cases, compare, golden, servers, visit
from runtime.smoke.cases import EAGER, GREEDY, SMALL, Case
from runtime.smoke.errors import SmokeError
from runtime.smoke.plan import plan
from runtime.smoke.run import run_suite
from tests.runtime.server_kit import WAIT, children, is_alive, until

ROOT = Path(__file__).parents[2]


def _made() -> dict[str, Any]:
    answer = {"ids": [1, 2], "text": "ab", "logprobs": [-0.5, -1.0], "finish_reason": "length", "error": ""}
    provenance = {
        "suite": "cpu",
        "arch": "cpu",
        "dtype": "float32",
        "torch": "2",
        "triton": "3",
        "commit": "c",
    }
    return {
        "provenance": provenance,
        "cases": {"a": [copy.deepcopy(answer) for _ in range(2)], "b": [answer]},
    }


def test_equal_answers_match() -> None:
    verdict = compare.compare(_made(), _made())
    assert verdict.passed
    assert str(verdict) == "total: 3, matched: 3, compare diff count: 0, visit failed: 0, other: 0"


def test_log_probabilities_have_a_tolerance() -> None:
    made = _made()
    made["cases"]["a"][0]["logprobs"][1] += 5e-5
    assert compare.compare(made, _made()).passed


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda made: made["cases"]["a"][1].update(ids=[1, 3]), "matched: 2, compare diff count: 1,"),
        (lambda made: made["cases"]["a"][1].update(text="aB"), "matched: 2, compare diff count: 1,"),
        (lambda made: made["cases"]["a"][1].update(ids=[9], text=""), "matched: 2, compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(finish_reason="stop"), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5, -1.1]), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5, float("nan")]), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5, None]), "compare diff count: 1,"),
        (lambda made: made["cases"]["b"][0].update(logprobs=[-0.5]), "compare diff count: 1,"),
        (
            lambda made: made["cases"]["b"][0].update(finish_reason="error", error="NaN"),
            "visit failed: 1, other: 0",
        ),
        (lambda made: made["cases"]["b"][0].update(finish_reason="abort"), "visit failed: 1, other: 0"),
        (
            lambda made: made["cases"]["b"][0].update(finish_reason="unknown"),
            "matched: 2, compare diff count: 0, visit failed: 0, other: 1",
        ),
        (
            lambda made: made["cases"].update(c=made["cases"]["b"]),
            "total: 4, matched: 3, compare diff count: 0, visit failed: 0, other: 1",
        ),
        (
            lambda made: made["cases"].pop("b"),
            "total: 3, matched: 2, compare diff count: 0, visit failed: 0, other: 1",
        ),
        (lambda made: made["cases"]["a"].append(made["cases"]["b"][0]), "total: 4, matched: 3,"),
        (lambda made: made["cases"]["a"].pop(), "total: 3, matched: 2, compare diff count: 0,"),
        (lambda made: made.update(cases={}), "total: 3, matched: 0"),
    ],
)
def test_what_must_not_pass(change: Change, line: str) -> None:
    made = _made()
    change(made)
    verdict = compare.compare(made, _made())
    assert not verdict.passed
    assert line in str(verdict)
    assert verdict.counts["total"] == sum(list(verdict.counts.values())[1:])


def test_nothing_asked_and_nothing_kept_is_no_pass() -> None:
    empty = _made() | {"cases": {}}
    assert not compare.compare(empty, empty).passed


@pytest.mark.parametrize("key", ["arch", "dtype", "suite"])
def test_answers_of_another_machine_are_refused_not_compared(key: str) -> None:
    kept = _made()
    kept["provenance"][key] = "sm120"
    with pytest.raises(SmokeError, match=f"kept for {key} sm120, this is .*: not comparable"):
        compare.compare(_made(), kept)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda kept: kept.pop("provenance"), "provenance: expected an object"),
        (lambda kept: kept["provenance"].pop("arch"), "provenance.arch: expected a string"),
        (lambda kept: kept.update(cases=[]), "cases: expected an object"),
        (lambda kept: kept["cases"].update(a={}), "cases['a']: expected a list of answers"),
        (lambda kept: kept["cases"].update(a=[1]), "cases['a'][0]: expected an object"),
        (lambda kept: kept["cases"]["a"][1].pop("text"), "cases['a'][1].text: expected a str"),
        (lambda kept: kept["cases"]["a"][1].update(ids=3), "cases['a'][1].ids: expected a list"),
        (
            lambda kept: kept["cases"]["b"][0].update(logprobs=["x"]),
            "cases['b'][0].logprobs: expected numbers",
        ),
    ],
)
def test_a_malformed_golden_is_named_with_the_place(change: Change, what: str, tmp_path: Path) -> None:
    kept = _made()
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(kept))
    assert golden.read(path) == kept
    change(kept)
    path.write_text(json.dumps(kept))
    with pytest.raises(SmokeError) as caught:
        golden.read(path)
    assert (
        str(caught.value) == f"{path}: {what}; restore it, or remove it and keep answers anew (--rebaseline)"
    )
    path.write_text('{"provenance": ')
    with pytest.raises(SmokeError, match="no JSON: Expecting value"):
        golden.read(path)


ONE = Case("one", "tiny", ("a",), GREEDY, (*SMALL, *EAGER))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (replace(ONE, model="huge"), "case one: model: expected one of qwen3-0.6b, .*, got huge"),
        (replace(ONE, concurrency=2), "case one: concurrency: expected a divisor of 1 prompts, got 2"),
        (replace(ONE, sampling=[]), "case one: sampling: expected one for each of 1 prompts, got 0"),
        (replace(ONE, arguments=("--pages", "1")), "case one: pages: expected at least 2, got 1"),
        (replace(ONE, arguments=("--pagse", "9")), "case one: serve: error: unrecognized arguments: --pagse"),
    ],
)
def test_a_case_that_is_none_is_named_before_anything_starts(
    case: Case, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(cases.SUITES, "cpu", [replace(ONE, name="first"), case])
    monkeypatch.setattr(servers, "ServerProcess", lambda *_: pytest.fail("a server was started"))
    with pytest.raises(SmokeError, match=text):
        run_suite("cpu", tmp_path)


def test_two_cases_of_one_name_are_refused() -> None:
    with pytest.raises(SmokeError, match="case one: there are two of this name"):
        plan([ONE, ONE], "cpu")


def test_a_server_is_shared_where_the_case_says_so_and_everything_is_equal() -> None:
    second, third = replace(ONE, name="two", shared=True), replace(ONE, name="three")
    other = replace(ONE, name="four", model="tiny-yarn", shared=True)
    groups = plan([ONE, second, third, other], "cpu")
    assert [[planned.case.name for planned in group] for group in groups] == [
        ["one", "two"],
        ["three"],
        ["four"],
    ]


def test_requests_are_asked_in_waves_of_the_cases_concurrency() -> None:
    (planned,) = plan([replace(ONE, prompts=("a", "b", "c", "d"), concurrency=2)], "cpu")[0]
    assert [[prompt for prompt, _ in wave] for wave in planned.waves] == [["a", "b"], ["c", "d"]]
    assert planned.config.gather == 2


def test_every_suite_can_be_planned_on_its_device() -> None:
    assert len(plan(cases.SUITES["cpu"], "cpu")) == 11
    assert sum(planned.config.tensor_parallel == 2 for (planned,) in plan(cases.SUITES["tp2"], "cpu")) == 6


@pytest.fixture
def small_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Three cases of the CPU suite that have two servers, and a folder of goldens of their own."""
    monkeypatch.setitem(
        cases.SUITES,
        "cpu",
        [case for case in cases.SUITES["cpu"] if case.name.startswith(("greedy", "sampled", "stop"))],
    )
    monkeypatch.setattr(golden, "FOLDER", tmp_path / "goldens")
    return tmp_path


def test_keep_then_match_then_a_change_is_shown(
    small_suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the engine itself answers is kept; servers give the same."""
    out = ["--out", str(small_suite / "out")]
    assert main(["smoke", "--suite", "cpu", "--direct", *out]) == 2
    assert "no kept answers for this architecture" in capsys.readouterr().err
    summary = json.loads((small_suite / "out/summary.json").read_text())
    assert (summary["passed"], "no kept answers" in summary["error"]) == (False, True)
    assert main(["smoke", "--suite", "cpu", "--direct", "--rebaseline", *out]) == 0
    assert main(["smoke", "--suite", "cpu", *out]) == 0
    assert "total: 7, matched: 7, compare diff count: 0, visit failed: 0, other: 0" in capsys.readouterr().out
    path = golden.path_of("cpu")
    kept = json.loads(path.read_text())
    kept["cases"]["greedy, reference"][1]["ids"][3] += 1
    path.write_text(json.dumps(kept))
    assert main(["smoke", "--suite", "cpu", "--direct", *out]) == 1
    printed = capsys.readouterr().out
    assert "greedy, reference, request 1: ids: expected" in printed
    assert "matched: 6, compare diff count: 1," in printed
    assert json.loads((small_suite / "out/cpu.json").read_text())["provenance"]["arch"] == "cpu"
    summary = json.loads((small_suite / "out/summary.json").read_text())
    assert summary["counts"] == {
        "total": 7, "matched": 6, "compare_diff_count": 1, "visit_failed": 0, "other": 0,
    }  # fmt: skip
    assert summary["passed"] is False
    (different,) = [one for one in summary["requests"] if one["status"] != "matched"]
    assert (different["case"], different["request"], different["status"]) == (
        "greedy, reference",
        1,
        "different",
    )
    assert all(one["seconds"] > 0 for one in summary["requests"])


def _outcome(tmp_path: Path) -> list[dict[str, Any]]:
    """The answers of ONE, asked of a server."""
    answers: list[dict[str, Any]] = run_suite("cpu", tmp_path).made["cases"]["one"]
    return answers


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cases.SUITES, "cpu", [ONE])


def test_a_server_that_does_not_start_is_a_failed_visit_with_its_words(
    small_suite: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = replace(ONE, arguments=("--pages", "2", "--page-size", "1", *EAGER))
    monkeypatch.setitem(cases.SUITES, "cpu", [tight])
    out = ["--out", str(small_suite / "out")]
    golden.FOLDER.mkdir()
    golden.path_of("cpu").write_text(json.dumps(_made() | {"cases": {"one": _made()["cases"]["b"]}}))
    assert main(["smoke", "--suite", "cpu", *out]) == 1
    printed = capsys.readouterr().out
    assert "total: 1, matched: 0, compare diff count: 0, visit failed: 1, other: 0" in printed
    assert (
        "ended before it served: ended with status 2; it said: error: prompt: 1 tokens and 2 new" in printed
    )
    # Nor is it kept.
    before = golden.path_of("cpu").read_text()
    assert main(["smoke", "--suite", "cpu", "--direct", "--rebaseline", *out]) == 1
    assert "not kept: each request has to have an answer" in capsys.readouterr().out
    assert golden.path_of("cpu").read_text() == before


def test_a_server_that_starts_too_slowly_is_a_failed_visit(
    one_case: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "START_SECONDS", 0.05)
    (answer,) = _outcome(tmp_path)
    assert answer["finish_reason"] == "error"
    assert answer["error"] == "server: not serving after 0.05 s; it said: nothing"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, ("UNAVAILABLE", "server: killed by SIGKILL; it said: tiny: serving at 127.0.0.1:")),
        (signal.SIGSTOP, ("no answer in 0.5 s; server: not ended after 0.5 s; it said: tiny: serving at",)),
    ],
)
def test_a_server_that_dies_or_hangs_is_a_failed_visit_and_gone(
    one_case: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    said: tuple[str, ...],
) -> None:
    monkeypatch.setattr(visit, "SECONDS", 0.5 if number is signal.SIGSTOP else 20.0)
    monkeypatch.setattr(servers, "END_SECONDS", 0.5)
    ready, pids = ServerProcess.wait_ready, []

    def wait_ready(self: ServerProcess, seconds: float) -> str:
        address = ready(self, seconds)
        pids.append(self.process.pid)
        os.kill(self.process.pid, number)
        return address

    monkeypatch.setattr(ServerProcess, "wait_ready", wait_ready)
    (answer,) = _outcome(tmp_path)
    assert answer["finish_reason"] == "error"
    for part in said:
        assert part in answer["error"]
    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()


def test_a_refused_request_is_a_failed_visit_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cases.SUITES, "cpu", [replace(ONE, prompts=([400],))])
    (answer,) = _outcome(tmp_path)
    assert answer["error"] == "INVALID_ARGUMENT: prompt: expected token ids from 0 to 303, got 400 at 0"


def test_an_engine_that_cannot_be_made_is_a_failed_visit_without_servers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = replace(ONE, arguments=("--pages", "2", "--page-size", "1", *EAGER))
    monkeypatch.setitem(cases.SUITES, "cpu", [tight])
    (answer,) = run_suite("cpu", tmp_path, is_direct=True).made["cases"]["one"]
    assert answer["error"].startswith("RequestError: prompt: 1 tokens and 2 new ones need 3 pages")


def test_told_to_end_it_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runtime", "smoke", "--suite", "cpu", "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: len(children(process.pid)) > 0, "a server is there")
        started = children(process.pid)
        process.terminate()
        assert process.communicate(timeout=WAIT)[1] == "interrupted\n"
        assert process.returncode == 130
    assert not any(is_alive(pid) for pid in started)


def test_an_unknown_suite_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "tpu"]) == 2
    assert "suite: expected one of cpu, gpu, tp2, got tpu" in capsys.readouterr().err


def test_the_engine_itself_passes_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "cpu", "--direct", "--out", str(tmp_path)]) == 0
    assert "compare diff count: 0, visit failed: 0, other: 0" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_servers_pass_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--suite", "cpu", "--out", str(tmp_path)]) == 0
    assert "compare diff count: 0, visit failed: 0, other: 0" in capsys.readouterr().out
