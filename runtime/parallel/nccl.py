"""Collectives over NCCL, one GPU a rank, called through its C interface.

On the caller's stream and nowhere else: a captured step holds them as nodes like any other. torch's own process group adds
streams, events and a thread that asks for them, of which a capture and the end of a process would have to know.

`ncclCommDestroy` waits until no graph holds a collective of the group: graphs go first.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any

import torch

from runtime.parallel.group import GroupError, require_contiguous, side_by_side

ID_BYTES = 128
CLOSE_SECONDS = 5.0
MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""Variables, and the value of each by which an environment forbids NVLink multicast."""

_DTYPES = {
    torch.uint8: 1, torch.int32: 2, torch.int64: 4, torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
_SUM = 0


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


_POINTER, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: Mapping[str, tuple[type, Sequence[type]]] = {
    "ncclGetUniqueId": (_INT, [ctypes.POINTER(_UniqueId)]),
    "ncclCommInitRank": (_INT, [ctypes.POINTER(_POINTER), _INT, _UniqueId, _INT]),
    "ncclAllReduce": (_INT, [_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER]),
    "ncclAllGather": (_INT, [_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER]),
    "ncclCommDestroy": (_INT, [_POINTER]),
    "ncclCommAbort": (_INT, [_POINTER]),
    "ncclGetErrorString": (_TEXT, [_INT]),
    "ncclGetLastError": (_TEXT, [_POINTER]),
}
"""What each gives and takes; all but the last two give an error code."""


def keep_multicast_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Turn NCCL's NVLink multicast off unless the environment allows it and nothing in it says otherwise.

    NCCL reads the variable once, when it is first called.
    """
    forbidden = any(environment.get(name) == off for name, off in MULTICAST_OFF.items())
    if forbidden or "NCCL_NVLS_ENABLE" not in environment:
        environment["NCCL_NVLS_ENABLE"] = "0"


def unique_id() -> bytes:
    """What the ranks of a group find each other by; made once, by one of them.

    Raises:
        GroupError: NCCL is not there, or refuses.
    """
    made = _UniqueId()
    _call("ncclGetUniqueId", ctypes.byref(made))
    return bytes(made)


class NcclGroup:
    """See `Group`.

    Args:
        device: the rank's GPU.
        identity: what `unique_id` gave one of the ranks.

    Raises:
        GroupError: NCCL is not there, or refuses.
    """

    def __init__(self, rank: int, size: int, device: torch.device, identity: bytes) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        self._communicator = _POINTER()
        self._open = True
        with torch.cuda.device(device):
            _call(
                "ncclCommInitRank",
                ctypes.byref(self._communicator),
                size,
                _UniqueId.from_buffer_copy(identity),
                rank,
            )
        self._token = torch.zeros(1, dtype=torch.int32, device=device)
        self.barrier()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        require_contiguous(x)
        _call(
            "ncclAllReduce",
            x.data_ptr(),
            x.data_ptr(),
            x.numel(),
            _dtype(x),
            _SUM,
            self._communicator,
            torch.cuda.current_stream(self._device).cuda_stream,
        )
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        require_contiguous(x)
        parts = x.new_empty(self.size, *x.shape)
        _call(
            "ncclAllGather",
            x.data_ptr(),
            parts.data_ptr(),
            x.numel(),
            _dtype(x),
            self._communicator,
            torch.cuda.current_stream(self._device).cuda_stream,
        )
        return side_by_side(parts)

    def barrier(self) -> None:
        self.all_reduce(self._token)
        torch.cuda.current_stream(self._device).synchronize()

    def abort(self) -> None:
        # Kernels that wait see it at once; the call itself returns only when no graph holds the group, so nobody waits for it.
        if self._open:
            self._open = False
            threading.Thread(target=self._end, args=("ncclCommAbort",), daemon=True).start()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        ending = threading.Thread(target=self._end, args=("ncclCommDestroy",), daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)
        if ending.is_alive():
            raise GroupError(
                "close: NCCL still waits: a captured graph with this group's collectives is alive"
            )

    def _end(self, how: str) -> None:
        with torch.cuda.device(self._device):
            _call(how, self._communicator)


def _dtype(x: torch.Tensor) -> int:
    if x.dtype not in _DTYPES:
        raise GroupError(f"collective: expected one of {', '.join(map(str, _DTYPES))}, got {x.dtype}")
    return _DTYPES[x.dtype]


def _call(function: str, *arguments: object) -> None:
    functions = _library()
    if code := functions[function](*arguments):
        reason = functions["ncclGetErrorString"](code).decode()
        raise GroupError(f"{function}: {reason}: {functions['ncclGetLastError'](None).decode()}")


@cache
def _library() -> dict[str, Callable[..., Any]]:
    """NCCL's functions by name."""
    keep_multicast_off()
    # Else each buffer of each captured step is made known to the other ranks, which is of use to large messages alone.
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    try:
        library = ctypes.CDLL("libnccl.so.2")  # which torch with CUDA has loaded
    except OSError as error:
        raise GroupError(f"NCCL: {error}; install torch with CUDA") from None
    functions: dict[str, Callable[..., Any]] = {}
    for name, (result, types) in _FUNCTIONS.items():
        function = library[name]  # another object each time that it is asked for
        function.argtypes, function.restype = types, result
        functions[name] = function
    return functions
