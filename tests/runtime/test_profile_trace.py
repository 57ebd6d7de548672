"""What a trace is read as: replays by correlation, gaps with and without work in them, forbidden calls counted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.profile.trace import (
    WINDOW,
    Gap,
    TraceError,
    calls_by_name,
    cut,
    gaps,
    kernels,
    launches,
    read_events,
    replays,
    violations,
)

Event = Mapping[str, Any]


def window(start: float = 0.0, end: float = 10_000.0, name: str = WINDOW) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start, "args": {}}


def call(name: str, at: float, correlation: int, cat: str = "cuda_runtime") -> Event:
    args = {"correlation": correlation, "cbid": 211}
    return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": 2.0, "pid": 1, "tid": 1, "args": args}


def work(start: float, end: float, correlation: int, cat: str = "kernel", name: str = "k") -> Event:
    args = {"correlation": correlation, "stream": 7}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": end - start,
        "pid": 0,
        "tid": 7,
        "args": args,
    }


def replayed(at: float, correlation: int, *spans: tuple[float, float]) -> list[Event]:
    """A graph launch and its kernels."""
    return [call("cudaGraphLaunch", at, correlation), *(work(*span, correlation) for span in spans)]


def test_a_replay_is_all_that_its_launch_ran_on_whatever_stream() -> None:
    events = [
        window(),
        *replayed(200, 2, (320, 330), (300, 310), (305, 340)),
        *replayed(100, 1, (110, 120), (115, 150)),
        work(151, 152, 9, "gpu_memcpy"),
        work(500, 510, 2, "gpu_memset"),
    ]
    found = replays(cut(events))
    assert [(one.call.correlation, one.start, one.end, len(one.activities)) for one in found] == [
        (1, 110, 150, 2),
        (2, 300, 510, 4),
    ]


def test_a_gap_without_work_is_idle_throughout() -> None:
    trace = cut([window(), *replayed(0, 1, (10, 100)), *replayed(5, 2, (108, 200))])
    assert gaps(trace, replays(trace)) == [Gap(idle=8, to_activity=8, to_replay=8)]


def test_work_between_replays_is_not_idle_and_ends_the_wait_for_activity() -> None:
    trace = cut(
        [
            window(),
            *replayed(0, 1, (10, 100)),
            call("cudaMemcpyAsync", 1, 3),
            work(103, 110, 3, "gpu_memcpy"),
            call("cuLaunchKernel", 2, 4, "cuda_driver"),
            work(108, 115, 4),
            *replayed(5, 2, (120, 200)),
        ]
    )
    # 3 before the copy and 5 after the kernel; copy and kernel overlap from 108 to 110.
    assert gaps(trace, replays(trace)) == [Gap(idle=8, to_activity=3, to_replay=20)]


def test_a_short_piece_of_work_within_a_long_one_ends_nothing() -> None:
    trace = cut(
        [
            window(),
            *replayed(0, 1, (10, 100)),
            work(103, 115, 3, "gpu_memcpy"),
            work(104, 106, 4),
            *replayed(5, 2, (120, 200)),
        ]
    )
    assert gaps(trace, replays(trace)) == [Gap(idle=8, to_activity=3, to_replay=20)]


def test_work_under_way_when_a_replay_ends_leaves_no_wait_for_activity() -> None:
    trace = cut(
        [
            window(),
            *replayed(0, 1, (10, 85), (95, 100)),
            call("cudaMemcpyAsync", 1, 3),
            work(90, 112, 3, "gpu_memcpy"),
            *replayed(5, 2, (120, 200)),
        ]
    )
    assert gaps(trace, replays(trace)) == [Gap(idle=8, to_activity=0, to_replay=20)]


def test_a_copy_that_runs_past_the_next_replays_start_leaves_nothing_idle() -> None:
    trace = cut(
        [
            window(),
            *replayed(0, 1, (10, 100)),
            work(100, 130, 3, "gpu_memcpy"),
            *replayed(5, 2, (120, 200)),
            *replayed(6, 4, (207, 300)),
        ]
    )
    assert gaps(trace, replays(trace)) == [Gap(0, 0, 20), Gap(7, 7, 7)]


def test_a_replay_that_starts_before_the_last_one_ended_leaves_no_gap() -> None:
    trace = cut([window(), *replayed(0, 1, (10, 100)), *replayed(5, 2, (98, 200))])
    assert gaps(trace, replays(trace)) == [Gap(0, 0, 0)]


def test_idle_time_is_the_same_whatever_order_the_events_come_in() -> None:
    events = [
        window(),
        *replayed(0, 1, (10, 60), (60, 100)),
        work(104, 106, 7, "gpu_memset"),
        *replayed(5, 2, (120, 200)),
        *replayed(9, 3, (203, 300)),
    ]
    expected = [Gap(idle=18, to_activity=4, to_replay=20), Gap(3, 3, 3)]
    for turn in range(len(events)):
        trace = cut([*events[turn:], *events[:turn]])
        assert gaps(trace, replays(trace)) == expected


def test_a_launch_without_records_is_an_error_and_not_a_gap() -> None:
    trace = cut([window(), *replayed(0, 1, (10, 100)), *replayed(5, 2), *replayed(9, 3, (203, 300))])
    with pytest.raises(TraceError, match="1 of 3 graph launches"):
        replays(trace)


def test_only_what_the_window_set_going_counts() -> None:
    events = [
        window(1000, 2000),
        call("cudaDeviceSynchronize", 500, 1),
        call("cudaMalloc", 2100, 2),
        call("cudaStreamSynchronize", 1500, 3),
        *replayed(1990, 4, (2500, 2600)),
        *replayed(2050, 5, (2700, 2800)),
        call("cudaLaunchKernel", 990, 6),
        work(1000, 1010, 6),
    ]
    trace = cut(events)
    assert [one.correlation for one in trace.calls] == [3, 4]
    assert [one.correlation for one in trace.activities] == [6, 4]
    assert {name: count for name, count in violations(trace).items() if count} == {"stream syncs": 1}


def test_kernels_are_counted_with_what_set_them_going() -> None:
    events = [
        window(1000, 2000),
        *replayed(900, 1, (990, 995), (1000, 1100)),
        *replayed(1100, 2, (1200, 1300), (2100, 2200)),
        call("cuLaunchKernel", 1150, 3, "cuda_driver"),
        work(1320, 1330, 3),
        work(1340, 1350, 3, "gpu_memcpy"),
    ]
    assert kernels(cut(events)) == 3


@pytest.mark.parametrize("windows", [[], [window(), window()], [window(name="something else")]])
def test_a_trace_without_one_window_is_refused(windows: list[Event]) -> None:
    with pytest.raises(TraceError, match="expected one annotation"):
        cut([*windows, *replayed(0, 1, (10, 100))])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaMalloc", "device allocations"),
        ("cudaMalloc_v3020", "device allocations"),
        ("cudaMallocAsync_v11020_ptsz", "device allocations"),
        ("cuMemAlloc_v2", "device allocations"),
        ("cuMemCreate", "device allocations"),
        ("cudaFree", "device allocations"),
        ("cudaMallocHost", "pinned allocations"),
        ("cudaHostAlloc", "pinned allocations"),
        ("cudaHostRegister", "pinned allocations"),
        ("cuMemHostAlloc", "pinned allocations"),
        ("cuMemAllocHost_v2", "pinned allocations"),
        ("cudaDeviceSynchronize", "device-wide syncs"),
        ("cuCtxSynchronize", "device-wide syncs"),
        ("cudaStreamSynchronize", "stream syncs"),
        ("cuStreamSynchronize", "stream syncs"),
        ("cudaMemcpy", "blocking copies"),
        ("cudaMemcpy2D", "blocking copies"),
        ("cuMemcpyDtoH_v2", "blocking copies"),
        ("cudaMemcpyAsync", None),
        ("cudaMemcpy2DAsync", None),
        ("cuMemcpyHtoDAsync_v2", None),
        ("cudaEventSynchronize", None),
        ("cudaStreamWaitEvent", None),
        ("cudaEventQuery", None),
        ("cudaGraphLaunch", None),
        ("cudaFreeHost", None),
    ],
)
def test_forbidden_calls_are_counted_each_under_its_name(name: str, kind: str | None) -> None:
    cat = "cuda_runtime" if name.startswith("cuda") else "cuda_driver"
    counts = violations(cut([window(), call(name, 5, 1, cat), call(name, 9, 2, cat)]))
    assert {key: count for key, count in counts.items() if count} == ({kind: 2} if kind else {})
    assert len(counts) == 6, "a name that is not there reads as one that was not looked for"


@pytest.mark.parametrize(
    ("name", "pageable"),
    [
        ("Memcpy HtoD (Pageable -> Device)", 1),
        ("Memcpy DtoH (Device -> Pageable)", 1),
        ("Memcpy HtoD (Pinned -> Device)", 0),
        ("Memcpy DtoD (Device -> Device)", 0),
    ],
)
def test_pageable_copies_are_told_by_the_gpus_record(name: str, pageable: int) -> None:
    trace = cut([window(), call("cudaMemcpyAsync", 5, 1), work(20, 21, 1, "gpu_memcpy", name)])
    assert violations(trace)["pageable copies"] == pageable


def test_launches_are_the_calls_that_give_the_gpu_work() -> None:
    names = ["cudaGraphLaunch", "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaMemcpyAsync",
             "cudaMemsetAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize"]  # fmt: skip
    trace = cut([window(), *(call(name, at, at) for at, name in enumerate(names))])
    assert launches(trace) == 6
    assert calls_by_name(trace)["cudaEventRecord"] == 1


def test_other_rows_of_a_trace_are_left_out() -> None:
    events: list[Event] = [
        window(),
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "id": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "ts": 3, "dur": 1, "args": {"External id": 1}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": WINDOW, "ts": 3, "dur": 1, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "ts": 4, "dur": 1, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "before", "ts": -100, "dur": 1, "args": {}},
    ]
    trace = cut(events)
    assert (len(trace.calls), len(trace.activities)) == (1, 0)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"events": []}))
    with pytest.raises(TraceError, match=r"trace\.json: no traceEvents"):
        read_events(path)
