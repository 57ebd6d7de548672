"""The GPU that kernels are launched on, or, while building, the architecture that they are built for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch

KIB = 1024


@dataclass(frozen=True)
class Target:
    """What host code may decide on: grids, tile sizes, whether a data type exists.

    Attributes:
        capability: compute capability times ten (90 for Hopper); 0 for Triton's interpreter on a CPU.
        multiprocessors: how many; of a named architecture its largest usual part.
        shared_memory: bytes one block may use.
        l2_bytes: size of the second-level cache.
    """

    capability: int
    multiprocessors: int
    shared_memory: int
    l2_bytes: int
    features: frozenset[str] = field(default_factory=frozenset)

    @property
    def arch(self) -> str:
        return f"sm{self.capability}" if self.capability else "interpreter"


# Shared memory per block, CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
ARCHITECTURES = {
    "sm80": Target(80, 108, 163 * KIB, 40 << 20),
    "sm89": Target(89, 142, 99 * KIB, 96 << 20, frozenset({"fp8"})),
    "sm90": Target(90, 132, 227 * KIB, 50 << 20, frozenset({"fp8", "pdl", "wgmma"})),
    "sm100": Target(100, 148, 227 * KIB, 126 << 20, frozenset({"fp8", "pdl"})),
    "sm120": Target(120, 188, 99 * KIB, 128 << 20, frozenset({"fp8", "pdl"})),
}

REASONS = {
    "fp8": "its tensor cores and conversion instructions have no e4m3 (needs sm89 or newer)",
    "pdl": "it has no programmatic dependent launch (needs sm90 or newer)",
    "wgmma": "it has no warp-group matrix instructions (sm90 only)",
}
"""Why an architecture without a feature cannot have a variant that needs it."""

_INTERPRETER = Target(0, 4, 227 * KIB, 32 << 20, frozenset({"fp8"}))
_building: Target | None = None


def current() -> Target:
    """The target of the launch at hand: the one being built for, else the current GPU, else the interpreter."""
    if _building is not None:
        return _building
    if not _has_gpu():
        return _INTERPRETER
    return _of_device(torch.cuda.current_device())


@contextmanager
def building(arch: str) -> Iterator[Target]:
    """Within the block, `current()` is the named architecture."""
    global _building
    outer, _building = _building, ARCHITECTURES[arch]
    try:
        yield _building
    finally:
        _building = outer


@lru_cache  # asked at every launch, and torch looks at the driver each time
def _has_gpu() -> bool:
    return torch.cuda.is_available()


@lru_cache
def _of_device(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    capability = properties.major * 10 + properties.minor
    nearest = max(
        (t for t in ARCHITECTURES.values() if t.capability <= capability),
        key=lambda t: t.capability,
        default=None,
    )
    return Target(
        capability,
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
        properties.L2_cache_size,
        nearest.features if nearest else frozenset(),
    )
