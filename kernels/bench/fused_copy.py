"""Rows of fused_copy: the mirrors of a decode step, and copies large enough for bandwidth."""

from collections.abc import Iterator

import torch

from kernels.bench.harness import Row
from kernels.copy_plan import CopyPlan
from kernels.fused_copy import fused_copy

MIRRORS, LIVE, LANES = 24, 64, 128
TARGET_US, TARGET_HOST_US, TARGET_SHARE = 2.6, 12.0, 0.97


def rows() -> Iterator[Row]:
    """The issue's shapes."""
    yield Row(
        "fused_copy",
        f"{MIRRORS} x {LIVE} int32 and {MIRRORS} tails",
        _mirrors,
        lambda inputs: fused_copy(inputs[0], LIVE),
        bytes_moved=MIRRORS * 4 * (2 * LIVE + LANES - LIVE),
        input_bytes=MIRRORS * 4 * 2 * LANES,
        peers={
            "torch copy_ and fill_": _copy_and_fill,
            "torch copy_": _copy,
            "torch foreach, no fills": _foreach,
        },
        hot=True,
        outside=True,
        target=f"at most {TARGET_US} us, outside a graph {TARGET_HOST_US} us",
        met=lambda figures: figures.us <= TARGET_US and (figures.outside_us or 0.0) <= TARGET_HOST_US,
    )
    for mebibytes, to, come in ((256, 0, 0), (1024, 0, 0), (256, 5, 5)):
        size = mebibytes << 20
        yield Row(
            "fused_copy",
            f"{mebibytes} MiB" + (f", {to} bytes past alignment" if to else ""),
            lambda seed, size=size, to=to, come=come: _large(seed, size, to, come),
            lambda inputs: fused_copy(inputs[0]),
            bytes_moved=2 * size,
            input_bytes=2 * size,
            peers={"torch copy_": lambda inputs: inputs[1].copy_(inputs[2])},
            target=f"at least {TARGET_SHARE:.0%} of copy bandwidth",
            met=lambda figures: figures.of_copy >= TARGET_SHARE,
        )


Mirrors = tuple[CopyPlan, list[torch.Tensor], list[torch.Tensor]]


def _mirrors(seed: int) -> Mirrors:
    generator = torch.Generator("cuda").manual_seed(seed)
    pool = torch.randint(
        0, 1 << 30, (2, MIRRORS, LANES), dtype=torch.int32, device="cuda", generator=generator
    )
    destinations, sources = list(pool[0]), list(pool[1])
    plan = CopyPlan()
    for destination, source in zip(destinations, sources, strict=True):
        plan.mirror(destination, source, 0)
    return plan, destinations, sources


def _copy(inputs: Mirrors) -> None:
    for destination, source in zip(*inputs[1:], strict=True):
        destination[:LIVE].copy_(source[:LIVE])


def _copy_and_fill(inputs: Mirrors) -> None:
    for destination, source in zip(*inputs[1:], strict=True):
        destination[:LIVE].copy_(source[:LIVE])
        destination[LIVE:].fill_(0)


def _foreach(inputs: Mirrors) -> None:
    torch._foreach_copy_([d[:LIVE] for d in inputs[1]], [s[:LIVE] for s in inputs[2]])


def _large(seed: int, size: int, to: int, come: int) -> tuple[CopyPlan, torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    source = torch.randint(0, 256, (size + 16,), dtype=torch.uint8, device="cuda", generator=generator)
    destination = torch.empty_like(source)[to : to + size]
    plan = CopyPlan()
    plan.copy(destination, source[come : come + size])
    return plan, destination, source[come : come + size]
