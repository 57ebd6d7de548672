"""NCCL's interface as we call it, against a library of the same functions that checks what it is given."""

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runtime.parallel import nccl
from runtime.parallel.group import GroupError

CPU = torch.device("cpu")
STREAM = (1 << 40) + 5
SOURCE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { signed char internal[128]; } Id;
typedef struct { int ranks, rank; } Group;
int graphs = 0, ended = 0;
static int width(int type) { return type == 7 ? 4 : type == 2 ? 4 : type == 9 ? 2 : 0; }
int ncclGetUniqueId(Id* id) { for (int i = 0; i < 128; i++) id->internal[i] = i; return 0; }
int ncclCommInitRank(Group** group, int ranks, Id id, int rank) {
  for (int i = 0; i < 128; i++) if (id.internal[i] != i) return 4;
  *group = malloc(sizeof(Group));
  (*group)->ranks = ranks;
  (*group)->rank = rank;
  return 0;
}
int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, Group* group, void* stream) {
  if (op != 0 || in != out || (uintptr_t)stream != (1ull << 40) + 5) return 4;
  for (size_t i = 0; i < count; i++)
    if (type == 7) ((float*)out)[i] *= group->ranks; else if (type == 2) ((int*)out)[i] *= group->ranks; else return 4;
  return 0;
}
int ncclAllGather(const void* in, void* out, size_t count, int type, Group* group, void* stream) {
  if ((uintptr_t)stream != (1ull << 40) + 5 || !width(type)) return 4;
  for (int rank = 0; rank < group->ranks; rank++) memcpy((char*)out + rank * count * width(type), in, count * width(type));
  return 0;
}
int ncclCommDestroy(Group* group) { while (graphs) usleep(1000); ended = 1; return 0; }
int ncclCommAbort(Group* group) { ended = 2; while (graphs) usleep(1000); return 0; }
const char* ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "another error"; }
const char* ncclGetLastError(Group* group) { return "of the stand-in"; }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: there is nothing to stand in for NCCL")
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "nccl.c").write_text(SOURCE)
    library = folder / "libnccl.so.2"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "nccl.c"], check=True)
    return library


@pytest.fixture
def library(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    opened = ctypes.CDLL(str(built))
    asked: list[str] = []
    monkeypatch.setattr(nccl.ctypes, "CDLL", lambda name: asked.append(name) or opened)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    stream = SimpleNamespace(cuda_stream=STREAM, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    for name in ("NCCL_NVLS_ENABLE", "NCCL_GRAPH_REGISTER"):
        monkeypatch.delenv(name, raising=False)
    nccl._library.cache_clear()
    yield opened
    nccl._library.cache_clear()
    assert asked == ["libnccl.so.2"]
    for name in ("graphs", "ended"):
        ctypes.c_int.in_dll(opened, name).value = 0


def ended(library: ctypes.CDLL) -> int:
    return ctypes.c_int.in_dll(library, "ended").value


def test_sums_and_parts(library: ctypes.CDLL) -> None:
    group = nccl.NcclGroup(1, 3, CPU, nccl.unique_id())
    assert (os.environ["NCCL_NVLS_ENABLE"], os.environ["NCCL_GRAPH_REGISTER"]) == ("0", "0")
    x = torch.arange(6.0).view(2, 3)
    assert group.all_reduce(x) is x
    assert x.tolist() == [[0, 3, 6], [9, 12, 15]]
    rows = torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16)
    assert group.all_gather(rows).tolist() == [[1, 2] * 3, [3, 4] * 3]
    group.barrier()
    group.close()
    assert ended(library) == 1
    group.close()
    group.abort()
    assert ended(library) == 1, "it is over"


def test_what_nccl_refuses_is_said_in_its_words(library: ctypes.CDLL) -> None:
    with pytest.raises(GroupError, match=r"^ncclCommInitRank: invalid argument: of the stand-in$"):
        nccl.NcclGroup(0, 2, CPU, bytes(128))
    group = nccl.NcclGroup(0, 2, CPU, nccl.unique_id())
    with pytest.raises(GroupError, match=r"collective: expected one of torch.uint8, .*, got torch.complex64"):
        group.all_reduce(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(GroupError, match=r"^ncclAllReduce: invalid argument"):
        group.all_reduce(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(GroupError, match=r"expected a contiguous tensor"):
        group.all_gather(torch.zeros(2, 3).T)


def test_a_graph_that_is_alive_is_named_and_not_waited_for(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "CLOSE_SECONDS", 0.1)
    group = nccl.NcclGroup(0, 2, CPU, nccl.unique_id())
    ctypes.c_int.in_dll(library, "graphs").value = 1
    with pytest.raises(GroupError, match=r"^close: NCCL still waits: a captured graph .* is alive$"):
        group.close()
    ctypes.c_int.in_dll(library, "graphs").value = 0
    _wait_for_threads()


def test_an_abort_returns_at_once(library: ctypes.CDLL) -> None:
    group = nccl.NcclGroup(0, 2, CPU, nccl.unique_id())
    ctypes.c_int.in_dll(library, "graphs").value = 1
    started = time.monotonic()
    group.abort()
    group.close()
    assert time.monotonic() - started < 0.5
    end = time.monotonic() + 2
    while ended(library) != 2:
        assert time.monotonic() < end
    ctypes.c_int.in_dll(library, "graphs").value = 0
    _wait_for_threads()


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.daemon and "_end" in thread.name:
            thread.join(2)
            assert not thread.is_alive()
