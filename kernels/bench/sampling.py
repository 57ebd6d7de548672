"""Benchmark rows of sampling: a vocabulary of 151,936, flat and peaked logits."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from kernels.bench.harness import Figures, Row
from kernels.sampling import argmax, log_probabilities, sample

VOCABULARY = 151936
FORMS = {
    "top-k 50, top-p 0.9": (50, 0.9),
    "top-p 0.9": (0, 0.9),
    "temperature 1": (0, 1.0),
}


class _Inputs:
    """One set: logits and the lanes' parameters."""

    def __init__(self, batch: int, dtype: torch.dtype, spread: float, k: int, p: float, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        drawn = torch.randn(batch, VOCABULARY, generator=generator, device="cuda") * spread
        self.logits = drawn.to(dtype)
        self.temperature = torch.ones(batch, device="cuda")
        self.top_k = torch.full((batch,), k, dtype=torch.int32, device="cuda")
        self.top_p = torch.full((batch,), p, device="cuda")
        self.seeds = torch.randint(2**62, (batch,), generator=generator, device="cuda")
        self.positions = torch.randint(2**20, (batch,), generator=generator, device="cuda")
        self.ids = torch.empty(batch, dtype=torch.int64, device="cuda")
        self.status = torch.empty(batch, dtype=torch.int32, device="cuda")


def _sample(inputs: _Inputs) -> object:
    return sample(
        inputs.logits,
        inputs.temperature,
        inputs.seeds,
        inputs.positions,
        top_k=inputs.top_k,
        top_p=inputs.top_p,
        ids=inputs.ids,
        status=inputs.status,
    )


def _sort(inputs: _Inputs, k: int, p: float) -> torch.Tensor:
    """As generation libraries do it: sort, mask, softmax, and an exponential race in place of multinomial."""
    scaled = inputs.logits.float() / inputs.temperature[:, None]
    if k or p < 1:
        ordered, order = scaled.sort(-1, descending=False)
        if k:
            ordered = ordered.masked_fill(ordered < ordered[:, -k, None], float("-inf"))
        below = ordered.softmax(-1).cumsum(-1) <= 1 - p
        below[:, -1] = False
        scaled = scaled.scatter(1, order, ordered.masked_fill(below, float("-inf")))
    probabilities = scaled.softmax(-1)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def _topk(inputs: _Inputs, k: int, p: float) -> torch.Tensor:
    """torch.topk, and the rest among what it found."""
    values, places = (inputs.logits.float() / inputs.temperature[:, None]).topk(k)
    probabilities = values.softmax(-1)
    kept = probabilities.cumsum(-1) - probabilities < p
    race = torch.where(kept, probabilities, 0) / torch.empty_like(probabilities).exponential_()
    return places.gather(1, race.argmax(-1, keepdim=True))


def _flashinfer(k: int, p: float) -> Callable[[_Inputs], object] | str:
    """Its sampler from logits, top-k first; one seed for all lanes, since that is what it takes."""
    try:
        import flashinfer
    except ImportError:
        return "not installed"
    return lambda inputs: flashinfer.sampling.top_k_top_p_sampling_from_logits(
        inputs.logits.float(), k, p, seed=1, offset=0
    )


def _argmax(inputs: _Inputs) -> object:
    return argmax(inputs.logits, ids=inputs.ids, status=inputs.status)


def _torch_argmax(inputs: _Inputs) -> torch.Tensor:
    return inputs.logits.argmax(-1)


def _log_probabilities(inputs: _Inputs) -> object:
    return log_probabilities(inputs.logits, inputs.ids, top=20)


def _torch_log_probabilities(inputs: _Inputs) -> object:
    logs = inputs.logits.float().log_softmax(-1)
    return logs.gather(1, inputs.ids[:, None]), logs.topk(20)


def _within(limit: float, figures: Figures) -> bool:
    return figures.us <= limit


def rows() -> Iterator[Row]:
    for batch in (64, 1):
        for dtype in (torch.bfloat16, torch.float32):
            size = batch * VOCABULARY * dtype.itemsize
            name = str(dtype).removeprefix("torch.")
            for form, (k, p) in FORMS.items():
                for spread in (1.0, 6.0):
                    wanted = batch == 64 and dtype == torch.bfloat16 and bool(k)
                    peers: dict[str, Callable[[_Inputs], object] | str] = {
                        "torch.sort": partial(_sort, k=k, p=p)
                    }
                    if k:
                        peers["torch.topk"] = partial(_topk, k=k, p=p)
                        peers["flashinfer"] = _flashinfer(k, p)
                    yield Row(
                        operation="sample",
                        shape=f"{batch} x {VOCABULARY} {name}, {form}, deviation {spread:g}",
                        make_inputs=partial(_Inputs, batch, dtype, spread, k, p),
                        run=_sample,
                        bytes_moved=size,
                        input_bytes=size,
                        peers=peers,
                        target="at most 35 us" if wanted else "",
                        met=partial(_within, 35.0) if wanted else None,
                    )
            plain = partial(_Inputs, batch, dtype, 1.0, 0, 1.0)
            for operation, run, peer in (
                ("argmax", _argmax, _torch_argmax),
                ("log_probabilities, top 20", _log_probabilities, _torch_log_probabilities),
            ):
                yield Row(
                    operation=operation,
                    shape=f"{batch} x {VOCABULARY} {name}",
                    make_inputs=plain,
                    run=run,
                    bytes_moved=size,
                    input_bytes=size,
                    peers={"torch": peer},
                )
