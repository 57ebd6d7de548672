"""Logits processors on a GPU: inside a graph, and at rows whose offsets need 64 bits."""

import pytest
import torch

from kernels.logits_processors import process_logits, record_tokens
from kernels.logits_processors_reference import process_logits_reference, record_tokens_reference
from kernels.token_history import TokenHistory, load_row
from tests.kernels import processors_kit as kit

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs, large memory"
)


def test_a_graph_reads_lanes_and_history_of_the_moment(generator: torch.Generator) -> None:
    device, vocabulary = generator.device, 5000
    history = kit.fill_history(generator, 8, vocabulary, (700, 20))
    lanes = kit.make_lanes(device, [0] * 8)
    logits = torch.empty(8, vocabulary, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(8, dtype=torch.int64, device=device)
    process_logits(logits, lanes, history)
    lanes.rows.fill_(-1)
    record_tokens(ids, lanes.rows, lanes.flags, history)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        process_logits(logits, lanes, history)
        record_tokens(ids, lanes.rows, lanes.flags, history)
    addresses = {name: tensor.data_ptr() for name, tensor in history.graph_buffers().items()}
    expected_history = kit.clone(history)
    for step in range(6):
        fresh = kit.draw_logits(generator, 8, vocabulary, torch.bfloat16)
        values = kit.make_lanes(
            device, torch.randperm(8, generator=generator, device=device).tolist(),
            flags=[1, 0, 1, 1] * 2, repetition_penalty=1 + step / 4, no_repeat_ngram=step, min_tokens=300,
        )  # fmt: skip
        if step == 3:
            values.rows[5:] = -1
            for one in (history, expected_history):
                load_row(one, 2, [1, 2, 3], [4], {7: 2.0}, [5])
        for name, tensor in vars(lanes).items():
            tensor.copy_(vars(values)[name])
        ids.copy_(torch.tensor(kit.draw_ids(generator, 8, vocabulary)))
        logits.copy_(fresh)
        graph.replay()
        process_logits_reference(fresh, values, expected_history)
        record_tokens_reference(ids, values.rows, values.flags, expected_history)
        assert torch.equal(logits, fresh)
        kit.assert_same(history, expected_history)
    assert addresses == {name: tensor.data_ptr() for name, tensor in history.graph_buffers().items()}


def test_offsets_beyond_32_bits(device: torch.device) -> None:
    vocabulary, last = 151936, 14199
    assert last * vocabulary > 2**31
    history = TokenHistory(last + 1, vocabulary, 8, device)
    load_row(history, last, [5], [7], {9: 1.0})
    logits = torch.zeros(last + 1, vocabulary, dtype=torch.bfloat16, device=device)
    lanes = kit.make_lanes(device, [-1] * last + [last], presence_penalty=2.0, no_repeat_ngram=1)
    record_tokens(torch.full((last + 1,), 11, device=device), lanes.rows, lanes.flags, history)
    process_logits(logits, lanes, history)
    assert history.tokens(last).tolist() == [5, 7, 11]
    assert int(history.counts[last, 11]) == 1
    changed = {5: float("-inf"), 7: float("-inf"), 9: 1.0, 11: float("-inf")}
    assert {token: float(logits[last, token]) for token in changed} == changed
    assert int(logits.count_nonzero()) == 4
    assert int(history.counts.count_nonzero()) == 4
