"""What is asked of which server: shapes of seeded random weights, servers' arguments, requests. Data, and nothing but."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.request import SamplingParameters


@dataclass(frozen=True)
class Case:
    """Requests to one server.

    Attributes:
        model: a name in `runtime.server.shapes`.
        arguments: of `serve`, beside the model and the device.
        prompts: texts, or token ids.
        sampling: for all prompts, or one for each.
        concurrency: requests that are asked at a time, in order, and computed in the same steps; None asks all at once.
        shared: may be asked of the same server as the case before it, where model and arguments are equal.
        twin: name of the case that gives the answers expected of this one, in the same run; None compares with kept ones.
    """

    name: str
    model: str
    prompts: Sequence[str | Sequence[int]]
    sampling: SamplingParameters | Sequence[SamplingParameters]
    arguments: tuple[str, ...] = ()
    concurrency: int | None = None
    shared: bool = False
    twin: str | None = None


GREEDY = SamplingParameters(max_tokens=24, logprobs=2, ignore_stop_ids=True)
WARM = SamplingParameters(temperature=0.9, top_k=40, top_p=0.95, seed=7, max_tokens=24, logprobs=2)
TEXTS = ("white smoke", "The reviewers agree: ", "für 12 € 🎺")
IDS = (list(range(5, 70)), [9], list(range(200, 233)))

SMALL = ("--pages", "96", "--page-size", "16", "--max-batch", "8")
EAGER = ("--buckets",)
CAPTURED = ("--buckets", "1", "2", "4")


def _cases(backend: str) -> list[Case]:
    eager = (*SMALL, *EAGER)
    tight = ("--pages", "9", "--page-size", "16", "--max-batch", "8", "--no-prefix-reuse", *EAGER)
    stop = replace(WARM, temperature=2.0, stop=("zz", "C"), max_tokens=60)
    cases = [
        Case("greedy", "tiny", TEXTS, GREEDY, eager),
        Case("sampled", "tiny", TEXTS, [replace(WARM, seed=seed) for seed in (1, 2, 3)], eager, shared=True),
        Case("replayed", "tiny", IDS, WARM, (*SMALL, *CAPTURED)),
        Case("chunked prefill", "tiny", IDS, GREEDY, (*eager, "--max-step-tokens", "16")),
        Case("preempted", "tiny", IDS, WARM, tight),
        Case(
            "reused prefix",
            "tiny",
            (IDS[0], [*IDS[0], 3, 4]),
            GREEDY,
            (*eager, "--max-step-tokens", "80"),
        ),
        Case("stop string", "tiny", TEXTS[:1], stop, eager),
        Case("tied embedding", "tiny-tied", TEXTS, GREEDY, eager),
        Case("yarn", "tiny-yarn", IDS, GREEDY, eager),
        Case("experts", "tiny-moe", IDS, GREEDY, eager),
        Case(
            "e4m3 cache",
            "tiny",
            IDS,
            GREEDY,
            (*SMALL, *CAPTURED, "--max-step-tokens", "16", "--cache-dtype", "e4m3"),
        ),
    ]
    return [
        replace(case, name=f"{case.name}, {backend}", arguments=(*case.arguments, "--attention", backend))
        for case in cases
    ]


def _tp2() -> list[Case]:
    """Two ranks. One bucket, so that a step is computed alike whenever others end."""
    eager = (*SMALL, "--max-step-tokens", "48", "--tensor-parallel", "2", *EAGER)
    captured = (*eager, "8")
    mixed = [replace(GREEDY, max_tokens=40), replace(WARM, seed=1), GREEDY, WARM, replace(WARM, seed=2)]
    prompts = (*IDS, [*IDS[0], 3, 4], list(range(100, 140)))
    sync = "moe_fp8pb_cuda_graph_sync_tp2"
    return [
        Case(sync, "tiny-moe-fp8", prompts, mixed, (*captured, "--no-overlap")),
        Case("moe_fp8pb_cuda_graph_async_tp2", "tiny-moe-fp8", prompts, mixed, captured, twin=sync),
        Case("moe_fp8pb_eager_tp2", "tiny-moe-fp8", prompts, mixed, eager),
        Case("moe_cuda_graph_async_tp2", "tiny-moe-wide", prompts, mixed, captured),
        Case("fp8pb_cuda_graph_async_tp2", "tiny-fp8-wide", prompts, mixed, captured),
        Case("cuda_graph_async_tp2", "tiny-odd", prompts, mixed, captured),
    ]


SUITES = {
    "cpu": [
        *_cases("reference"),
        Case("fp8", "tiny-fp8", TEXTS, GREEDY, (*SMALL, *EAGER, "--attention", "reference")),
    ],
    "gpu": [
        *_cases("xqa"),
        *_cases("triton"),
        Case("fp8", "tiny-fp8", TEXTS, GREEDY, (*SMALL, *EAGER, "--attention", "xqa")),
    ],
    "tp2": _tp2(),
}
