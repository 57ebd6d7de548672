"""Products of few rows: every form against float64, and what a decode step relies on beside the numbers."""

from collections.abc import Iterator

import pytest
import torch

from kernels import skinny_gemm as module
from kernels.skinny_gemm import dequantize, make_workspace, skinny_gemm, skinny_gemm_reference

GPU = torch.cuda.is_available()
SPACING = 2.0**-7
"""Of bfloat16 numbers, relative, at most. To nearest, a result is off by half of it; the interpreter truncates, so a
result, and each one rounded on the way, is off by up to all of it."""

SMALL = [
    (1, 50, 272),
    (2, 64, 1040),
    (3, 48, 512),
    (6, 100, 272),
    (16, 72, 1024),
    (33, 130, 256),
    (64, 64, 128),
]
LARGE = [
    *((rows, 4096, 1024) for rows in (1, 2, 3, 4, 5, 8, 16, 33, 64)),
    *((rows, 1024, 3072) for rows in (1, 8, 64)),
    *((rows, 1024, 2048) for rows in (1, 4, 32)),
    *((rows, 7168, 7168) for rows in (1, 16, 64)),
    (1, 151936, 1024),
    (64, 151936, 1024),
]
SHAPES = SMALL + (LARGE if GPU else [])
SILU_SHAPES = [(1, 96, 272), (2, 256, 512), (7, 144, 272), (64, 512, 128)]
SILU_SHAPES += [(rows, 6144, 1024) for rows in (1, 2, 4, 16, 64)] if GPU else []
FP8_SHAPES = [(1, 256, 272), (2, 256, 1040), (5, 256, 384), (64, 256, 256)]
FP8_SHAPES += [(1, 7168, 7168), (2, 4096, 1024), (16, 4096, 1024), (64, 7168, 2048)] if GPU else []


def problem(
    generator: torch.Generator,
    rows: int,
    features: int,
    width: int,
    *,
    fp8: bool = False,
    norm: bool = False,
    silu: bool = False,
    residual: bool = False,
) -> dict[str, torch.Tensor | bool]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=generator.device)

    arguments: dict[str, torch.Tensor | bool] = {"x": normal(rows, width).bfloat16(), "silu_mul": silu}
    weight = normal(features, width) / width**0.5
    if fp8:
        blocks = normal(-(-features // 128), -(-width // 128)).abs() * 0.02 + 0.01
        arguments |= {"weight": (weight * 60).to(torch.float8_e4m3fn), "weight_scale": blocks}
    else:
        arguments["weight"] = weight.bfloat16()
    if norm:
        arguments["norm_weight"] = (normal(width) * 0.2 + 1).bfloat16()
    if residual:
        arguments["residual"] = normal(rows, features // 2 if silu else features).bfloat16()
    return arguments


def tolerance(arguments: dict) -> torch.Tensor:
    """What rounding may do to each element, from the sizes of all that is rounded on the way."""
    x, weight = arguments["x"].double(), arguments["weight"]
    scale = arguments.get("weight_scale")
    matrix = weight.double() if scale is None else dequantize(weight, scale)
    sizes = x.abs()
    relative = x.shape[1] * 2.0**-24  # of a float32 sum in any order
    if "norm_weight" in arguments:
        sizes = (
            sizes * torch.rsqrt(x.square().mean(-1, keepdim=True)) * arguments["norm_weight"].double().abs()
        )
        relative += 2 * SPACING  # both roundings of a normalised value
    sums = sizes @ matrix.abs().T * relative
    plain = {
        name: arguments[name] for name in ("x", "weight", "weight_scale", "norm_weight") if name in arguments
    }
    y = skinny_gemm_reference(**plain).double()
    bound = sums + y.abs() * SPACING
    if arguments["silu_mul"]:
        (gate, up), (gate_off, up_off) = y.chunk(2, -1), bound.chunk(2, -1)
        # silu's slope is below 1.1; its value and the product round as well.
        silu = torch.nn.functional.silu(gate).abs()
        silu_off = 1.1 * gate_off + SPACING * silu
        bound = silu_off * (up.abs() + up_off) + silu * up_off + SPACING * silu * up.abs()
        y = silu * up.abs()
    if "residual" in arguments:
        bound = bound + SPACING * (y.abs() + arguments["residual"].double().abs())
    return bound


def assert_right(out: torch.Tensor, arguments: dict) -> None:
    expected = skinny_gemm_reference(**arguments)
    off = (out.double() - expected.double()).abs()
    assert not out.isnan().any(), "an element was not written"
    assert (off <= tolerance(arguments)).all()
    if GPU:
        # Sums that differ in their last float32 bits seldom round to different bfloat16 numbers.
        assert (out != expected).double().mean() < 0.02


def run(arguments: dict, **more: object) -> torch.Tensor:
    """Into a poisoned output whose neighbours must stay as they are."""
    rows = arguments["x"].shape[0]
    features = arguments["weight"].shape[0] // (2 if arguments["silu_mul"] else 1)
    around = torch.full(
        (rows + 2, features + 16), float("nan"), dtype=torch.bfloat16, device=arguments["x"].device
    )
    out = around[1:-1, 8:-8]
    assert skinny_gemm(**arguments, out=out, **more) is out
    result = out.clone()
    out.fill_(float("nan"))
    assert around.isnan().all(), "something beside the output was written"
    return result


@pytest.mark.parametrize("form", ["plain", "norm", "residual", "norm+residual"])
@pytest.mark.parametrize(("rows", "features", "width"), SHAPES)
def test_product(rows: int, features: int, width: int, form: str, generator: torch.Generator) -> None:
    if form != "plain" and features > 100000:
        pytest.skip("the vocabulary's projection has no residual, and its norm is covered at other shapes")
    arguments = problem(generator, rows, features, width, norm="norm" in form, residual="residual" in form)
    assert_right(run(arguments), arguments)


@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
@pytest.mark.parametrize(("rows", "features", "width"), SILU_SHAPES)
def test_silu_of_the_gate_times_up(
    rows: int, features: int, width: int, norm: bool, generator: torch.Generator
) -> None:
    arguments = problem(generator, rows, features, width, norm=norm, silu=True)
    assert_right(run(arguments), arguments)


@pytest.mark.parametrize("form", ["plain", "norm+residual", "norm+silu"])
@pytest.mark.parametrize(("rows", "features", "width"), FP8_SHAPES)
def test_block_scaled_e4m3_weights(
    rows: int, features: int, width: int, form: str, generator: torch.Generator
) -> None:
    options = {name: name in form for name in ("norm", "residual", "silu")}
    arguments = problem(generator, rows, features, width, fp8=True, **options)
    assert_right(run(arguments), arguments)


def every_plan(generator: torch.Generator) -> Iterator[tuple[dict, int]]:
    for rows in (1, 4, 16, 64):
        yield problem(generator, rows, 96, 512), rows
        yield problem(generator, rows, 96, 512, norm=True, silu=True), rows


def test_the_same_call_gives_the_same_bits_and_leaves_the_workspace_ready(
    generator: torch.Generator, device: torch.device
) -> None:
    workspace = make_workspace(device)
    workspace.partials.fill_(float("nan"))
    for arguments, _ in every_plan(generator):
        first = run(arguments, workspace=workspace)
        workspace.partials.fill_(float("nan"))
        assert torch.equal(run(arguments, workspace=workspace), first)
        assert not workspace.counters.any()


def test_rows_do_not_touch_each_other(generator: torch.Generator) -> None:
    for arguments, rows in every_plan(generator):
        if rows == 1:
            continue
        clean = run(arguments)
        x = arguments["x"]
        x[0, 5] = float("nan")
        x[rows - 1, 7] = float("inf")
        out = skinny_gemm(**arguments)
        assert torch.equal(out[1:-1], clean[1:-1])
        assert out[0].isnan().all()
        assert not out[-1].isfinite().all()


def test_a_nan_weight_spoils_its_feature_alone(generator: torch.Generator) -> None:
    for arguments, _ in every_plan(generator):
        if arguments["silu_mul"]:
            continue
        arguments["weight"][3, 100] = float("nan")
        assert skinny_gemm(**arguments).isnan().any(0).nonzero().tolist() == [[3]]


def test_strided_rows_and_a_residual_in_place(generator: torch.Generator) -> None:
    for rows in (2, 16):
        arguments = problem(generator, rows, 80, 256, residual=True)
        wide = torch.full((rows, 264), float("nan"), dtype=torch.bfloat16, device=generator.device)
        wide[:, :256] = arguments["x"]
        expected = run(arguments)
        arguments["x"] = wide[:, :256]
        assert torch.equal(run(arguments), expected)
        assert torch.equal(skinny_gemm(**arguments, out=arguments["residual"]), expected)


def test_padding_of_scales_and_weights_is_not_read(generator: torch.Generator) -> None:
    """A width that ends inside a block of scales, features that end inside a tile."""
    arguments = problem(generator, 2, 136, 144, fp8=True)
    assert_right(run(arguments), arguments)


@pytest.mark.skipif(not GPU, reason="needs a GPU: kernels that overlap in a graph")
@pytest.mark.parametrize("rows", [1, 4, 16, 64])
def test_a_chain_in_a_graph_equals_eager(rows: int, generator: torch.Generator) -> None:
    """Each kernel fetches weights while the one before runs, and must still see that one's result."""
    first = problem(generator, rows, 6144, 1024, norm=True, silu=True)
    second = problem(generator, rows, 1024, 3072, residual=True)
    hidden = first["x"]
    inner = torch.empty(rows, 3072, dtype=torch.bfloat16, device=hidden.device)
    source = hidden.clone()

    def chain() -> None:
        hidden.copy_(source)
        for _ in range(20):
            skinny_gemm(**first, out=inner)
            skinny_gemm(inner, second["weight"], residual=hidden, out=hidden)
            hidden.mul_(0.5) if rows == 4 else None

    chain()
    torch.cuda.synchronize()
    eager = hidden.clone()
    step = source.clone()
    for _ in range(20):
        inside = skinny_gemm(**{**first, "x": step})
        torch.cuda.synchronize()
        step = skinny_gemm(inside, second["weight"], residual=step)
        torch.cuda.synchronize()
        if rows == 4:
            step = step * 0.5
    assert torch.equal(step, eager), "calls apart and calls in a row"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(3):
        hidden.fill_(float("nan"))
        inner.fill_(float("nan"))
        graph.replay()
        assert torch.equal(hidden, eager)


@pytest.mark.skipif(not GPU, reason="needs a GPU: CUDA graphs")
def test_the_first_workspace_is_not_made_inside_a_capture(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_workspaces", {})
    arguments = problem(generator, 16, 4096, 1024)
    # Outside, so that the kernel is compiled and loaded.
    skinny_gemm(**arguments, workspace=make_workspace(generator.device))
    with (
        pytest.raises(RuntimeError, match=r"^workspace: expected one made before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        skinny_gemm(**arguments)


def test_no_rows(device: torch.device) -> None:
    weight = torch.zeros(32, 64, dtype=torch.bfloat16, device=device)
    assert skinny_gemm(weight[:0], weight).shape == (0, 32)


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


E4M3 = torch.zeros(256, 64).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 64)}, "x: expected dtype bfloat16, got float32"),
        ({"x": bf16(64)}, r"x: expected shape \[any, any\], got \[64\]"),
        ({"x": bf16(65, 64)}, "x: expected at most 64 rows, got 65"),
        ({"x": bf16(2, 72)}, "x: expected a width that is a multiple of 16, got 72"),
        ({"x": bf16(2, 0)}, "x: expected a width that is a multiple of 16, got 0"),
        ({"x": bf16(64, 2).T}, "x: expected contiguous rows"),
        ({"x": bf16(2, 68)[:, :64]}, "x: expected a row stride that is a multiple of 8, got 68"),
        ({"weight": bf16(256, 48)}, r"weight: expected shape \[any, 64\], got \[256, 48\]"),
        ({"weight": bf16(64, 256).T}, "weight: expected a contiguous tensor"),
        ({"weight": E4M3}, "weight: expected dtype bfloat16, got float8_e4m3fn"),
        ({"weight_scale": torch.ones(2, 1)}, "weight: expected dtype float8_e4m3fn, got bfloat16"),
        (
            {"weight": E4M3, "weight_scale": torch.ones(1, 2)},
            r"weight_scale: expected shape \[2, 1\], got \[1, 2\]",
        ),
        ({"weight": E4M3, "weight_scale": bf16(2, 1)}, "weight_scale: expected dtype float32, got bfloat16"),
        ({"norm_weight": bf16(32)}, r"norm_weight: expected shape \[64\], got \[32\]"),
        ({"norm_weight": torch.ones(64)}, "norm_weight: expected dtype bfloat16, got float32"),
        ({"residual": bf16(2, 128)}, r"residual: expected shape \[2, 256\], got \[2, 128\]"),
        (
            {"residual": bf16(2, 256), "silu_mul": True},
            r"residual: expected shape \[2, 128\], got \[2, 256\]",
        ),
        (
            {"weight": bf16(255, 64), "silu_mul": True},
            "weight: expected a multiple of 2 rows with silu_mul, got 255",
        ),
        (
            {"weight": E4M3[:192], "weight_scale": torch.ones(2, 1), "silu_mul": True},
            "weight: expected a multiple of 256 rows with silu_mul, got 192",
        ),
        ({"out": torch.zeros(2, 256)}, "out: expected dtype bfloat16, got float32"),
        ({"out": bf16(2, 255)}, r"out: expected shape \[2, 256\], got \[2, 255\]"),
        ({"out": bf16(256, 2).T}, "out: expected contiguous rows"),
    ],
)
def test_bad_arguments(change: dict[str, torch.Tensor | bool], message: str, device: torch.device) -> None:
    arguments = {"x": bf16(2, 64), "weight": bf16(256, 64), **change}
    moved = {}
    for name, value in arguments.items():
        moved[name] = value
        if isinstance(value, torch.Tensor):
            # Strides go along, which `to` does not promise.
            moved[name] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    with pytest.raises(ValueError, match=f"^{message}"):
        skinny_gemm(**moved)


def test_misaligned_pointers(device: torch.device) -> None:
    line = torch.zeros(4097, dtype=torch.bfloat16, device=device)
    with pytest.raises(
        ValueError, match=r"^weight: expected a pointer aligned to 16 bytes, got one 2 bytes past"
    ):
        skinny_gemm(line[:64].view(1, 64), line[1:].view(64, 64))


def test_check(device: torch.device) -> None:
    error, bound = module.check(device)
    assert error <= bound
