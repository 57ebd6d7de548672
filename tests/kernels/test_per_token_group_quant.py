"""per_token_group_quant_8bit: values, bit-exact against float64 in every layout, and the fused SiLU."""

import pytest
import torch

from kernels import quantize
from kernels.per_token_group_quant import (
    GROUP_SIZES,
    INPUT_DTYPES,
    per_token_group_quant_8bit,
    per_token_group_quant_8bit_reference,
)
from tests.kernels.group_quant_kit import (
    BACKENDS,
    E4M3,
    INT8,
    ON_GPU,
    assert_same_bits,
    bits,
    poisoned,
    spread,
)

# Rows and groups a row: one, odd, more than a program handles; on a GPU the sizes of models too.
SHAPES = [(1, 1), (3, 3), (5, 17), (37, 6)] + ([(64, 56), (1021, 56), (4096, 112)] if ON_GPU else [])
LAYOUTS = [
    pytest.param(layout, size, id=f"{layout}-{size}")
    for layout in quantize.SCALE_LAYOUTS
    for size in (GROUP_SIZES if layout == "row_major" else (128,))
]

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


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
