"""The cache of CUDA C++ libraries: what names an entry, and what a compiler's refusal looks like."""

import ctypes
from pathlib import Path

import pytest
import torch

from kernels import cuda, launch, target

needs_nvcc = pytest.mark.skipif(not cuda.available(), reason="no nvcc: install requirements/gpu.txt")

SOURCE = """
#include <cuda_runtime.h>
__global__ void fill_kernel(float* out, float value) { out[threadIdx.x] = value * FACTOR; }
extern "C" int fill(float* out, float value, cudaStream_t stream) {
    fill_kernel<<<1, 32, 0, stream>>>(out, value);
    return cudaGetLastError();
}
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cuda, "SOURCES", tmp_path)
    monkeypatch.setenv("WHITESMOKE_KERNEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fill.cu").write_text(SOURCE)
    return tmp_path


@needs_nvcc
def test_a_second_build_compiles_nothing_and_knows_the_resources(sources: Path) -> None:
    first = cuda.build("fill.cu", "sm90", {"FACTOR": 2})
    second = cuda.build("fill.cu", "sm90", {"FACTOR": 2})
    assert (first.compiled, second.compiled) == (True, False)
    assert (first.path, first.resources) == (second.path, second.resources)
    (entry,) = first.resources
    assert "fill_kernel" in entry.function
    assert entry.registers > 0
    assert entry.spill_bytes == 0
    assert sorted(path.suffix for path in (sources / "cache").iterdir()) == [".json", ".so"]


@needs_nvcc
def test_source_flags_arch_and_header_each_name_another_library(sources: Path) -> None:
    first = cuda.build("fill.cu", "sm90", {"FACTOR": 2}).path
    assert cuda.build("fill.cu", "sm90", {"FACTOR": 3}).path != first
    assert cuda.build("fill.cu", "sm80", {"FACTOR": 2}).path != first
    (sources / "common.cuh").write_text("// a header that any source may include\n")
    with_header = cuda.build("fill.cu", "sm90", {"FACTOR": 2}).path
    assert with_header != first
    (sources / "fill.cu").write_text(SOURCE.replace("1, 32", "1, 16"))
    assert cuda.build("fill.cu", "sm90", {"FACTOR": 2}).path not in (first, with_header)


@needs_nvcc
def test_a_refused_source_says_why_and_leaves_nothing(sources: Path) -> None:
    with pytest.raises(cuda.ToolchainError, match=r"nvcc refused fill\.cu:[\s\S]*FACTOR"):
        cuda.build("fill.cu", "sm90")
    assert list((sources / "cache").iterdir()) == []


def test_without_nvcc_the_error_says_what_to_install(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    cuda.nvcc_version.cache_clear()
    with pytest.raises(cuda.NoToolchainError, match=r"no nvcc found; install .* requirements/gpu\.txt"):
        cuda.build("fill.cu", "sm90")
    cuda.nvcc_version.cache_clear()


def test_while_building_nothing_is_loaded(sources: Path) -> None:
    library = cuda.Library("fill.cu", {"fill": (ctypes.c_void_p, ctypes.c_float)}, {"FACTOR": 2})
    calls = []
    with (
        target.building("sm90"),
        cuda.recording(lambda called, function: calls.append((called.source, function))),
    ):
        library("fill", 0, 1.0)
    assert calls == [("fill.cu", "fill")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU to run a library on")
def test_a_library_runs_on_the_current_stream(sources: Path) -> None:
    library = cuda.Library("fill.cu", {"fill": (ctypes.c_void_p, ctypes.c_float)}, {"FACTOR": 2})
    out = torch.full((32,), float("nan"), device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        library("fill", out.data_ptr(), 1.5)
        torch.cuda.current_stream().synchronize()
    assert out.tolist() == [3.0] * 32


def test_launch_options_that_the_target_lacks_are_left_out() -> None:
    seen = []
    with launch.recording(lambda kernel, grid, args, options: seen.append(options)):
        for arch in ("sm89", "sm90"):
            with target.building(arch):
                launch.launch(None, (1,), num_warps=4, launch_pdl=True)
    assert seen == [{"num_warps": 4}, {"num_warps": 4, "launch_pdl": True}]
