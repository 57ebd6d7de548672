"""The benchmark of the server: what a client process sees and what the engine alone gives, of the same requests."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from runtime.__main__ import main
from runtime.bench import arrivals, cli, markdown, serving
from runtime.bench.engines import WARM
from runtime.bench.load import Plan, Round, Seen, ShortAnswerError, load
from runtime.request import SamplingParameters
from runtime.server.from_proto import submit
from runtime.server.process import ServerProcess
from tests.runtime.server_kit import CONFIG, Running, ask, make_engine

ON_A_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="it would take the GPU's figures")
PLAN = Plan("", CONFIG.vocab_size, 3, 4, {"ignore_stop_ids": True}, ())
ROW = serving.ServingFigures("tiny", 1, "4 clients", 80, 620.5, 18.5, 28.8, 4.75, 10.9, 447.2, 14.0, 4.5)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the servers too: tests run side by side."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@ON_A_CPU
def test_it_prints_and_keeps_its_columns_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    words = [
        "bench",
        "--serve",
        "--load",
        "1,3",
        "--rates",
        "30",
        "--seconds",
        "0.2",
        "--prompt",
        "5",
        "--output",
        "4",
    ]
    assert main([*words, "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert [row["load"] for row in figures["serving"]] == ["1 clients", "3 clients", "30 requests/s"]
    for row in figures["serving"]:
        assert (row["shape"], row["ranks"]) == ("tiny", 1)
        assert row["requests"] >= int(row["load"].split()[0]) % 30
        assert 0 < row["ttft_p50"] <= row["ttft_p99"]
        assert 0 < row["gap_p50"] <= row["gap_p99"]
        assert min(row["engine_ttft_p50"], row["engine_gap_p50"], row["engine_tokens_per_s"]) > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"device CPU  torch {figures['about']['torch']}",
        "tiny, random weights, 5 prompt tokens, 4 new ones",
    ]
    for line in lines[2:]:
        for column in (
            "tokens/s (engine alone ",
            "TTFT p50 ",
            "between tokens p50 ",
            "over the engine at p50: TTFT ",
        ):
            assert column in line
    assert len(lines) == 5
    assert "### Through the server" in markdown.tables(figures)


def test_a_closed_loop_asks_again_until_its_seconds_have_passed_and_an_open_one_on_time() -> None:
    told: list[list[Seen]] = []
    rounds = (Round(clients=3), Round(clients=2, seconds=0.3), Round(times=(0.0, 0.05, 0.2)))
    with Running() as running:
        asyncio.run(load(replace(PLAN, address=f"127.0.0.1:{running.port}", rounds=rounds), told.append))
    once, closed, opened = told
    assert len(once) == 3
    assert len(closed) > 2
    assert max(arrival for arrival, _ in closed) < 0.3
    assert [arrival for arrival, _ in opened] == [0.0, 0.05, 0.2]
    for arrival, messages in (*once, *closed, *opened):
        assert sum(many for _, many in messages) == 4
        assert arrival < messages[0][0]


def test_a_short_answer_spoils_the_figures_and_is_named() -> None:
    # A token that every prompt soon draws ends it.
    sampling = {"temperature": 5.0, "stop_ids": list(range(0, 304, 2))}
    with Running() as running:
        plan = replace(PLAN, address=f"127.0.0.1:{running.port}", sampling=sampling, output_tokens=60)
        with pytest.raises(ShortAnswerError, match="request 0: expected 60 tokens, got"):
            asyncio.run(load(replace(plan, rounds=(Round(clients=1),)), lambda _: None))


def test_a_plan_survives_its_json_and_its_prompts_are_everyones() -> None:
    plan = replace(PLAN, rounds=(Round(2, 0.5), Round(times=(0.0, 1.5))))
    assert Plan.from_json(plan.to_json()) == plan
    first, again = plan.prompts(), Plan.from_json(plan.to_json()).prompts()
    drawn = [next(first) for _ in range(3)]
    assert drawn == [next(again) for _ in range(3)]
    assert len({tuple(ids) for _, ids in drawn}) == 3
    assert all(0 <= token < CONFIG.vocab_size for _, ids in drawn for token in ids)


def test_server_and_engine_draw_alike() -> None:
    assert submit(ask([1], **serving.SAMPLING), ()).sampling == WARM


def test_tokens_of_one_message_are_spread_over_the_time_since_the_one_before() -> None:
    served = serving.spread((0.5, [(1.0, 1), (2.0, 2), (2.5, 1), (2.6, 0)]))
    assert served == arrivals.Served(0.5, (1.0, 1.5, 2.0, 2.5))
    assert serving.spread((0.0, [(1.0, 2)])).tokens == (1.0, 1.0)


def test_the_engine_alone_is_asked_the_same_as_the_server() -> None:
    ticks: Iterator[float] = iter(float(tick) for tick in range(1000))
    sampling = SamplingParameters(max_tokens=4, ignore_stop_ids=True)
    served = serving.closed_loop(make_engine(), PLAN.prompts(), Round(2, 25.0), sampling, lambda: next(ticks))
    assert len(served) > 2
    assert all(len(one.tokens) == 4 and one.arrival < one.tokens[0] for one in served)
    assert max(one.arrival for one in served) < 26.0
    with pytest.raises(serving.ServingError, match="engine: expected 9 tokens of each request, got"):
        serving.closed_loop(
            make_engine(),
            PLAN.prompts(),
            Round(1),
            SamplingParameters(max_tokens=9, temperature=5.0, stop_ids=frozenset(range(0, 304, 2))),
        )


def test_the_page_and_the_line_hold_what_the_server_adds() -> None:
    line = cli.serving_line(ROW)
    for part in (
        "4 clients",
        "620 tokens/s",
        "alone 447",
        "TTFT +4.50 ms, between tokens +0.25 ms",
        "(80 requests)",
    ):
        assert part in line
    one = {"about": {"date": "today"}, "serving": [asdict(ROW)]}
    two = {"about": {"date": "later"}, "serving": [asdict(replace(ROW, ranks=2))], "capture": []}
    page = markdown.tables(markdown.merged([one, two]))
    assert page.startswith("Measured date today.")
    for ranks in (1, 2):
        row = (
            f"| tiny | {ranks} | 4 clients | 80 | 620 | 447 | 18.50 | 28.80 | +4.50 | 4.75 | 10.90 | +0.25 |"
        )
        assert f"\n{row}" in page


@ON_A_CPU
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--random tiny --output 1", "error: output: expected at least 2 tokens"),
        (
            "--random tiny --tensor-parallel 3",
            "error: server: ended before it served: ended with status 2; it said: error: ",
        ),
        (
            "--random tiny --prompt 250 --output 64",
            "error: client: the server refused: INVALID_ARGUMENT: prompt: ",
        ),
    ],
)
def test_what_cannot_be_served_is_an_error_of_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--serve", "--load", "1", "--rates", "9", "--seconds", "0.1", *words.split()]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(said)
    assert errors.count("\n") == 1


@ON_A_CPU
def test_a_client_that_is_never_done_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SPARE_SECONDS", 0.01)
    wanted = serving.Wanted("tiny", 1, (1,), (), 0.0, 3, 4)
    monkeypatch.setattr(ServerProcess, "wait_ready", lambda *_: "127.0.0.1:1")
    with pytest.raises(serving.ServingError, match=r"the client was not done after 0\.01 s"):
        list(serving.measure(wanted))


@pytest.mark.parametrize("value", ["0", "1,", "a", "1,-4"])
def test_loads_that_measure_nothing_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--serve", "--load", value])
    assert "argument --load" in capsys.readouterr().err
