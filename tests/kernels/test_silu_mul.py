"""SiLU-and-multiply against float64 and against torch, at real shapes on a GPU and small ones on a CPU."""

import re

import pytest
import torch

from kernels import silu_mul as operation
from kernels.launch import meta
from kernels.quantize import SCALE_LAYOUTS, allocate_scales, quantize_reference
from kernels.silu_mul import silu_mul, silu_mul_quant, silu_mul_reference
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

SHAPES = [(1, 8), (3, 72), (17, 128), (5, 768), (2, 1000), (3, 1024), (2, 2560)]
if GPU:
    SHAPES += [(4096, 7168), (1000, 18432), (4097, 768), (65, 25600)]


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    """Of the quantized form; the other has one only."""
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_equals_float64(shape, dtype, generator, device):
    rows, width = shape
    gate_up = normal(generator, rows, 2 * width, dtype=dtype) * 2
    out = poisoned(shape, dtype, device)
    assert silu_mul(gate_up, out=out) is out
    assert_rounds_between(out, silu_mul_reference, gate_up)


def test_silu_rounds_before_the_product_as_in_torch(generator):
    gate_up = normal(generator, 16, 1024)
    gate, up = gate_up.chunk(2, dim=-1)
    assert_rounds_alike(silu_mul(gate_up), torch.nn.functional.silu(gate) * up)
    # A product that rounds once is told apart: about a quarter of its values differ.
    once = (torch.nn.functional.silu(gate.float()) * up.float()).bfloat16()
    assert (once != torch.nn.functional.silu(gate) * up).float().mean() > 0.1


def test_extreme_gates(device):
    gates = torch.tensor([-3e38, -1e4, -100, -90, 0, 90, 1e4, 3e38], dtype=torch.bfloat16, device=device)
    gate_up = torch.cat([gates, torch.ones_like(gates)]).unsqueeze(0)
    out = silu_mul(gate_up)[0]
    assert out.isfinite().all()
    # exp overflows in float32 beyond 88, and the quotient is then -0; its true size is below the normal numbers.
    assert torch.allclose(out, torch.nn.functional.silu(gates), rtol=0, atol=2.0**-126)


def test_nan_and_infinity_stay_in_their_elements(generator, backend):
    gate_up = normal(generator, 3, 1024)
    clean = silu_mul(gate_up)
    clean_q, clean_scales = silu_mul_quant(gate_up, backend=backend)
    gate_up[1, 3], gate_up[1, 512 + 200], gate_up[1, 400] = float("nan"), float("nan"), float("-inf")
    out = silu_mul(gate_up)
    for column in (3, 200, 400):
        assert out[1, column].isnan()
        out[1, column] = clean[1, column]
    assert torch.equal(out, clean)
    q, scales = silu_mul_quant(gate_up, backend=backend)
    for group in (0, 1, 3):
        assert scales[1, group].isnan()
        assert (bits(q)[1, group * 128 : group * 128 + 128] & 0x7F == 0x7F).all()
    assert torch.equal(bits(q)[1, 256:384], bits(clean_q)[1, 256:384])
    for row in (0, 2):
        assert torch.equal(bits(q)[row], bits(clean_q)[row])
        assert torch.equal(scales[row], clean_scales[row])


@pytest.mark.parametrize("width", [128, 1000, 2560])
def test_strided_rows_are_read_and_nothing_beside_them_is_written(width, generator, device):
    wide = normal(generator, 5, 2 * width + 24)
    buffer = torch.full((5, width + 48), 7.0, dtype=torch.bfloat16, device=device)
    out = buffer[:, 16 : 16 + width]
    gate_up = wide[:, 8 : 8 + 2 * width]
    silu_mul(gate_up, out=out)
    assert torch.equal(out, silu_mul(gate_up.contiguous()))
    assert (buffer[:, :16] == 7).all()
    assert (buffer[:, 16 + width :] == 7).all()


def test_zero_rows_return_at_once(device, backend):
    gate_up = torch.empty(0, 512, dtype=torch.bfloat16, device=device)
    assert silu_mul(gate_up).shape == (0, 256)
    q, scales = silu_mul_quant(gate_up, backend=backend)
    assert (q.shape, scales.shape) == ((0, 256), (0, 2))


@pytest.mark.parametrize("layout", SCALE_LAYOUTS)
@pytest.mark.parametrize("quantized_dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 128), (3, 384), (3, 2176), *([(17, 768), (4099, 7168)] if GPU else [])], ids=str
)
def test_fused_quantization_equals_the_unfused_bit_for_bit(
    shape, quantized_dtype, layout, generator, device, backend
):
    rows, width = shape
    gate_up = normal(generator, rows, 2 * width)
    q = poisoned(shape, quantized_dtype, device)
    scales = allocate_scales(rows, width // 128, layout, device)
    scales.view(torch.int32).fill_(0x7F7F7F7F)
    silu_mul_quant(gate_up, dtype=quantized_dtype, scale_layout=layout, out=q, scales=scales, backend=backend)
    expected, expected_scales = quantize_reference(silu_mul(gate_up), 128, quantized_dtype, layout)
    assert torch.equal(bits(q), bits(expected))
    assert torch.equal(bits(scales), bits(expected_scales))


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("groups", [1, 3, 17])
def test_every_group_size_and_count(group_size, groups, generator):
    gate_up = normal(generator, 4, 2 * group_size * groups)
    q, scales = silu_mul_quant(gate_up, group_size)
    expected, expected_scales = quantize_reference(silu_mul(gate_up), group_size, torch.float8_e4m3fn)
    assert torch.equal(bits(q), bits(expected))
    assert torch.equal(scales, expected_scales)


def test_zero_groups_are_zero_with_the_least_scale(device, backend):
    gate_up = torch.zeros(2, 1024, dtype=torch.bfloat16, device=device)
    q, scales = silu_mul_quant(gate_up, scale_layout="ue8m0", backend=backend)
    assert (bits(q) == 0).all()
    assert (scales == 0x55555555).all()  # four bytes 85 = ceil(log2(1e-10 / 448)) + 127


@pytest.mark.skipif(not GPU, reason="needs a GPU with 15 GB: offsets beyond 2^31 elements")
def test_last_rows_of_a_tensor_beyond_32_bit_offsets(generator, device, backend):
    rows, width = 524416, 4096
    gate_up = torch.zeros(rows, 2 * width, dtype=torch.bfloat16, device=device)
    gate_up[-3:] = normal(generator, 3, 2 * width)
    tail = gate_up[-3:].clone()
    assert torch.equal(silu_mul(gate_up)[-3:], silu_mul(tail))
    q, scales = silu_mul_quant(gate_up, backend=backend)
    tail_q, tail_scales = silu_mul_quant(tail, backend=backend)
    assert torch.equal(bits(q[-3:]), bits(tail_q))
    assert torch.equal(scales[-3:], tail_scales)


@pytest.mark.skipif(not GPU, reason="needs a GPU: graphs")
def test_replay_equals_eager(generator, device, backend):
    gate_up = normal(generator, 64, 4 * 2048)
    silu_mul(gate_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once = silu_mul(gate_up)
        q, scales = silu_mul_quant(once, backend=backend)  # dependent launches overlap
    for _ in range(3):
        gate_up.copy_(normal(generator, 64, 4 * 2048))
        once.fill_(float("nan"))
        graph.replay()
        expected_q, expected_scales = silu_mul_quant(silu_mul(gate_up), backend=backend)
        assert torch.equal(bits(q), bits(expected_q))
        assert torch.equal(scales, expected_scales)


def gate_up_of(device, rows=4, columns=512, dtype=torch.bfloat16):
    return torch.zeros(rows, columns, dtype=dtype, device=device)


BAD = {
    "gate_up: expected dtype bfloat16 or float16, got float32": lambda d: silu_mul(
        gate_up_of(d, dtype=torch.float32)
    ),
    "gate_up: expected a tensor, got list": lambda _: silu_mul([1.0]),
    "gate_up: expected shape [any, any], got [512]": lambda d: silu_mul(gate_up_of(d)[0]),
    "gate_up: expected two halves of a multiple of 8 columns, got 24": lambda d: silu_mul(
        gate_up_of(d, columns=24)
    ),
    "gate_up: expected two halves of a multiple of 8 columns, got 0": lambda d: silu_mul(
        gate_up_of(d, rows=1, columns=0)
    ),
    "gate_up: expected contiguous rows": lambda d: silu_mul(gate_up_of(d, 512, 64).T),
    "gate_up: expected rows that start on 16 bytes, got a stride of 516 elements": lambda d: silu_mul(
        gate_up_of(d, columns=516)[:, :512]
    ),
    "gate_up: expected a pointer aligned to 16 bytes, got one 8 bytes past": lambda d: silu_mul(
        gate_up_of(d, columns=528)[:, 4:516]
    ),
    "out: expected shape [4, 256], got [4, 512]": lambda d: silu_mul(gate_up_of(d), out=gate_up_of(d)),
    "out: expected dtype bfloat16, got float16": lambda d: silu_mul(
        gate_up_of(d), out=gate_up_of(d, columns=256, dtype=torch.float16)
    ),
    "out: expected device": lambda d: silu_mul(gate_up_of(d), out=meta(4, 256, dtype=torch.bfloat16)),
    "group_size: expected one of 32, 64, 128, got 12": lambda d: silu_mul_quant(gate_up_of(d), 12),
    "group_size: expected one of 32, 64, 128, got 512": lambda d: silu_mul_quant(gate_up_of(d), 512),
    "group_size: expected 128 for ue8m0 scales, got 64": lambda d: silu_mul_quant(
        gate_up_of(d), 64, scale_layout="ue8m0"
    ),
    "gate_up: expected halves that group_size 128 divides, got 320": lambda d: silu_mul_quant(
        gate_up_of(d, columns=640)
    ),
    "group_size: expected 128 for backend cuda, got 64": lambda d: silu_mul_quant(
        gate_up_of(d), 64, backend="cuda"
    ),
    "backend: expected one of cuda, triton, got metal": lambda d: silu_mul_quant(
        gate_up_of(d), backend="metal"
    ),
    "dtype: expected one of": lambda d: silu_mul_quant(gate_up_of(d), dtype=torch.uint8),
    "scale_layout: expected one of": lambda d: silu_mul_quant(gate_up_of(d), scale_layout="diagonal"),
    "eps: expected a finite number of at least 1e-18, got 0": lambda d: silu_mul_quant(
        gate_up_of(d), scale_eps=0
    ),
    "scales: expected dtype int32, got float32": lambda d: silu_mul_quant(
        gate_up_of(d), scale_layout="ue8m0", scales=torch.zeros(4, 1, device=d)
    ),
    "scales: expected strides [1, 4] for column_major scales, got [2, 1]": lambda d: silu_mul_quant(
        gate_up_of(d), scale_layout="column_major", scales=torch.zeros(4, 2, device=d)
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_and_nothing_is_launched(message, device, monkeypatch):
    for run in ("_launch", "_launch_cuda"):
        monkeypatch.setattr(operation, run, lambda *_arguments: pytest.fail("launched"))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        BAD[message](device)


def test_check_passes(device):
    assert operation.check(device) == (0, 0)


def test_check_notices_a_silu_that_is_off_by_more_than_rounding(device, monkeypatch):
    def off(gate_up):
        gate, up = gate_up.float().chunk(2, -1)
        return (torch.nn.functional.silu(gate) * (1 + 2.0**-14)).bfloat16() * up.bfloat16()

    monkeypatch.setattr(operation, "silu_mul", off)
    error, bound = operation.check(device)
    assert error > bound
