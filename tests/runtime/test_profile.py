"""The profile's run over a real engine, a real trace, and what is printed and drawn of it."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from runtime.__main__ import main
from runtime.engine import Engine, EngineOptions
from runtime.profile import cli
from runtime.profile.clock import PREPARATION, Stretch
from runtime.profile.compare import Pair, trace_path
from runtime.profile.picture import timeline
from runtime.profile.record import HostPart, audit, record
from runtime.profile.session import (
    TRACE_WARM_STEPS,
    WARM_STEPS,
    Figures,
    ProfileError,
    Session,
    Spread,
    Timeline,
    length_needed,
)
from runtime.profile.table import table
from runtime.profile.trace import Activity, Call, Trace, replays, violations
from runtime.request import SamplingParameters
from tests.runtime.kit import CONFIG, CPU, PAGE_SIZE, make_model, weights_for

BATCH, CONTEXT, STEPS, STEP_TOKENS = 3, 9, 12, 16
SVG = "{http://www.w3.org/2000/svg}"
PARTS = ("schedule", "lay out", "copy", "check", "replay", "collect", "deliver")

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU test_profile_gpu.py runs it for real")


def make_engine(overlap: bool) -> Engine:
    model = make_model(CONFIG, weights_for(CPU))
    options = EngineOptions(
        pages=200,
        page_size=PAGE_SIZE,
        max_batch=BATCH,
        max_step_tokens=STEP_TOKENS,
        buckets=(BATCH,),
        overlap=overlap,
    )
    return Engine(model, options)


def sampling(spare: int = 0) -> SamplingParameters:
    needed = length_needed(BATCH, CONTEXT, STEPS, STEP_TOKENS) - CONTEXT + spare
    return SamplingParameters(max_tokens=needed, ignore_stop_ids=True)


def _all_of(pair: Pair, folder: Path) -> tuple[Timeline, Timeline]:
    pair.measure(STEPS)
    for session in pair._sessions:
        session.advance(STEPS)  # stands for the steps timed by events, which a CPU has none of
    return pair.trace(STEPS, folder)


@on_cpu
def test_engines_are_measured_in_turns_and_their_traces_kept(tmp_path: Path) -> None:
    pair = Pair(make_engine, BATCH, CONTEXT, sampling(), CONFIG.vocab_size)
    folder = tmp_path / "new" / "folder"
    timelines = _all_of(pair, folder)
    for figures in pair.figures:
        assert figures.tokens == STEPS * BATCH
        assert figures.step_us == pytest.approx(figures.seconds / STEPS * 1e6)
        assert figures.step is not None
        assert figures.step.median <= figures.step.p99 <= figures.seconds * 1e6
        assert {"preparation", "schedule", "replay", "deliver"} <= figures.parts.keys()
        assert figures.parts["preparation"].median <= sum(
            figures.parts[part].p99 for part in PREPARATION if part in figures.parts
        )
        events = json.loads(trace_path(folder, BATCH, figures.overlap).read_text())["traceEvents"]
        rows = [event for event in events if event.get("cat") == "host part" and event["name"] == "replay"]
        assert len(rows) == STEPS
    assert [one.overlap for one in timelines] == [False, True]
    text = table(*pair.figures)
    assert "not measured" in text
    assert len({line.count("|") for line in text.split("\n")}) == 1


@on_cpu
def test_the_length_needed_is_enough_with_little_to_spare(tmp_path: Path) -> None:
    """With the tokens that it says nothing ends (see above), with as many fewer as it may waste something does."""
    waste = (
        length_needed(BATCH, CONTEXT, STEPS, STEP_TOKENS)
        - CONTEXT
        - WARM_STEPS
        - TRACE_WARM_STEPS
        - 4 * STEPS
    )
    assert waste < 20
    with pytest.raises(ProfileError, match="profile fewer steps"):
        _all_of(Pair(make_engine, BATCH, CONTEXT, sampling(-waste), CONFIG.vocab_size), tmp_path)


@on_cpu
def test_a_request_that_ends_is_no_measurement() -> None:
    session = Session(make_engine(False), False, BATCH, CONTEXT, sampling(), CONFIG.vocab_size)
    with pytest.raises(ProfileError, match="a request ended after"):
        session.advance(200)


@on_cpu
def test_host_parts_lie_on_the_traces_clock(tmp_path: Path) -> None:
    stretches: list[Stretch] = []

    def loop() -> None:
        for _ in range(3):
            time.sleep(0.002)
            start = time.perf_counter_ns()
            with torch.profiler.record_function("mark"):
                torch.ones(300, 300) @ torch.ones(300, 300)
            stretches.append(Stretch("mark", start, time.perf_counter_ns()))

    recording = record(loop, tmp_path / "trace.json")
    seen = [
        event
        for event in recording.events
        if event.get("cat") == "user_annotation" and event["name"] == "mark"
    ]
    parts = recording.host_parts([stretches])
    assert len(seen) == len(parts) == 3
    for event, part in zip(sorted(seen, key=lambda event: float(event["ts"])), parts, strict=True):
        # The two clocks are read some microseconds apart; this machine may be interrupted in between.
        assert part.start == pytest.approx(float(event["ts"]), abs=500)
        assert part.end == pytest.approx(float(event["ts"]) + event["dur"], abs=500)


@on_cpu
def test_a_warm_up_does_not_count(tmp_path: Path) -> None:
    order: list[str] = []

    def named(name: str) -> None:
        order.append(name)
        with torch.profiler.record_function(name):
            time.sleep(0.001)

    recording = record(lambda: named("counted"), tmp_path / "trace.json", lambda: named("warming"))
    assert order == ["warming", "counted"]
    spans = {event["name"]: float(event["ts"]) for event in recording.events if event.get("ph") == "X"}
    window = recording.trace()
    assert spans["warming"] < window.start <= spans["counted"] <= window.end


@on_cpu
def test_a_trace_without_a_gpu_has_no_calls_and_no_replays(tmp_path: Path) -> None:
    seen = audit(lambda: torch.ones(3) + 1, tmp_path / "trace.json")
    assert set(seen.counts.values()) == {0}
    assert replays(seen.trace) == []
    assert not seen.trace.activities


def test_a_spread_is_the_median_and_the_99th_of_a_hundred() -> None:
    values = [float(number) for number in range(1, 101)]
    assert Spread.of(values[::-1]) == Spread(50.5, 99.0)
    assert Spread.of([3.0]) == Spread(3.0, 3.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 2.0)


def test_the_table_has_off_beside_on() -> None:
    off = Figures(
        False, 64, 640, 0.02, parts={"preparation": Spread(150, 200)}, violations={"stream syncs": 7}
    )
    on = Figures(
        True, 64, 640, 0.016, parts={"preparation": Spread(90, 101.25)}, violations={"stream syncs": 0}
    )
    on.step = Spread(1599.5, 1700)
    on.event_gaps = {"to replay": Spread(5, 1234.5)}
    lines = table(off, on).split("\n")
    assert lines[0] == "|  | overlap off | overlap on |"
    assert "| tokens/s | 32,000 | 40,000 (1.25x) |" in lines
    assert "| step, mean | 2,000.0 | 1,600.0 |" in lines
    assert "| step | not measured | 1,599.5 / 1,700.0 |" in lines
    assert "| host: preparation | 150.0 / 200.0 | 90.0 / 101.2 |" in lines
    assert any(
        "until the next replay, copies done | not measured | 5.0 / 1,234.5 |" in line for line in lines
    )
    assert "| stream syncs, all traced steps | 7 | 0 |" in lines


def made_timeline(overlap: bool, period: float, gap: float, steps: int = 7, zero: float = 5e6) -> Timeline:
    """Replays of `period - gap` microseconds, each after a copy, with the host's parts before them."""
    host, calls, activities = [], [], []
    for step in range(steps):
        start = zero + step * period
        activities.append(
            Activity("Memcpy HtoD (Pinned -> Device)", "copy", start - 4, start - 2.5, 100 + step)
        )
        activities.append(Activity("fused_copy", "kernel", start - 2.4, start - 1, 200 + step))
        calls.append(Call("cudaGraphLaunch", start - 30, start - 10, step))
        length = (period - gap) / 10
        activities += [
            Activity("k", "kernel", start + number * length, start + (number + 0.99) * length, step)
            for number in range(9)
        ]
        activities.append(Activity("last", "kernel", start + 9 * length, start + period - gap, step))
        at = start - 190
        for part in PARTS:
            host.append(HostPart(part, at, at + 30))
            at += 30
    trace = Trace(
        zero, zero + steps * period, tuple(calls), tuple(sorted(activities, key=lambda one: one.start))
    )
    return Timeline(overlap, host, trace, replays(trace))


def rectangles(root: ElementTree.Element) -> Sequence[tuple[str, float, float]]:
    """Blocks as (what they are, x, width), of all panels from the top."""
    blocks = []
    for group in root.iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert box is not None
        blocks.append((str(title.text), float(box.attrib["x"]), float(box.attrib["width"])))
    return blocks


def test_the_picture_shows_off_above_on_in_whole_steps_and_close_up() -> None:
    picture = timeline(made_timeline(False, 2300, 300), made_timeline(True, 2008, 8))
    root = ElementTree.fromstring(picture)
    texts = [str(text.text) for text in root.iter(f"{SVG}text")]
    panels = [text for text in texts if text.startswith("overlap")]
    assert [text.split(":")[0] for text in panels] == ["overlap off", "overlap on"] * 2
    assert [text for text in texts if text.endswith("between replays")] == [
        "300.0 µs between replays",
        "8.0 µs between replays",
    ]
    assert texts.count("host") == texts.count("copies") == texts.count("GPU") == 4
    blocks = rectangles(root)
    assert sum(name.startswith("replay, 10 nodes") for name, _, _ in blocks) >= 3 + 3 + 2 + 2
    assert all(92 <= x <= x + width <= 1174.7 for _, x, width in blocks), "a block leaves its panel"
    height = float(root.attrib["height"])
    assert all(
        float(box.get("y", 0)) + float(box.attrib["height"]) <= height for box in root.iter(f"{SVG}rect")
    )


def test_a_picture_has_one_scale_for_both_so_that_lengths_compare() -> None:
    root = ElementTree.fromstring(timeline(made_timeline(False, 2300, 300), made_timeline(True, 2008, 8)))
    replayed = [width for name, _, width in rectangles(root) if name.startswith("replay, 10 nodes 2000.0")]
    (_, whole), *_ = Counter(round(width, 1) for width in replayed).most_common(1)
    assert whole == 6, "three whole replays of 2,000 us in each of two panels are not equally wide"


def test_names_of_kernels_are_escaped_in_the_picture() -> None:
    off, on = made_timeline(False, 2300, 300), made_timeline(True, 2008, 8)
    odd = Activity(
        "void copy<int, 4>(a && b)", "kernel", off.replays[3].end + 1, off.replays[3].end + 200, 999
    )
    trace = Trace(off.trace.start, off.trace.end, off.trace.calls, (*off.trace.activities, odd))
    root = ElementTree.fromstring(timeline(Timeline(False, off.host, trace, off.replays), on))
    assert any(name.startswith("void copy<int, 4>(a && b)") for name, _, _ in rectangles(root))


def test_too_few_replays_make_no_picture() -> None:
    with pytest.raises(ProfileError, match="profile more steps"):
        timeline(made_timeline(False, 2300, 300, steps=4), made_timeline(True, 2008, 8))


def test_a_made_timeline_breaks_no_rule() -> None:
    assert not any(violations(made_timeline(True, 2008, 8).trace).values())


@on_cpu
def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 1
    assert "no GPU" in capsys.readouterr().out


@on_cpu
def test_what_was_measured_is_kept_and_printed_though_its_trace_shows_no_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(make_engine, BATCH, CONTEXT, sampling(), CONFIG.vocab_size)
    monkeypatch.setattr(cli, "_pair", lambda *_: pair)
    arguments = argparse.Namespace(steps=STEPS, out=tmp_path / "out", picture=None)
    records: list[dict[str, object]] = []
    with pytest.raises(ProfileError, match="there are 0 and 0"):
        cli._profile_batch(weights_for(CPU), BATCH, arguments, records)
    printed = capsys.readouterr().out
    assert table(*pair.figures) in printed
    kept = (tmp_path / "out" / f"batch-{BATCH}-table.md").read_text()
    assert kept == f"{table(*pair.figures)}\n"
    off, on = json.loads(json.dumps(records))
    assert (off["overlap"], on["overlap"]) == (False, True)
    assert off["violations"] == dict.fromkeys(off["violations"], 0)
    assert {"device-wide syncs", "pageable copies"} <= off["violations"].keys()
    assert off["parts"]["preparation"]["median"] > 0
