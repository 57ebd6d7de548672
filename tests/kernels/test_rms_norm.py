"""RMS norms against float64 and against Hugging Face's formula, at real shapes on a GPU and small ones on a CPU."""

import re

import pytest
import torch

from kernels import rms_norm as operation
from kernels.launch import meta
from kernels.quantize import SCALE_LAYOUTS, allocate_scales, quantize_reference
from kernels.rms_norm import (
    add_rms_norm,
    add_rms_norm_quant,
    add_rms_norm_reference,
    rms_norm,
    rms_norm_quant,
    rms_norm_reference,
)
from kernels.rms_norm_launch import vectors_per_thread
from tests.kernels.rounding_kit import (
    BACKENDS,
    DTYPES,
    GPU,
    assert_rounds_alike,
    assert_rounds_between,
    bits,
    normal,
    poisoned,
)

EPS = 1e-6
SHAPES = [(1, 64), (3, 72), (17, 128), (2, 1000), (5, 1024), (2, 2560), (2, 7168)]
if GPU:
    SHAPES += [(4096, 7168), (1000, 16384), (65536, 128), (777, 5120), (64, 4096), (33, 16376)]


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norm_equals_float64(shape, dtype, generator, device, backend):
    x, weight = normal(generator, *shape, dtype=dtype) * 3, normal(generator, shape[1], dtype=dtype)
    out = poisoned(shape, dtype, device)
    assert rms_norm(x, weight, EPS, out=out, backend=backend) is out
    assert_rounds_between(out, rms_norm_reference, x, weight, EPS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_addition_and_norm_equal_float64(shape, dtype, generator, device, backend):
    x, residual = (normal(generator, *shape, dtype=dtype) for _ in range(2))
    weight = normal(generator, shape[1], dtype=dtype)
    out, total = poisoned(shape, dtype, device), poisoned(shape, dtype, device)
    add_rms_norm(x, residual, weight, EPS, out=out, residual_out=total, backend=backend)
    _, expected_total = add_rms_norm_reference(x, residual, weight, EPS)
    assert torch.equal(total, expected_total)  # one float32 addition of 16-bit numbers, rounded: exact
    assert_rounds_between(out, rms_norm_reference, total, weight, EPS)


def test_norm_rounds_where_hugging_face_does(generator, backend):
    x, weight = normal(generator, 8, 1024), normal(generator, 1024)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    assert_rounds_alike(rms_norm(x, weight, EPS, backend=backend), weight * wide.to(x.dtype))
    # A norm that rounds once, after the weight, is told apart: about a quarter of its values differ.
    once = (weight.float() * wide).to(x.dtype)
    assert (once != weight * wide.to(x.dtype)).float().mean() > 0.1


def test_mean_is_over_the_width_and_eps_under_the_root(device, backend):
    x = torch.full((1, 72), 2.0**-10, dtype=torch.bfloat16, device=device)
    weight = torch.ones(72, dtype=torch.bfloat16, device=device)
    # x^2 = 2^-20; with eps 3 * 2^-20 the root is 2^-9
    assert torch.equal(rms_norm(x, weight, 3 * 2.0**-20, backend=backend), torch.full_like(x, 0.5))


def test_addition_works_in_place(generator, backend):
    x, residual, weight = normal(generator, 6, 1000), normal(generator, 6, 1000), normal(generator, 1000)
    expected, expected_total = add_rms_norm(x, residual, weight, EPS, backend=backend)
    add_rms_norm(x, residual, weight, EPS, out=x, residual_out=residual, backend=backend)
    assert torch.equal(x, expected)
    assert torch.equal(residual, expected_total)


def test_norm_works_in_place(generator, backend):
    x, weight = normal(generator, 4, 256), normal(generator, 256)
    expected = rms_norm(x, weight, EPS, backend=backend)
    rms_norm(x, weight, EPS, out=x, backend=backend)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("rows", "width"), [(5, 128), (5, 1000), (5, 2560), *([(777, 2048), (777, 2560)] if GPU else [])]
)
def test_strided_rows_are_read_and_nothing_beside_them_is_written(rows, width, generator, device, backend):
    wide = [normal(generator, rows, width + 24) for _ in range(2)]
    x, residual = (tensor[:, 8 : 8 + width] for tensor in wide)
    weight = normal(generator, width)
    buffers = [torch.full((rows, width + 48), 7.0, dtype=torch.bfloat16, device=device) for _ in range(2)]
    out, total = (buffer[:, 16 : 16 + width] for buffer in buffers)
    add_rms_norm(x, residual, weight, EPS, out=out, residual_out=total, backend=backend)
    expected, expected_total = add_rms_norm(
        x.contiguous(), residual.contiguous(), weight, EPS, backend=backend
    )
    assert torch.equal(out, expected)
    assert torch.equal(total, expected_total)
    rms_norm(x, weight, EPS, out=out, backend=backend)
    assert torch.equal(out, rms_norm(x.contiguous(), weight, EPS, backend=backend))
    for buffer in buffers:
        assert (buffer[:, :16] == 7).all()
        assert (buffer[:, 16 + width :] == 7).all()


def test_leading_dimensions_collapse(generator, backend):
    x, weight = normal(generator, 2, 3, 128), normal(generator, 128)
    out = rms_norm(x, weight, EPS, backend=backend)
    assert out.shape == x.shape
    assert torch.equal(out.view(6, 128), rms_norm(x.view(6, 128), weight, EPS, backend=backend))


@pytest.mark.parametrize("width", [128, 4096])
def test_zero_rows_return_at_once(width, device, backend):
    x = torch.empty(0, width, dtype=torch.bfloat16, device=device)
    weight = torch.ones(width, dtype=torch.bfloat16, device=device)
    assert rms_norm(x, weight, EPS, backend=backend).shape == (0, width)
    assert add_rms_norm(x, x, weight, EPS, backend=backend)[0].shape == (0, width)
    quantized, scales = rms_norm_quant(x, weight, EPS, backend=backend)
    assert (quantized.shape, scales.shape) == ((0, width), (0, width // 128))
    assert add_rms_norm_quant(x, x, weight, EPS, scale_layout="ue8m0", backend=backend)[0].shape == (0, width)


@pytest.mark.parametrize("layout", SCALE_LAYOUTS)
@pytest.mark.parametrize("quantized_dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 128), (3, 384), (3, 2176), *([(5, 4096), (17, 7168), (4099, 7168), (777, 16384)] if GPU else [])],
    ids=str,
)
def test_fused_quantization_equals_the_unfused_bit_for_bit(
    shape, quantized_dtype, layout, generator, device, backend
):
    x, residual, weight = (normal(generator, *s) for s in (shape, shape, shape[1:]))
    groups = shape[1] // 128
    for add in (False, True):
        q = poisoned(shape, quantized_dtype, device)
        scales = allocate_scales(shape[0], groups, layout, device)
        scales.view(torch.int32).fill_(0x7F7F7F7F)
        options = {"dtype": quantized_dtype, "scale_layout": layout, "out": q, "scales": scales}
        if add:
            normed, total = add_rms_norm(x, residual, weight, EPS, backend=backend)
            _, _, fused_total = add_rms_norm_quant(x, residual, weight, EPS, **options, backend=backend)
            assert torch.equal(fused_total, total)
        else:
            normed = rms_norm(x, weight, EPS, backend=backend)
            rms_norm_quant(x, weight, EPS, **options, backend=backend)
        expected, expected_scales = quantize_reference(normed, 128, quantized_dtype, layout)
        assert torch.equal(bits(q), bits(expected))
        assert torch.equal(bits(scales), bits(expected_scales))


@pytest.mark.parametrize("width", [128, 384, 1000, 7168, 16384] if GPU else [384])
def test_a_row_is_the_same_among_few_and_among_many(width, generator, backend):
    x, weight = normal(generator, 1000 if GPU else 9, width), normal(generator, width)
    many = rms_norm(x, weight, EPS, backend=backend)
    for rows in (1, 7, 264):  # at 264 and fewer the threads hold other vectors of the row
        assert torch.equal(rms_norm(x[:rows], weight, EPS, backend=backend), many[:rows])


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("groups", [1, 3, 17])
def test_every_group_size_and_count(group_size, groups, generator):
    if group_size * groups < operation.MIN_WIDTH:
        groups = operation.MIN_WIDTH // group_size
    x, weight = normal(generator, 4, group_size * groups), normal(generator, group_size * groups)
    q, scales = rms_norm_quant(x, weight, EPS, group_size)
    expected, expected_scales = quantize_reference(rms_norm(x, weight, EPS), group_size, torch.float8_e4m3fn)
    assert torch.equal(bits(q), bits(expected))
    assert torch.equal(scales, expected_scales)


def test_zero_rows_of_values_are_zero_with_the_least_scale(device, backend):
    x = torch.zeros(2, 512, dtype=torch.bfloat16, device=device)
    weight = torch.ones(512, dtype=torch.bfloat16, device=device)
    assert (rms_norm(x, weight, EPS, backend=backend) == 0).all()
    q, scales = rms_norm_quant(x, weight, EPS, scale_layout="ue8m0", backend=backend)
    assert (bits(q) == 0).all()
    assert (scales == 0x55555555).all()  # four bytes 85 = ceil(log2(1e-10 / 448)) + 127


def test_nan_and_infinity_stay_in_their_rows(generator, backend):
    x, weight = normal(generator, 4, 512), normal(generator, 512)
    clean = rms_norm(x, weight, EPS, backend=backend)
    clean_q, clean_scales = rms_norm_quant(x, weight, EPS, backend=backend)
    x[1, 5], x[2, 7] = float("nan"), float("inf")
    out = rms_norm(x, weight, EPS, backend=backend)
    assert out[1].isnan().all()
    assert out[2, 7].isnan()
    assert (out[2, :7] == 0).all()
    q, scales = rms_norm_quant(x, weight, EPS, backend=backend)
    assert (bits(q)[1] & 0x7F == 0x7F).all()
    assert scales[1].isnan().all()
    assert (bits(q)[2, :128] & 0x7F == 0x7F).all()  # the whole group that holds the NaN
    for row in (0, 3):
        assert torch.equal(out[row], clean[row])
        assert torch.equal(bits(q)[row], bits(clean_q)[row])
        assert torch.equal(scales[row], clean_scales[row])


@pytest.mark.skipif(not GPU, reason="needs a GPU with 14 GB: offsets beyond 2^31 elements")
def test_last_rows_of_a_tensor_beyond_32_bit_offsets(generator, device, backend):
    rows, width = 524416, 4096
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device=device)
    x[-3:] = normal(generator, 3, width)
    residual, weight = torch.ones_like(x), normal(generator, width)
    out = torch.empty_like(x)
    add_rms_norm(x, residual, weight, EPS, out=out, residual_out=residual, backend=backend)
    expected, total = add_rms_norm(x[-3:].clone(), torch.ones_like(x[-3:]), weight, EPS, backend=backend)
    assert torch.equal(out[-3:], expected)
    assert torch.equal(residual[-3:], total)
    q, scales = rms_norm_quant(x, weight, EPS, backend=backend)
    tail, tail_scales = rms_norm_quant(x[-3:].clone(), weight, EPS, backend=backend)
    assert torch.equal(bits(q[-3:]), bits(tail))
    assert torch.equal(scales[-3:], tail_scales)


@pytest.mark.skipif(not GPU, reason="needs a GPU: graphs")
def test_replay_equals_eager(generator, device, backend):
    x, residual, weight = normal(generator, 64, 7168), normal(generator, 64, 7168), normal(generator, 7168)
    add_rms_norm_quant(x, residual, weight, EPS, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        normed, total = add_rms_norm(x, residual, weight, EPS, backend=backend)
        again, total_again = add_rms_norm(
            normed, total, weight, EPS, backend=backend
        )  # dependent launches overlap
        q, scales, _ = add_rms_norm_quant(again, total_again, weight, EPS, backend=backend)
    for _ in range(3):
        x.copy_(normal(generator, 64, 7168))
        for tensor in (normed, total, again, total_again):
            tensor.fill_(float("nan"))
        graph.replay()
        expected = add_rms_norm(
            *add_rms_norm(x, residual, weight, EPS, backend=backend), weight, EPS, backend=backend
        )
        expected_q, expected_scales, _ = add_rms_norm_quant(*expected, weight, EPS, backend=backend)
        assert torch.equal(again, expected[0])
        assert torch.equal(bits(q), bits(expected_q))
        assert torch.equal(scales, expected_scales)


def x_of(device, rows=4, width=256, dtype=torch.bfloat16):
    return torch.zeros(rows, width, dtype=dtype, device=device)


def w_of(device, width=256, dtype=torch.bfloat16):
    return torch.zeros(width, dtype=dtype, device=device)


BAD = {
    "x: expected dtype bfloat16 or float16, got float32": lambda d: rms_norm(
        x_of(d, dtype=torch.float32), w_of(d), EPS
    ),
    "x: expected a tensor, got list": lambda d: rms_norm([1.0], w_of(d), EPS),
    "x: expected a width from 64 to 16384, a multiple of 8, got 56": lambda d: rms_norm(
        x_of(d, width=56), w_of(d, 56), EPS
    ),
    "x: expected a width from 64 to 16384, a multiple of 8, got 100": lambda d: rms_norm(
        x_of(d, width=100), w_of(d, 100), EPS
    ),
    "x: expected a width from 64 to 16384, a multiple of 8, got 16392": lambda d: rms_norm(
        x_of(d, width=16392), w_of(d, 16392), EPS
    ),
    "weight: expected shape [256], got [128]": lambda d: rms_norm(x_of(d), w_of(d, 128), EPS),
    "weight: expected dtype bfloat16, got float16": lambda d: rms_norm(
        x_of(d), w_of(d, dtype=torch.float16), EPS
    ),
    "weight: expected a contiguous tensor": lambda d: rms_norm(x_of(d), w_of(d, 512)[::2], EPS),
    "weight: expected device": lambda d: rms_norm(x_of(d), meta(256, dtype=torch.bfloat16), EPS),
    "eps: expected a finite number of at least 0, got -1": lambda d: rms_norm(x_of(d), w_of(d), -1),
    "x: expected contiguous rows": lambda d: rms_norm(x_of(d, 256, 256).T, w_of(d), EPS),
    "x: expected rows that start on 16 bytes, got a stride of 260 elements": lambda d: rms_norm(
        x_of(d, width=260)[:, :256], w_of(d), EPS
    ),
    "x: expected leading dimensions of one stride": lambda d: rms_norm(
        torch.zeros(2, 3, 512, dtype=torch.bfloat16, device=d)[:, :2, :256], w_of(d), EPS
    ),
    "x: expected a pointer aligned to 16 bytes, got one 8 bytes past": lambda d: rms_norm(
        x_of(d, width=264)[:, 4:260], w_of(d), EPS
    ),
    "out: expected shape [4, 256], got [3, 256]": lambda d: rms_norm(
        x_of(d), w_of(d), EPS, out=x_of(d, rows=3)
    ),
    "out: expected dtype bfloat16, got float16": lambda d: rms_norm(
        x_of(d), w_of(d), EPS, out=x_of(d, dtype=torch.float16)
    ),
    "residual: expected shape [4, 256], got [4, 128]": lambda d: add_rms_norm(
        x_of(d), x_of(d, width=128), w_of(d), EPS
    ),
    "residual_out: expected dtype bfloat16, got float16": lambda d: add_rms_norm(
        x_of(d), x_of(d), w_of(d), EPS, residual_out=x_of(d, dtype=torch.float16)
    ),
    "group_size: expected one of 32, 64, 128, got 12": lambda d: rms_norm_quant(x_of(d), w_of(d), EPS, 12),
    "group_size: expected one of 32, 64, 128, got 512": lambda d: rms_norm_quant(x_of(d), w_of(d), EPS, 512),
    "group_size: expected 128 for ue8m0 scales, got 64": lambda d: rms_norm_quant(
        x_of(d), w_of(d), EPS, 64, scale_layout="ue8m0"
    ),
    "x: expected a width that group_size 128 divides, got 320": lambda d: rms_norm_quant(
        x_of(d, width=320), w_of(d, 320), EPS
    ),
    "group_size: expected 128 for backend cuda, got 64": lambda d: rms_norm_quant(
        x_of(d), w_of(d), EPS, 64, backend="cuda"
    ),
    "backend: expected one of cuda, triton, got metal": lambda d: rms_norm(
        x_of(d), w_of(d), EPS, backend="metal"
    ),
    "dtype: expected one of": lambda d: rms_norm_quant(x_of(d), w_of(d), EPS, dtype=torch.uint8),
    "scale_layout: expected one of": lambda d: rms_norm_quant(x_of(d), w_of(d), EPS, scale_layout="diagonal"),
    "eps: expected a finite number of at least 1e-18, got 0": lambda d: rms_norm_quant(
        x_of(d), w_of(d), EPS, scale_eps=0
    ),
    "scales: expected dtype float32, got float16": lambda d: rms_norm_quant(
        x_of(d), w_of(d), EPS, scales=torch.zeros(4, 2, dtype=torch.float16, device=d)
    ),
    "scales: expected shape [4, 2], got [4, 3]": lambda d: rms_norm_quant(
        x_of(d), w_of(d), EPS, scales=torch.zeros(4, 3, device=d)
    ),
    "scales: expected strides [2, 1] for row_major scales, got [1, 4]": lambda d: rms_norm_quant(
        x_of(d), w_of(d), EPS, scales=torch.zeros(2, 4, device=d).T
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_and_nothing_is_launched(message, device, monkeypatch):
    for run in ("run_cuda", "run_triton"):
        monkeypatch.setattr(operation, run, lambda _problem: pytest.fail("launched"))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        BAD[message](device)


@pytest.mark.skipif(not GPU, reason="needs a GPU: CUDA C++ is not interpreted")
@pytest.mark.parametrize("shape", [(1, 64), (1000, 7168), (3, 16384)], ids=str)
def test_backends_agree(shape, generator):
    x, residual, weight = (normal(generator, *s) for s in (shape, shape, shape[1:]))
    cuda, triton = (add_rms_norm(x, residual, weight, EPS, backend=name) for name in operation.BACKENDS)
    assert torch.equal(cuda[1], triton[1])
    assert_rounds_alike(cuda[0], triton[0])


@pytest.mark.parametrize("rows", [1, 1_000_000])
@pytest.mark.parametrize("quantizes", [False, True])
def test_blocks_stay_within_the_threads_that_the_kernel_is_compiled_for(rows, quantizes):
    for width in range(operation.MIN_WIDTH, operation.MAX_WIDTH + 1, operation.VECTOR):
        count = vectors_per_thread(rows, width, quantizes)
        assert count in (1, 2, 4)
        assert -(-width // (operation.VECTOR * count)) <= min(1024, 2048 // count)


def test_check_passes(device):
    assert operation.check(device) == (0, 0)


def test_check_notices_a_factor_that_is_off_by_more_than_rounding(device, monkeypatch):
    # Squares are 2 in the mean: the factor is 2^-14 off, 32 times what rounding explains.
    monkeypatch.setattr(operation, "add_rms_norm", lambda *arguments: add_rms_norm(*arguments[:3], 2.0**-12))
    error, bound = operation.check(device)
    assert error > bound
