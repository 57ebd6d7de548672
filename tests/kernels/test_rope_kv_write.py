"""Rotation and cache against float64, and against transformers' own order of operations in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import launch
from kernels.rope_frequencies import cos_sin_table, inverse_frequencies
from kernels.rope_kv_write import build_cases
from tests.kernels.rope_kit import E4M3, ON_GPU, POISON, make, poisoned, require_cache, require_close

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU: graphs and sizes beyond the interpreter")


SHAPES = [
    {"tokens": 7, "query_heads": 4, "kv_heads": 2, "head_dim": 64},
    {"tokens": 1, "query_heads": 9, "kv_heads": 1, "head_dim": 48},
    {"tokens": 3, "query_heads": 3, "kv_heads": 3, "head_dim": 16, "page_size": 1, "pages": 9},
]
if ON_GPU:
    SHAPES += [
        {"tokens": 128, "query_heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16, "pages": 200},
        {"tokens": 5000, "query_heads": 32, "kv_heads": 4, "head_dim": 128, "page_size": 16, "pages": 400},
        {"tokens": 33, "query_heads": 16, "kv_heads": 16, "head_dim": 256, "page_size": 64, "pages": 5},
        {"tokens": 64, "query_heads": 40, "kv_heads": 10, "head_dim": 80, "page_size": 32, "pages": 9},
    ]


# Each pair of choices occurs together at least once.
VARIANTS: list[dict[str, Any]] = [
    {"dtype": torch.bfloat16},
    {"dtype": torch.bfloat16, "norm": True, "axes": True, "interleaved": True},
    {"dtype": torch.bfloat16, "cache_dtype": E4M3, "norm": True},
    {"dtype": torch.bfloat16, "cache_dtype": E4M3, "axes": True, "interleaved": True},
    {"dtype": torch.float16, "norm": True, "interleaved": True},
    {"dtype": torch.float16, "axes": True},
    {"dtype": torch.float32, "interleaved": True},
    {"dtype": torch.float32, "norm": True, "axes": True},
]


def name_of(variant: dict[str, Any]) -> str:
    return "-".join(
        str(value).removeprefix("torch.") if value is not True else name for name, value in variant.items()
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_matches_float64(shape: dict[str, int], variant: dict[str, Any], generator: torch.Generator) -> None:
    call, norm = make(generator, **shape, **variant), variant.get("norm", False)
    expected, expected_cache = call.run_reference()
    out = call.out
    assert call.run(out=out) is out
    require_close(out, expected, norm=norm)
    require_cache(call.cache, expected_cache, call.slots, norm=norm)


def test_reference_is_transformers_in_float32(generator: torch.Generator) -> None:
    """Written as transformers computes Qwen3 attention: norm, then x * cos + rotate_half(x) * sin over doubled tables."""
    call = make(generator, dtype=torch.float32, norm=True)
    frequencies, _ = inverse_frequencies(64, 1e4, max_positions=300)
    half_angles = call.positions.float()[:, None] * frequencies.to(call.qkv.device)
    angles = torch.cat([half_angles, half_angles], -1)
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
    queries, keys, values = call.qkv.view(7, 8, 64).split([4, 2, 2], dim=1)

    def embed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x * cosines + torch.cat([-x[..., 32:], x[..., :32]], -1) * sines

    actual, cache = call.run_reference(working=torch.float32)
    wanted, wanted_keys = embed(queries, call.options["query_norm"]), embed(keys, call.options["key_norm"])
    torch.testing.assert_close(actual, wanted, rtol=0, atol=2.0**-24 * 8 * float(wanted.abs().max()))
    page, offset = call.slots // 4, call.slots % 4
    torch.testing.assert_close(cache[page, 0, :, offset], wanted_keys, rtol=0, atol=2.0**-24 * 8 * float(wanted_keys.abs().max()))  # fmt: skip
    assert torch.equal(cache[page, 1, :, offset], values)


def test_a_negative_slot_writes_nothing_and_its_query_is_still_rotated(generator: torch.Generator) -> None:
    call = make(generator)
    call.slots[[0, 3, 6]] = -1
    expected, expected_cache = call.run_reference()
    require_close(call.run(), expected, norm=False)
    require_cache(call.cache, expected_cache, call.slots, norm=False)
    last = call.cache[-1, :, :, -1]
    assert (last.view(torch.uint8) == POISON).all() or (call.slots == 23).any()


def test_padding_lanes_leave_the_last_slot_of_a_live_cache(generator: torch.Generator) -> None:
    call = make(generator)
    call.cache.copy_(torch.randn(call.cache.shape, device=generator.device, generator=generator))
    before = call.cache.clone()
    call.slots.fill_(-1)
    call.run()
    assert torch.equal(call.cache, before)


def test_slots_of_the_null_page_write_only_the_null_page(generator: torch.Generator) -> None:
    call = make(generator)
    call.slots.copy_(torch.arange(7, device=call.slots.device) % 4)
    call.run()
    assert (call.cache[1:].view(torch.uint8) == POISON).all()
    assert not call.cache[0].isnan().any()


@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_may_be_rotated_in_place(generator: torch.Generator, interleaved: bool) -> None:
    call = make(generator, interleaved=interleaved, norm=True)
    expected, expected_cache = call.run_reference()
    kept = call.qkv[:, 4 * 64 :].clone()
    call.run(out=call.qkv.view(7, 8, 64)[:, :4])
    require_close(call.qkv.view(7, 8, 64)[:, :4], expected, norm=True)
    require_cache(call.cache, expected_cache, call.slots, norm=True)
    assert torch.equal(call.qkv[:, 4 * 64 :], kept)


def test_rows_and_pages_may_be_strided(generator: torch.Generator) -> None:
    call = make(generator)
    wide = torch.full((7, 8 * 64 + 24), float("nan"), dtype=torch.bfloat16, device=generator.device)
    wide[:, 8 : 8 + 8 * 64] = call.qkv
    layers = poisoned(6, 3, 2, 2, 4, 64, dtype=torch.bfloat16, device=generator.device)
    strided = replace(call, qkv=wide[:, 8 : 8 + 8 * 64], cache=layers[:, 1])
    expected, expected_cache = call.run_reference()
    require_close(strided.run(), expected, norm=False)
    require_cache(strided.cache, expected_cache, call.slots, norm=False)
    assert (layers[:, ::2].contiguous().view(torch.uint8) == POISON).all()


def test_slots_may_be_int32(generator: torch.Generator) -> None:
    call = make(generator)
    expected, expected_cache = call.run_reference()
    short = replace(call, slots=call.slots.int())
    require_close(short.run(), expected, norm=False)
    require_cache(short.cache, expected_cache, call.slots, norm=False)


def test_e4m3_saturates_and_keeps_nan(generator: torch.Generator) -> None:
    call = make(generator, cache_dtype=E4M3)
    call.positions.zero_()
    values = call.qkv.view(7, 8, 64)
    values[:, 4:] = 1.0
    values[0, 4:, :8] = torch.tensor([448, 449, 1e4, float("inf"), -448, -600, -1e30, -float("inf")])
    values[0, 4:, 8] = float("nan")
    call.run()
    page, offset = int(call.slots[0]) // 4, int(call.slots[0]) % 4
    row = call.cache[page, :, :, offset].float()
    assert (row[:, :, :4] == 448).all()
    assert (row[1, :, 4:8] == -448).all()
    if ON_GPU:  # the interpreter has no NaN in e4m3
        assert row[:, :, 8].isnan().all()


def test_each_axis_turns_its_own_frequencies(generator: torch.Generator) -> None:
    """The same as turning by a table in which each frequency's row is its axis's."""
    call = make(generator, dtype=torch.float32, axes=True)
    axis = call.options["axis_of_frequency"].long()
    for frequency in range(32):
        alone = call.positions[axis[frequency]].contiguous()
        single = replace(call, positions=alone, options={"query_heads": 4}, cache=call.cache.clone())
        assert torch.equal(call.run()[..., frequency], single.run()[..., frequency])


def test_large_positions_are_exact(generator: torch.Generator) -> None:
    """At 131071 float32 angles are off by 2^-8 radians; the cosines of those angles must not be off any further."""
    positions = 131_072
    frequencies, factor = inverse_frequencies(128, 1e6, max_positions=positions)
    table = cos_sin_table(frequencies.to(generator.device), factor, positions)
    at = torch.tensor([0, 1, 4097, 65_535, 105_616, 131_071], dtype=torch.int32, device=generator.device)
    angles = (at.float()[:, None] * frequencies.to(generator.device)).double()
    exact = torch.cat([angles.cos(), angles.sin()], 1)
    assert (table[at.long()].double() - exact).abs().max() <= 2.0**-23
    call = make(generator, tokens=6, head_dim=128, dtype=torch.float32)
    call = replace(call, positions=at, cos_sin=table)
    expected, _ = call.run_reference()
    require_close(call.run(), expected, norm=False)


def test_the_build_reaches_every_variant_once() -> None:
    seen: list[str] = []

    def record(_kernel: Any, _grid: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        dtypes = [argument.dtype if isinstance(argument, torch.Tensor) else None for argument in args]
        seen.append(f"{dtypes} {options}")

    with launch.recording(record):
        for case in build_cases():
            case.call()
    assert len(seen) == len(set(seen)) == 14


@needs_gpu
def test_a_cache_of_more_than_two_to_the_thirty_first_elements(generator: torch.Generator) -> None:
    call = make(generator, tokens=64, query_heads=8, kv_heads=8, head_dim=128, page_size=16, pages=70_000)
    assert call.cache.numel() > 1 << 31
    call.slots[0] = 70_000 * 16 - 1
    expected, _ = call.run_reference()
    require_close(call.run(), expected, norm=False)
    values = call.qkv.view(64, 24, 128)[:, 16:]
    for token in range(64):
        slot = int(call.slots[token])
        assert torch.equal(call.cache[slot // 16, 1, :, slot % 16], values[token])


@needs_gpu
def test_a_graph_replays_over_new_positions_and_slots(generator: torch.Generator) -> None:
    call = make(generator, tokens=16, query_heads=32, kv_heads=8, head_dim=128, page_size=16, norm=True)
    out = call.out
    call.run(out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run(out=out)
    call.positions.add_(1)
    call.slots.copy_(call.slots.flip(0))
    call.slots[3] = -1
    call.cache.view(torch.uint8).fill_(POISON)
    graph.replay()
    expected, expected_cache = replace(call, cache=call.cache.clone()).run_reference()
    eager = call.cache.clone()
    eager.view(torch.uint8).fill_(POISON)
    again = replace(call, cache=eager)
    assert torch.equal(again.run(), out)
    assert torch.equal(again.cache.view(torch.uint8), call.cache.view(torch.uint8))
    require_close(out, expected, norm=True)
    require_cache(call.cache, expected_cache, call.slots, norm=True)
