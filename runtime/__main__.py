"""`python -m runtime`: the decode engine's smoke test and benchmark."""

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
                f"  torch twin {figures.twin_ms:.3f} ms ({figures.twin_ms / figures.replay_ms:.2f}x)  {figures.nodes} nodes  capture {figures.capture_s:.2f} s",
                flush=True,
            )
            records.append(asdict(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n")
    return 0


def _smoke(arguments: argparse.Namespace) -> int:
    from runtime.smoke import run

    try:
        made = run.run_suite(arguments.suite, arguments.out)
        golden = run.golden_path(arguments.suite)
        if arguments.rebaseline and not golden.exists():
            verdict = None
        else:
            verdict = run.compare(made, run.read_golden(arguments.suite))
    except run.SmokeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if verdict is not None:
        for line in (*verdict.differences, *verdict.failed, *verdict.other):
            print(line)
        print(verdict)
    print(f"raw outputs: {arguments.out / arguments.suite}.json")
    if arguments.rebaseline:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text((arguments.out / f"{arguments.suite}.json").read_text())
        print(f"kept as {golden}: review the difference above before you commit it")
        return 0
    return 0 if verdict is not None and verdict.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime", description="The decode engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    smoke = commands.add_parser("smoke", help="serve kept requests and compare with kept answers")
    smoke.add_argument("--suite", required=True, help="cpu runs anywhere, gpu on one GPU")
    smoke.add_argument("--out", type=Path, default=Path("out/smoke"), help="folder for raw outputs")
    smoke.add_argument(
        "--rebaseline", action="store_true", help="show the difference, then keep these answers"
    )
    smoke.set_defaults(command=_smoke)

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
