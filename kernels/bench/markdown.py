"""`python -m kernels.bench.markdown FIGURES.json kernels/BENCHMARKS.md`: put measured figures into the page.

What lies between the two marks is replaced; the text around them, which says what limits a missed target, is people's.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Record = Mapping[str, Any]


def tables(figures: Mapping[str, Any]) -> str:
    """One table an operation, after a line on what they were measured with."""
    about = figures["about"]
    lines = [
        "Measured " + ", ".join(f"{name} {value}" for name, value in about.items() if name != "arch") + ".",
        "",
    ]
    for operation in dict.fromkeys(row["operation"] for row in figures["rows"]):
        rows = [row for row in figures["rows"] if row["operation"] == operation]
        lines += [f"### {operation}", "", *_table(rows), ""]
    return "\n".join(lines)


def replace_between_marks(page: str, text: str) -> str:
    """`page` with `text` between its marks.

    Raises:
        ValueError: the page has no such marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"page: expected the marks {BEGIN} and {END}, got none or one")
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def _table(rows: list[Record]) -> list[str]:
    arithmetic = any(row["tflops"] for row in rows)
    header = [
        "shape",
        "µs",
        "floor µs",
        "of copy",
        "TFLOP/s" if arithmetic else None,
        "peers: µs (ratio to ours)",
        "target",
    ]
    cells = [
        [
            row["shape"],
            _time(row),
            f"{row['floor_us']:.2f}",
            f"{row['of_copy']:.1%}",
            f"{row['tflops']:.0f}" if arithmetic else None,
            "; ".join(_peer(name, value, row["us"]) for name, value in row["peers"].items()),
            f"{row['target']}: **{row['verdict']}**" if row["target"] else "",
        ]
        for row in rows
    ]
    return [_line(header), _line(["---" if name else None for name in header]), *map(_line, cells)]


def _time(row: Record) -> str:
    extra = [f"hot {row['hot_us']:.2f}"] if row["hot_us"] is not None else []
    extra += [f"outside a graph {row['outside_us']:.2f}"] if row["outside_us"] is not None else []
    return f"**{row['us']:.2f}**" + (f" ({', '.join(extra)})" if extra else "")


def _peer(name: str, value: float | str, us: float) -> str:
    return f"{name} {value:.2f} ({value / us:.2f}×)" if isinstance(value, float) else f"{name}: {value}"


def _line(cells: list[str | None]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells if cell is not None) + " |"


def main() -> None:
    figures, page = Path(sys.argv[1]), Path(sys.argv[2])
    page.write_text(replace_between_marks(page.read_text(), tables(json.loads(figures.read_text()))))


if __name__ == "__main__":
    main()
