"""Runners: how they come, show signs of life, and go. Their secrets are kept as digests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from ci_dispatch.model import Arch, Inventory
from ci_dispatch.protocol import Beat, BeatAnswer, Registered, Registration
from service.store import gpus
from service.store.ci_rows import BadToken, LeaseState, digest, new_secret, same
from service.store.ci_tables import leases, runners, tokens
from service.store.dialect import insert
from service.store.errors import StoreError
from service.store.job_leases import FETCH_SECONDS, put_back_unfetched

BEAT_SECONDS = 10.0
SILENT_SECONDS = 45.0
"""Without a beat for so long a runner is no capacity."""
SKEW_SECONDS = 5.0
"""A sign of life from further in the future was made by a clock that has been set back since."""
_MOST_SLOTS = 10_000
_ANSWER_SECONDS = 5.0
"""A beat may have been written before the grant that it does not name."""


class NameTaken(StoreError):
    """A runner of this name is alive."""


class WrongArch(StoreError):
    """A registration token for another architecture than the host's."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A stored runner. `state` is active, gone (it may come back) or removed (its secret is void)."""

    id: int
    name: str
    arch: str
    state: str
    slots: int
    sandbox: bool
    drain: bool
    draining: bool
    registered_at: datetime
    beat_at: datetime
    listens_until: datetime | None
    inventory: str

    @property
    def takes_jobs(self) -> bool:
        return self.state == "active" and not self.drain and not self.draining

    def is_alive(self, now: datetime) -> bool:
        silent = (now - self.beat_at).total_seconds()
        return self.state == "active" and -SKEW_SECONDS <= silent <= SILENT_SECONDS


COLUMNS = tuple(runners.c[name] for name in Runner.__dataclass_fields__)


def create_token(connection: sa.Connection, now: datetime, ttl: timedelta, arch: Arch | None = None) -> str:
    """A token with which one runner registers, once; for one architecture, where one is given."""
    token = new_secret("wsreg")
    values = {
        "digest": digest(token),
        "arch": arch or "",
        "created_at": now,
        "expires_at": now + ttl,
    }
    connection.execute(sa.insert(tokens).values(values))
    return token


def register(connection: sa.Connection, token: str, asked: Registration, now: datetime) -> Registered:
    """Spends the token. Asked again with the same nonce, answers with a fresh secret for the same runner.

    Raises `BadToken`, `NameTaken`, `WrongArch`.
    """
    row = connection.execute(
        sa.select(tokens).where(tokens.c.digest == digest(token)).with_for_update()
    ).first()
    # The nonce is as secret as the token: without one, spent is spent.
    again = row is not None and bool(asked.nonce) and same(asked.nonce, row.nonce_digest)
    if row is None or row.expires_at <= now or (row.used_at is not None and not again):
        raise BadToken(
            "the registration token is unknown, spent or expired", "make one: whitesmoke runner-token create"
        )
    if row.arch and row.arch != asked.inventory.arch:
        raise WrongArch(
            f"the registration token is for {row.arch}, the host has {asked.inventory.arch}",
            "make a token for its architecture",
        )
    secret = new_secret("wsrun")
    runner_id = _place(connection, asked, secret, row.runner_id if again else None, now)
    spent = sa.update(tokens).where(tokens.c.id == row.id)
    nonce = digest(asked.nonce) if asked.nonce else ""
    connection.execute(spent.values(used_at=now, runner_id=runner_id, nonce_digest=nonce))
    gpus.see(connection, runner_id, asked.inventory, now)
    return Registered(runner_id=runner_id, secret=secret, beat_seconds=BEAT_SECONDS)


def _place(
    connection: sa.Connection, asked: Registration, secret: str, own: int | None, now: datetime
) -> int:
    named = sa.select(*COLUMNS).where(runners.c.name == asked.name).with_for_update()
    row = connection.execute(named).first()
    if row is not None:
        former = Runner(*row)
        if former.is_alive(now) and former.id != own:
            raise NameTaken(
                f"a runner named {asked.name} is alive",
                f"choose another name, or wait {SILENT_SECONDS:.0f} s after it stopped",
            )
    values = {
        "name": asked.name,
        "state": "active",
        "secret_digest": digest(secret),
        "drain": False,
        "draining": False,
        "registered_at": now,
        "beat_at": now,
        "listens_until": None,
        **_offer(asked.inventory),
    }
    placed = insert(connection, runners, values).on_conflict_do_update(
        index_elements=[runners.c.name], set_=values
    )
    runner_id: int = connection.execute(placed.returning(runners.c.id)).scalar_one()
    return runner_id


def _offer(inventory: Inventory) -> dict[str, object]:
    return {
        "arch": inventory.arch,
        "slots": min(inventory.slots, _MOST_SLOTS),
        "sandbox": inventory.sandbox,
        "inventory": inventory.model_dump_json(),
    }


def authenticate(connection: sa.Connection, secret: str) -> Runner:
    """The runner whose secret it is. Raises `BadToken`."""
    found = sa.select(*COLUMNS, runners.c.secret_digest).where(runners.c.secret_digest == digest(secret))
    row = connection.execute(found).first()
    if row is None or row.state == "removed" or not same(secret, row.secret_digest):
        raise BadToken("the runner's secret is unknown", "register again with a new registration token")
    return Runner(*row[:-1])


def beat(connection: sa.Connection, runner: Runner, said: Beat, now: datetime) -> BeatAnswer:
    """Stores a sign of life, what the host offers now, and its evidence about its GPUs."""
    values: dict[str, object] = {"beat_at": now, "draining": said.draining, "state": "active"}
    offer = _offer(said.inventory)
    changed = offer["inventory"] != runner.inventory
    if changed:
        values |= offer
    connection.execute(sa.update(runners).where(runners.c.id == runner.id).values(**values))
    held = _tend(connection, runner.id, said, now)
    if said.draining or runner.drain:
        put_back_unfetched(connection, runner.id, now)
    if changed:
        gpus.see(connection, runner.id, said.inventory, now)
    bad = gpus.note(connection, runner.id, said.notices, now)
    out = gpus.quarantined(connection, runner.id)
    well = {gpu.uuid for gpu in said.inventory.gpus if gpu.healthy} - bad
    if out & well:
        gpus.lift(connection, runner.id, out & well, now)
        out = gpus.quarantined(connection, runner.id)
    lost = tuple(sorted(set(said.leases) - held))
    return BeatAnswer(drain=runner.drain, lost=lost, quarantined=tuple(sorted(out)))


def _tend(connection: sa.Connection, runner_id: int, said: Beat, now: datetime) -> set[int]:
    """The runner's open leases. One that it never heard of, for the answer was lost, is granted again on its next claim."""
    mine = sa.select(leases.c.id, leases.c.granted_at, leases.c.begun_at).where(
        leases.c.runner_id == runner_id, sa.text("state = 'open'")
    )
    held = set()
    before = now - timedelta(seconds=_ANSWER_SECONDS)
    for row in connection.execute(mine).all():
        held.add(row.id)
        unheard = row.begun_at is None and row.granted_at is not None and row.granted_at <= before
        if unheard and row.id not in said.leases:
            again = sa.update(leases).where(
                leases.c.id == row.id, leases.c.state == LeaseState.OPEN, leases.c.begun_at.is_(None)
            )
            until = now + timedelta(seconds=FETCH_SECONDS)
            connection.execute(again.values(granted_at=None, token_digest="", until=until))
    return held


def listen(connection: sa.Connection, runner_id: int, until: datetime | None) -> None:
    """A claim of the runner waits until then: jobs may be assigned to it."""
    connection.execute(sa.update(runners).where(runners.c.id == runner_id).values(listens_until=until))


def leave(connection: sa.Connection, runner_id: int, now: datetime) -> None:
    """The runner offers nothing from now on; its next beat brings it back."""
    gone = sa.update(runners).where(runners.c.id == runner_id, runners.c.state == "active")
    connection.execute(gone.values(state="gone", listens_until=None))
    put_back_unfetched(connection, runner_id, now)


def drain(connection: sa.Connection, name: str, now: datetime, *, wanted: bool = True) -> None:
    """Asks a runner to end after its jobs, or takes that back. Raises `StoreError` where there is none."""
    asked = sa.update(runners).where(runners.c.name == name).values(drain=wanted).returning(runners.c.id)
    runner_id = connection.execute(asked).scalar()
    if runner_id is None:
        raise _unknown(name)
    if wanted:
        put_back_unfetched(connection, runner_id, now)


def remove(connection: sa.Connection, name: str, now: datetime) -> None:
    """Voids the runner's secret; what it still runs is lost. Raises `StoreError` where there is none."""
    gone = sa.update(runners).where(runners.c.name == name).values(state="removed", listens_until=None)
    runner_id = connection.execute(gone.returning(runners.c.id)).scalar()
    if runner_id is None:
        raise _unknown(name)
    put_back_unfetched(connection, runner_id, now)


def show(connection: sa.Connection) -> list[Runner]:
    """All runners that were not removed, by name."""
    found = sa.select(*COLUMNS).where(runners.c.state != "removed").order_by(runners.c.name)
    return [Runner(*row) for row in connection.execute(found)]


def _unknown(name: str) -> StoreError:
    return StoreError(f"there is no runner {name}", "see `whitesmoke runners list`")
