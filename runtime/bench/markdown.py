"""`python -m runtime.bench.markdown FIGURES.json ... runtime/BENCHMARKS.md`: put measured figures into the page.

Of several files the first says what was measured with; rows of a part that several have follow each other. What lies between
the page's two marks is replaced; the text around them, which says what limits a missed target, is people's.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.bench.markdown import replace_between_marks

Record = Mapping[str, Any]


def tables(figures: Mapping[str, Any]) -> str:
    """A line on what the figures were measured with, then one table for each part that was."""
    about = ", ".join(f"{name} {value}" for name, value in figures["about"].items() if name != "arch")
    lines = [f"Measured {about}."]
    parts = (
        ("decode", _decode),
        ("peers", _peers),
        ("arrivals", _arrivals),
        ("serving", _serving),
        ("capture", _capture),
    )
    for name, make in parts:
        if figures.get(name):
            lines += ["", f"### {TITLES[name]}", "", *make(figures)]
    return "\n".join(lines)


TITLES = {
    "decode": "A decode step",
    "peers": "Peers",
    "arrivals": "Latency under Poisson arrivals",
    "serving": "Through the server",
    "capture": "Capture",
}


def _decode(figures: Mapping[str, Any]) -> list[str]:
    header = (
        "batch", "backend", "step ms", "without overlap", "replay ms", "floor ms", "of floor", "torch twin ms", "ratio",
        "eager ms", "nodes", "tokens/s",
    )  # fmt: skip
    return _table(
        header,
        [
            (
                row["batch"],
                row["backend"],
                f"{row['step_ms']:.3f}",
                f"{row['serial_ms']:.3f}",
                f"**{row['replay_ms']:.3f}**",
                f"{row['floor_ms']:.3f}",
                f"{row['floor_ms'] / row['replay_ms']:.0%}",
                f"{row['twin_ms']:.3f}",
                f"{row['twin_ms'] / row['replay_ms']:.2f}×",
                f"{row['eager_ms']:.2f}",
                row["nodes"],
                f"{row['batch'] / row['step_ms'] * 1e3:,.0f}",
            )
            for row in figures["decode"]
        ],
    )


def _peers(figures: Mapping[str, Any]) -> list[str]:
    ours = {}
    for row in figures.get("decode", ()):
        key = row["batch"], row["context"]
        ours[key] = min(row["step_ms"], ours.get(key, row["step_ms"]))

    def line(row: Record) -> tuple[object, ...]:
        step = ours.get((row["batch"], row["context"]))
        if row["decode_ms"] is None:
            return row["name"], row["batch"], "none", "", row["note"]
        ratio = f"{row['decode_ms'] / step:.1f}×" if step else ""
        return row["name"], row["batch"], f"{row['decode_ms']:.2f}", ratio, row["note"]

    return _table(
        ("peer", "batch", "ms a step", "over our step", "how"), [line(row) for row in figures["peers"]]
    )


def _arrivals(figures: Mapping[str, Any]) -> list[str]:
    header = (
        "requests/s", "engine", "backend", "requests", "TTFT p50 ms", "p99", "between tokens p50 ms", "p99", "tokens/s",
    )  # fmt: skip
    rows = sorted(figures["arrivals"], key=lambda row: row["rate"])
    return _table(
        header,
        [
            (
                f"{row['rate']:g}",
                row["mode"],
                row["backend"],
                row["requests"],
                f"{row['ttft_p50']:.1f}",
                f"{row['ttft_p99']:.1f}",
                f"{row['gap_p50']:.2f}",
                f"{row['gap_p99']:.2f}",
                f"{row['tokens_per_s']:,.0f}",
            )
            for row in rows
        ],
    )


def _serving(figures: Mapping[str, Any]) -> list[str]:
    header = (
        "shape", "GPUs", "load", "requests", "tokens/s", "engine alone", "TTFT p50 ms", "p99", "over the engine",
        "between tokens p50 ms", "p99", "over the engine",
    )  # fmt: skip
    return _table(
        header,
        [
            (
                row["shape"],
                row["ranks"],
                row["load"],
                row["requests"],
                f"{row['tokens_per_s']:,.0f}",
                f"{row['engine_tokens_per_s']:,.0f}",
                f"{row['ttft_p50']:.2f}",
                f"{row['ttft_p99']:.2f}",
                f"{row['ttft_p50'] - row['engine_ttft_p50']:+.2f}",
                f"{row['gap_p50']:.2f}",
                f"{row['gap_p99']:.2f}",
                f"{row['gap_p50'] - row['engine_gap_p50']:+.2f}",
            )
            for row in figures["serving"]
        ],
    )


def _capture(figures: Mapping[str, Any]) -> list[str]:
    return _table(
        ("backend", "buckets", "first s", "warm s", "pool MiB"),
        [
            (
                row["backend"],
                len(row["buckets"]),
                f"{row['first_s']:.2f}",
                f"{row['warm_s']:.2f}",
                f"{row['pool_bytes'] / 2**20:.0f}",
            )
            for row in figures["capture"]
        ],
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [_line(header), _line(["---"] * len(header)), *map(_line, rows)]


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def merged(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several runs as one's."""
    figures: dict[str, Any] = dict(measured[0])
    for more in measured[1:]:
        for part, rows in more.items():
            if part != "about":
                figures[part] = [*figures.get(part, ()), *rows]
    return figures


def main(arguments: Sequence[str]) -> None:
    *files, page = map(Path, arguments)
    figures = merged([json.loads(file.read_text()) for file in files])
    page.write_text(replace_between_marks(page.read_text(), tables(figures)))


if __name__ == "__main__":
    main(sys.argv[1:])
