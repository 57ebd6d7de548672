"""`whitesmoke runner`: the agent of a GPU host, which needs nothing else of the service."""

from __future__ import annotations

from ci_dispatch.runner.cli import runner

__all__ = ["runner"]
