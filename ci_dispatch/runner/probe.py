"""A script that asks one GPU to do something: `python -I probe.py UUID [LIBRARY]`, with CUDA_VISIBLE_DEVICES=UUID.

It goes through CUDA's driver library alone, in a process of its own: a driver that hangs or crashes takes no agent with it.
Ends with 0, or with 1 and one line that says which call failed. It imports nothing of ours, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import sys

_WORDS = 4 << 20
_FIRST, _SECOND = 0xA5C3_96F0, 0x5A3C_690F


class ProbeFailed(Exception):
    """What did not work, in words."""


class Driver:
    """CUDA's driver API. A call that answers other than 0 raises ProbeFailed with its name and the error's."""

    def __init__(self, library: str) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise ProbeFailed(f"{library} cannot be loaded: {error}") from None

    def call(self, function: str, *arguments: object) -> None:
        try:
            status = self._library[function](*arguments)
        except AttributeError:
            raise ProbeFailed(f"CUDA's driver library has no {function}") from None
        if status:
            raise ProbeFailed(f"{function} answered {status}{self._name(status)}")

    def _name(self, status: int) -> str:
        name = ctypes.c_char_p()
        try:
            known = self._library["cuGetErrorName"](status, ctypes.byref(name)) == 0
        except AttributeError:
            return ""
        return f" ({name.value.decode()})" if known and name.value else ""


def probe(library: str) -> None:
    """Fills 16 MiB on the first visible GPU, copies half of it over the other on the device, and reads all back.

    Raises ProbeFailed.
    """
    driver = Driver(library)
    driver.call("cuInit", 0)
    count = ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    if count.value != 1:
        raise ProbeFailed(f"CUDA shows {count.value} GPUs where 1 was made visible")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    half = ctypes.c_size_t(_WORDS // 2)
    middle = _WORDS // 2 * 4
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(_WORDS * 4))
    for pattern in (_FIRST, _SECOND):
        driver.call("cuMemsetD32_v2", memory, ctypes.c_uint32(pattern), half)
        driver.call("cuMemsetD32_v2", ctypes.c_uint64(memory.value + middle), ctypes.c_uint32(~pattern), half)
        driver.call(
            "cuMemcpyDtoD_v2", ctypes.c_uint64(memory.value + middle), memory, ctypes.c_size_t(middle)
        )
        back = ctypes.create_string_buffer(_WORDS * 4)
        driver.call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(_WORDS * 4))
        if back.raw != pattern.to_bytes(4, sys.byteorder) * _WORDS:
            raise ProbeFailed("what was read back is not what was written")
    driver.call("cuMemFree_v2", memory)
    driver.call("cuDevicePrimaryCtxRelease_v2", device)


if __name__ == "__main__":
    try:
        probe(sys.argv[2] if len(sys.argv) > 2 else "libcuda.so.1")
    except ProbeFailed as failed:
        print(failed)
        sys.exit(1)
