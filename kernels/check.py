"""`python -m kernels check`: the first command on a new GPU machine."""

import platform
import time
from collections.abc import Sequence
from typing import Any

import torch
import triton

from kernels import contract, cuda, registry, target


def run(names: Sequence[str], *, compiled_only: bool = False) -> int:
    """Print versions, the device and the live backends, then one tiny correctness pass per operation.

    Args:
        names: operations to check.
        compiled_only: count a kernel that has to be compiled as a failure: `build` should have made it.

    Returns:
        0 when every operation is within its bound, else 1.
    """
    device = _device()
    if device is None:
        print(
            "no GPU, and Triton's interpreter is off: set TRITON_INTERPRET=1 to check the logic on this CPU"
        )
        return 1
    _print_versions()
    compiled = _count_compilations()
    failed = 0
    for name in names:
        before, started = len(compiled), time.monotonic()
        verdict, detail = _check_one(name, device)
        fresh = len(compiled) - before
        if compiled_only and fresh:
            verdict, detail = (
                "FAIL",
                f"compiled {fresh} kernels that the build did not make: {', '.join(compiled[before:])}",
            )
        failed += verdict != "ok"
        print(
            f"{verdict:4} {name:24} {detail}  [{time.monotonic() - started:.1f} s, {fresh} compiled]",
            flush=True,
        )
    print(f"{len(names) - failed} of {len(names)} operations within their bounds")
    return 1 if failed or not names else 0


def _device() -> torch.device | None:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu") if contract.INTERPRETING else None


def _check_one(name: str, device: torch.device) -> tuple[str, str]:
    try:
        error, bound = registry.module(name).check(device)
    except Exception as problem:  # noqa: BLE001 - one broken operation must not hide the others' verdicts
        return "FAIL", f"{type(problem).__name__}: {problem}"
    # Written so that NaN fails.
    return ("ok" if error <= bound else "FAIL"), f"error {error:.2e}, bound {bound:.2e}"


def _print_versions() -> None:
    print(f"python {platform.python_version()}  torch {torch.__version__}  triton {triton.__version__}")
    if torch.cuda.is_available():
        limits = target.current()
        print(
            f"device {torch.cuda.get_device_name()}  {limits.arch}  {limits.multiprocessors} multiprocessors"
            f"  {limits.shared_memory // 1024} KiB shared  {limits.l2_bytes >> 20} MiB L2  CUDA {torch.version.cuda}"
        )
    else:
        print("device none: Triton's interpreter on the CPU")
    nvcc = f"live ({cuda.nvcc_version()})" if cuda.available() else "absent: the Triton versions stand in"
    print(f"backends  triton {'interpreted' if contract.INTERPRETING else 'live'}  CUDA C++ {nvcc}")
    print(f"caches  triton {triton.knobs.cache.dir}  CUDA C++ {cuda.cache_folder()}")


def _count_compilations() -> list[str]:
    """Names of kernels as they are compiled from here on, in a list that grows."""
    compiled: list[str] = []

    def listen(*, metadata: dict[str, Any], cache_hit: bool, **_rest: Any) -> None:
        if not cache_hit:
            compiled.append(str(metadata["name"]))

    triton.knobs.compilation.listener = listen
    return compiled
