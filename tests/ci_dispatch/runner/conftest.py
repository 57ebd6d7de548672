"""Workplaces for the executor's tests; the sandbox where it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_dispatch.runner.sandbox import Confinement, confinement
from tests.kit.runner_jobs import Bench, make_bench


@pytest.fixture(scope="session")
def found() -> Confinement:
    """Skips where jobs cannot be confined."""
    found = confinement()
    if not found.works:
        pytest.skip(f"no sandbox here: {found.problem}")
    return found


@pytest.fixture
def confined(tmp_path: Path, found: Confinement) -> Bench:
    """Jobs run confined."""
    return make_bench(tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Bench:
    """Jobs run in a process group; only trusted ones do."""
    return make_bench(tmp_path, sandboxed=False)


@pytest.fixture(params=["confined", "plain"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Both ways, for what must hold in both."""
    bench: Bench = request.getfixturevalue(request.param)
    return bench
