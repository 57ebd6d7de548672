"""`whitesmoke runners`, `runner-token`: the hosts that run CI jobs, from the operator's terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, get_args

import click

from ci_dispatch.model import Arch

if TYPE_CHECKING:
    from datetime import datetime

    import sqlalchemy as sa

    from service.store.runners import Runner

T = TypeVar("T")


@click.group("runner-token")
def runner_token() -> None:
    """Tokens with which hosts register."""


@runner_token.command()
@click.option(
    "--ttl", type=click.IntRange(1, 10_080), default=60, show_default=True, help="Minutes it is good for."
)
@click.option("--arch", type=click.Choice(get_args(Arch)), help="Only for a host of this architecture.")
def create(ttl: int, arch: Arch | None) -> None:
    """Print a new token. One host registers with it, once; it is not shown again."""
    from service.store import audit
    from service.store import runners as store

    def make(connection: sa.Connection, now: datetime) -> str:
        audit.record(
            connection, now, _me(), "made a runner token", "runners", {"arch": arch or "", "ttl": ttl}
        )
        return store.create_token(connection, now, timedelta(minutes=ttl), arch)

    click.echo(_write(make))


@click.group("runners")
def runners() -> None:
    """The hosts that run CI jobs, and their GPUs."""


@runners.command("list")
def list_() -> None:
    """Show all runners and their GPUs."""
    from service.settings import load_settings
    from service.store import fleet, gpus
    from service.store import runners as store
    from service.store.database import Database
    from service.store.types import utc_now

    now = utc_now()
    with Database(load_settings().database).read() as connection:
        known = store.show(connection)
        held = fleet.open_leases(connection)
        shown = gpus.show(connection)
    if not known:
        click.echo("no runner has registered; make a token: whitesmoke runner-token create")
    leased = {uuid: lease.job_id for lease in held for uuid in lease.gpus}
    for runner in known:
        slots = sum(lease.runner_id == runner.id and not lease.gpus for lease in held)
        click.echo(
            f"{runner.name:<24} {runner.arch:<6} {_condition(runner, now):<10} "
            f"slots {slots}/{runner.slots}{'' if runner.sandbox else ', no sandbox'}"
        )
        for gpu in shown:
            if gpu.runner == runner.name:
                state = f"{gpu.state} by {gpu.quarantined_by}: {gpu.reason}" if gpu.reason else gpu.state
                job = f", job {leased[gpu.uuid]}" if gpu.uuid in leased else ""
                click.echo(f"    {gpu.uuid} {state}{job}")


def _condition(runner: Runner, now: datetime) -> str:
    if runner.state == "gone":
        return "gone"
    if not runner.is_alive(now):
        return "silent"
    return "ready" if runner.takes_jobs else "draining"


@runners.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it take jobs again.")
def drain(name: str, undo: bool) -> None:
    """Let runner NAME finish its jobs and take no more."""
    from service.store import audit
    from service.store import runners as store

    def ask(connection: sa.Connection, now: datetime) -> None:
        store.drain(connection, name, now, wanted=not undo)
        audit.record(connection, now, _me(), "undrained" if undo else "drained", f"runner {name}", {})

    _write(ask)
    click.echo(f"{name} takes jobs again" if undo else f"{name} takes no more jobs")


@runners.command()
@click.argument("name")
def remove(name: str) -> None:
    """Void the secret of runner NAME. What it runs is lost."""
    from service.store import audit
    from service.store import runners as store

    def void(connection: sa.Connection, now: datetime) -> None:
        store.remove(connection, name, now)
        audit.record(connection, now, _me(), "removed", f"runner {name}", {})

    _write(void)
    click.echo(f"{name} is removed")


@runners.command()
@click.argument("uuid")
@click.option("--reason", default="", help="Why.")
def quarantine(uuid: str, reason: str) -> None:
    """Put the GPU UUID out of use. A job that runs on it goes on."""
    from service.store import audit, gpus

    def put(connection: sa.Connection, now: datetime) -> None:
        gpus.quarantine(connection, uuid, reason or "put out of use by a person", now)
        audit.record(connection, now, _me(), "quarantined", f"gpu {uuid}", {"reason": reason})

    _write(put)
    click.echo(f"{uuid} is out of use")


@runners.command()
@click.argument("uuid")
def release(uuid: str) -> None:
    """Put the GPU UUID back to use."""
    from service.store import audit, gpus

    def put(connection: sa.Connection, now: datetime) -> None:
        gpus.release(connection, uuid, now)
        audit.record(connection, now, _me(), "released", f"gpu {uuid}", {})

    _write(put)
    click.echo(f"{uuid} is in use again")


def _write(change: Callable[[sa.Connection, datetime], T]) -> T:
    from service.settings import load_settings
    from service.store.database import Database
    from service.store.types import utc_now

    database = Database(load_settings().database)
    with database.write() as connection:
        return change(connection, utc_now())


def _me() -> str:
    import getpass

    return getpass.getuser()
