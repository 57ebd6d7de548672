"""`whitesmoke dismiss` and `reopen`: a maintainer's word on one finding of a local review."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from reviewer.ledger import Ledger


def _where(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--data", type=click.Path(path_type=Path), help="Folder of ledgers.  [default: $WHITESMOKE_DATA]"
        ),
        click.option("--patch", type=click.Path(path_type=Path), help="The patch that was reviewed."),
        click.option("--head", default="HEAD", show_default=True, help="The tip that was reviewed."),
        click.option("--base", default="main", show_default=True, help="The base that was reviewed against."),
        click.option(
            "--repo", type=click.Path(path_type=Path), default=Path(), help="A git repository.  [default: .]"
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("finding_id")
@click.option("--reason", required=True, help="Why the finding does not matter.")
@_where
def dismiss(finding_id: str, reason: str, **where: Any) -> None:
    """Set the finding FINDING_ID aside; it no longer blocks, in this round or a later one."""
    _change(where, lambda ledger: ledger.dismiss(finding_id, getpass.getuser(), reason))
    click.echo(f"{finding_id} is dismissed")


@click.command()
@click.argument("finding_id")
@_where
def reopen(finding_id: str, **where: Any) -> None:
    """Take the dismissal of FINDING_ID back."""
    _change(where, lambda ledger: ledger.reopen(finding_id))
    click.echo(f"{finding_id} is open again")


def _change(where: dict[str, Any], change: Callable[[Ledger], Ledger]) -> None:
    from service.ledger_file import data_folder, ledger_path, load, locked, save
    from service.local import identify

    path = ledger_path(
        data_folder(where["data"]), *identify(where["repo"], where["base"], where["head"], where["patch"])
    )
    with locked(path):
        save(path, change(load(path)))
