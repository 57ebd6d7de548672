"""per_token_group_quant_8bit: bit-exact against float64, every layout, masked rows, bad input."""

import pytest
import torch

from kernels import contract, quantize
from kernels.cuda import available as cuda_available
from kernels.per_token_group_quant import (
    GROUP_SIZES,
    INPUT_DTYPES,
    build_cases,
    check,
    per_token_group_quant_8bit,
    per_token_group_quant_8bit_reference,
)

ON_GPU = torch.cuda.is_available()
E4M3, INT8 = quantize.QUANTIZED_DTYPES
BACKENDS = ("cuda", "triton") if ON_GPU and cuda_available() else ("triton",)
# Rows and groups a row: one, odd, more than a program handles; on a GPU the sizes of models too.
SHAPES = [(1, 1), (3, 3), (5, 17), (37, 6)] + ([(64, 56), (1021, 56), (4096, 112)] if ON_GPU else [])
LAYOUTS = [
    pytest.param(layout, size, id=f"{layout}-{size}")
    for layout in quantize.SCALE_LAYOUTS
    for size in (GROUP_SIZES if layout == "row_major" else (128,))
]
POISON = 0x55

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def spread(*shape: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Random values whose magnitudes differ by several powers of ten, as activations' do."""
    x = torch.randn(shape, device=device, generator=generator)
    return (x * torch.exp(2 * torch.randn(shape, device=device, generator=generator))).to(dtype)


def poisoned(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    layout: str,
    groups: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and scales whose every byte is POISON, which no finite test result is made of throughout."""
    q = torch.full(shape, POISON, dtype=torch.uint8, device=device).view(dtype)
    scales = quantize.allocate_scales(
        shape[-2], groups, layout, device, shape[0] if len(shape) == 3 else None
    )
    words = torch.full(scales.shape, POISON * 0x01010101, dtype=torch.int32, device=device)
    scales.copy_(words.view(scales.dtype))
    return q, scales


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def assert_same_bits(actual: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for name, one, other in zip(("q", "scales"), actual, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        wrong = int((bits(one) != bits(other)).sum())
        assert wrong == 0, f"{wrong} of {bits(one).numel()} bytes of {name} differ"


@pytest.mark.parametrize(("rows", "groups"), SHAPES)
@pytest.mark.parametrize(("layout", "group_size"), LAYOUTS)
@pytest.mark.parametrize("dtype", [E4M3, INT8], ids=["e4m3", "int8"])
@pytest.mark.parametrize("x_dtype", INPUT_DTYPES, ids=["bf16", "fp16", "fp32"])
def test_q_and_scales_equal_the_float64_reference_bit_for_bit(
    x_dtype, dtype, layout, group_size, rows, groups, backend, device, generator
):
    x = spread(rows, groups * group_size, dtype=x_dtype, device=device, generator=generator)
    out = poisoned((rows, groups * group_size), dtype, layout, groups, device)
    per_token_group_quant_8bit(
        x, group_size, dtype=dtype, scale_layout=layout, out_q=out[0], out_scales=out[1], backend=backend
    )
    assert_same_bits(
        out, per_token_group_quant_8bit_reference(x, group_size, dtype=dtype, scale_layout=layout)
    )


@pytest.mark.parametrize("dtype", [E4M3, INT8], ids=["e4m3", "int8"])
def test_every_quotient_of_bfloat16_significands_rounds_as_the_exact_one(dtype, backend, device):
    """All 128 significands over all 128, which is every case there is: powers of two only shift both sides."""
    significands = 1 + torch.arange(128, device=device) / 128
    x = torch.zeros(256, 256, device=device, dtype=torch.bfloat16)
    x[:, 0] = 2 * significands.repeat(2)  # the maximum of each row
    x[:128, 1:129] = significands
    x[128:, 1:129] = -significands / 8
    assert_same_bits(
        per_token_group_quant_8bit(x, 256, dtype=dtype, backend=backend),
        per_token_group_quant_8bit_reference(x, 256, dtype=dtype),
    )


@pytest.mark.parametrize("layout", ["row_major", "ue8m0"])
def test_dequantized_values_are_within_half_a_step(layout, backend, device, generator):
    x = spread(16, 512, dtype=torch.bfloat16, device=device, generator=generator)
    q, scales = per_token_group_quant_8bit(x, scale_layout=layout, backend=backend)
    error = (quantize.dequantize_reference(q, scales, 128) - x.float()).abs()
    scale = quantize.unpack_scales(scales, 4).repeat_interleave(128, -1)
    # e4m3 has 4 significant bits: half a step is 2^-4 of the value, or 2^-10 scales below the normal numbers; the
    # float32 quotient and the product here add an ulp each.
    assert (error <= torch.maximum(x.float().abs() * 2**-4, scale * 2**-10) * (1 + 2**-20)).all()


@pytest.mark.parametrize("dtype", [E4M3, INT8], ids=["e4m3", "int8"])
@pytest.mark.parametrize("layout", ["row_major", "ue8m0"])
def test_zero_negative_zero_nan_and_infinite_groups(layout, dtype, backend, device, generator):
    x = torch.randn(6, 512, device=device, generator=generator).bfloat16()
    x[0, 128:256] = 0
    x[1, 128:256] = -0.0
    x[2, 130] = torch.nan
    x[3, 200] = torch.inf
    x[4, 255] = -torch.inf
    x[5, 140:144] = torch.tensor([-0.0, 1e-38, -1e-38, 0.0])
    out = poisoned(tuple(x.shape), dtype, layout, 4, device)
    per_token_group_quant_8bit(
        x, dtype=dtype, scale_layout=layout, out_q=out[0], out_scales=out[1], backend=backend
    )
    assert_same_bits(out, per_token_group_quant_8bit_reference(x, dtype=dtype, scale_layout=layout))
    q, scales = out
    assert (q[:2, 128:256].float() == 0).all()
    assert (bits(q)[2:5, 128:256] == (0x7F if dtype is E4M3 else 0)).all()
    if layout == "ue8m0":
        assert bits(scales)[:5, 1].tolist() == [85 if dtype is E4M3 else 87] * 2 + [255] * 3
    else:
        floor = (torch.tensor(1e-10).double() / quantize.quantized_maximum(dtype)).float()
        assert scales[:2, 1].cpu().tolist() == [floor.item()] * 2
        assert scales[2:5, 1].isnan().all()
    assert quantize.unpack_scales(scales, 4)[:, [0, 2, 3]].isfinite().all(), "neighbours are not touched"


def test_saturates_and_reaches_the_largest_values(backend, device):
    x = torch.linspace(-1, 1, 128, device=device).expand(3, 128).contiguous()
    x *= torch.tensor([1.0, 3e38, 1e-30], device=device).unsqueeze(1)
    q, _ = per_token_group_quant_8bit(x, dtype=E4M3, backend=backend)
    assert q.float()[:2, [0, -1]].tolist() == [[-448.0, 448.0]] * 2
    assert (q.float()[2] == 0).all(), "far below eps"
    q, _ = per_token_group_quant_8bit(x, dtype=INT8, backend=backend)
    assert q[:2, [0, -1]].tolist() == [[-127, 127]] * 2
    assert q.min() > -128


def test_ue8m0_rounds_scales_up_and_pads_words_with_zero_bytes(backend, device):
    x = torch.zeros(2, 5 * 128, device=device)
    x[0, ::128] = torch.tensor([448.0, 449.0, 448.0 * 4, 1.0, 100.0])
    q, scales = per_token_group_quant_8bit(x, scale_layout="ue8m0", backend=backend)
    assert scales.shape == (2, 2)
    assert scales.stride() == (1, 4)
    assert bits(scales)[0].tolist() == [127, 128, 129, 119, 125, 0, 0, 0]
    # 1 / 448 rounds up to 2^-8 and 100 / 448 to 2^-2: the quotient divides by these (400 is a tie; 384 is even).
    assert q[0, ::128].float().tolist() == [448.0, 224.0, 448.0, 256.0, 384.0]


def test_column_major_layouts_have_their_strides(backend, device):
    x = torch.randn(6, 384, device=device).bfloat16()
    assert per_token_group_quant_8bit(x, backend=backend)[1].stride() == (3, 1)
    plain = per_token_group_quant_8bit(x, scale_layout="column_major", backend=backend)[1]
    aligned = per_token_group_quant_8bit(x, scale_layout="column_major_aligned", backend=backend)[1]
    assert plain.stride() == (1, 6)
    assert aligned.stride() == (1, 8)
    assert torch.equal(plain, aligned)


@pytest.mark.parametrize("x_dtype", INPUT_DTYPES, ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("layout", ["row_major", "ue8m0"])
def test_fused_silu_equals_silu_then_quantize(x_dtype, layout, backend, device, generator):
    x = spread(19, 2 * 640, dtype=x_dtype, device=device, generator=generator)
    x[0, :5] = torch.tensor([100.0, -100.0, 0.0, -0.0, -20.0])
    q, scales = per_token_group_quant_8bit(x, scale_layout=layout, fuse_silu_and_mul=True, backend=backend)
    wanted_q, wanted_scales = per_token_group_quant_8bit_reference(
        x, scale_layout=layout, fuse_silu_and_mul=True
    )
    # exp, its sum and the quotient err by 4 ulp of float32 together, so that rounding to the input dtype, once after
    # the SiLU and once after the product, now and then lands on the neighbour: 2 unit roundoffs of that dtype apart.
    apart = 2 * torch.finfo(x_dtype).eps + 2**-21
    actual = quantize.dequantize_reference(q, scales, 128)
    wanted = quantize.dequantize_reference(wanted_q, wanted_scales, 128)
    scale = quantize.unpack_scales(wanted_scales, 5).repeat_interleave(128, -1)
    # A product that moved this much may round to the next e4m3 value: one step of 2^-3, or of 2^-9 scales.
    step = torch.maximum(wanted.abs() * 2**-3, scale * 2**-9)
    assert ((actual - wanted).abs() <= step * (1 + apart) + wanted.abs() * apart).all()
    # Few do: those whose product lies within `apart` of a boundary, of which there is one every 2^-4 at most.
    assert (q.float() != wanted_q.float()).float().mean() <= 0.01 + apart * 2**4


def test_fused_silu_rounds_before_the_multiplication(backend, device):
    gate = torch.linspace(0.5, 4, 128, device=device).bfloat16()
    up = torch.linspace(3, 1, 128, device=device).bfloat16()
    q, scales = per_token_group_quant_8bit(
        torch.cat([gate, up]).unsqueeze(0),
        dtype=INT8,
        eps=127 * 2.0**-6,
        fuse_silu_and_mul=True,
        backend=backend,
    )
    product = torch.nn.functional.silu(gate.cpu()) * up.cpu()
    assert torch.equal(scales[0, 0].cpu(), (product.abs().max().double() / 127).float())
    assert torch.equal(q[0].cpu(), (product.float() / scales[0, 0].cpu()).round().to(torch.int8))


@pytest.mark.parametrize("silu", [False, True], ids=["plain", "silu"])
@pytest.mark.parametrize("layout", quantize.SCALE_LAYOUTS)
def test_masked_rows_are_neither_read_nor_written(layout, silu, backend, device, generator):
    experts, rows, columns = (5, 6, 384) if not ON_GPU else (67, 130, 1152)
    x = spread(
        experts, rows, columns * (2 if silu else 1), dtype=torch.float16, device=device, generator=generator
    )
    counts = torch.randint(0, rows + 1, (experts,), device=device, generator=generator).int()
    counts[0], counts[1], counts[-1] = 0, rows, 1
    live = torch.arange(rows, device=device) < counts.unsqueeze(1)
    expected = per_token_group_quant_8bit(
        x.flatten(0, 1), scale_layout="row_major", fuse_silu_and_mul=silu, backend=backend
    )
    x[~live] = torch.nan
    q, scales = poisoned((experts, rows, columns), E4M3, layout, columns // 128, device)
    per_token_group_quant_8bit(
        x,
        scale_layout=layout,
        fuse_silu_and_mul=silu,
        masked_m=counts,
        out_q=q,
        out_scales=scales,
        backend=backend,
    )
    assert (bits(q)[~live] == POISON).all()
    assert (bits(scales)[~live] == POISON).all()
    if layout != "ue8m0":
        assert torch.equal(bits(q)[live], bits(expected[0]).view(experts, rows, columns)[live])
        wanted = expected[1].view(experts, rows, -1)[live]
        assert torch.equal(bits(scales[live]), bits(wanted)), "NaN where a product overflowed"
    elif not silu:
        wanted = per_token_group_quant_8bit_reference(x, scale_layout=layout)
        assert torch.equal(bits(q)[live], bits(wanted[0])[live])
        assert torch.equal(scales[live], wanted[1][live])


def test_strided_rows(backend, device, generator):
    wide = spread(9, 1024, dtype=torch.bfloat16, device=device, generator=generator)
    x = wide[:, 128:640]
    assert_same_bits(per_token_group_quant_8bit(x, backend=backend), per_token_group_quant_8bit_reference(x))


@pytest.mark.parametrize("shape", [(0, 256), (4, 0)])
def test_empty_input_returns(shape, backend, device):
    q, scales = per_token_group_quant_8bit(
        torch.empty(shape, device=device, dtype=torch.bfloat16), backend=backend
    )
    assert q.shape == shape
    assert scales.shape == (shape[0], shape[1] // 128)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: 6.4 GB in more than 2^31 elements")
def test_offsets_are_64_bit(backend, device):
    x = torch.empty(524416, 4096, dtype=torch.bfloat16, device=device)
    x[:-2].fill_(1.0)
    x[-2:].normal_()
    q, scales = per_token_group_quant_8bit(x, backend=backend)
    assert_same_bits((q[-3:], scales[-3:]), per_token_group_quant_8bit_reference(x[-3:]))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: CUDA graphs")
def test_captured_call_follows_its_input(backend, device, generator):
    x = torch.zeros(3, 16, 256, device=device, dtype=torch.bfloat16)
    counts = torch.zeros(3, dtype=torch.int32, device=device)
    out = poisoned(tuple(x.shape), E4M3, "row_major", 2, device)

    def run() -> None:
        per_token_group_quant_8bit(x, masked_m=counts, out_q=out[0], out_scales=out[1], backend=backend)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    x.copy_(torch.randn(x.shape, device=device, generator=generator))
    counts.fill_(16)
    graph.replay()
    assert_same_bits(out, per_token_group_quant_8bit_reference(x))


@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs a GPU and nvcc: CUDA C++ beside Triton")
@pytest.mark.parametrize("dtype", [E4M3, INT8], ids=["e4m3", "int8"])
def test_cuda_and_triton_agree_on_the_fused_silu(dtype, backend, device, generator):
    if backend != "cuda":
        pytest.skip("one comparison is enough")
    x = spread(511, 2 * 7168, dtype=torch.bfloat16, device=device, generator=generator)
    cuda, triton = (
        per_token_group_quant_8bit(x, dtype=dtype, fuse_silu_and_mul=True, backend=name) for name in BACKENDS
    )
    assert_same_bits(cuda, triton)


def valid(device: torch.device) -> dict:
    return {"x": torch.ones(4, 256, dtype=torch.bfloat16, device=device)}


def masked(device: torch.device, **changes) -> dict:
    counts = torch.ones(2, dtype=torch.int32, device=device)
    return {"x": torch.ones(2, 4, 256, device=device), "masked_m": counts} | changes


def rows_apart(columns: int, device: torch.device) -> torch.Tensor:
    return torch.ones(4, columns, dtype=torch.bfloat16, device=device)


BAD = {
    "not a tensor": (lambda d: {"x": [1.0]}, "x: expected a tensor"),
    "dtype": (lambda d: {"x": torch.ones(4, 256, dtype=torch.float64, device=d)}, "x: expected dtype"),
    "one dimension": (lambda d: {"x": torch.ones(256, device=d)}, r"x: expected shape \[any, any\]"),
    "three dimensions without counts": (
        lambda d: {"x": torch.ones(2, 4, 256, device=d)},
        "x: expected shape",
    ),
    "columns": (lambda d: {"x": torch.ones(4, 200, device=d)}, "x: expected columns in multiples of 128"),
    "gate without up": (
        lambda d: {"x": torch.ones(4, 384, device=d), "fuse_silu_and_mul": True},
        "x: expected columns in multiples of 256 .*got 384",
    ),
    "group of 12": (lambda d: valid(d) | {"group_size": 12}, "group_size: expected one of 16, .* got 12"),
    "group of 512": (lambda d: valid(d) | {"group_size": 512}, "group_size: expected one of 16, .* got 512"),
    "quantized dtype": (lambda d: valid(d) | {"dtype": torch.float8_e5m2}, "dtype: expected one of"),
    "layout": (lambda d: valid(d) | {"scale_layout": "diagonal"}, "scale_layout: expected one of row_major"),
    "ue8m0 of 64": (
        lambda d: valid(d) | {"group_size": 64, "scale_layout": "ue8m0"},
        "group_size: expected 128 for ue8m0 scales, got 64",
    ),
    "eps of zero": (lambda d: valid(d) | {"eps": 0.0}, "eps: expected a finite number"),
    "eps not finite": (lambda d: valid(d) | {"eps": float("nan")}, "eps: expected a finite number"),
    "backend": (lambda d: valid(d) | {"backend": "opencl"}, "backend: expected one of cuda, triton"),
    "columns apart": (
        lambda d: {"x": torch.ones(256, 4, dtype=torch.bfloat16, device=d).t()},
        "x: expected contiguous rows",
    ),
    "rows off 16 bytes": (lambda d: {"x": rows_apart(260, d)[:, :256]}, "x: expected rows that start on 16"),
    "pointer off 16 bytes": (lambda d: {"x": rows_apart(264, d)[:, 4:260]}, "x: expected a pointer aligned"),
    "q's dtype": (
        lambda d: valid(d) | {"out_q": torch.empty(4, 256, dtype=INT8, device=d)},
        "out_q: expected dtype float8_e4m3fn, got int8",
    ),
    "q's shape": (
        lambda d: valid(d) | {"out_q": torch.empty(5, 256, device=d).to(E4M3)},
        r"out_q: expected shape \[4, 256\], got \[5, 256\]",
    ),
    "q not contiguous": (
        lambda d: valid(d) | {"out_q": torch.empty(4, 512, device=d).to(E4M3)[:, :256]},
        "out_q: expected a contiguous tensor",
    ),
    "scales' dtype": (
        lambda d: valid(d) | {"out_scales": torch.empty(4, 2, dtype=torch.float16, device=d)},
        "out_scales: expected dtype float32, got float16",
    ),
    "scales' shape": (
        lambda d: valid(d) | {"out_scales": torch.empty(4, 3, device=d)},
        r"out_scales: expected shape \[4, 2\], got \[4, 3\]",
    ),
    "scales' strides": (
        lambda d: valid(d) | {"out_scales": torch.empty(2, 4, device=d).t()},
        r"out_scales: expected strides \[2, 1\] for row_major scales, got \[1, 4\]",
    ),
    "scales of no expert": (
        lambda d: masked(d) | {"out_scales": torch.empty(4, 2, device=d)},
        "out_scales: expected 3 dimensions",
    ),
    "counts' dtype": (
        lambda d: masked(d, masked_m=torch.ones(2, dtype=torch.int64, device=d)),
        "masked_m: expected dtype int32, got int64",
    ),
    "counts' shape": (
        lambda d: masked(d, masked_m=torch.ones(3, dtype=torch.int32, device=d)),
        r"masked_m: expected shape \[2\], got \[3\]",
    ),
    "counts without experts": (
        lambda d: masked(d) | valid(d),
        r"x: expected shape \[any, any, any\], got \[4, 256\]",
    ),
    "experts apart": (
        lambda d: masked(d, x=torch.ones(2, 8, 256, device=d)[:, :4]),
        "x: expected experts that follow one another",
    ),
    "too many experts": (
        lambda d: {
            "x": torch.ones(1025, 1, 128, device=d),
            "masked_m": torch.ones(1025, dtype=torch.int32, device=d),
        },
        "x: expected at most 1024 experts, got 1025",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_nothing_is_written(case, backend, device):
    make, message = BAD[case]
    arguments = {"backend": backend} | make(device)
    with pytest.raises(ValueError, match=message):
        per_token_group_quant_8bit(**arguments)


def test_counts_out_of_range_are_refused_in_debug_mode(backend, device, monkeypatch):
    monkeypatch.setattr(contract, "DEBUG", True)
    counts = torch.tensor([1, 5], dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"masked_m: expected values in \[0, 5\), got \[1, 5\]"):
        per_token_group_quant_8bit(**masked(device, masked_m=counts), backend=backend)


def test_its_own_check_passes(backend, device):
    error, bound = check(device)
    assert error <= bound


def test_build_cases_have_names_of_their_own(backend):
    names = [case.name for case in build_cases()]
    assert len(set(names)) == len(names)
