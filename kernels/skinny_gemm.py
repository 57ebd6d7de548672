"""Matrix product of at most 64 rows with a large weight: the projections of a decode step.

    y = x @ weight^T                                  out [rows, features]
    x := norm_weight * round(x / sqrt(mean(x^2) + eps))    with `norm_weight`
    y := round(y) + residual                          with `residual`
    y := round(silu(round(y_gate))) * round(y_up)     with `silu_mul`: out [rows, features / 2]

Shapes: x [rows, width], rows <= 64, rows strided by a multiple of 8 elements; weight [features, width], contiguous, with
`silu_mul` the gate's rows before the up projection's; residual and out [rows, features or features / 2], rows strided.
`width` is a multiple of 16. norm_weight [width]. Pointers are aligned to 16 bytes.

Types: x, residual, norm_weight and out bfloat16; weight bfloat16, or float8_e4m3fn with `weight_scale` float32
[ceil(features / 128), ceil(width / 128)], the factor of each block of 128 x 128 (`weight_scale_inv` of a checkpoint).
e4m3 weights are dequantized exactly in registers and activations stay bfloat16: nothing is rounded that a bfloat16
weight of the same values would not round. Products accumulate in float32. Every result rounds to bfloat16 once, and
where Hugging Face's modules would have rounded on the way (normalised value, projection before the residual, silu
before the product) it rounds there too.

The same arguments give the same bits: partial sums of a split width are added in a fixed order by the program that
arrives last. A row's result does not depend on the other rows' values.

On Hopper and newer the kernels start while the one before them still runs and then fetch weights: weight, weight_scale
and norm_weight must not be written by a kernel still running on the stream. x and residual may. Calls on several streams
at once need a `Workspace` each.

Zero rows return at once. NaN and infinity spread as in the formula. Offsets are 64-bit.

Errors: ValueError naming the argument, the expected and the actual property; nothing is launched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton

from kernels import contract, rms_norm, target
from kernels.launch import BuildCase, launch, meta
from kernels.skinny_kernels import matrix_kernel, vector_kernel
from kernels.skinny_plan import COUNTERS, SCALE_BLOCK, Matrix, Vector, plan_of

MAX_ROWS = 64
WORKSPACE_FLOATS = 6 << 20


@dataclass(frozen=True)
class Workspace:
    """Device memory that calls on one stream share: partial sums, arrivals (zero between calls), normalised rows."""

    partials: torch.Tensor
    counters: torch.Tensor
    normed: torch.Tensor


def make_workspace(device: torch.device) -> Workspace:
    """A `Workspace` of 26 MiB for any call of `skinny_gemm`."""
    return Workspace(
        torch.empty(WORKSPACE_FLOATS, dtype=torch.float32, device=device),
        torch.zeros(COUNTERS, dtype=torch.int32, device=device),
        torch.empty(MAX_ROWS * 16384, dtype=torch.bfloat16, device=device),
    )


_workspaces: dict[torch.device, Workspace] = {}


def _workspace(device: torch.device) -> Workspace:
    if device.type == "meta":
        return make_workspace(device)
    if device not in _workspaces:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "workspace: expected one made before the capture, got none; call skinny_gemm once before it or pass "
                "make_workspace(device)"
            )
        _workspaces[device] = make_workspace(device)
    return _workspaces[device]


@dataclass(frozen=True)
class _Call:
    x: torch.Tensor
    weight: torch.Tensor
    scale: torch.Tensor | None
    norm_weight: torch.Tensor | None
    eps: float
    residual: torch.Tensor | None
    silu: bool
    out: torch.Tensor

    @property
    def features(self) -> int:
        return self.out.shape[1]


def _vector(call: _Call, plan: Vector) -> None:
    rows, width = call.x.shape
    step = plan.chunk * plan.unroll
    launch(
        vector_kernel,
        (triton.cdiv(call.features, plan.block_n * plan.tiles // (2 if call.silu else 1)),),
        call.x,
        call.weight,
        call.weight if call.scale is None else call.scale,
        call.norm_weight,
        call.residual,
        call.out,
        rows,
        call.features,
        width // 16,
        call.x.stride(0) // 8,
        call.out.stride(0),
        call.residual.stride(0) if call.residual is not None else 0,
        call.eps,
        ROWS=triton.next_power_of_2(rows),
        BLOCK_N=plan.block_n,
        TILES=plan.tiles,
        CHUNK=plan.chunk,
        UNROLL=plan.unroll,
        LOOP=width > step,
        MASKED=width % step != 0,
        NORM=call.norm_weight is not None,
        SILU=call.silu,
        RESIDUAL=call.residual is not None,
        FP8=call.scale is not None,
        PDL="pdl" in target.current().features,
        num_warps=plan.warps,
        launch_pdl=True,
    )


def _matrix(call: _Call, plan: Matrix, workspace: Workspace) -> None:
    rows, width = call.x.shape
    launch(
        matrix_kernel,
        (triton.cdiv(call.features, plan.block_n), plan.split),
        call.x,
        call.weight,
        call.weight if call.scale is None else call.scale,
        call.residual,
        call.out,
        workspace.partials,
        workspace.counters,
        rows,
        call.features,
        width // 16,
        call.x.stride(0) // 8,
        call.out.stride(0),
        call.residual.stride(0) if call.residual is not None else 0,
        plan.split,
        BLOCK_M=max(16, triton.next_power_of_2(rows)),
        BLOCK_N=plan.block_n,
        BLOCK_K=plan.block_k,
        STAGES=plan.stages,
        MASKED=width % plan.block_k != 0,
        SILU=call.silu,
        RESIDUAL=call.residual is not None,
        FP8=call.scale is not None,
        SWAP=plan.swap,
        PREFETCH=plan.prefetch,
        PDL="pdl" in target.current().features,
        WIDE=contract.INTERPRETING,
        # sm89 has no instruction from half precision to bfloat16, which Triton would use.
        BY_FLOAT=call.scale is not None and target.current().capability < 90,
        num_warps=plan.warps,
        launch_pdl=True,
    )


def skinny_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    residual: torch.Tensor | None = None,
    silu_mul: bool = False,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """x @ weight^T for at most 64 rows; see the module."""
    call = _checked(x, weight, weight_scale, norm_weight, eps, residual, silu_mul, out)
    rows, width = x.shape
    if not rows:
        return call.out
    plan = plan_of(
        rows,
        call.features,
        width,
        fp8=weight_scale is not None,
        silu=silu_mul,
        norm=norm_weight is not None,
    )
    run(call, plan, workspace)
    return call.out


def run(call: _Call, plan: Vector | Matrix, workspace: Workspace | None = None) -> None:
    """Launch with a given plan."""
    if isinstance(plan, Vector):
        _vector(call, plan)
        return
    workspace = workspace or _workspace(call.x.device)
    if call.norm_weight is not None:
        rows, width = call.x.shape
        normed = workspace.normed[: rows * width].view(rows, width)
        rms_norm.rms_norm(call.x, call.norm_weight, call.eps, out=normed)
        call = replace(call, x=normed, norm_weight=None)
    _matrix(call, plan, workspace)


def _checked(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    silu_mul: bool,
    out: torch.Tensor | None,
) -> _Call:
    bf16 = torch.bfloat16
    contract.require("x", x, dtype=bf16, shape=(None, None), rows_contiguous=True, aligned=16)
    rows, width = x.shape
    if rows > MAX_ROWS:
        raise ValueError(f"x: expected at most {MAX_ROWS} rows, got {rows}")
    if not width or width % 16:
        raise ValueError(f"x: expected a width that is a multiple of 16, got {width}")
    if rows > 1 and x.stride(0) % 8:
        raise ValueError(f"x: expected a row stride that is a multiple of 8, got {x.stride(0)}")
    contract.require(
        "weight",
        weight,
        dtype=bf16 if weight_scale is None else torch.float8_e4m3fn,
        shape=(None, width),
        device=x.device,
        contiguous=True,
        aligned=16,
    )
    features = weight.shape[0]
    if weight_scale is not None:
        blocks = (triton.cdiv(features, SCALE_BLOCK), triton.cdiv(width, SCALE_BLOCK))
        contract.require(
            "weight_scale", weight_scale, dtype=torch.float32, shape=blocks, device=x.device, contiguous=True
        )
    if silu_mul:
        multiple = 2 if weight_scale is None else 2 * SCALE_BLOCK
        if features % multiple:
            raise ValueError(f"weight: expected a multiple of {multiple} rows with silu_mul, got {features}")
        features //= 2
    if norm_weight is not None:
        contract.require(
            "norm_weight",
            norm_weight,
            dtype=bf16,
            shape=(width,),
            device=x.device,
            contiguous=True,
            aligned=16,
        )
    if residual is not None:
        contract.require(
            "residual", residual, dtype=bf16, shape=(rows, features), device=x.device, rows_contiguous=True
        )
    if out is None:
        out = torch.empty(rows, features, dtype=bf16, device=x.device)
    else:
        contract.require(
            "out", out, dtype=bf16, shape=(rows, features), device=x.device, rows_contiguous=True
        )
    return _Call(x, weight, weight_scale, norm_weight, eps, residual, silu_mul, out)


def dequantize(weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """The float64 values of a block-scaled weight."""
    rows = weight_scale.double().repeat_interleave(SCALE_BLOCK, 0)[: weight.shape[0]]
    return weight.to(torch.float64) * rows.repeat_interleave(SCALE_BLOCK, 1)[:, : weight.shape[1]]


def skinny_gemm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    residual: torch.Tensor | None = None,
    silu_mul: bool = False,
) -> torch.Tensor:
    """In float64, rounded to x's type where the module says; on any device."""
    dtype = x.dtype
    if norm_weight is not None:
        value = x.double()
        normed = (value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)).to(dtype)
        x = (normed.double() * norm_weight.double()).to(dtype)
    matrix = weight.double() if weight_scale is None else dequantize(weight, weight_scale)
    y = (x.double() @ matrix.T).to(dtype)
    if silu_mul:
        gate, up = y.chunk(2, -1)
        y = (torch.nn.functional.silu(gate.double()).to(dtype).double() * up.double()).to(dtype)
    return y if residual is None else (y.double() + residual.double()).to(dtype)


def build_cases() -> Iterator[BuildCase]:
    """The calls of a Qwen3-0.6B step over the buckets of rows, bfloat16 and e4m3, and of a wider model."""
    bf16 = torch.bfloat16

    def case(
        name: str, rows: int, features: int, width: int, *, fp8: bool = False, **forms: bool
    ) -> BuildCase:
        x = meta(rows, width, dtype=bf16)
        weight = meta(features, width, dtype=torch.float8_e4m3fn if fp8 else bf16)
        silu = forms.get("silu_mul", False)
        given = {
            "weight_scale": meta(triton.cdiv(features, 128), triton.cdiv(width, 128), dtype=torch.float32)
            if fp8
            else None,
            "norm_weight": meta(width, dtype=bf16) if forms.get("norm") else None,
            "residual": meta(rows, features, dtype=bf16) if forms.get("residual") else None,
        }
        return BuildCase(
            f"skinny_gemm/{name}-{rows}x{features}x{width}{'-fp8' if fp8 else ''}",
            lambda: skinny_gemm(x, weight, silu_mul=silu, **given),
            frozenset({"fp8"}) if fp8 else frozenset(),
        )

    for rows in (1, 2, 16, 64):
        yield case("qkv", rows, 4096, 1024, norm=True)
        yield case("gate_up", rows, 6144, 1024, norm=True, silu_mul=True)
        yield case("o", rows, 1024, 2048, residual=True)
        yield case("down", rows, 1024, 3072, residual=True)
    yield case("head", 1, 151936, 1024, norm=True)
    yield case("square", 1, 7168, 7168)
    for rows in (1, 64):
        yield case("qkv", rows, 4096, 1024, fp8=True, norm=True)
        yield case("gate_up", rows, 6144, 1024, fp8=True, norm=True, silu_mul=True)
        yield case("down", rows, 1024, 3072, fp8=True, residual=True)


def check(device: torch.device) -> tuple[float, float]:
    """Largest error over the largest value, of two normed products, one with a residual."""
    generator = torch.Generator(device).manual_seed(1)
    worst = 0.0
    # Width and forms of `build_cases`: a check compiles nothing that a build has not.
    for rows, residual in ((1, False), (16, True)):
        x = torch.randn(rows, 1024, generator=generator, device=device).bfloat16()
        weight = (torch.randn(96, 1024, generator=generator, device=device) / 32).bfloat16()
        options = {"norm_weight": (torch.rand(1024, generator=generator, device=device) + 0.5).bfloat16()}
        if residual:
            options["residual"] = torch.randn(rows, 96, generator=generator, device=device).bfloat16()
        expected = skinny_gemm_reference(x, weight, **options).double()
        error = (skinny_gemm(x, weight, **options).double() - expected).abs().max() / expected.abs().max()
        worst = max(worst, float(error))
    # A spacing of bfloat16; the interpreter truncates three times on the way.
    return worst, 2.0**-5 if contract.INTERPRETING else 2.0**-7
