"""A prompt's embeddings land where they belong, however its prefill is cut; what does not fit is refused by name."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.embeddings import InputEmbeddings, PreparedEmbeddings
from runtime.errors import RequestError
from tests.runtime.kit import CONFIG, CPU, config_for

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HIDDEN = CONFIG.hidden_size
LENGTH = 9


def rows(count: int) -> torch.Tensor:
    """Rows that say which they are: row r holds r + 1 and fractions."""
    return torch.arange(1, count + 1)[:, None] + torch.arange(HIDDEN)[None] / HIDDEN


def prepared(given_rows: torch.Tensor, positions: tuple[int, ...] | None, length: int) -> PreparedEmbeddings:
    return InputEmbeddings(given_rows, positions).prepare(CONFIG, length, DEVICE)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_rows_land_at_their_positions_in_any_order_and_chunks(data: st.DataObject) -> None:
    prompt = data.draw(st.integers(1, 12))
    generated = data.draw(st.integers(0, 4))
    order = data.draw(st.permutations(range(prompt)))
    positions = tuple(order[: data.draw(st.integers(1, prompt))])
    cuts = data.draw(st.lists(st.integers(0, prompt + generated), max_size=4))
    given_rows = rows(len(positions))
    expected = torch.zeros(prompt + generated, HIDDEN)
    for row, position in zip(given_rows, positions, strict=True):
        expected[position] = row
    embeddings = prepared(given_rows, positions, prompt)
    x = torch.zeros(prompt + generated, HIDDEN, device=DEVICE)
    bounds = [0, *sorted(cuts), prompt + generated]
    for start, end in pairwise(bounds):
        embeddings.overlay(x[start:end], start, end - start)
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("chunk", [1, 2, 4, LENGTH, LENGTH + 3])
def test_a_whole_prompt_is_written_and_generated_tokens_are_left(chunk: int) -> None:
    embeddings = prepared(rows(LENGTH), None, LENGTH)
    x = torch.zeros(LENGTH + 3, HIDDEN, device=DEVICE)
    for start in range(0, LENGTH + 3, chunk):
        part = x[start : start + chunk]
        embeddings.overlay(part, start, len(part))
    assert torch.equal(x.cpu(), torch.cat([rows(LENGTH), torch.zeros(3, HIDDEN)]))


def test_a_lane_among_others_is_all_that_is_written() -> None:
    x = torch.zeros(8, HIDDEN, device=DEVICE)
    prepared(rows(3), (2, 3, 7), LENGTH).overlay(x[2:6], 1, 4)
    assert x.cpu()[:, 0].tolist() == [0, 0, 0, 1, 2, 0, 0, 0]


@pytest.mark.parametrize("positions", [(1, 4), (4, 1)])
@pytest.mark.parametrize("device", [CPU, DEVICE], ids=["host", "device"])
def test_what_the_caller_writes_afterwards_changes_nothing(
    positions: tuple[int, int], device: torch.device
) -> None:
    mine = rows(2).to(device)
    if DEVICE.type == "cuda" and device == CPU:
        mine = mine.pin_memory()
    embeddings = prepared(mine, positions, LENGTH)
    mine.zero_()
    x = torch.zeros(LENGTH, HIDDEN, device=DEVICE)
    embeddings.overlay(x, 0, LENGTH)
    assert x.cpu()[list(positions), 0].tolist() == [1, 2]


def test_rows_with_a_gradient_or_strides_serve_as_well() -> None:
    strided = rows(2 * HIDDEN).t().contiguous().t()[:LENGTH].requires_grad_()
    x = torch.zeros(LENGTH, HIDDEN, device=DEVICE)
    prepared(strided, None, LENGTH).overlay(x, 0, LENGTH)
    assert torch.equal(x.cpu(), rows(LENGTH))
    assert not x.requires_grad


def test_memory_is_taken_once_and_not_for_each_chunk() -> None:
    embeddings = prepared(rows(LENGTH), None, LENGTH)
    x = torch.zeros(LENGTH, HIDDEN, device=DEVICE)
    with torch.profiler.profile(profile_memory=True) as profile:
        for start in range(0, LENGTH, 3):
            embeddings.overlay(x[start : start + 3], start, 3)
    taken = [
        event.name
        for event in profile.events()
        if event.cpu_memory_usage > 0 or event.device_memory_usage > 0
    ]
    assert taken == []


@pytest.mark.parametrize(
    ("given_rows", "positions", "message"),
    [
        ([[0.0] * HIDDEN], (1,), "rows: expected a tensor, got list"),
        (rows(2)[0], (1,), r"rows: expected at least one row of 32, got shape \[32\]"),
        (rows(2)[:, 1:], (1, 2), r"rows: expected at least one row of 32, got shape \[2, 31\]"),
        (rows(2)[:0], (), r"rows: expected at least one row of 32, got shape \[0, 32\]"),
        (rows(2).half(), (1, 2), "rows: expected torch.float32, the model's, got torch.float16"),
        (rows(2).to("meta"), (1, 2), "rows: expected a tensor on cpu.*, got one on meta"),
        (rows(8), None, "rows: expected one for each of the prompt's 9 tokens, got 8 rows"),
        (rows(10), None, "rows: expected one for each of the prompt's 9 tokens, got 10 rows"),
        (rows(2), (1,), "positions: expected one for each of the 2 rows, got 1"),
        (rows(2), (1, 9), "positions: expected whole numbers from 0 to 8, got 9"),
        (rows(2), (1, -1), "positions: expected whole numbers from 0 to 8, got -1"),
        (rows(2), (1, True), "positions: expected whole numbers from 0 to 8, got True"),
        (rows(3), (4, 1, 4), "positions: expected each once, got 4 twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given_rows: Any, positions: Any, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^embeddings\.{message}$"):
        prepared(given_rows, positions, LENGTH)


def test_a_chunk_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x: expected shape \[4, 32\], got \[3, 32\]"):
        prepared(rows(LENGTH), None, LENGTH).overlay(torch.zeros(3, HIDDEN, device=DEVICE), 0, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies to a GPU")
def test_host_rows_reach_a_gpu_without_waiting_for_it() -> None:
    config = config_for(DEVICE)
    given_rows = torch.randn(64, config.hidden_size).to(config.dtype)
    embeddings = InputEmbeddings(given_rows, None).prepare(config, 64, DEVICE)
    x = torch.zeros(64, config.hidden_size, dtype=config.dtype, device=DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = InputEmbeddings(given_rows, tuple(range(63, -1, -1))).prepare(config, 64, DEVICE)
        embeddings.overlay(x, 0, 64)
        again.overlay(x[:32], 0, 32)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(x.to(CPU), torch.cat([given_rows.flip(0)[:32], given_rows[32:]]))
