from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.standin.openai_server import OpenAIServer


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server
