"""Token history: a row holds one sequence and nothing of the one before, and its tensors stay where they are."""

from collections import Counter

import pytest
import torch

from kernels import token_history
from kernels.token_history import (
    BIAS_COUNT,
    BIAS_IDS,
    BIAS_SHIFT,
    BIAS_VALUES,
    FIRST,
    GENERATED,
    IN_PROMPT,
    MAX_BIAS,
    MAX_STOP,
    STOP_COUNT,
    STOP_IDS,
    TOKEN,
    TokenHistory,
    copy_rows,
    load_row,
)
from tests.kernels import processors_kit as kit

GPU = torch.cuda.is_available()


def test_a_row_says_what_it_was_given(generator: torch.Generator) -> None:
    vocabulary = 50
    history = TokenHistory(3, vocabulary, 100, generator.device)
    prompt, generated = (kit.draw_ids(generator, count, vocabulary) for count in (40, 25))
    prompt[3], generated[7] = 11, 12
    bias = {12: 1.5, 49: float("-inf"), 11: -2.0}
    load_row(history, 1, prompt, generated, bias, {7, 3})

    assert history.tokens(1).tolist() == prompt + generated
    assert (int(history.lengths[1]), int(history.prompt_lengths[1])) == (65, 40)
    assert int(history.last_ids[1]) == generated[-1]
    entries = history.entries[1, :65].tolist()
    assert [entry & TOKEN for entry in entries if entry < 0] == list(dict.fromkeys(prompt + generated))
    words = history.counts[1].tolist()
    times, places = Counter(generated), {token: place + 1 for place, token in enumerate(bias)}
    for token, word in enumerate(words):
        assert word & GENERATED == times[token]
        assert bool(word & IN_PROMPT) == (token in prompt)
        assert (word & ~IN_PROMPT) >> BIAS_SHIFT == places.get(token, 0)
    record = history.record[1]
    assert record[STOP_IDS : STOP_IDS + int(record[STOP_COUNT])].tolist() == [3, 7]
    assert record[BIAS_IDS : BIAS_IDS + int(record[BIAS_COUNT])].tolist() == list(bias)
    values = record[BIAS_VALUES : BIAS_VALUES + len(bias)].view(torch.float32)
    assert values.tolist() == list(bias.values())


def test_a_row_forgets_the_sequence_before_and_the_others_are_unchanged(generator: torch.Generator) -> None:
    history = kit.fill_history(generator, 3, 40, (30, 60))
    before, alone = kit.clone(history), TokenHistory(3, 40, history.max_length, generator.device)
    for one in (history, alone):
        load_row(one, 1, [5, 6], [5], {39: 1.0}, [2])
    for row in (0, 2):
        for name, tensor in history.graph_buffers().items():
            assert torch.equal(tensor[row], before.graph_buffers()[name][row])
    assert torch.equal(history.counts[1], alone.counts[1])
    assert history.tokens(1).tolist() == [5, 6, 5]
    assert int(history.record[1, BIAS_COUNT]) == int(history.record[1, STOP_COUNT]) == 1


def test_an_empty_sequence_and_one_that_fills_the_row(device: torch.device) -> None:
    history = TokenHistory(1, 10, 4, device)
    load_row(history, 0, [1, 2], [3, 4])
    assert history.tokens(0).tolist() == [1, 2, 3, 4]
    load_row(history, 0, [])
    assert history.tokens(0).tolist() == []
    assert history.last_ids.tolist() == [0]
    assert not history.counts.any()


def test_the_most_biases_and_stop_ids_fit(device: torch.device) -> None:
    history = TokenHistory(2, 400, 4, device)
    bias = {token: token / 4 for token in range(399, 399 - MAX_BIAS, -1)}
    load_row(history, 0, [399], [], bias, range(MAX_STOP))
    record = history.record[0]
    assert record[BIAS_IDS : BIAS_IDS + MAX_BIAS].tolist() == list(bias)
    assert record[BIAS_VALUES : BIAS_VALUES + MAX_BIAS].view(torch.float32).tolist() == list(bias.values())
    assert record[STOP_IDS : STOP_IDS + MAX_STOP].tolist() == list(range(MAX_STOP))
    assert history.entries[0].tolist() == [399 + FIRST, 0, 0, 0]
    places = (history.counts[0, list(bias)] >> BIAS_SHIFT) & token_history.BIAS_PLACE
    assert places.tolist() == list(range(1, MAX_BIAS + 1))


@pytest.mark.parametrize(
    ("sources", "destinations"),
    [([1, 0], [0, 1]), ([2, 2, 2], [0, 2, 1]), ([0, 1, 2, 3], [1, 2, 3, 0]), ([3], [0]), ([], [])],
)
def test_rows_are_copied_at_once(
    sources: list[int], destinations: list[int], generator: torch.Generator
) -> None:
    history = kit.fill_history(generator, 4, 60, (10, 25, 3, 0))
    before = kit.clone(history)
    addresses = {name: tensor.data_ptr() for name, tensor in history.graph_buffers().items()}
    copy_rows(history, sources, destinations)
    origin = dict(zip(range(4), range(4), strict=True)) | dict(zip(destinations, sources, strict=True))
    for name, tensor in history.graph_buffers().items():
        for row in range(4):
            assert torch.equal(tensor[row], before.graph_buffers()[name][origin[row]])
    assert addresses == {name: tensor.data_ptr() for name, tensor in history.graph_buffers().items()}


@pytest.mark.skipif(not GPU, reason="needs a GPU: on a CPU nothing is asynchronous")
def test_loading_and_copying_do_not_wait_for_the_device_and_keep_the_stream_s_order(
    generator: torch.Generator,
) -> None:
    history = TokenHistory(4, 151936, 3000, "cuda")
    prompts = [kit.draw_ids(generator, 2000, 151936) for _ in range(8)]
    load_row(history, 0, prompts[0])
    copy_rows(history, [0, 1, 2], [1, 2, 3])
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(100_000_000)
        done = torch.cuda.Event()
        for prompt in prompts:
            load_row(history, 0, prompt)
            copy_rows(history, [0, 1, 2], [1, 2, 3])
        done.record()
        waited = done.query()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    assert not waited
    for row, prompt in enumerate([prompts[-1], *prompts[:-4:-1]]):
        assert history.tokens(row).tolist() == prompt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": 2}, "row: expected a row from 0 to 1, got 2"),
        ({"row": -1}, "row: expected a row from 0 to 1, got -1"),
        ({"prompt": [10]}, "prompt: expected token ids from 0 to 9, got 10"),
        ({"generated": [3, -1]}, "generated: expected token ids from 0 to 9, got -1"),
        ({"prompt": [1] * 4, "generated": [2]}, "prompt: expected at most 4 tokens with those generated, got 5"),
        ({"bias": {10: 1.0}}, "bias: expected token ids from 0 to 9, got 10"),
        ({"bias": {1: float("nan")}}, "bias: expected finite numbers or -inf, got nan"),
        ({"bias": {1: float("inf")}}, "bias: expected finite numbers or -inf, got inf"),
        ({"bias": dict.fromkeys(range(301), 1.0)}, "bias: expected at most 300 tokens, got 301"),
        ({"stop_ids": [2**40]}, "stop_ids: expected token ids from 0 to 9"),
        ({"stop_ids": [1] * 17}, "stop_ids: expected at most 16, got 17"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_refused_and_nothing_written(
    change: dict[str, object], message: str, device: torch.device
) -> None:
    history = TokenHistory(2, 10, 4, device)
    load_row(history, 1, [1, 2], [3])
    before = kit.clone(history)
    with pytest.raises(ValueError, match=f"^{message}"):
        load_row(history, **{"row": 1, "prompt": [4], **change})
    kit.assert_same(history, before)


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ([0], [1, 0], "destinations: expected 1 rows as in sources, got 2"),
        ([0, 1], [1, 1], r"destinations: expected distinct rows, got \[1, 1\]"),
        ([2], [0], "sources: expected a row from 0 to 1, got 2"),
        ([0], [-1], "destinations: expected a row from 0 to 1, got -1"),
    ],
)
def test_rows_that_cannot_be_copied_are_refused(
    sources: list[int], destinations: list[int], message: str, device: torch.device
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        copy_rows(TokenHistory(2, 10, 4, device), sources, destinations)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 10, 4), "rows: expected 1 to"),
        ((2, 0, 4), "vocabulary: expected 1 to"),
        ((2, 10, 1 << 22), "max_length: expected 1 to 4194303, got 4194304"),
    ],
)
def test_a_history_of_no_size_is_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        TokenHistory(*sizes, "cpu")


def test_its_tensors_are_named(device: torch.device) -> None:
    history = TokenHistory(2, 10, 4, device)
    held = {name: value for name, value in vars(history).items() if isinstance(value, torch.Tensor)}
    assert history.graph_buffers() == held
