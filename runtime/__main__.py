"""`python -m runtime`: the decode engine's benchmark."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    status: int = arguments.command(arguments)
    return status


def _bench(arguments: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        print("no GPU: a benchmark of the references would mean nothing")
        return 1
    from kernels.bench.harness import copy_bandwidth
    from runtime.bench import decode
    from runtime.weights import random_weights

    bandwidth = copy_bandwidth()
    weights = random_weights(decode.QWEN3_06B, 0, torch.device("cuda"))
    print(f"Qwen3-0.6B shape, random weights, context {arguments.context}, {torch.cuda.get_device_name()}, "
          f"torch {torch.__version__}, copy {bandwidth / 1e12:.3f} TB/s")  # fmt: skip
    records = []
    for backend in arguments.backend:
        for batch in arguments.batch:
            figures = decode.measure(decode.QWEN3_06B, weights, batch, arguments.context, backend, bandwidth)
            print(
                f"{backend:7} batch {batch:3}  step {figures.step_ms:.3f} ms  replay {figures.replay_ms:.3f} ms"
                f"  eager {figures.eager_ms:.2f} ms  floor {figures.floor_ms:.3f} ms"
                f" ({figures.floor_ms / figures.replay_ms:.0%})  {batch / figures.step_ms * 1e3:.0f} tokens/s"
                f"  {figures.nodes} nodes  capture {figures.capture_s:.2f} s",
                flush=True,
            )
            records.append(asdict(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime", description="The decode engine: benchmark.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    bench = commands.add_parser(
        "bench", help="what a decode step costs, captured and eager, beside its memory floor"
    )
    bench.add_argument("--batch", type=int, nargs="+", default=[1, 8, 16, 64], help="lanes of a step")
    bench.add_argument("--context", type=int, default=512, help="tokens of each lane")
    bench.add_argument("--backend", nargs="+", default=["xqa", "triton"], choices=["xqa", "triton"])
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    bench.set_defaults(command=_bench)
    return parser


if __name__ == "__main__":
    sys.exit(main())
