"""A stateful GitHub over real HTTP, for tests: see README.md one folder up."""

from tests.standin.github.handles import Pull, Repo
from tests.standin.github.hub import GitHub

__all__ = ["GitHub", "Pull", "Repo"]
