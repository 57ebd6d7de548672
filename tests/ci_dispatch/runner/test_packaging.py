"""The runner as a GPU host installs it: its wheel, what that stands on, and the folder it comes in."""

from __future__ import annotations

import ast
import email
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "packaging/runner/build.py"
SERVICE_ONLY = ("service", "reviewer", "kernels", "runtime", "scipy", "numpy", "sqlalchemy", "yaml", "jinja2")


@pytest.fixture(scope="module")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel") / "folder"
    subprocess.run([sys.executable, BUILD, folder, "--own-only"], check=True, capture_output=True)
    (wheel,) = folder.iterdir()
    return wheel


def test_it_holds_the_runner_and_nothing_of_the_service(own_wheel: Path) -> None:
    names = zipfile.ZipFile(own_wheel).namelist()
    modules = {name for name in names if ".dist-info/" not in name}
    runner = {str(file.relative_to(ROOT)) for file in (ROOT / "ci_dispatch/runner").rglob("*.py")}
    assert runner <= modules
    assert all(name.startswith("ci_dispatch/") and name.endswith(".py") for name in modules)


def test_it_holds_every_module_of_ours_that_it_imports(own_wheel: Path) -> None:
    archive = zipfile.ZipFile(own_wheel)
    held = {name for name in archive.namelist() if name.endswith(".py")}
    missing = set()
    for name in held:
        for module in _imports(archive.read(name).decode(), Path(name)):
            place = module.replace(".", "/")
            if module.startswith("ci_dispatch.") and not {f"{place}.py", f"{place}/__init__.py"} & held:
                missing.add(module)
    assert missing == set()


def _imports(source: str, name: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, name
            found.add(node.module)
            if node.module == "ci_dispatch":
                found |= {f"ci_dispatch.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


def test_it_imports_only_its_dependencies_and_the_standard_library(own_wheel: Path) -> None:
    archive = zipfile.ZipFile(own_wheel)
    outside = set()
    for name in archive.namelist():
        if name.endswith(".py"):
            outside |= {module.split(".")[0] for module in _imports(archive.read(name).decode(), Path(name))}
    assert outside - set(sys.stdlib_module_names) - {"ci_dispatch"} == {"click", "httpx2", "pydantic"}


def test_it_needs_four_distributions(own_wheel: Path) -> None:
    archive = zipfile.ZipFile(own_wheel)
    (name,) = [one for one in archive.namelist() if one.endswith("/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
    needed = {re.split(r"[^A-Za-z0-9-]", line)[0] for line in metadata.get_all("Requires-Dist", [])}
    assert needed == {"click", "httpx2", "nvidia-ml-py", "pydantic"}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Name"] == "whitesmoke-runner"


def test_its_version_is_the_service_s(own_wheel: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert own_wheel.name.split("-")[1] == version


def test_what_it_shares_with_the_service_is_locked_at_the_same_version() -> None:
    def pins(file: Path) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", file.read_text(), re.MULTILINE))

    service, runner = pins(ROOT / "requirements/dev.lock"), pins(ROOT / "packaging/runner/requirements.lock")
    shared = service.keys() & runner.keys()
    assert {"pydantic", "httpx2", "click"} <= shared
    assert {name: runner[name] for name in shared} == {name: service[name] for name in shared}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole folder; what an earlier `make runner-wheels` downloaded is used with today's own wheel."""
    place = tmp_path_factory.mktemp("wheels") / "runner"
    made = ROOT / "dist/runner"
    if made.is_dir():
        shutil.copytree(made, place)
        for old in place.glob("whitesmoke_runner-*"):
            old.unlink()
        own = place.with_name("own")
        subprocess.run([sys.executable, BUILD, own, "--own-only"], check=True, capture_output=True)
        shutil.copytree(own, place, dirs_exist_ok=True)
        return place
    built = subprocess.run([sys.executable, BUILD, place], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"the wheels cannot be downloaded here: {built.stderr.strip().splitlines()[-1]}")
    return place


def test_the_folder_is_small_and_has_compiled_wheels_for_each_python(folder: Path) -> None:
    wheels = [one.name for one in folder.iterdir()]
    assert sum(one.stat().st_size for one in folder.iterdir()) < 40 << 20
    for tag in ("cp311", "cp312"):
        assert [name for name in wheels if name.startswith("pydantic_core") and tag in name]


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_it_installs_on_a_bare_python_without_an_index(folder: Path, tmp_path: Path, version: str) -> None:
    python = _python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", venv], check=True)
    install = ["install", "--quiet", "--no-index", "--find-links", str(folder), "whitesmoke-runner"]
    subprocess.run(
        [venv / "bin/python", "-m", "pip", "--isolated", "--disable-pip-version-check", *install],
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"},
    )
    shown = subprocess.run(
        [venv / "bin/whitesmoke-runner", "--help"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={},
    )
    assert "--token-file" in shown.stdout
    listed = subprocess.run(
        [venv / "bin/python", "-c", _LOADED], check=True, capture_output=True, text=True, cwd=tmp_path, env={}
    )
    loaded = set(listed.stdout.split())
    assert "ci_dispatch" in loaded
    assert loaded.isdisjoint(SERVICE_ONLY)


_LOADED = "import sys, ci_dispatch.runner.start as _; print(*{name.split('.')[0] for name in sys.modules})"


def _python(version: str) -> str | None:
    """One that runs: a version manager's shim may be there for a version that is not."""
    candidates = [f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is None:
            continue
        asked = subprocess.run(
            [found, "-c", "import venv, sys; print(sys.version)"], capture_output=True, text=True
        )
        if asked.stdout.startswith(f"{version}."):
            return found
    return None
