"""The benchmark: its floor is the bytes that the model has, its arrivals are real, its page holds what was measured."""

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.bench.markdown import BEGIN, END
from runtime.__main__ import main
from runtime.bench import arrivals, capture, cli, decode, engines, markdown, peers
from runtime.bench.arrivals import Load, Served
from runtime.engine import Engine, Output
from runtime.request import Request, RequestError, SamplingParameters, Token
from runtime.weights import Mlp, random_weights
from tests.runtime.kit import CONFIG, CPU


def test_the_floor_counts_every_matrix_once_and_the_cache() -> None:
    config = replace(CONFIG, tied_embedding=True, dtype=torch.bfloat16)
    weights = random_weights(config, 0, CPU)
    matrices = [weights.head]
    for layer in weights.layers:
        assert isinstance(layer.mlp, Mlp)
        projections = (layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down)
        matrices += [projection.weight for projection in projections]
    cache = config.layers * 3 * 100 * 2 * config.kv_heads * config.head_dim * 2
    assert decode.floor_bytes(config, batch=3, context=100) == sum(m.nbytes for m in matrices) + cache


@pytest.mark.parametrize(("graph", "overlap"), [(True, True), (True, False), (False, False)])
def test_measured_steps_decode_every_lane_and_pass_the_context_in_the_middle(
    graph: bool, overlap: bool
) -> None:
    config = replace(CONFIG, max_length=256)
    weights = random_weights(config, 0, CPU)
    engine = decode._decoding(
        config, weights, batch=3, context=40, backend="reference", graph=graph, overlap=overlap
    )
    assert isinstance(engine, Engine)
    assert (engine.graphs is not None) == graph
    running = list(engine.scheduler.running)
    assert len(running) == 3
    assert {len(request.prompt) for request in running} == {40 - decode.STEPS // 2}
    before = [request.length for request in running]
    decode.step_ms(engine, decode.STEPS)
    steps = decode.STEPS + decode.WARM_STEPS
    assert [request.length for request in running] == [length + steps for length in before]
    assert before[0] < 40 < running[0].length
    assert all(request.finish_reason is None for request in running)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU here can run the benchmark")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 1
    assert "no GPU" in capsys.readouterr().out


LOAD = Load(rate=50, seconds=40, prompt_tokens=4, output_tokens=3, seed=1)


def test_arrivals_are_a_poisson_process_of_their_seed() -> None:
    times = arrivals.arrival_times(LOAD)
    assert times == arrivals.arrival_times(LOAD)
    assert times != arrivals.arrival_times(replace(LOAD, seed=2))
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] < LOAD.seconds
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # About 2,000 gaps: the mean of an exponential is known within 3 of its 1/sqrt(2000); it equals its deviation.
    assert statistics.mean(gaps) == pytest.approx(1 / LOAD.rate, rel=3 * 2000**-0.5)
    assert statistics.stdev(gaps) == pytest.approx(1 / LOAD.rate, rel=0.15)


def test_a_rate_too_low_for_its_seconds_still_brings_one_request() -> None:
    assert arrivals.arrival_times(replace(LOAD, rate=0.001, seconds=1.0)) == [0.0]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0], 0.5, 3.0),
        ([3.0], 0.99, 3.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 101)], 0.07, 7.0),
        ([float(n) for n in range(1, 102)], 0.99, 100.0),
        ([5.0, 1.0, 4.0, 2.0, 3.0], 0.5, 3.0),
    ],
)
def test_percentiles_are_values_by_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert arrivals.percentile(values, share) == expected
    shuffled = random.Random(0).sample(values, len(values))
    assert arrivals.percentile(shuffled, share) == expected


class PretendTime:
    """A clock that only sleeping and pretended steps move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


class PretendEngine:
    """One token for each request a step; a step takes a second, and gives its tokens a step late."""

    def __init__(self, time: PretendTime, limit: int | None = None) -> None:
        self._time = time
        self._limit = limit
        self._serving: list[Request] = []
        self._late: list[Output] = []
        self.submitted: list[tuple[float, tuple[int, ...], int | None]] = []

    def submit(self, prompt: Sequence[int], sampling: SamplingParameters) -> Request:
        request = Request(f"r{len(self.submitted)}", tuple(prompt), sampling, 0)
        self._serving.append(request)
        self.submitted.append((self._time.now - 100, tuple(prompt), sampling.seed))
        return request

    def has_work(self) -> bool:
        return bool(self._serving or self._late)

    def step(self) -> list[Output]:
        assert self.has_work()
        self._time.now += 1
        late, self._late = self._late, []
        for request in list(self._serving):
            request.tokens.append(Token(0))
            self._late.append(Output(request, request.tokens[-1]))
            if len(request.tokens) == (self._limit or request.sampling.max_tokens):
                self._serving.remove(request)
        return late


def test_requests_are_submitted_when_they_are_due_and_their_wait_counts() -> None:
    time = PretendTime()
    engine = PretendEngine(time)
    sampling = SamplingParameters(max_tokens=2)
    served = arrivals.serve(engine, [[1], [2], [3]], [0.0, 0.5, 10.0], sampling, time, time.sleep)
    # The second comes while a step runs, the third long after all is done.
    assert engine.submitted == [(0.0, (1,), 0), (1.0, (2,), 1), (10.0, (3,), 2)]
    assert time.slept == [6.0]
    assert served == [Served(0.0, (2.0, 3.0)), Served(0.5, (3.0, 4.0)), Served(10.0, (12.0, 13.0))]
    row = arrivals.figures(served, "xqa", "graph", rate=2.0)
    assert (row.requests, row.ttft_p50, row.ttft_p99) == (3, 2000.0, 2500.0)
    assert (row.gap_p50, row.gap_p99) == (1000.0, 1000.0)
    assert row.tokens_per_s == 6 / 13


def test_a_request_that_ends_early_spoils_the_figures_and_is_named() -> None:
    time = PretendTime()
    with pytest.raises(RuntimeError, match="request 0: expected 3 tokens, got 2"):
        arrivals.serve(
            PretendEngine(time, limit=2), [[1]], [0.0], SamplingParameters(max_tokens=3), time, time.sleep
        )


@pytest.mark.parametrize("mode", arrivals.MODES)
def test_a_real_engine_serves_arrivals_in_real_time(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arrivals.MODES, mode, ((1, 2) if "graph" in mode else None, arrivals.MODES[mode][1]))
    monkeypatch.setattr(arrivals, "BUCKETS", (1, 2))
    loads = [replace(LOAD, seconds=0.1), replace(LOAD, rate=100.0, seconds=0.1)]
    rows = list(arrivals.measure(CONFIG, random_weights(CONFIG, 0, CPU), "reference", loads, mode))
    assert [row.rate for row in rows] == [50, 100]
    for row, load in zip(rows, loads, strict=True):
        assert row.mode == mode
        assert row.requests == len(arrivals.arrival_times(load))
        assert 0 < row.ttft_p50 <= row.ttft_p99
        assert 0 < row.gap_p50 <= row.gap_p99
        assert 0 < row.tokens_per_s < row.requests * load.output_tokens / arrivals.arrival_times(load)[-1]


def test_transformers_is_measured_in_a_process_and_a_folder_of_its_own() -> None:
    config = replace(CONFIG, max_length=64)
    rows = peers.transformers(config, [2, 1], context=12, device=CPU, steps=3)
    assert [row.batch for row in rows] == [2, 1]
    for row in rows:
        assert row.decode_ms is not None, row.note
        assert row.decode_ms > 0
        assert row.name.startswith("transformers 5")
        assert f"step {row.decode_ms:.2f} ms" in cli.peer_line(row)


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("""print('{"skipped": "transformers cannot be imported"}')""", "transformers cannot be imported"),
        ("raise SystemExit('out of memory')", "failed: out of memory"),
        ("", "failed: no message"),
        ("import time; time.sleep(9)", "not done after 0.5 s"),
        # It stands in an empty folder, and does not search its own for modules.
        ("import os; raise SystemExit(str(os.listdir()))", "failed: []"),
        ("import os, sys; raise SystemExit(str(os.path.dirname(__file__) in sys.path))", "failed: False"),
    ],
)
def test_a_peer_that_is_not_there_or_breaks_is_a_reason_not_a_figure(
    script: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peer.py").write_text(script)
    monkeypatch.setattr(peers, "SCRIPT", tmp_path / "peer.py")
    monkeypatch.setattr(peers, "TIMEOUT_S", 0.5 if "sleep" in script else 60)
    (row,) = peers.transformers(CONFIG, [1], 8, CPU)
    assert (row.decode_ms, row.note) == (None, note)
    assert "no figure" in cli.peer_line(row)


def test_a_batch_that_breaks_leaves_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        """print('{"version": "5", "batch": 1, "decode_ms": 2.5}'); raise SystemExit('out of memory')"""
    )
    monkeypatch.setattr(peers, "SCRIPT", script)
    rows = peers.transformers(CONFIG, [1, 64], 8, CPU)
    assert [(row.decode_ms, row.note) for row in rows] == [
        (2.5, "eager, StaticCache, manual greedy loop"),
        (None, "failed: out of memory"),
    ]


def _figures() -> dict[str, Any]:
    decoded = decode.DecodeFigures(64, 512, "xqa", 2.0, 2.25, 1.5, 14.0, 0.75, 3.0, 228)
    arrived = arrivals.ArrivalFigures("xqa", "graph", 16.0, 60, 12.34, 56.78, 2.05, 9.876, 1023.6)
    peer = peers.PeerFigures("transformers 5.17.0", 64, 512, 48.4, "eager")
    absent = peers.PeerFigures("transformers", 1, 512, None, "cannot be imported")
    return {
        "about": {"date": "2026-11-30", "device": "a GPU", "arch": "sm90", "copy": "4.285 TB/s"},
        "decode": [asdict(decoded)],
        "peers": [asdict(peer), asdict(absent)],
        "arrivals": [asdict(replace(arrived, rate=48.0)), asdict(arrived)],
        "capture": [{"backend": "xqa", "buckets": list(engines.BUCKETS), "first_s": 4.125, "warm_s": 0.75,
                     "pool_bytes": 300 << 20}],
    }  # fmt: skip


def test_the_page_holds_every_part_that_was_measured(tmp_path: Path) -> None:
    file, page = tmp_path / "figures.json", tmp_path / "page.md"
    file.write_text(json.dumps(_figures()))
    page.write_text(f"# Measured\n\n{BEGIN}\nold 9.99\n{END}\n\nWhy.\n")
    markdown.main([str(file), str(page)])
    text = page.read_text()
    assert "old 9.99" not in text
    assert text.startswith("# Measured\n")
    assert text.endswith("Why.\n")
    for line in (
        "Measured date 2026-11-30, device a GPU, copy 4.285 TB/s.",
        "| 64 | xqa | 2.000 | 2.250 | **1.500** | 0.750 | 50% | 3.000 | 2.00× | 14.00 | 228 | 32,000 |",
        "| transformers 5.17.0 | 64 | 48.40 | 24.2× | eager |",
        "| transformers | 1 | none |  | cannot be imported |",
        "| 16 | graph | xqa | 60 | 12.3 | 56.8 | 2.05 | 9.88 | 1,024 |",
        "| xqa | 20 | 4.12 | 0.75 | 300 |",
    ):
        assert f"\n{line}\n" in text, line
    assert text.index("| 16 | graph") < text.index("| 48 | graph")
    markdown.main([str(file), str(page)])
    assert page.read_text() == text


def test_parts_that_were_not_measured_have_no_heading() -> None:
    figures = {key: value for key, value in _figures().items() if key in ("about", "capture")}
    assert [line for line in markdown.tables(figures).splitlines() if line.startswith("#")] == ["### Capture"]


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    file, page = tmp_path / "figures.json", tmp_path / "page.md"
    file.write_text(json.dumps(_figures()))
    page.write_text("# Measured\n")
    with pytest.raises(ValueError, match="expected the marks"):
        markdown.main([str(file), str(page)])


def test_there_are_twenty_buckets_up_to_64() -> None:
    assert len(set(engines.BUCKETS)) == 20
    assert (min(engines.BUCKETS), max(engines.BUCKETS)) == (1, 64)


def test_the_lines_printed_hold_the_figures() -> None:
    line = cli.decode_line(decode.DecodeFigures(64, 512, "xqa", 2.0, 2.25, 1.5, 14.0, 0.75, 3.0, 228))
    for part in ("step 2.000 ms", "without overlap 2.250", "(50%)", "(2.00x)", "228 nodes", "32000 tokens/s"):
        assert part in line
    line = cli.arrivals_line(
        arrivals.ArrivalFigures("xqa", "graph", 16.0, 60, 12.34, 56.78, 2.05, 9.876, 1023.6)
    )
    for part in ("16 requests/s", "p50 12.3 p99 56.8 ms", "p50 2.05 p99 9.88 ms", "1024 tokens/s"):
        assert part in line


def test_every_part_that_is_asked_for_is_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded = decode.DecodeFigures(64, 512, "xqa", 2.0, 2.25, 1.5, 14.0, 0.75, 3.0, 228)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(cli, "copy_bandwidth", lambda: 4e12)
    monkeypatch.setattr(cli, "describe", lambda bandwidth: {"copy": f"{bandwidth:g}"})
    monkeypatch.setattr(cli, "random_weights", lambda *_: None)
    monkeypatch.setattr(decode, "measure", lambda _config, _weights, batch, *_: replace(decoded, batch=batch))
    monkeypatch.setattr(
        capture, "measure", lambda *_: capture.CaptureFigures("xqa", engines.BUCKETS, 4.0, 1.0, 3 << 20)
    )
    monkeypatch.setattr(
        arrivals,
        "measure",
        lambda _config, _weights, backend, loads, mode: [
            arrivals.ArrivalFigures(backend, mode, load.rate, 9, 1.0, 2.0, 3.0, 4.0, 5.0) for load in loads
        ],
    )
    monkeypatch.setattr(
        peers,
        "transformers",
        lambda _config, batches, context, _device: [
            peers.PeerFigures("transformers 5", batch, context, 48.0, "eager") for batch in batches
        ],
    )
    file = tmp_path / "figures.json"
    asked = ["bench", "--backend", "xqa", "--batch", "1", "64", "--rates", "2", "4", "--json", str(file)]
    assert main(asked) == 0
    assert set(json.loads(file.read_text())) == {"about", "decode"}
    assert main([*asked, "--capture", "--arrivals", "--peers"]) == 0
    kept = json.loads(file.read_text())
    assert kept["about"] == {"copy": "4e+12"}
    assert [row["batch"] for row in kept["decode"]] == [1, 64]
    assert [row["batch"] for row in kept["peers"]] == [1, 64]
    assert [(row["mode"], row["rate"]) for row in kept["arrivals"]] == [
        (mode, rate) for mode in arrivals.MODES for rate in (2, 4)
    ]
    assert kept["capture"] == [
        {
            "backend": "xqa",
            "buckets": list(engines.BUCKETS),
            "first_s": 4.0,
            "warm_s": 1.0,
            "pool_bytes": 3 << 20,
        }
    ]
    printed = capsys.readouterr().out
    assert "capture of 20 buckets: first 4.00 s, warm 1.00 s, pool 3 MiB" in printed
    assert printed.count("requests/s") == 6
    markdown.tables(kept)


def test_what_the_shape_cannot_serve_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_arguments: object, _device: object) -> None:
        raise RequestError("prompt: expected at most 3976 tokens, got 9000")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cli, "_measure", refuse)
    assert main(["bench", "--context", "9000"]) == 2
    assert capsys.readouterr().err == "error: prompt: expected at most 3976 tokens, got 9000\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--batch", "0", "expected a whole number above 0, got 0"),
        ("--rates", "0", "expected a number above 0, got 0"),
        ("--seconds", "inf", "expected a number above 0, got inf"),
        ("--backend", "reference", "invalid choice: 'reference'"),
    ],
)
def test_sizes_that_measure_nothing_are_refused(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", option, value])
    assert message in capsys.readouterr().err
