"""per_token_group_quant_8bit: which rows are read and written: masked, strided, none, beyond 2^31, in a graph."""

import pytest
import torch

from kernels import quantize
from kernels.per_token_group_quant import per_token_group_quant_8bit, per_token_group_quant_8bit_reference
from tests.kernels.group_quant_kit import (
    BACKENDS,
    E4M3,
    ON_GPU,
    POISON,
    assert_same_bits,
    bits,
    poisoned,
    spread,
)

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


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
