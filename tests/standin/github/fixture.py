"""The fixture `hub`: import it into a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.standin.github.hub import GitHub
from tests.standin.github.packages import installed


@pytest.fixture
def hub() -> Iterator[GitHub]:
    """A GitHub for one test, which fails at its end for what a client did against GitHub's description and for each
    comment, review or check that it did not look at. Skips where the description cannot be had."""
    try:
        installed()
    except OSError as error:
        pytest.skip(str(error))
    with GitHub() as hub:
        yield hub
        hub.hooks.settle()
        hub.finish()
