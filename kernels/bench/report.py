"""Runs the rows, prints the table, writes the JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton

from kernels import cuda, registry, target
from kernels.bench.harness import Figures, Row, copy_bandwidth, measure


def run(
    names: Sequence[str], *, with_peers: bool, json_file: Path | None, kpis_file: Path | None = None
) -> int:
    """Measure every row of the operations `names` and print as the figures come.

    `json_file` gets every figure, `kpis_file` what CI compares; see `kpi`.

    Returns:
        0 when all rows were measured (a missed target is a figure, not a failure), 1 when one broke or none ran.
    """
    if not torch.cuda.is_available():
        print("no GPU: a benchmark of the interpreter would mean nothing")
        return 1
    bandwidth = copy_bandwidth()
    about = describe(bandwidth)
    print("  ".join(f"{key} {value}" for key, value in about.items()))
    records, kpis, broken = [], [], 0
    for name in names:
        for row in registry.benchmark(name).rows():
            try:
                figures = measure(row, bandwidth, with_peers=with_peers)
            except Exception as error:  # noqa: BLE001 - one broken row must not hide the others
                broken += 1
                print(f"BROKEN {row.operation} {row.shape}: {type(error).__name__}: {error}", flush=True)
                continue
            finally:
                torch.cuda.empty_cache()
            print(line(row, figures), flush=True)
            records.append(record(row, figures))
            kpis.append(kpi(row, figures))
        # After each operation, so that an interrupted run keeps what it measured.
        if json_file:
            json_file.write_text(json.dumps({"about": about, "rows": records}, indent=1) + "\n")
        if kpis_file:
            kpis_file.write_text(json.dumps({"kpis": kpis}, indent=1) + "\n")
    return 1 if broken or not records else 0


def describe(bandwidth: float) -> dict[str, str]:
    """What a figure means nothing without: date, versions, device, copy bandwidth of this run."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "arch": target.current().arch,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "nvcc": cuda.nvcc_version() if cuda.available() else "absent",
        "copy": f"{bandwidth / 1e12:.3f} TB/s",
    }


def line(row: Row, figures: Figures) -> str:
    """One line of text: operation, shape, microseconds, share of copy bandwidth, peers with ratios, target."""
    parts = [f"{row.operation:28} {row.shape:34} {figures.us:9.2f} us"]
    if figures.hot_us is not None:
        parts.append(f"(hot {figures.hot_us:.2f})")
    if figures.outside_us is not None:
        parts.append(f"(outside a graph {figures.outside_us:.2f})")
    parts.append(
        f"floor {figures.floor_us:.2f}  {row.bytes_moved / figures.us / 1e3:.0f} GB/s  {figures.of_copy:.1%} of copy"
    )
    if figures.tflops:
        parts.append(f"{figures.tflops:.0f} TFLOP/s")
    for name, value in figures.peers.items():
        parts.append(
            f"{name} {value:.2f} ({value / figures.us:.2f}x)"
            if isinstance(value, float)
            else f"{name}: {value}"
        )
    if row.target:
        parts.append(f"target {row.target}: {_verdict(row, figures)}")
    return "  ".join(parts)


def record(row: Row, figures: Figures) -> dict[str, object]:
    """The row as JSON: what was measured, of what, and whether the target was met."""
    return {
        "operation": row.operation,
        "shape": row.shape,
        "bytes": row.bytes_moved,
        **asdict(figures),
        "target": row.target,
        "verdict": _verdict(row, figures) if row.target else "",
    }


def kpi(row: Row, figures: Figures) -> dict[str, object]:
    """The row as a number that CI compares with the base's: microseconds, beside them the share of copy bandwidth."""
    return {
        "name": f"{row.operation} {row.shape}",
        "value": figures.us,
        "unit": "us",
        "extra": {"copy_percent": round(100 * figures.of_copy, 2), "floor_us": round(figures.floor_us, 3)},
    }


def _verdict(row: Row, figures: Figures) -> str:
    if row.met is None:
        return "not judged"
    return "met" if row.met(figures) else "missed"
