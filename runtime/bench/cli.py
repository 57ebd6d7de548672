"""The command `bench`: runs the parts that were asked for, prints each figure as it comes, and keeps them."""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kernels.bench.harness import copy_bandwidth
from kernels.bench.report import describe
from runtime.attention import AttentionBackendError
from runtime.attention.reference import ReferenceAttention
from runtime.attention.select import KINDS
from runtime.bench import arrivals, capture, decode, peers
from runtime.bench.engines import QWEN3_06B
from runtime.request import RequestError
from runtime.weights import Weights, random_weights

BACKENDS = tuple(kind for kind in KINDS if kind != ReferenceAttention.name)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `bench` to the program's commands."""
    bench = commands.add_parser(
        "bench", help="what a decode step costs beside its memory floor; latency, captures and peers"
    )
    bench.add_argument(
        "--batch",
        type=_positive,
        nargs="*",
        default=[1, 8, 16, 64],
        help="lanes of a step; none skips this part",
    )
    bench.add_argument("--context", type=_positive, default=512, help="tokens of each lane")
    bench.add_argument("--backend", nargs="+", default=["xqa", "triton"], choices=BACKENDS)
    bench.add_argument(
        "--peers", action="store_true", help="transformers too, at the same batches and context"
    )
    bench.add_argument("--capture", action="store_true", help="time and memory of capturing 20 buckets")
    bench.add_argument("--arrivals", action="store_true", help="latency while requests arrive at random")
    bench.add_argument(
        "--rates", type=_above_zero, nargs="+", default=[4.0, 16.0, 48.0], help="requests a second"
    )
    bench.add_argument(
        "--seconds", type=_above_zero, default=4.0, help="how long requests arrive at each rate"
    )
    bench.add_argument("--prompt", type=_positive, default=128, help="prompt tokens of an arriving request")
    bench.add_argument("--output", type=_positive, default=64, help="tokens that it is given")
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    bench.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure what `arguments` ask for; returns the exit status."""
    if not torch.cuda.is_available():
        print("no GPU: a benchmark of the references would mean nothing")
        return 1
    try:
        _measure(arguments, torch.device("cuda"))
    except (AttentionBackendError, RequestError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(arguments: argparse.Namespace, device: torch.device) -> None:
    bandwidth = copy_bandwidth()
    figures: dict[str, Any] = {"about": describe(bandwidth)}
    print("  ".join(f"{key} {value}" for key, value in figures["about"].items()))
    print(f"Qwen3-0.6B shape, random weights, context {arguments.context}", flush=True)
    weights = random_weights(QWEN3_06B, 0, device)
    _decode(arguments, weights, bandwidth, figures)
    _keep(arguments.json, figures)
    if arguments.capture:
        _capture(arguments, weights, figures)
        _keep(arguments.json, figures)
    if arguments.arrivals:
        _arrivals(arguments, weights, figures)
        _keep(arguments.json, figures)
    if arguments.peers:
        del weights
        torch.cuda.empty_cache()
        _peers(arguments, device, figures)
        _keep(arguments.json, figures)


def decode_line(row: decode.DecodeFigures) -> str:
    return (
        f"{row.backend:10} batch {row.batch:3}  step {row.step_ms:.3f} ms (without overlap {row.serial_ms:.3f})"
        f"  replay {row.replay_ms:.3f} ms  floor {row.floor_ms:.3f} ms ({row.floor_ms / row.replay_ms:.0%})"
        f"  eager {row.eager_ms:.2f} ms  torch twin {row.twin_ms:.3f} ms ({row.twin_ms / row.replay_ms:.2f}x)"
        f"  {row.nodes} nodes  {row.batch / row.step_ms * 1e3:.0f} tokens/s"
    )


def arrivals_line(row: arrivals.ArrivalFigures) -> str:
    return (
        f"{row.backend:10} {row.rate:5g} requests/s  {row.mode:17}  TTFT p50 {row.ttft_p50:.1f} p99 {row.ttft_p99:.1f} ms"
        f"  between tokens p50 {row.gap_p50:.2f} p99 {row.gap_p99:.2f} ms  {row.tokens_per_s:.0f} tokens/s"
        f"  ({row.requests} requests)"
    )


def peer_line(row: peers.PeerFigures) -> str:
    figure = "no figure" if row.decode_ms is None else f"step {row.decode_ms:.2f} ms"
    return f"{row.name}  batch {row.batch:3}  {figure}  ({row.note})"


def _decode(
    arguments: argparse.Namespace, weights: Weights, bandwidth: float, figures: dict[str, Any]
) -> None:
    figures["decode"] = []
    for backend in arguments.backend:
        for batch in arguments.batch:
            row = decode.measure(QWEN3_06B, weights, batch, arguments.context, backend, bandwidth)
            print(decode_line(row), flush=True)
            figures["decode"].append(asdict(row))


def _capture(arguments: argparse.Namespace, weights: Weights, figures: dict[str, Any]) -> None:
    figures["capture"] = []
    for backend in arguments.backend:
        row = capture.measure(QWEN3_06B, weights, backend)
        print(
            f"{backend:10} capture of {len(row.buckets)} buckets: first {row.first_s:.2f} s, warm {row.warm_s:.2f} s,"
            f" pool {row.pool_bytes / 2**20:.0f} MiB",
            flush=True,
        )
        figures["capture"].append(asdict(row))


def _arrivals(arguments: argparse.Namespace, weights: Weights, figures: dict[str, Any]) -> None:
    figures["arrivals"] = []
    loads = [
        arrivals.Load(rate, arguments.seconds, arguments.prompt, arguments.output) for rate in arguments.rates
    ]
    backend = arguments.backend[0]
    for mode in arrivals.MODES:
        for row in arrivals.measure(QWEN3_06B, weights, backend, loads, mode):
            print(arrivals_line(row), flush=True)
            figures["arrivals"].append(asdict(row))


def _peers(arguments: argparse.Namespace, device: torch.device, figures: dict[str, Any]) -> None:
    figures["peers"] = []
    for row in peers.transformers(QWEN3_06B, arguments.batch, arguments.context, device):
        print(peer_line(row), flush=True)
        figures["peers"].append(asdict(row))


def _keep(file: Path | None, figures: Mapping[str, Any]) -> None:
    """After each part, so that an interrupted run keeps what it measured."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text}")
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value
