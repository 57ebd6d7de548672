"""Log-probabilities of given tokens and of the most likely ones, against log_softmax in float64."""

import pytest
import torch

from kernels import sampling

GPU = torch.cuda.is_available()


def draw_logits(generator: torch.Generator, batch: int, vocabulary: int, dtype: torch.dtype) -> torch.Tensor:
    """Random logits whose rows are 16 bytes apart at least, which an odd vocabulary makes strided."""
    padded = torch.randn(
        batch, -(-vocabulary // 8) * 8, generator=generator, device=generator.device, dtype=torch.float32
    )
    return (padded * 3.0).to(dtype)[:, :vocabulary]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("top", [0, 1, 20])
@pytest.mark.parametrize(("batch", "vocabulary"), [(2, 1000), (1, 20001)] + ([(64, 151936)] if GPU else []))
def test_log_probabilities(
    batch: int, vocabulary: int, top: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits = draw_logits(generator, batch, vocabulary, dtype)
    ids = torch.randint(0, vocabulary, (batch,), generator=generator, device=logits.device)
    result = sampling.log_probabilities(logits, ids, top=top)
    expected = torch.log_softmax(logits.double(), -1)
    # The sum of exponentials adds 8192 terms in pairs: its logarithm is good to a few float32 roundings of itself.
    assert torch.allclose(result.chosen.double(), expected.gather(1, ids[:, None])[:, 0], rtol=0, atol=2e-5)
    ordered, order = expected.sort(dim=-1, descending=True, stable=True)
    assert result.top_ids.tolist() == order[:, :top].tolist()
    assert torch.allclose(result.top.double(), ordered[:, :top], rtol=0, atol=2e-5)


def test_log_probabilities_of_masked_tokens(generator: torch.Generator) -> None:
    logits = torch.full((1, 9000), float("-inf"), device=generator.device)
    logits[0, [3, 8999]] = torch.tensor([1.0, 2.0], device=generator.device)
    ids = torch.tensor([4], device=generator.device)
    result = sampling.log_probabilities(logits, ids, top=3)
    assert result.chosen.tolist() == [float("-inf")]
    assert result.top_ids[0, :2].tolist() == [8999, 3]
    assert result.top[0, 2] == float("-inf")
    assert sampling.log_probabilities(logits, ids + 9000).chosen.isnan().all()


def test_no_rows(device: torch.device) -> None:
    ids = torch.empty(0, dtype=torch.int64, device=device)
    result = sampling.log_probabilities(torch.empty(0, 100, device=device), ids, top=4)
    assert result.chosen.shape == (0,)
    assert result.top.shape == (0, 4)


@pytest.mark.parametrize("top", [-1, 33])
def test_bad_number_of_log_probabilities(top: int, device: torch.device) -> None:
    ids = torch.zeros(1, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=f"^top: expected 0 to 32, got {top}"):
        sampling.log_probabilities(torch.zeros(1, 100, device=device), ids, top=top)
