"""`python -m runtime profile`: overlap off beside overlap on, in one run, at Qwen3-0.6B's shape."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from runtime.attention.select import make_attention
from runtime.bench.engines import PAGE_SIZE, QWEN3_06B
from runtime.engine import Engine, EngineOptions
from runtime.kernel_ops import KernelOps
from runtime.model import Model
from runtime.profile.compare import Pair
from runtime.profile.picture import timeline
from runtime.profile.session import ProfileError, length_needed
from runtime.profile.table import table
from runtime.profile.trace import TraceError
from runtime.request import SamplingParameters
from runtime.weights import Weights, random_weights

MAX_STEP_TOKENS = 8192


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `profile`."""
    parser = commands.add_parser(
        "profile", help="GPU idle time, host work and launches of a decode step, overlap off beside on"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[64], help="lanes of a step")
    parser.add_argument("--steps", type=int, default=200, help="decode steps of each measurement")
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of each lane")
    parser.add_argument("--out", type=Path, default=Path("out/profile"), help="folder for traces and figures")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="where the SVG timeline goes, else with the traces"
    )
    parser.set_defaults(command=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        print("no GPU: there is no idle time to measure, nor anything to overlap with")
        return 1
    needed = max(
        length_needed(batch, arguments.context, arguments.steps, MAX_STEP_TOKENS) for batch in arguments.batch
    )
    if arguments.steps < 2 or needed > QWEN3_06B.max_length:
        print(
            f"error: --steps {arguments.steps} --context {arguments.context}: expected at least 2 steps, and sequences of"
            f" at most {QWEN3_06B.max_length} tokens, got {needed}; lower one of the two",
            file=sys.stderr,
        )
        return 2
    print(f"Qwen3-0.6B shape, random weights, context from {arguments.context} to {needed}, "
          f"{torch.cuda.get_device_name()}, torch {torch.__version__}; median / p99, microseconds")  # fmt: skip
    weights = random_weights(QWEN3_06B, 0, torch.device("cuda"))
    records: list[dict[str, object]] = []
    try:
        for batch in arguments.batch:
            _profile_batch(weights, batch, arguments, records)
    except (ProfileError, TraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "figures.json").write_text(json.dumps(records, indent=1) + "\n")
    print(f"\nfigures, tables, traces, pictures: {arguments.out}")
    return 0


def _profile_batch(
    weights: Weights, batch: int, arguments: argparse.Namespace, records: list[dict[str, object]]
) -> None:
    pair = _pair(weights, batch, arguments)
    pair.measure(arguments.steps)
    try:
        timelines = pair.trace(arguments.steps, arguments.out)
    finally:  # what was measured without the profiler stands, whatever becomes of its trace
        text = table(*pair.figures)
        print(f"\nbatch {batch}\n{text}", flush=True)
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"batch-{batch}-table.md").write_text(f"{text}\n")
        records += [asdict(figures) for figures in pair.figures]
    path = arguments.picture or arguments.out / f"batch-{batch}-timeline.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(timeline(*timelines))


def _pair(weights: Weights, batch: int, arguments: argparse.Namespace) -> Pair:
    length = length_needed(batch, arguments.context, arguments.steps, MAX_STEP_TOKENS)
    device = weights.embedding.device
    # Room for everything: nothing may be preempted while it is measured.
    pages = 1 + batch * (-(-length // PAGE_SIZE) + 1)

    def make_engine(overlap: bool) -> Engine:
        attention = make_attention("xqa", QWEN3_06B, batch, PAGE_SIZE, device)
        model = Model(QWEN3_06B, weights, KernelOps(device), attention)
        options = EngineOptions(
            pages=pages,
            page_size=PAGE_SIZE,
            max_batch=batch,
            max_step_tokens=MAX_STEP_TOKENS,
            buckets=(batch,),
            overlap=overlap,
        )
        return Engine(model, options)

    sampling = SamplingParameters(
        temperature=0.8, top_k=50, top_p=0.9, max_tokens=length - arguments.context, ignore_stop_ids=True
    )
    return Pair(make_engine, batch, arguments.context, sampling, QWEN3_06B.vocab_size)
