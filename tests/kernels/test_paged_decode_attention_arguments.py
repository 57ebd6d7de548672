"""What paged_decode_attention refuses, and what only its debug mode does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels import contract, target
from kernels.paged_decode_attention import (
    DecodePlan,
    paged_decode_attention,
    paged_decode_attention_ragged,
)
from tests.kernels.paged_decode_kit import E4M3, FP16, make, ragged


def _columns(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _misaligned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:].view(tensor.shape)


def _odd_strides(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(*tensor.shape[:2], tensor.shape[2] + 4, dtype=tensor.dtype, device=tensor.device)[
        :, :, : tensor.shape[2]
    ]


BAD: list[tuple[str, str, Callable[[torch.Tensor], object]]] = [
    ("q", "expected dtype bfloat16 or float16, got float32", torch.Tensor.float),
    ("q", "expected shape", lambda t: t[0]),
    ("q", "head_dim of q: expected one of 64, 128, 256, got 32", lambda t: t[..., :32].contiguous()),
    ("q", "contiguous rows", _columns),
    ("q", "aligned to 16", _misaligned),
    ("q", "multiples of 8", _odd_strides),
    ("q", r"q_heads: expected a multiple of kv_heads \(2\), got 3", lambda t: t[:, :3].contiguous()),
    ("q", "expected a tensor, got NoneType", lambda t: None),
    ("kv_cache", "expected dtype bfloat16 or float8_e4m3fn, got float16", torch.Tensor.half),
    ("kv_cache", "expected shape", lambda t: t[:, :1].contiguous()),
    ("kv_cache", "contiguous", _columns),
    ("kv_cache", "aligned to 16", _misaligned),
    (
        "kv_cache",
        "expected a page_size that is a power of two, got 12",
        lambda t: t[..., :12, :].contiguous(),
    ),
    ("block_tables", "expected dtype int32, got int64", torch.Tensor.long),
    ("block_tables", r"expected shape \[2, any\], got \[1, 9\]", lambda t: t[:1]),
    ("block_tables", "contiguous rows", _columns),
    ("kv_lengths", "expected dtype int32, got int64", torch.Tensor.long),
    ("kv_lengths", r"expected shape \[2\], got \[1\]", lambda t: t[:1]),
    ("kv_lengths", "expected device", lambda t: t.to("meta")),
]


@pytest.mark.parametrize(("name", "message", "spoil"), BAD)
def test_bad_inputs(generator, name, message, spoil):
    call = make(generator, [70, 130])
    arguments = call.__dict__ | {name: spoil(getattr(call, name))}
    out = torch.full_like(call.q, torch.nan)
    with pytest.raises(ValueError, match=message):
        paged_decode_attention(*arguments.values(), out=out)
    assert out.isnan().all()


def test_e4m3_is_refused_where_the_gpu_has_none(generator):
    call = make(generator, [70], cache_dtype=E4M3)
    with (
        target.building("sm80"),
        pytest.raises(ValueError, match=r"kv_cache: expected dtype bfloat16 on sm80, got float8_e4m3fn"),
    ):
        call.run()


def test_bad_results_plans_and_backends(generator):
    call = make(generator, [70, 130])
    given = tuple(call.__dict__.values())
    for options, message in (
        ({"out": torch.empty_like(call.q, dtype=FP16)}, "out: expected dtype bfloat16"),
        ({"out": call.q[:1]}, "out: expected shape"),
        ({"out": _odd_strides(call.q)}, "out: expected strides"),
        ({"logsumexp": torch.empty_like(call.q[..., 0])}, "logsumexp: expected dtype float32"),
        ({"logsumexp": call.q[:1, :, 0].float()}, "logsumexp: expected shape"),
        ({"plan": make(generator, [9]).plan()}, "plan: .* at least 2 lanes, got .* 1 lanes"),
        ({"plan": make(generator, [9, 9], heads=(4, 4)).plan()}, r"plan: .*\(4, 2, 64\).* \(4, 4, 64\)"),
        ({"backend": "fa2"}, "backend: expected one of"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_decode_attention(*given, **options)
    for sizes, message in (
        ((0, 9, 4, 2, 64), "max_batch"),
        ((1, 0, 4, 2, 64), "max_length"),
        ((1, 9, 5, 2, 64), "q_heads"),
        ((1, 9, 4, 0, 64), "kv_heads"),
        ((1, 9, 4, 2, 96), "head_dim"),
    ):
        with pytest.raises(ValueError, match=message):
            DecodePlan.create(*sizes, device=call.q.device)


def test_bad_ragged_inputs(generator):
    call = make(generator, [70, 130])
    indptr, indices = ragged(call)
    for bad, message in (
        ((indptr.long(), indices), "kv_indptr: expected dtype int32"),
        ((indptr[:2], indices), r"kv_indptr: expected shape \[3\], got \[2\]"),
        ((indptr, indices[None]), "kv_indices: expected shape"),
        ((indptr, indices.repeat_interleave(2)[::2]), "kv_indices: expected a contiguous tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_decode_attention_ragged(call.q, call.kv_cache, *bad, call.kv_lengths, call.scale)


def test_debug_mode_checks_pages_and_lengths(generator, monkeypatch):
    monkeypatch.setattr(contract, "DEBUG", True)
    call = make(generator, [70, 130])
    call.run()  # entries past a lane's length may be anything
    pages = call.kv_cache.shape[0]
    for page in (pages, -1):
        tables = call.block_tables.clone()
        tables[0, 4] = page
        with pytest.raises(ValueError, match=rf"block_tables: expected values in \[0, {pages}\)"):
            replace(call, block_tables=tables).run()
    for length in (-1, 145):
        lengths = torch.full_like(call.kv_lengths, length)
        with pytest.raises(ValueError, match="kv_lengths: expected values in"):
            replace(call, kv_lengths=lengths).run()
    indptr, indices = ragged(call)
    rest = (call.kv_lengths, call.scale)
    paged_decode_attention_ragged(call.q, call.kv_cache, indptr, indices, *rest)
    wrong = indices.clone()
    wrong[3] = pages
    with pytest.raises(ValueError, match="kv_indices: expected values in"):
        paged_decode_attention_ragged(call.q, call.kv_cache, indptr, wrong, *rest)
    short = indptr.clone()
    short[1] -= 1
    with pytest.raises(ValueError, match="kv_indptr"):
        paged_decode_attention_ragged(call.q, call.kv_cache, short, indices, *rest)
