"""`python -m kernels build`: compile every variant for named architectures, with no GPU present.

Each `BuildCase` calls its operation on meta tensors; what would be launched is compiled instead, by Triton into its own
cache or by nvcc into ours, under the very keys that a run asks for. A second run finds everything and compiles nothing.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from kernels import contract, cuda, launch, registry, target

MAX_VARIANTS = 150
"""Per architecture; a build that asks for more is an error, since someone waits for it."""

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Variant:
    """One compiled kernel, or why there is none.

    Attributes:
        case: the `BuildCase` that first reached it.
        status: compiled, cached, unsupported or failed.
        registers: per thread; of a CUDA library the most of its functions.
        spill_bytes: local memory per thread that the compiler fell back to.
        shared_bytes: shared memory per block.
        binary_bytes: size of the cubin or library.
        reason: for `unsupported` and `failed`.
    """

    case: str
    kernel: str
    arch: str
    status: str
    key: str = ""
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    binary_bytes: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """Every variant of every architecture asked for, and the seconds it took."""

    variants: tuple[Variant, ...]
    seconds: float

    def failures(self) -> list[str]:
        """What makes the build fail, in words; empty when all is well."""
        lines = [f"{v.arch} {v.case} ({v.kernel}): {v.reason}" for v in self.variants if v.status == "failed"]
        for arch in sorted({variant.arch for variant in self.variants}):
            built = sum(v.arch == arch and v.status in ("compiled", "cached") for v in self.variants)
            if built > MAX_VARIANTS:
                lines.append(f"{arch}: {built} variants, more than the {MAX_VARIANTS} that a build may take")
        return lines


class _OfflineDriver:
    """What Triton asks of a driver before it compiles; there is no GPU behind it.

    The device number is the capability, so that Triton's caches in memory keep architectures apart.
    """

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, _device: int) -> int:
        return 0


def build(
    archs: Sequence[str], names: Sequence[str] = registry.OPERATIONS, jobs: int | None = None
) -> Report:
    """Build the operations `names` for `archs` with `jobs` processes (by default one a core).

    Raises:
        ValueError: an unknown architecture or operation, or Triton's interpreter is on.
    """
    for arch in archs:
        contract.require_value("arch", arch, tuple(target.ARCHITECTURES))
    if contract.INTERPRETING:
        raise ValueError(
            "TRITON_INTERPRET: expected it unset for a build, got 1 (the interpreter compiles nothing)"
        )
    started = time.monotonic()
    cases = [(name, index) for name in names for index in range(_case_count(name))]
    variants: dict[tuple[str, str, str], Variant] = {}
    for number, arch in enumerate(archs):
        # Workers of their own for each architecture: Triton keeps some tables of the first one that a process meets.
        # Forked, since they inherit torch and Triton imported, which costs more than most compilations.
        with multiprocessing.get_context("fork").Pool(jobs or os.cpu_count()) as pool:
            tasks = [(name, index, arch) for name, index in cases]
            for done, made in enumerate(pool.imap_unordered(_build_case, tasks), number * len(cases) + 1):
                for variant in made:
                    place = (variant.arch, variant.kernel, variant.key or variant.case)
                    # Two cases may reach one kernel at once; whichever compiled it is the one to report.
                    if place not in variants or variant.status == "compiled":
                        variants[place] = variant
                _show_progress(done, len(cases) * len(archs), started)
    return Report(tuple(variants.values()), time.monotonic() - started)


def _case_count(name: str) -> int:
    return sum(1 for _ in registry.module(name).build_cases())


def _build_case(task: tuple[str, int, str]) -> list[Variant]:
    name, index, arch = task
    with target.building(arch) as limits:
        case = next(
            case for number, case in enumerate(registry.module(name).build_cases()) if number == index
        )
        missing = case.needs - limits.features
        if missing:
            reason = "; ".join(target.REASONS[feature] for feature in sorted(missing))
            return [Variant(case.name, name, arch, "unsupported", reason=reason)]
        try:
            return [_judge(variant, limits) for variant in _compile(case, limits)]
        except cuda.NoToolchainError as error:
            return [Variant(case.name, name, arch, "unsupported", reason=str(error))]
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way; the report names the case
            return [
                Variant(case.name, name, arch, "failed", reason=f"{type(error).__name__}: {_brief(error)}")
            ]


def _compile(case: launch.BuildCase, limits: target.Target) -> list[Variant]:
    triton.runtime.driver.set_active(_OfflineDriver(limits.capability))
    made: list[Variant] = []
    compiled: set[str] = set()

    def listen(*, metadata: dict[str, Any], cache_hit: bool, **_rest: Any) -> None:
        if not cache_hit:
            compiled.add(metadata["hash"])

    def record_triton(
        kernel: Any, _grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        started = time.monotonic()
        binary = kernel.warmup(*args, grid=(1,), **options)
        variant = Variant(case.name, kernel.__name__, limits.arch, "cached", binary.hash)
        if binary.hash in compiled:
            variant = replace(variant, status="compiled")
        seconds = time.monotonic() - started
        made.append(replace(variant, **_cubin_resources(binary), seconds=seconds))

    def record_cuda(library: cuda.Library, _function: str) -> None:
        started = time.monotonic()
        built = cuda.build(library.source, limits.arch, library.defines)
        made.append(
            Variant(
                case.name,
                library.source,
                limits.arch,
                "compiled" if built.compiled else "cached",
                built.path.stem,
                max((entry.registers for entry in built.resources), default=0),
                sum(entry.spill_bytes for entry in built.resources),
                max((entry.shared_bytes for entry in built.resources), default=0),
                built.path.stat().st_size,
                time.monotonic() - started,
            )
        )

    triton.knobs.compilation.listener = listen
    try:
        with launch.recording(record_triton), cuda.recording(record_cuda):
            case.call()
    finally:
        triton.knobs.compilation.listener = None
    if not made:
        raise RuntimeError("the case launched nothing")
    return made


def _cubin_resources(binary: Any) -> dict[str, int]:
    """Registers, spills and sizes of a compiled Triton kernel, read from its cubin once and kept beside it."""
    cubin = binary.asm["cubin"]
    kept = cuda.cache_folder() / "resources" / f"{binary.hash}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    kept.parent.mkdir(exist_ok=True)
    scratch = kept.with_suffix(f".{os.getpid()}.cubin")
    scratch.write_bytes(cubin)
    try:
        dump = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", scratch], capture_output=True, text=True, check=True
        ).stdout
    finally:
        scratch.unlink()
    usage = dict(
        part.split(":", 1) for part in dump.split() if ":" in part and part.split(":", 1)[1].isdigit()
    )
    resources = {
        "registers": int(usage["REG"]),
        "spill_bytes": int(usage["STACK"]) + int(usage["LOCAL"]),
        "shared_bytes": binary.metadata.shared,
        "binary_bytes": len(cubin),
    }
    kept.write_text(json.dumps(resources))
    return resources


def _judge(variant: Variant, limits: target.Target) -> Variant:
    faults = []
    if variant.spill_bytes:
        faults.append(f"spills {variant.spill_bytes} bytes a thread")
    if variant.shared_bytes > limits.shared_memory:
        faults.append(
            f"needs {variant.shared_bytes} bytes of shared memory, a block has {limits.shared_memory}"
        )
    return replace(variant, status="failed", reason=", ".join(faults)) if faults else variant


def _brief(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[-1:]) if lines else "no message"


def _show_progress(done: int, total: int, started: float) -> None:
    if not sys.stderr.isatty() and done != total:
        return
    filled = 30 * done // total
    end = "\n" if done == total else ""
    bar = f"\r[{'█' * filled}{'·' * (30 - filled)}] {done}/{total} cases, {time.monotonic() - started:.0f} s"
    print(bar, end=end, file=sys.stderr, flush=True)


def to_json(report: Report) -> str:
    """The report as JSON, with the toolchain it was made by."""
    toolchain = {"triton": triton.__version__, "nvcc": cuda.nvcc_version() if cuda.available() else None}
    return json.dumps(
        {"toolchain": toolchain, "seconds": report.seconds, "variants": [asdict(v) for v in report.variants]},
        indent=1,
    )


def summary(report: Report) -> str:
    """A table, one line an architecture, then what is unsupported and what failed."""
    header = f"{'arch':6} {'variants':>8} {'compiled':>8} {'cached':>6} {'unsupported':>11} {'failed':>6} {'registers':>9} {'size':>9}"
    lines = [header]
    for arch in dict.fromkeys(variant.arch for variant in report.variants):
        mine = [variant for variant in report.variants if variant.arch == arch]
        count = {
            status: sum(v.status == status for v in mine)
            for status in ("compiled", "cached", "unsupported", "failed")
        }
        built = count["compiled"] + count["cached"]
        most = max((variant.registers for variant in mine), default=0)
        size = sum(variant.binary_bytes for variant in mine) / 1e6
        lines.append(
            f"{arch:6} {built:8} {count['compiled']:8} {count['cached']:6} {count['unsupported']:11}"
            f" {count['failed']:6} {most:9} {size:6.1f} MB"
        )
    reasons: dict[tuple[str, str], list[str]] = {}
    for variant in report.variants:
        if variant.status == "unsupported":
            reasons.setdefault((variant.arch, variant.reason), []).append(variant.case)
    for (arch, reason), cases in sorted(reasons.items()):
        lines.append(f"unsupported on {arch}, since {reason}: {', '.join(sorted(cases))}")
    lines += [f"error: {line}" for line in report.failures()]
    lines.append(f"{report.seconds:.1f} s")
    return "\n".join(lines)
