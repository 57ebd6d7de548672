"""The GPU packages run on a bare GPU machine, and do not pass for what others look for under their names."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARE = {"torch", "triton", "numpy", "kernels"}
ALLOWED = {"kernels": BARE, "runtime": BARE | {"runtime", "safetensors", "tokenizers", "grpc", "google"}}
# Benchmarks ask for peers inside a function, and go on without.
PEERS = {"flashinfer", "flag_gems", "transformers"}


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Imported top-level names, and whether at the top of the module."""
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], node in top


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_nothing_that_a_bare_gpu_machine_lacks(room: str) -> None:
    paths = sorted((ROOT / room).rglob("*.py"))
    assert len(paths) > 10
    for path in paths:
        for name, at_top in _imports(ast.parse(path.read_text())):
            allowed = ALLOWED[room] | set(sys.stdlib_module_names) | (set() if at_top else PEERS)
            assert name in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_transformers_does_not_take_ours_for_the_package_that_it_looks_for(tmp_path: Path) -> None:
    """It probes for a `kernels` of certain versions; ours is importable beside it and must not answer."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed here")
    program = "import kernels, transformers; print(transformers.utils.import_utils.is_kernels_available())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.stdout.strip() == "False", done.stderr
