from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).parents[2] / "standin" / "openai_server.py"


@pytest.fixture(scope="session")
def openai_server_class() -> Any:
    """`tests/standin/openai_server.py` is no package of ours: it is loaded from its place."""
    spec = importlib.util.spec_from_file_location("standin_openai_server", _PATH)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module.OpenAIServer


@pytest.fixture
def server(openai_server_class: Any) -> Iterator[Any]:
    with openai_server_class() as server:
        yield server
