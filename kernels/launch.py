"""The one way kernels are launched, so that a build can walk the same path without a GPU.

`python -m kernels build` calls the operations on meta tensors with a recorder in place: each launch then goes to the
compiler with exactly the specialisation that a run would ask for, and a run finds the result in Triton's cache.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from triton.runtime import JITFunction

from kernels import target

Recorder = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]

_recorder: Recorder | None = None
_keyed: set[int] = set()


@dataclass(frozen=True)
class BuildCase:
    """One call of an operation on meta tensors, which reaches the variants to build.

    Attributes:
        name: `operation/what-distinguishes-it`, unique.
        call: calls the public function on tensors of `meta`.
        needs: features of `target.REASONS` that the architecture must have.
    """

    name: str
    call: Callable[[], object]
    needs: frozenset[str] = field(default_factory=frozenset)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a Triton kernel on the current stream; while building, compile it instead.

    Options the current target does not have (`launch_pdl` before Hopper) are left out here, once for all.
    """
    if options.get("launch_pdl") and "pdl" not in target.current().features:
        del options["launch_pdl"]
    if id(kernel) not in _keyed:
        _give_keys(kernel)
    if _recorder is not None:
        _recorder(kernel, grid, args, options)
        return
    kernel[grid](*args, **options)


def _give_keys(function: Any) -> None:
    """Let Triton compute the cache keys of the functions that `function` calls, then its own.

    Left to itself Triton 3.6 puts the constants of a called function into the caller's key only if that function has
    its key already: so the key, and whether a run finds what a build made, would depend on what was launched before.
    """
    _keyed.add(id(function))
    if not isinstance(function, JITFunction):  # the interpreter's
        return
    names = function.fn.__code__.co_names  # of globals, and of attributes of modules among them
    spaces = [function.fn.__globals__]
    spaces += [vars(value) for name in names if isinstance(value := spaces[0].get(name), ModuleType)]
    for called in (space[name] for space in spaces for name in names if name in space):
        if isinstance(called, JITFunction) and id(called) not in _keyed:
            _give_keys(called)
    function.cache_key  # noqa: B018 - computed at its first use


def is_building() -> bool:
    """True while launches are recorded: nothing may run, tensors have no data."""
    return _recorder is not None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within the block, launches go to `recorder(kernel, grid, args, options)`."""
    global _recorder
    outer, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = outer


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without data for a `BuildCase`; its pointer counts as aligned to 16 bytes."""
    return torch.empty(shape, dtype=dtype, device="meta")
