"""CUDA C++ through nvcc and ctypes: a plain C ABI, no torch headers, built at first use into a cache.

A library is keyed by its source, flags, architecture and nvcc's version, so that no change finds a stale one. The
cache is `$WHITESMOKE_KERNEL_CACHE`, else `~/.cache/whitesmoke/kernels`.

Each exported function takes the stream as its last argument and returns `cudaError_t`.
"""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import torch

from kernels import target

SOURCES = Path(__file__).parent / "csrc"
FLAGS = (
    "-O3",
    "-std=c++17",
    "--shared",
    "-Xcompiler=-fPIC",
    "-Xptxas=-v",
    "-lineinfo",
    "-cudart=static",
    "-cudadevrt=none",
)

Recorder = Callable[["Library", str], None]
_recorder: Recorder | None = None


class ToolchainError(RuntimeError):
    """nvcc is missing, or refused a source; the message holds its words."""


class NoToolchainError(ToolchainError):
    """There is no nvcc on this machine."""


class LaunchError(RuntimeError):
    """A CUDA function returned an error code."""


@dataclass(frozen=True)
class Resources:
    """What ptxas says of one entry function.

    Attributes:
        registers: per thread.
        spill_bytes: stores plus loads.
        shared_bytes: static shared memory of a block.
    """

    function: str
    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Built:
    """A library on disk: its path, its entry functions' resources, and whether this call compiled it."""

    path: Path
    resources: tuple[Resources, ...]
    compiled: bool


class Library:
    """One source of `csrc/` with its macros, built for the current target when a function is first called.

    Args:
        source: file name in `csrc/`.
        functions: name -> ctypes argument types, without the stream.
        defines: macros.
    """

    def __init__(
        self, source: str, functions: dict[str, Sequence[type]], defines: dict[str, int | str] | None = None
    ) -> None:
        self.source = source
        self.defines = dict(defines or {})
        self._signatures = {name: tuple(types) for name, types in functions.items()}
        self._loaded: dict[str, dict[str, Callable[..., int]]] = {}

    def __call__(self, function: str, *args: object, stream: int | None = None) -> None:
        """Call `function` on `stream`, by default torch's current one.

        Raises:
            LaunchError: the launch was refused; names function and error.
            ToolchainError: nvcc is missing or refused the source.
        """
        if _recorder is not None:
            _recorder(self, function)
            return
        arch = target.current().arch
        entry = (self._loaded.get(arch) or self._load(arch))[function]
        if stream is None:
            stream = torch.cuda.current_stream().cuda_stream
        if code := entry(*args, stream):
            raise LaunchError(f"{function} ({self.source}): CUDA error {code} at launch")

    def _load(self, arch: str) -> dict[str, Callable[..., int]]:
        library = ctypes.CDLL(str(build(self.source, arch, self.defines).path))
        functions = {}
        for name, types in self._signatures.items():
            function = getattr(library, name)  # a name from this project's own table of exported functions
            function.argtypes = [*types, ctypes.c_void_p]
            function.restype = ctypes.c_int
            functions[name] = function
        self._loaded[arch] = functions
        return functions


def build(source: str, arch: str, defines: dict[str, int | str] | None = None) -> Built:
    """Compile `csrc/source` for `arch` unless the cache holds it.

    Raises:
        ToolchainError: nvcc is missing or refused the source.
    """
    text = (SOURCES / source).read_text()
    flags = [
        *FLAGS,
        _arch_flag(arch),
        *(f"-D{name}={value}" for name, value in sorted((defines or {}).items())),
    ]
    version = nvcc_version()
    key = hashlib.sha256("\0".join([text, *_headers(), *flags, version]).encode()).hexdigest()[:24]
    library = cache_folder() / f"{Path(source).stem}-{arch}-{key}.so"
    report = library.with_suffix(".json")
    if library.exists() and report.exists():
        return Built(
            library, tuple(Resources(**entry) for entry in json.loads(report.read_text())), compiled=False
        )
    resources = _compile(SOURCES / source, flags, library)
    report.write_text(json.dumps([asdict(entry) for entry in resources]))
    return Built(library, resources, compiled=True)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within the block, calls go to `recorder(library, function)` and nothing is loaded."""
    global _recorder
    outer, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = outer


def available() -> bool:
    """Whether there is an nvcc to build with."""
    return find_nvcc() is not None


@lru_cache
def find_nvcc() -> Path | None:
    """nvcc of `$CUDA_HOME`, of the PATH, of the PyPI wheels, or of /usr/local/cuda, in this order."""
    site = Path(sysconfig.get_paths()["purelib"])
    candidates = [
        Path(os.environ["CUDA_HOME"], "bin/nvcc") if "CUDA_HOME" in os.environ else None,
        Path(found) if (found := shutil.which("nvcc")) else None,
        *sorted(site.glob("nvidia/cu*/bin/nvcc"), reverse=True),
        Path("/usr/local/cuda/bin/nvcc"),
    ]
    return next((path for path in candidates if path is not None and path.is_file()), None)


@lru_cache
def nvcc_version() -> str:
    """The release line of `nvcc --version`.

    Raises:
        NoToolchainError: there is none.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise NoToolchainError(
            "no nvcc found; install the CUDA toolkit, or the wheels of requirements/gpu.txt, or set CUDA_HOME"
        )
    return (
        subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
        .stdout.strip()
        .splitlines()[-1]
    )


def cache_folder() -> Path:
    """Where libraries are kept; made if absent."""
    chosen = os.environ.get("WHITESMOKE_KERNEL_CACHE")
    folder = Path(chosen) if chosen else Path.home() / ".cache/whitesmoke/kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _arch_flag(arch: str) -> str:
    number = arch.removeprefix("sm")
    suffix = "a" if number == "90" else ""
    return f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}"


def _library_path(nvcc: Path) -> list[str]:
    """The PyPI wheels keep the static runtime in lib/, where nvcc, which expects lib64/, does not look."""
    folder = nvcc.resolve().parent.parent / "lib"
    return [f"-L{folder}"] if (folder / "libcudart_static.a").exists() else []


def _headers() -> list[str]:
    return [path.read_text() for path in sorted(SOURCES.glob("*.cuh"))]


def _compile(source: Path, flags: Sequence[str], library: Path) -> tuple[Resources, ...]:
    nvcc = find_nvcc()
    assert nvcc is not None  # its version is part of the library's name, so it was found already
    # A library appears under its name only when whole: processes that build it at once cannot read half of one.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, "library.so")
        result = subprocess.run(
            [str(nvcc), *flags, *_library_path(nvcc), "-o", str(made), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise ToolchainError(f"nvcc refused {source.name}:\n{result.stderr.strip()}")
        made.replace(library)
    return _parse_ptxas(result.stderr)


def _parse_ptxas(text: str) -> tuple[Resources, ...]:
    entries = []
    for block in re.split(r"Compiling entry function", text)[1:]:
        name = re.search(r"'([^']+)'", block)
        registers = re.search(r"Used (\d+) registers", block)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
        shared = re.search(r"(\d+) bytes smem", block)
        if name and registers:
            spilled = int(spills[1]) + int(spills[2]) if spills else 0
            entries.append(Resources(name[1], int(registers[1]), spilled, int(shared[1]) if shared else 0))
    return tuple(entries)
