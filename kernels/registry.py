"""The operations, by name: one module each, found here by the build, the benchmark and the check."""

import importlib
from types import ModuleType

OPERATIONS = (
    "per_token_group_quant",
    "fused_copy",
    "rope_kv_write",
    "paged_decode_attention",
    "paged_prefill_attention",
    "fp8_block_gemm",
    "skinny_gemm",
    "moe_fp8",
    "rms_norm",
    "silu_mul",
    "sampling",
    "logits_processors",
)


def module(name: str) -> ModuleType:
    """The module of an operation.

    Raises:
        ValueError: there is no operation of that name.
    """
    if name not in OPERATIONS:
        raise ValueError(f"operation: expected one of {', '.join(OPERATIONS)}, got {name}")
    return importlib.import_module(f"kernels.{name}")


def benchmark(name: str) -> ModuleType:
    """The benchmark module of an operation (see `module`)."""
    return importlib.import_module(f"kernels.bench.{module(name).__name__.rsplit('.', 1)[1]}")
