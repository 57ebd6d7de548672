"""The sample repository as each round of the demo sees it, and the words that are said about it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from reviewer.checkout.snapshot import GitCheckout, open_range
from service.demo import sample


@pytest.fixture(scope="session")
def sample_repos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The repository before and after the force push."""
    opened, pushed = tmp_path_factory.mktemp("opened"), tmp_path_factory.mktemp("pushed")
    sample.build(opened)
    sample.build(pushed)
    sample.push_fix(pushed)
    return opened, pushed


@pytest.fixture(scope="session")
def sample_checkouts(sample_repos: tuple[Path, Path]) -> Iterator[tuple[GitCheckout, ...]]:
    """The pull request's checkout in round 1 and in round 2."""
    checkouts = tuple(open_range(repo, sample.BASE, sample.HEAD) for repo in sample_repos)
    yield checkouts
    for checkout in checkouts:
        checkout.close()


@pytest.fixture(scope="session")
def sample_rounds() -> list[dict[str, Any]]:
    """The rounds of answers.yaml."""
    text = (resources.files("service.demo") / "answers.yaml").read_text("utf-8")
    rounds: list[dict[str, Any]] = yaml.safe_load(text)["rounds"]
    return rounds
