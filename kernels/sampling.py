"""One token a row from its logits: greedy, temperature, top-k, top-p and min-p, and log-probabilities.

    sample          ids [batch], status [batch]
    argmax          the same with every temperature 0
    log_probabilities   of given tokens, and of the most likely ones

Shapes: logits [batch, vocabulary] bfloat16 or float32, rows contiguous, their stride a multiple of 16 bytes, the pointer
aligned to 16 bytes. All parameters are tensors on the device, [batch] and contiguous, so that a captured graph reads their
values of the moment: temperature float32, seeds int64, positions int32 or int64, top_k int32 (off at 0 or less and at the
vocabulary or more), top_p float32 (off at 1), min_p float32 (off at 0). ids int64 or int32, status int32.

What is kept, in Hugging Face's order, ranks and ties by the logits as given:
1. top-k: tokens whose logit is at least the k-th largest; all that tie with it stay.
2. top-p: among those, tokens with less than top_p of their weight on strictly larger logits. Tokens of one logit stay or
   go together; the largest always stays. This is the smallest set that reaches top_p, ties included.
3. min-p: tokens of at least min_p times the largest probability.
A logit of -inf is never kept. The weight of a token is exp((logit - largest) / temperature), rounded to multiples of
2^-34; sums of weights are exact, so that they do not depend on order, batch or backend.

The choice among the kept is Gumbel-max, as a race: token i draws v = (r + 0.5) / 2^32, where r is word i % 4 of
Philox4x32-10 with counter (i / 4, position, position / 2^32, 0) and key (seed, seed / 2^32), and the largest
(logit - largest) / temperature - ln(-ln(1 - v)) wins; equal ones by lowest index. A row's token depends on its logits,
parameters, seed and position alone: not on the batch, the lane, or whether a graph replays it.

A temperature below 1e-5, or NaN, is greedy: the largest logit, of equal ones the lowest index.

status: 0; 1 where the row holds NaN; 2 where all of it is -inf; 3 where it holds +inf. In the last three nothing is
sampled and the id is 0, an index that a following embedding can read.

Precision: a weight carries a relative error of up to 2^-20, so a token whose exact weight above lies within 2^-19 of
top_p may fall on either side.

With nvcc the kernel is csrc/sampling.cu, a cluster of blocks a row; without it a Triton kernel of one program a row
narrows the thresholds by bisection, a pass each: the same tokens, slowly. On Hopper and newer the parameters and logits
are read after the kernel before has ended.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011; Holtzman et al., "The curious
case of neural text degeneration", 2020 (top-p).

Errors: ValueError naming the argument, the expected and the actual property; nothing is launched. Zero rows return at
once. Offsets are 64-bit.
"""

import ctypes
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import triton

from kernels import contract, cuda, target
from kernels.launch import BuildCase, launch, meta
from kernels.sampling_kernels import log_probability_kernel, sample_kernel, top_of_chunk_kernel
from kernels.sampling_reference import Sampled, sample_reference

MAX_TOP = 32
CHUNK = 8192

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_LIBRARY = cuda.Library(
    "sampling.cu", {"sample_tokens": (_P, _I, _L, _L, _I, _P, _P, _P, _P, _P, _P, _I, _P, _I, _P, _I, _I)}
)


class LogProbabilities(NamedTuple):
    """log_softmax of the given tokens [batch], and the `top` most likely tokens with theirs [batch, top], in order."""

    chosen: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
    backend: Literal["cuda", "triton"] | None = None,
) -> Sampled:
    """One token a row; see the module. `ids` and `status` are written and returned where given.

    `backend` is chosen by whether there is an nvcc unless given.
    """
    batch = _checked_batch(logits)
    parameters = {"temperature": (temperature, torch.float32), "seeds": (seeds, torch.int64)}
    parameters["positions"] = (positions, (torch.int64, torch.int32))
    optional = {
        "top_k": (top_k, torch.int32),
        "top_p": (top_p, torch.float32),
        "min_p": (min_p, torch.float32),
    }
    parameters |= {name: given for name, given in optional.items() if given[0] is not None}
    for name, (tensor, dtype) in parameters.items():
        contract.require(name, tensor, dtype=dtype, shape=(batch,), device=logits.device, contiguous=True)
    return _sample(logits, temperature, seeds, positions, top_k, top_p, min_p, ids, status, backend)


def argmax(
    logits: torch.Tensor,
    *,
    ids: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
    backend: Literal["cuda", "triton"] | None = None,
) -> Sampled:
    """The largest logit of each row, of equal ones the lowest index."""
    _checked_batch(logits)
    return _sample(logits, None, None, None, None, None, None, ids, status, backend)


def _sample(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    seeds: torch.Tensor | None,
    positions: torch.Tensor | None,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    ids: torch.Tensor | None,
    status: torch.Tensor | None,
    backend: Literal["cuda", "triton"] | None,
) -> Sampled:
    contract.require_value("backend", backend, (None, "cuda", "triton"))
    batch, vocabulary = logits.shape
    if ids is None:
        ids = torch.empty(batch, dtype=torch.int64, device=logits.device)
    else:
        integers = (torch.int64, torch.int32)
        contract.require("ids", ids, dtype=integers, shape=(batch,), device=logits.device, contiguous=True)
    if status is None:
        status = torch.empty(batch, dtype=torch.int32, device=logits.device)
    else:
        contract.require(
            "status", status, dtype=torch.int32, shape=(batch,), device=logits.device, contiguous=True
        )
    if not batch:
        return Sampled(ids, status)
    if backend == "cuda" or (backend is None and cuda.available() and not contract.INTERPRETING):
        _LIBRARY(
            "sample_tokens",
            logits.data_ptr(),
            int(logits.dtype == torch.float32),
            batch,
            logits.stride(0),
            vocabulary,
            *(_pointer(tensor) for tensor in (temperature, top_k, top_p, min_p, seeds, positions)),
            int(positions is not None and positions.dtype == torch.int64),
            ids.data_ptr(),
            int(ids.dtype == torch.int64),
            status.data_ptr(),
            _cluster(batch),
            int("pdl" in target.current().features),
        )
        return Sampled(ids, status)
    launch(
        sample_kernel,
        (batch,),
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        ids,
        status,
        vocabulary,
        _stride_vectors(logits),
        BITS=_bits(logits),
        BLOCK=1024 if contract.INTERPRETING else 2048,
        num_warps=8,
    )
    return Sampled(ids, status)


def log_probabilities(logits: torch.Tensor, ids: torch.Tensor, *, top: int = 0) -> LogProbabilities:
    """log_softmax of the logits as given (temperature 1, nothing removed) at `ids`, and of the `top` <= 32 largest.

    ids [batch] int64 or int32; NaN for one outside the vocabulary. Ties of the largest by lowest index. Float32.
    """
    batch, vocabulary = _checked_batch(logits), logits.shape[1]
    contract.require(
        "ids",
        ids,
        dtype=(torch.int64, torch.int32),
        shape=(batch,),
        device=logits.device,
        contiguous=True,
    )
    if not 0 <= top <= min(MAX_TOP, vocabulary):
        raise ValueError(f"top: expected 0 to {min(MAX_TOP, vocabulary)}, got {top}")
    device, chunks = logits.device, triton.cdiv(vocabulary, CHUNK)
    chosen = torch.empty(batch, dtype=torch.float32, device=device)
    top_ids = torch.empty(batch, top, dtype=torch.int64, device=device)
    top_logs = torch.empty(batch, top, dtype=torch.float32, device=device)
    if not batch:
        return LogProbabilities(chosen, top_ids, top_logs)
    sums = torch.empty(batch, chunks, 2, dtype=torch.float32, device=device)
    values = torch.empty(batch, chunks, top, dtype=torch.float32, device=device)
    indices = torch.empty(batch, chunks, top, dtype=torch.int32, device=device)
    shape = (vocabulary, _stride_vectors(logits), top)
    launch(
        top_of_chunk_kernel,
        (batch, chunks),
        logits,
        sums,
        values,
        indices,
        *shape,
        BITS=_bits(logits),
        CHUNK=CHUNK,
        num_warps=8,
    )
    launch(
        log_probability_kernel,
        (batch,),
        logits,
        ids,
        sums,
        values,
        indices,
        chosen,
        top_ids,
        top_logs,
        *shape,
        chunks,
        BITS=_bits(logits),
        CANDIDATES=max(1024, triton.next_power_of_2(chunks * top)),
        CHUNKS=max(64, triton.next_power_of_2(chunks)),
        num_warps=4,
    )
    return LogProbabilities(chosen, top_ids, top_logs)


def _checked_batch(logits: torch.Tensor) -> int:
    contract.require(
        "logits",
        logits,
        dtype=(torch.bfloat16, torch.float32),
        shape=(None, None),
        rows_contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    batch, vocabulary = logits.shape
    if not 0 < vocabulary < 2**31 - CHUNK:
        raise ValueError(f"logits: expected a vocabulary of 1 to {2**31 - CHUNK - 1}, got {vocabulary}")
    vector = contract.VECTOR_BYTES // logits.element_size()
    if batch > 1 and logits.stride(0) % vector:
        raise ValueError(
            f"logits: expected a row stride that is a multiple of {vector}, got {logits.stride(0)}"
        )
    return batch


def _pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _bits(logits: torch.Tensor) -> int:
    return 8 * logits.element_size()


def _stride_vectors(logits: torch.Tensor) -> int:
    return logits.stride(0) // (contract.VECTOR_BYTES // logits.element_size())


def _cluster(batch: int) -> int:
    """Blocks a row: as many as run at once, one to a multiprocessor; architectures without clusters have one."""
    current = target.current()
    blocks = 8 if current.capability >= 90 else 1
    while blocks > 1 and batch * blocks > current.multiprocessors:
        blocks //= 2
    return blocks


def build_cases() -> Iterator[BuildCase]:
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        logits = meta(64, 151936, dtype=dtype)
        vectors = [meta(64, dtype=kind) for kind in (torch.float32, torch.int64, torch.int64)]
        filters = {
            "top_k": meta(64, dtype=torch.int32),
            "top_p": meta(64, dtype=torch.float32),
            "min_p": meta(64, dtype=torch.float32),
        }
        yield BuildCase(
            f"sampling/triton-{name}",
            lambda logits=logits, vectors=vectors, filters=filters: sample(
                logits, *vectors, **filters, backend="triton"
            ),
        )
        yield BuildCase(
            f"sampling/log-probabilities-{name}",
            lambda logits=logits, ids=vectors[1]: log_probabilities(logits, ids, top=20),
        )
        yield BuildCase(
            f"sampling/triton-argmax-{name}", lambda logits=logits: argmax(logits, backend="triton")
        )
        if cuda.available():
            yield BuildCase(
                f"sampling/cuda-{name}",
                lambda logits=logits, vectors=vectors, filters=filters: sample(
                    logits, *vectors, **filters, backend="cuda"
                ),
            )


def check(device: torch.device) -> tuple[float, float]:
    """Share of rows whose token differs from the reference's."""
    generator = torch.Generator(device).manual_seed(1)
    logits = torch.randn(4, 1000, generator=generator, device=device)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device=device)
    seeds = torch.randint(0, 2**62, (4,), generator=generator, device=device)
    positions = torch.arange(4, device=device)
    filters = {
        "top_k": torch.tensor([0, 50, 0, 200], dtype=torch.int32, device=device),
        "top_p": torch.tensor([1.0, 0.9, 0.8, 1.0], device=device),
        "min_p": torch.tensor([0.0, 0.0, 0.01, 0.0], device=device),
    }
    ids, _ = sample(logits, temperature, seeds, positions, **filters)
    expected = sample_reference(logits, temperature, seeds, positions, **filters).ids
    return float((ids != expected).double().mean()), 0.0
