"""What rope_kv_write refuses, and what it does not launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import contract, launch, target
from tests.kernels.rope_kit import E4M3, Call, make


def test_no_tokens_return_at_once(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "launch", lambda *_, **__: pytest.fail("launched"))
    call = make(generator, tokens=0)
    assert call.run().shape == (0, 4, 64)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "qkv dtype": ({"qkv": lambda c: c.qkv.double()}, "qkv: expected dtype bfloat16 or float16 or float32, got float64"),
    "qkv columns": ({"qkv": lambda c: c.qkv[:, :-64]}, r"qkv: expected shape \[7, 512\], got \[7, 448\]"),
    "qkv rows not contiguous": ({"qkv": lambda c: c.qkv.T.contiguous().T}, "qkv: expected contiguous rows"),
    "qkv misaligned": (
        {"qkv": lambda c: torch.zeros(8 * 513, dtype=torch.bfloat16, device=c.qkv.device)[1:3585].view(7, 512)},
        "qkv: expected a pointer aligned to 16 bytes, got one 2 bytes past",
    ),
    "qkv stride": (
        {"qkv": lambda c: torch.zeros(7, 513, dtype=torch.bfloat16, device=c.qkv.device)[:, :512]},
        "qkv: expected rows that start on 16 bytes, got a stride of 513 elements",
    ),
    "positions dtype": ({"positions": lambda c: c.positions.long()}, "positions: expected dtype int32, got int64"),
    "positions length": ({"positions": lambda c: c.positions[:3]}, r"positions: expected shape \[7\], got \[3\]"),
    "slots dtype": ({"slots": lambda c: c.slots.float()}, "slots: expected dtype int64 or int32, got float32"),
    "slots length": ({"slots": lambda c: c.slots[:6]}, r"slots: expected shape \[7\], got \[6\]"),
    "slots stride": ({"slots": lambda c: c.slots.repeat(2)[::2]}, "slots: expected a contiguous tensor"),
    "cache dtype": ({"cache": lambda c: c.cache.float()}, "cache: expected dtype bfloat16 or float8_e4m3fn, got float32"),
    "cache dimensions": ({"cache": lambda c: c.cache[:, 0]}, r"cache: expected shape \[any, 2, any, any, any\]"),
    "cache layout": ({"cache": lambda c: c.cache.transpose(2, 3)}, "cache: expected contiguous pages|qkv: expected"),
    "page size": ({"cache": lambda c: c.cache[:, :, :, :3]}, "cache: expected a page_size that is a power of two, got 3"),
    "head_dim": ({"cache": lambda c: c.cache[..., :40]}, "cache: expected a head_dim of 16 to 512 in steps of 16, got 40"),
    "table dtype": ({"cos_sin": lambda c: c.cos_sin.half()}, "cos_sin: expected dtype float32, got float16"),
    "table width": ({"cos_sin": lambda c: c.cos_sin[:, :32]}, r"cos_sin: expected shape \[any, 64\], got \[300, 32\]"),
    "meta": ({"slots": lambda c: c.slots.to("meta")}, "slots: expected device (cpu|cuda:0), got meta"),
    "norm": ({"query_norm": lambda c: c.cos_sin[0]}, "query_norm: expected dtype bfloat16, got float32"),
    "norm length": ({"key_norm": lambda c: c.qkv[0, :32]}, r"key_norm: expected shape \[64\], got \[32\]"),
    "axes without positions": (
        {"axis_of_frequency": lambda c: torch.zeros(32, dtype=torch.int32, device=c.qkv.device)},
        r"positions: expected shape \[any, 7\], got \[7\]",
    ),
    "out shape": ({"out": lambda c: c.out[:, :3]}, r"out: expected shape \[7, 4, 64\], got \[7, 3, 64\]"),
    "out layout": ({"out": lambda c: c.out.transpose(0, 1).contiguous().transpose(0, 1)}, "out: expected contiguous heads"),
}  # fmt: skip


def test_no_query_heads_are_refused(generator: torch.Generator) -> None:
    call = make(generator)
    for heads in (0, -2):
        with pytest.raises(ValueError, match=f"query_heads: expected at least 1, got {heads}"):
            replace(call, options={"query_heads": heads}).run()


def test_a_page_beyond_the_kernels_32_bits_is_refused(generator: torch.Generator) -> None:
    cache = torch.empty(1, 2, 2, 1 << 23, 64, dtype=torch.bfloat16, device="meta")
    call = make(generator)
    on_meta = {name: getattr(call, name).to("meta") for name in ("qkv", "positions", "slots", "cos_sin")}
    with pytest.raises(ValueError, match=r"cache: expected fewer than 2\^31 elements a page, got 2147483648"):
        replace(call, cache=cache, **on_meta).run()


def test_an_e4m3_cache_is_refused_where_the_gpu_has_none(generator: torch.Generator) -> None:
    call = make(generator, cache_dtype=E4M3)
    with (
        target.building("sm80"),
        pytest.raises(ValueError, match="cache: expected dtype bfloat16 on sm80, got float8_e4m3fn"),
    ):
        call.run()


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_any_launch(
    changes: dict[str, Any], message: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "launch", lambda *_, **__: pytest.fail("launched"))
    call = make(generator)
    changed = {name: change(call) for name, change in changes.items()}
    fields = {name: changed.pop(name) for name in list(changed) if name in Call.__dataclass_fields__}
    with pytest.raises(ValueError, match=message):
        replace(call, **fields).run(**changed)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slots", 24, r"slots: expected values in \[-1, 24\), got"),
        ("slots", -2, r"slots: expected values in \[-1, 24\), got"),
        ("positions", 300, r"positions: expected values in \[0, 300\), got"),
        ("positions", -1, r"positions: expected values in \[0, 300\), got"),
    ],
)
def test_values_out_of_range_are_refused_in_debug_mode(
    name: str, value: int, message: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = make(generator)
    {"slots": call.slots, "positions": call.positions}[name][2] = value
    monkeypatch.setattr(contract, "DEBUG", True)
    with pytest.raises(ValueError, match=message):
        call.run()
