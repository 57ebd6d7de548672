"""Working off what is due, one row at a time, each under a lease that a heartbeat keeps alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from reviewer.errors import ReviewError
from service.forge.base import ForgeError
from service.publisher.deliver import deliver
from service.publisher.effects import from_payload
from service.publisher.own import StaleHead
from service.store import deliveries
from service.store.ci_rows import CI_PROGRESS, CI_RESULT
from service.store.errors import StaleClaim
from service.store.lease import Claim, Leases, State
from service.store.outbox import OutboxClaim
from service.worker.outcome import EFFECTS, on_death
from service.worker.station import (
    CI,
    CI_GATE,
    CI_LANE,
    COMMAND,
    QUICK,
    QUICK_LANE,
    RECHECK,
    REPUBLISH,
    REVIEW,
    REVIEW_LANE,
    Station,
)

log = logging.getLogger(__name__)


def work_off(station: Station, lane: str) -> int:
    """Does all that is due in a lane and returns how much that was."""
    steps: dict[str, tuple[Callable[[Station], bool], ...]] = {
        QUICK_LANE: (_delivery, _quick, _effect),
        REVIEW_LANE: (_review,),
        CI_LANE: (_ci,),
    }
    done = 0
    while any(step(station) for step in steps[lane]):
        done += 1
    return done


def _delivery(station: Station) -> bool:
    from service.worker.intake import process

    with station.database.read() as connection:
        waiting = deliveries.received(connection, 100)
    settled = 0
    for delivery_id in waiting:
        try:
            settled += process(station, delivery_id)
        except ReviewError as error:
            log.warning("delivery %s has to wait: %s", delivery_id, error)
    if settled:
        station.ring(REVIEW_LANE)
        station.ring(CI_LANE)
    return settled > 0


def _quick(station: Station) -> bool:
    from service.worker.ci.progress import publish_progress
    from service.worker.commands import republish, run_command
    from service.worker.recheck import run_recheck

    handlers = {
        COMMAND: run_command,
        RECHECK: run_recheck,
        REPUBLISH: republish,
        CI_PROGRESS: publish_progress,
    }
    with station.database.write() as connection:
        claim = station.work.claim(connection, QUICK, station.owner, station.lease_seconds)
    if claim is None:
        return False
    _attempt(station, station.work, claim, lambda _: handlers[claim.kind](station, claim))
    return True


def _review(station: Station) -> bool:
    from service.worker.review import run_review

    with station.database.write() as connection:
        claim = station.work.claim(connection, (REVIEW,), station.owner, station.lease_seconds)
    if claim is None:
        return False
    _attempt(station, station.work, claim, lambda lost: run_review(station, claim, lost))
    station.ring(QUICK_LANE)
    return True


def _ci(station: Station) -> bool:
    from service.worker.ci.gate import run_gate
    from service.worker.ci.results import run_result

    handlers = {CI_GATE: run_gate, CI_RESULT: run_result}
    with station.database.write() as connection:
        claim = station.work.claim(connection, CI, station.owner, station.lease_seconds)
    if claim is None:
        return False
    _attempt(station, station.work, claim, lambda _: handlers[claim.kind](station, claim))
    station.ring(QUICK_LANE)
    return True


def _effect(station: Station) -> bool:
    with station.database.write() as connection:
        claim = station.outbox.claim(connection, EFFECTS, station.owner, station.lease_seconds)
    if claim is None:
        return False
    _attempt(station, station.outbox, claim, lambda _: _deliver(station, claim))
    return True


def _deliver(station: Station, claim: OutboxClaim) -> None:
    try:
        external_id = deliver(from_payload(claim.payload), station.forge, claim.external_id or None)
    except StaleHead:
        with station.database.write() as connection:
            station.outbox.finish(connection, claim, claim.external_id, state=State.SUPERSEDED)
        return
    with station.database.write() as connection:
        station.outbox.finish(connection, claim, external_id or "")


def _attempt(
    station: Station, leases: Leases[Any], claim: Claim, run: Callable[[threading.Event], None]
) -> None:
    """Runs one claim under a heartbeat. What fails is given back with its reason, until its attempts are used up."""
    try:
        with _heartbeat(station, leases, claim) as lost:
            run(lost)
    except StaleClaim as stale:
        log.info("%s", stale)
    except ForgeError as error:
        wait = error.retry_after
        _give_back(station, leases, claim, str(error), wait, counted=error.counted, final=wait is None)
    except ReviewError as error:
        _give_back(station, leases, claim, str(error), None)
    except Exception as error:
        log.exception("%s row %s failed", claim.table.name, claim.id)
        _give_back(station, leases, claim, f"unexpected {type(error).__name__}: {error}", None)


def _give_back(
    station: Station,
    leases: Leases[Any],
    claim: Claim,
    error: str,
    delay: float | None,
    *,
    counted: bool = False,
    final: bool = False,
) -> None:
    log.warning("%s row %s (%s): %s", claim.table.name, claim.id, claim.kind, error)
    try:
        with station.database.write() as connection:
            state = (
                leases.give_up(connection, claim, error)
                if final
                else leases.release(connection, claim, error, delay=delay, counted=counted or delay is None)
            )
            if state is State.DEAD:
                on_death(station, connection, claim.table, claim.id, claim.kind, error)
    except StaleClaim as stale:
        log.info("%s", stale)


@contextmanager
def _heartbeat(station: Station, leases: Leases[Any], claim: Claim) -> Iterator[threading.Event]:
    """Extends the lease while the body runs; the event is set once the claim is lost."""
    lost, over = threading.Event(), threading.Event()

    def beat() -> None:
        while not over.wait(station.lease_seconds / 4):
            try:
                with station.database.write() as connection:
                    held = leases.heartbeat(connection, claim, station.lease_seconds)
            except ReviewError as error:
                log.warning("no heartbeat for %s row %s: %s", claim.table.name, claim.id, error)
                continue
            if not held:
                lost.set()
                return

    thread = threading.Thread(target=beat, name=f"heartbeat-{claim.id}", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()
