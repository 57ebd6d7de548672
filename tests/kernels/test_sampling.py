"""Sampling: the tokens are the reference's, whatever the batch, the lane, the backend or a graph around them."""

import pytest
import torch

from kernels import cuda, sampling
from kernels.sampling_reference import (
    HAS_INFINITY,
    HAS_NAN,
    NOTHING_LEFT,
    OK,
    Sampled,
    kept_reference,
    philox_reference,
    sample_reference,
)

GPU = torch.cuda.is_available()
SHAPES = [(2, 1000), (1, 3003), (2, 7)] + (
    [(64, 151936), (1, 151936), (1, 151669), (33, 32003), (160, 5000)] if GPU else []
)
BACKENDS = ["triton"] + (["cuda"] if GPU and cuda.available() else [])
FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 50, "top_p": 0.9},
    {"top_p": 0.9},
    {"top_p": 0.3, "min_p": 0.05},
    {"min_p": 0.2},
    {"top_k": 600, "top_p": 0.99},
    {"top_k": 50, "top_p": 0.9, "temperature": 0.5},
    {"top_k": 20000, "top_p": 0.8},
]
NEAR = 2.0**-18
"""Twice the precision that the module promises of weights: thresholds this near may fall on either side."""


def draw_logits(
    generator: torch.Generator, batch: int, vocabulary: int, dtype: torch.dtype, spread: float = 3.0
) -> torch.Tensor:
    """Random logits whose rows are 16 bytes apart at least, which an odd vocabulary makes strided."""
    padded = torch.randn(
        batch, -(-vocabulary // 8) * 8, generator=generator, device=generator.device, dtype=torch.float32
    )
    return (padded * spread).to(dtype)[:, :vocabulary]


def draw_seeds(generator: torch.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    device = generator.device
    seeds = torch.randint(-(2**62), 2**62, (batch,), generator=generator, device=device)
    return seeds, torch.randint(0, 2**40, (batch,), generator=generator, device=device)


def parameters(
    batch: int, device: torch.device, **values: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The temperature and the filters as device tensors, one value for all lanes."""
    temperature = torch.full((batch,), values.pop("temperature", 1.0), device=device)
    kinds = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    return temperature, {
        name: torch.full((batch,), value, dtype=kinds[name], device=device) for name, value in values.items()
    }


def assert_chosen(
    actual: Sampled,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    filters: dict[str, torch.Tensor],
) -> None:
    """Every row has the reference's token, or the one of a top_p within the promised precision."""
    expected = sample_reference(logits, temperature, seeds, positions, **filters)
    assert torch.equal(actual.status, expected.status)
    right = actual.ids == expected.ids
    for factor in (1 - NEAR, 1 + NEAR):
        if not right.all() and "top_p" in filters:
            moved = {**filters, "top_p": filters["top_p"] * factor}
            right |= actual.ids == sample_reference(logits, temperature, seeds, positions, **moved).ids
    assert right.all(), f"rows {(~right).nonzero().flatten().tolist()}: {actual.ids}, expected {expected.ids}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize(("batch", "vocabulary"), SHAPES)
def test_tokens_are_the_reference_s(
    batch: int,
    vocabulary: int,
    filters: dict[str, float],
    dtype: torch.dtype,
    backend: str,
    generator: torch.Generator,
) -> None:
    logits = draw_logits(generator, batch, vocabulary, dtype)
    seeds, positions = draw_seeds(generator, batch)
    temperature, given = parameters(batch, logits.device, **filters)
    actual = sampling.sample(logits, temperature, seeds, positions, **given, backend=backend)
    assert_chosen(actual, logits, temperature, seeds, positions, given)


@pytest.mark.skipif(not GPU, reason="needs a GPU: the flat and the large cases of the CUDA kernel")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 12.0])
@pytest.mark.parametrize(
    "filters", [{"top_p": 0.9}, {"top_k": 20000, "top_p": 0.8}, {"top_k": 5000}], ids=str
)
def test_flat_and_peaked_rows(
    spread: float, filters: dict[str, float], backend: str, generator: torch.Generator
) -> None:
    logits = draw_logits(generator, 8, 151936, torch.float32, spread)
    seeds, positions = draw_seeds(generator, 8)
    temperature, given = parameters(8, logits.device, **filters)
    actual = sampling.sample(logits, temperature, seeds, positions, **given, backend=backend)
    assert_chosen(actual, logits, temperature, seeds, positions, given)


@pytest.mark.skipif(not GPU, reason="needs a GPU: long rows")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [1, 64, 160])
@pytest.mark.parametrize("gap", [2.0**-6, 0.25, 4.0])
@pytest.mark.parametrize("filters", [{"top_p": 0.3}, {"top_p": 0.7}], ids=str)
def test_sums_of_many_equal_weights_do_not_overflow(
    filters: dict[str, float], gap: float, batch: int, backend: str, generator: torch.Generator
) -> None:
    """A bin of a block's share of a row sums to more than 32 bits hold of a weight."""
    logits = torch.zeros(batch, 151936, device=generator.device)
    logits[:, 1::2] = -gap
    seeds, positions = draw_seeds(generator, batch)
    temperature, given = parameters(batch, logits.device, **filters)
    actual = sampling.sample(logits, temperature, seeds, positions, **given, backend=backend)
    assert_chosen(actual, logits, temperature, seeds, positions, given)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lanes_have_their_own_parameters(backend: str, generator: torch.Generator) -> None:
    logits = draw_logits(generator, 6, 600, torch.bfloat16)
    seeds, positions = draw_seeds(generator, 6)
    device = logits.device
    temperature = torch.tensor([0.0, 0.7, 1.0, 2.0, float("nan"), 1.0], device=device)
    filters = {
        "top_k": torch.tensor([5, 0, 7, -1, 9, 2**31 - 1], dtype=torch.int32, device=device),
        "top_p": torch.tensor([0.5, 0.9, 1.0, 1.0, 0.9, 0.0], device=device),
        "min_p": torch.tensor([0.0, 0.0, 0.1, 0.0, 0.5, 2.0], device=device),
    }
    actual = sampling.sample(logits, temperature, seeds, positions, **filters, backend=backend)
    assert_chosen(actual, logits, temperature, seeds, positions, filters)
    largest = logits.float().argmax(-1)
    assert actual.ids[[0, 4, 5]].tolist() == largest[[0, 4, 5]].tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_at_every_threshold_stay_together(backend: str, generator: torch.Generator) -> None:
    row = torch.tensor([1.0, 3.0, 3.0, 2.0, 2.0, 2.0, 0.0, -0.0], dtype=torch.bfloat16)
    logits = row.to(generator.device).expand(16, 8)
    seeds, positions = draw_seeds(generator, 16)

    def assert_kept(expected: set[int], **values: float) -> None:
        temperature, given = parameters(16, logits.device, **values)
        actual = sampling.sample(logits, temperature, seeds, positions, **given, backend=backend)
        assert_chosen(actual, logits, temperature, seeds, positions, given)
        assert set(actual.ids.tolist()) <= expected
        assert set(kept_reference(logits, temperature, **given)[0].nonzero().flatten().tolist()) == expected

    assert_kept({1, 2}, top_k=1)
    assert_kept({1, 2, 3, 4, 5}, top_k=3)
    assert_kept({1, 2}, top_p=0.01)
    assert_kept({1, 2, 3, 4, 5}, top_p=0.7)
    assert_kept(set(range(8)), top_k=7, temperature=50.0)  # the two zeros are one value


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_takes_the_lowest_index_of_equal_logits(backend: str, generator: torch.Generator) -> None:
    logits = draw_logits(generator, 4, 1504, torch.bfloat16)
    logits[:, [3, 700, 1400]] = 50.0
    logits[1, 3] = 0.0
    logits[2] = -1.0
    logits[3] = 0.0
    logits[3, ::2] = -0.0
    assert sampling.argmax(logits, backend=backend).ids.tolist() == [3, 700, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 50}, {"top_p": 0.999}, {"top_k": 50, "top_p": 0.999}], ids=str
)
def test_masked_tokens_are_never_sampled(
    filters: dict[str, float], backend: str, generator: torch.Generator
) -> None:
    logits = torch.full((12, 1016), float("-inf"), device=generator.device)
    live = [5, 511, 512, 1015]
    logits[:, live] = torch.tensor([0.0, 1.0, -200.0, 0.5], device=generator.device)
    seeds, positions = draw_seeds(generator, 12)
    temperature, given = parameters(12, logits.device, **filters)
    actual = sampling.sample(logits, temperature, seeds, positions, **given, backend=backend)
    assert set(actual.ids.tolist()) <= {5, 511, 1015}
    assert_chosen(actual, logits, temperature, seeds, positions, given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_cannot_be_sampled_are_reported_and_leave_the_others_alone(
    temperature: float, backend: str, generator: torch.Generator
) -> None:
    logits = draw_logits(generator, 5, 1001, torch.bfloat16)
    seeds, positions = draw_seeds(generator, 5)
    warmth, given = parameters(5, logits.device, temperature=temperature, top_k=20, top_p=0.9)
    clean = sampling.sample(logits, warmth, seeds, positions, **given, backend=backend)
    assert clean.status.tolist() == [OK] * 5
    bad = torch.empty(5, 1008, dtype=logits.dtype, device=logits.device)[:, :1001].copy_(logits)
    bad[0, 1000] = float("nan")
    bad[1] = float("-inf")
    bad[2, 17] = float("inf")
    bad[3, 5] = float("-inf") if clean.ids[3] != 5 else bad[3, 5]
    actual = sampling.sample(bad, warmth, seeds, positions, **given, backend=backend)
    assert actual.status.tolist() == [HAS_NAN, NOTHING_LEFT, HAS_INFINITY, OK, OK]
    assert actual.ids[:3].tolist() == [0, 0, 0]
    assert actual.ids[4] == clean.ids[4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_depends_on_its_row_seed_and_position_alone(backend: str, generator: torch.Generator) -> None:
    logits = draw_logits(generator, 7, 1000, torch.bfloat16)
    seeds, positions = draw_seeds(generator, 7)
    temperature, given = parameters(7, logits.device, top_p=0.9)

    def drawn(rows: list[int]) -> list[int]:
        chosen = {name: value[rows] for name, value in given.items()}
        padded = torch.zeros(len(rows), 1024, dtype=logits.dtype, device=logits.device)
        padded[:, :1000] = logits[rows]
        result = sampling.sample(
            padded[:, :1000], temperature[rows], seeds[rows], positions[rows], **chosen, backend=backend
        )
        return result.ids.tolist()

    together = drawn(list(range(7)))
    assert drawn([6, 5, 4, 3, 2, 1, 0]) == together[::-1]
    assert [drawn([row])[0] for row in range(7)] == together
    assert drawn([2] * 9) == [together[2]] * 9


def test_what_is_drawn_has_the_kept_set_s_distribution(
    generator: torch.Generator, device: torch.device
) -> None:
    """On a CPU the reference draws, which the kernel equals token for token elsewhere here."""
    draws, vocabulary = 20000, 40
    row = draw_logits(generator, 1, vocabulary, torch.float32, 1.0)
    logits = row.expand(draws, vocabulary)
    seeds = torch.arange(draws, device=device) // 2
    positions = torch.arange(draws, device=device) % 2
    temperature, given = parameters(draws, device, temperature=0.8, top_k=30, top_p=0.9)
    drawn = (sampling.sample if GPU else sample_reference)(logits, temperature, seeds, positions, **given).ids
    kept = kept_reference(row, temperature[:1], **{name: value[:1] for name, value in given.items()})[0]
    counts = torch.bincount(drawn, minlength=vocabulary).double()
    assert not counts[~kept].any()
    expected = torch.softmax((row[0].double() / 0.8).masked_fill(~kept, float("-inf")), 0) * draws
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = int(kept.sum()) - 1
    # Five standard deviations of a chi-square of that many degrees of freedom.
    assert freedom > 5
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_random_words_are_philox_4x32_10() -> None:
    """Known answers of the authors' distribution (Random123, kat_vectors)."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert philox_reference(4, zero, zero)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.skipif(not GPU, reason="needs a GPU: CUDA graphs")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_reads_seeds_and_parameters_of_the_moment(backend: str, generator: torch.Generator) -> None:
    logits = draw_logits(generator, 16, 5000, torch.bfloat16)
    seeds, positions = draw_seeds(generator, 16)
    temperature, given = parameters(16, logits.device, top_k=200, top_p=0.95)
    ids = torch.full((16,), -1, device=logits.device)
    status = torch.full((16,), -1, dtype=torch.int32, device=logits.device)

    def run() -> None:
        sampling.sample(
            logits, temperature, seeds, positions, **given, ids=ids, status=status, backend=backend
        )

    run()
    eager = ids.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    ids.fill_(-1)
    graph.replay()
    assert torch.equal(ids, eager)
    old = seeds.clone()
    seeds += 1
    graph.replay()
    assert not torch.equal(ids, eager), "reseeding after the capture changes the samples"
    assert_chosen(Sampled(ids, status), logits, temperature, seeds, positions, given)
    seeds.copy_(old)
    graph.replay()
    assert torch.equal(ids, eager)
    temperature.zero_()
    graph.replay()
    assert torch.equal(ids, sampling.argmax(logits).ids)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_given_are_written_in_their_types(backend: str, generator: torch.Generator) -> None:
    logits = draw_logits(generator, 3, 100, torch.bfloat16)
    seeds, positions = draw_seeds(generator, 3)
    positions = positions % 2**31
    temperature, _ = parameters(3, logits.device)
    ids = torch.full((3,), 0x7F7F7F7F, dtype=torch.int32, device=logits.device)
    status = torch.full((3,), 0x7F7F7F7F, dtype=torch.int32, device=logits.device)
    wide = sampling.sample(logits, temperature, seeds, positions, backend=backend)
    narrow = sampling.sample(
        logits, temperature, seeds, positions.to(torch.int32), ids=ids, status=status, backend=backend
    )
    assert narrow.ids is ids
    assert narrow.status is status
    assert ids.tolist() == wide.ids.tolist()
    assert status.tolist() == [OK] * 3


def test_no_rows(device: torch.device) -> None:
    logits = torch.empty(0, 100, device=device)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    assert sampling.sample(logits, torch.empty(0, device=device), nothing, nothing).ids.shape == (0,)
    assert sampling.argmax(logits).status.shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"logits": torch.zeros(2, 16, dtype=torch.float16)},
            "logits: expected dtype bfloat16 or float32, got float16",
        ),
        ({"logits": torch.zeros(16)}, r"logits: expected shape \[any, any\], got \[16\]"),
        ({"logits": torch.zeros(2, 0)}, "logits: expected a vocabulary of 1"),
        ({"logits": torch.zeros(16, 2).T}, "logits: expected contiguous rows"),
        (
            {"logits": torch.zeros(2, 18)[:, :16]},
            "logits: expected a row stride that is a multiple of 4, got 18",
        ),
        (
            {"logits": torch.zeros(36)[2:34].view(2, 16)},
            "logits: expected a pointer aligned to 16 bytes, got one 8",
        ),
        (
            {"temperature": torch.ones(2, dtype=torch.float64)},
            "temperature: expected dtype float32, got float64",
        ),
        ({"temperature": torch.ones(3)}, r"temperature: expected shape \[2\], got \[3\]"),
        ({"seeds": torch.ones(2, dtype=torch.int32)}, "seeds: expected dtype int64, got int32"),
        ({"positions": torch.ones(2)}, "positions: expected dtype int64 or int32, got float32"),
        ({"top_k": torch.ones(2, dtype=torch.int64)}, "top_k: expected dtype int32, got int64"),
        ({"top_p": torch.ones(4)[::2]}, "top_p: expected a contiguous tensor"),
        ({"min_p": torch.ones(2, 1)}, r"min_p: expected shape \[2\], got \[2, 1\]"),
        ({"ids": torch.ones(2)}, "ids: expected dtype int64 or int32, got float32"),
        ({"status": torch.ones(2, dtype=torch.int64)}, "status: expected dtype int32, got int64"),
        ({"backend": "sort"}, "backend: expected one of None, cuda, triton, got sort"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str, device: torch.device) -> None:
    arguments: dict[str, object] = {
        "logits": torch.zeros(2, 16),
        "temperature": torch.ones(2),
        "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(2, dtype=torch.int64),
        **change,
    }
    moved = {
        name: move(value, device) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    with pytest.raises(ValueError, match=f"^{message}"):
        sampling.sample(**moved)


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """To the device with strides and offset as they are."""
    storage = torch.empty(
        tensor.untyped_storage().size() // tensor.element_size(), dtype=tensor.dtype, device=device
    )
    return storage.zero_().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
