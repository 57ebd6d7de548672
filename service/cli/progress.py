"""Progress of a round on standard error: one line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from reviewer.round import OnProgress, Progress


@contextmanager
def show_progress() -> Iterator[OnProgress]:
    """Gives the callback that shows each step with its counts."""
    if not sys.stderr.isatty():
        yield lambda progress: click.echo(_line(progress), err=True)
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status("plan") as status:

        def show(progress: Progress) -> None:
            status.update(escape(_line(progress)))
            if progress.done == progress.total:
                console.print(_line(progress), markup=False, highlight=False)

        yield show


def _line(progress: Progress) -> str:
    return f"{progress.step:<10} {progress.done}/{progress.total}  {progress.note}".rstrip()
