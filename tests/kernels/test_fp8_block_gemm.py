"""The scaled fp8 product, every way it is computed, against float64 on the dequantized operands."""

import pytest
import torch

from kernels import contract, cuda, target
from kernels.fp8_block_gemm import BACKENDS, check, fp8_block_gemm, fp8_block_gemm_reference
from kernels.quantize import allocate_scales

E4M3 = torch.float8_e4m3fn
LAYOUTS = ("row_major", "column_major", "column_major_aligned")
gpu_only = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: real shapes, cuBLAS or a graph"
)

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def operands(
    generator: torch.Generator, tokens: int, columns: int, k: int, layout: str = "column_major"
) -> Operands:
    """Random e4m3 over its whole range, scales over two decades."""
    device = generator.device

    def matrix(rows: int) -> torch.Tensor:
        return (torch.randn(rows, k, device=device, generator=generator) * 100).clamp(-448, 448).to(E4M3)

    def scales(rows: int) -> torch.Tensor:
        return 10 ** (torch.rand(rows, k // 128, device=device, generator=generator) * 2 - 3)

    a_scale = allocate_scales(tokens, k // 128, layout, device)
    a_scale.copy_(scales(tokens))
    return matrix(tokens), a_scale, matrix(columns), scales(columns // 128)


def assert_close(out: torch.Tensor, inputs: Operands) -> None:
    a, a_scale, b, b_scale = inputs
    expected = fp8_block_gemm_reference(*inputs)
    magnitude = fp8_block_gemm_reference(a.float().abs(), a_scale, b.float().abs(), b_scale)
    # bf16 rounds by half a unit, 2^-8 (the interpreter cuts off: 2^-7). An e4m3 tensor-core instruction aligns its 32
    # products and the sum so far to the largest of them and keeps some 13 bits behind its leading one, so four of them
    # lose at most about 4 * 2^-13 of the block's magnitudes; the float32 sum of the blocks loses far less.
    unit = 2.0**-7 if contract.INTERPRETING else 2.0**-8
    bound = unit * expected.abs() + 2.0**-11 * magnitude
    excess = ((out.double() - expected).abs() / bound).nan_to_num(torch.inf).max().item()
    assert excess <= 1, f"error is {excess:.2f} times its bound"


def run(inputs: Operands, **options: object) -> torch.Tensor:
    a, _, b, _ = inputs
    out = torch.full((a.shape[0], b.shape[0]), torch.nan, dtype=torch.bfloat16, device=a.device)
    return fp8_block_gemm(*inputs, out=out, **options)


def require_backend(backend: str) -> None:
    if backend != "triton" and "wgmma" not in target.current().features:
        pytest.skip(f"{backend} needs a Hopper GPU")
    if backend == "cuda" and not cuda.available():
        pytest.skip("cuda needs nvcc")


SMALL = [
    (1, 128, 128),
    (3, 256, 384),
    (16, 128, 640),
    (17, 128, 256),
    (33, 384, 128),
    (70, 128, 256),
    (130, 128, 128),
    (2, 128, 2176),
]
REAL = [
    *((tokens, 7168, 7168) for tokens in (1, 16, 17, 64, 65, 67, 128, 129, 1002, 4096)),
    *((tokens, 1536, 7168) for tokens in (5, 64, 100)),
    *((tokens, 24576, 1536) for tokens in (33, 256)),
    (64, 128, 18432),
    (40, 256, 32768),
    (100, 256, 16384),
    (40, 384, 1664),
    (12, 1152, 640),
]


@pytest.mark.parametrize("shape", SMALL + [pytest.param(shape, marks=gpu_only) for shape in REAL], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matches_float64(generator: torch.Generator, shape: tuple[int, int, int], layout: str) -> None:
    inputs = operands(generator, *shape, layout)
    assert_close(run(inputs), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape",
    [
        (4, 512, 1024),
        (64, 512, 1024),
        (128, 512, 1024),
        *(pytest.param((tokens, 7168, 7168), marks=gpu_only) for tokens in (4, 60, 100)),
    ],
    ids=str,
)
def test_every_backend_matches_float64(
    generator: torch.Generator, backend: str, shape: tuple[int, int, int]
) -> None:
    require_backend(backend)
    inputs = operands(generator, *shape)
    assert_close(run(inputs, backend=backend), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_inputs_give_the_same_bits(generator: torch.Generator, backend: str) -> None:
    require_backend(backend)
    inputs = operands(generator, 20, 256, 1024)
    first = run(inputs, backend=backend)
    assert all(torch.equal(run(inputs, backend=backend), first) for _ in range(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_of_nan_stays_alone(generator: torch.Generator, backend: str) -> None:
    require_backend(backend)
    inputs = operands(generator, 20, 128, 512)
    clean = run(inputs, backend=backend)
    inputs[0][5].view(torch.uint8).fill_(0x7F)
    inputs[1][6] = torch.nan
    out = run(inputs, backend=backend)
    others = [row for row in range(20) if row not in (5, 6)]
    # The interpreter takes e4m3's NaN for a number.
    assert out[6 if contract.INTERPRETING else 5 : 7].isnan().all()
    assert torch.equal(out[others], clean[others])


def test_blocks_scaled_by_zero_add_nothing(generator: torch.Generator) -> None:
    a, a_scale, b, b_scale = operands(generator, 7, 128, 384)
    a_scale[:, 1] = 0
    b_scale[:, 2] = 0
    expected = run((a[:, :128].contiguous(), a_scale[:, :1], b[:, :128].contiguous(), b_scale[:, :1]))
    assert torch.equal(run((a, a_scale, b, b_scale)), expected)


@pytest.mark.parametrize(("tokens", "k"), [(6, 256), (130, 256), (6, 1024)])
def test_rows_may_be_apart(generator: torch.Generator, tokens: int, k: int) -> None:
    a, a_scale, b, b_scale = operands(generator, tokens, 128, k)
    wide_a, wide_b = torch.full_like(a.repeat(1, 2), 448), torch.full_like(b.repeat(1, 2), 448)
    wide_a[:, :k], wide_b[:, k:] = a, b
    wide = torch.full((tokens, 384), torch.nan, dtype=torch.bfloat16, device=a.device)
    fp8_block_gemm(wide_a[:, :k], a_scale, wide_b[:, k:], b_scale, out=wide[:, 128:256])
    assert torch.equal(wide[:, 128:256], run((a, a_scale, b, b_scale)))
    assert wide[:, :128].isnan().all()
    assert wide[:, 256:].isnan().all()


def test_no_tokens_launch_nothing(generator: torch.Generator) -> None:
    assert run(operands(generator, 0, 128, 256)).shape == (0, 128)


@gpu_only
@pytest.mark.parametrize("tokens", [8, 64, 1024])
def test_a_captured_call_equals_an_eager_one(generator: torch.Generator, tokens: int) -> None:
    inputs, later = operands(generator, tokens, 7168, 2048), operands(generator, tokens, 7168, 2048)
    run(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Two in a row: the second may start before the first has ended.
        first = run(inputs)
        second = run(inputs)
    for mine, new in zip(inputs, later, strict=True):
        mine.copy_(new)
    graph.replay()
    assert torch.equal(first, run(later))
    assert torch.equal(second, first)


@gpu_only
@pytest.mark.parametrize("backend", ["triton", None])
def test_the_last_of_524416_rows_is_exact(generator: torch.Generator, backend: str | None) -> None:
    a, a_scale, b, b_scale = operands(generator, 64, 128, 4096)
    many = torch.empty(524416, 4096, dtype=E4M3, device="cuda")
    many_scales = torch.ones(524416, 32, device="cuda")
    many[-64:], many_scales[-64:] = a, a_scale
    out = fp8_block_gemm(many, many_scales, b, b_scale, backend=backend)
    assert_close(out[-64:], (a, a_scale, b, b_scale))


BAD = {
    "a: expected dtype float8_e4m3fn, got bfloat16": {"a": lambda t: t.bfloat16()},
    r"a: expected shape \[any, any\], got \[3, 4, 256\]": {"a": lambda t: t.expand(3, 4, 256)},
    "a: expected contiguous rows": {"a": lambda t: t.mT.contiguous().mT},
    "a: expected K a multiple of 128, got 192": {"a": lambda t: t[:, :192]},
    "a: expected rows on 16 bytes, got a stride of 264": {
        "a": lambda t: torch.cat((t, t[:, :8]), 1)[:, :256]
    },
    "a: expected a pointer aligned to 16 bytes, got one 1 bytes past": {
        "a": lambda t: torch.empty(4 * 256 + 1, dtype=E4M3, device=t.device)[1:].view(4, 256)
    },
    "a_scale: expected dtype float32, got bfloat16": {"a_scale": lambda t: t.bfloat16()},
    r"a_scale: expected shape \[4, 2\], got \[4, 1\]": {"a_scale": lambda t: t[:, :1]},
    r"b: expected shape \[any, 256\], got \[128, 128\]": {"b": lambda t: t[:, :128]},
    "b: expected contiguous rows": {"b": lambda t: t.mT.contiguous().mT},
    "b: expected N a multiple of 128, got 100": {"b": lambda t: t[:100]},
    r"b_scale: expected shape \[1, 2\], got \[2, 1\]": {"b_scale": lambda t: t.mT},
    "b_scale: expected device .*, got meta": {"b_scale": lambda t: t.to("meta")},
    r"out: expected shape \[4, 128\], got \[3, 128\]": {"out": lambda t: t[:3]},
    "out: expected dtype bfloat16, got float32": {"out": lambda t: t.float()},
    "out: expected rows on 16 bytes, got a stride of 129": {
        "out": lambda t: torch.empty(4, 129, dtype=t.dtype, device=t.device)[:, :128]
    },
    "backend: expected one of cuda, scaled_mm, triton, got cutlass": {"backend": lambda _: "cutlass"},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_by_name(generator: torch.Generator, message: str) -> None:
    a, a_scale, b, b_scale = operands(generator, 4, 128, 256)
    out = torch.full((4, 128), 7, dtype=torch.bfloat16, device=a.device)
    given = {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale, "out": out, "backend": None}
    with pytest.raises(ValueError, match=message):
        fp8_block_gemm(**{**given, **{name: change(given[name]) for name, change in BAD[message].items()}})
    assert (out == 7).all()


def test_a_backend_that_cannot_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(ValueError, match=r"backend: expected one of .* for these arguments, got cuda"):
        run(operands(generator, 200, 128, 256), backend="cuda")
    with pytest.raises(ValueError, match=r"backend: expected one of .* for these arguments, got scaled_mm"):
        run(operands(generator, 200, 128, 256), backend="scaled_mm")


def test_check_passes(device: torch.device) -> None:
    error, bound = check(device)
    assert error <= bound
