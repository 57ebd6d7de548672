"""What CI asks of quire: `python -m quire.measure smoke OUT` and `python -m quire.measure bench OUT`."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import time
from pathlib import Path

import numpy

from quire.cli import main

TRACE = "examples/trace.json"
CALLS = 20


def simulate(trace: str, *options: str) -> str:
    """What the command line prints for a trace."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(["simulate", trace, *options])
    return said.getvalue()


def smoke(out: Path) -> None:
    """Each request's output, as raw answers in `trace.json`."""
    answers = []
    for line in sorted(simulate(TRACE).splitlines()):
        name, _, rest = line.partition(": ")
        ids, _, steps = rest.partition(" after ")
        answers.append({"text": name, "ids": ast.literal_eval(ids), "steps": int(steps.split()[0])})
    provenance = {"suite": "trace", "arch": "cpu", "dtype": "float32", "numpy": numpy.__version__}
    made = {"provenance": provenance, "cases": {"trace": answers}}
    (out / "trace.json").write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    print(f"{len(answers)} requests answered")


def bench(out: Path) -> None:
    """The time of eight long prompts, the best of some calls, in `kpis.json`."""
    trace, config = out / "long.json", out / "config.toml"
    prompts = [{"id": str(one), "prompt": [one] * 400, "max_tokens": 8} for one in range(1, 9)]
    trace.write_text(json.dumps(prompts), "utf-8")
    config.write_text("num_pages = 256\n", "utf-8")
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        simulate(str(trace), "--config", str(config))
        times.append(time.perf_counter() - start)
    kpi = {"name": "simulate 8 x 400 tokens", "value": min(times) * 1e3, "unit": "ms"}
    (out / "kpis.json").write_text(json.dumps({"kpis": [kpi]}) + "\n", "utf-8")
    print(f"{kpi['name']}: {kpi['value']:.3f} ms")


if __name__ == "__main__":
    {"smoke": smoke, "bench": bench}[sys.argv[1]](Path(sys.argv[2]))
