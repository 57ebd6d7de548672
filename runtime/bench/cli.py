"""The command `bench`: runs the parts that were asked for, prints each figure as it comes, and keeps them."""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kernels.bench.harness import copy_bandwidth
from kernels.bench.report import describe
from runtime.attention import AttentionBackendError
from runtime.attention.reference import ReferenceAttention
from runtime.attention.select import KINDS
from runtime.bench import arrivals, capture, decode, peers, serving
from runtime.bench.engines import QWEN3_06B, WARM, make_engine, random_prompts
from runtime.engine import Engine
from runtime.parallel.processes import RankError
from runtime.parallel.shard import ShardError
from runtime.request import RequestError
from runtime.server import shapes
from runtime.server.process import terminated_like_interrupted
from runtime.weights import Weights, random_weights

CPU_SHAPE, CPU_PROMPT, CPU_NEW = "tiny", 16, 200
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
    bench.add_argument(
        "--serve",
        action="store_true",
        help="instead: what clients of a server see at rising load, GPU or not",
    )
    bench.add_argument("--random", metavar="SHAPE", choices=shapes.NAMES, help="shape that is served")
    bench.add_argument("--tensor-parallel", type=_positive, default=1, metavar="N", help="GPUs that serve it")
    bench.add_argument(
        "--load",
        type=_positives,
        default=(1, 4, 16, 64),
        metavar="N,N,...",
        help="clients that ask again and again; beside them requests come at --rates",
    )
    bench.add_argument(
        "--cpu", action="store_true", help="instead: decode steps of a tiny shape by the references, no GPU"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    bench.add_argument(
        "--kpis", type=Path, metavar="FILE", help="also write what CI compares: milliseconds of decode steps"
    )
    bench.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure what `arguments` ask for; returns the exit status."""
    if arguments.serve:
        return _serve(arguments)
    if arguments.cpu:
        _on_cpu(arguments)
        return 0
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
    _keep(arguments.kpis, {"kpis": decode_kpis(figures["decode"])})
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


def _on_cpu(arguments: argparse.Namespace) -> None:
    """One thread's processor time, the lowest tenth of many steps: other programs on the host change that least."""
    torch.set_num_threads(1)
    config = shapes.shape(CPU_SHAPE, "cpu").config
    weights = random_weights(config, shapes.SEED, torch.device("cpu"))
    print(f"device CPU  torch {torch.__version__}  {CPU_SHAPE}, random weights", flush=True)
    kpis = []
    for batch in arguments.batch:
        engine = make_engine(
            config,
            weights,
            ReferenceAttention.name,
            max_batch=batch,
            tokens=CPU_PROMPT + CPU_NEW,
            max_step_tokens=batch * CPU_PROMPT,
            buckets=None,
            overlap=False,
        )
        for ids in random_prompts(config, batch, CPU_PROMPT, seed=0):
            engine.submit(ids, replace(WARM, max_tokens=CPU_NEW))
        engine.step()  # takes all prompts in
        ms = statistics.quantiles([_processor_ms(engine) for _ in range(CPU_NEW - 2)], n=10)[0]
        print(f"references  batch {batch:3}  step {ms:.3f} ms of processor time", flush=True)
        kpis.append({"name": f"decode step, references, batch {batch}", "value": ms, "unit": "ms"})
    _keep(arguments.kpis, {"kpis": kpis})


def _processor_ms(engine: Engine) -> float:
    started = time.process_time()
    engine.step()
    return (time.process_time() - started) * 1e3


def decode_kpis(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What CI compares with the base's: steps and replays in milliseconds, beside them the share of the memory floor."""
    return [
        {
            "name": f"decode {what}, {row['backend']}, batch {row['batch']}, context {row['context']}",
            "value": row[f"{what}_ms"],
            "unit": "ms",
            "extra": {"floor_percent": round(100 * row["floor_ms"] / row[f"{what}_ms"], 2)},
        }
        for row in rows
        for what in ("step", "replay")
    ]


def _serve(arguments: argparse.Namespace) -> int:
    on_gpu = torch.cuda.is_available()
    wanted = serving.Wanted(
        arguments.random or ("qwen3-0.6b" if on_gpu else "tiny"),
        arguments.tensor_parallel,
        arguments.load,
        tuple(arguments.rates),
        arguments.seconds,
        arguments.prompt,
        arguments.output,
    )
    about = describe(copy_bandwidth()) if on_gpu else {"device": "CPU", "torch": torch.__version__}
    if on_gpu:
        torch.cuda.empty_cache()  # the server needs the room
    figures: dict[str, Any] = {"about": about, "serving": []}
    print("  ".join(f"{key} {value}" for key, value in about.items()))
    print(
        f"{wanted.random}, random weights, {wanted.prompt_tokens} prompt tokens, {wanted.output_tokens} new ones",
        flush=True,
    )
    try:
        with terminated_like_interrupted():
            for row in serving.measure(wanted):
                print(serving_line(row), flush=True)
                figures["serving"].append(asdict(row))
    except (serving.ServingError, ShardError, RankError, torch.OutOfMemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _keep(arguments.json, figures)
    return 0


def serving_line(row: serving.ServingFigures) -> str:
    return (
        f"{row.load:15} {row.tokens_per_s:7.0f} tokens/s (engine alone {row.engine_tokens_per_s:.0f})"
        f"  TTFT p50 {row.ttft_p50:.2f} p99 {row.ttft_p99:.2f} ms  between tokens p50 {row.gap_p50:.2f} p99 {row.gap_p99:.2f} ms"
        f"  over the engine at p50: TTFT {row.added_ttft:+.2f} ms, between tokens {row.added_gap:+.2f} ms  ({row.requests} requests)"
    )


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


def _positives(text: str) -> tuple[int, ...]:
    return tuple(_positive(one) for one in text.split(","))


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value
