"""One round of a pull request: from the forge, through the reviewer, into the ledger and the outbox."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from reviewer.checkout.snapshot import GitCheckout
from reviewer.engines.base import Completion, Engine, Request
from reviewer.model import PullRequest
from reviewer.round import Progress, RoundResult, run_round
from service.forge.base import PullState
from service.policy import Policy
from service.publisher.effects import Reply
from service.publisher.publication import check_started, effects_of
from service.store import budgets, pulls, rounds
from service.store.database import Database
from service.store.errors import StaleClaim
from service.store.lease import State
from service.store.rounds import RepOutputs
from service.store.work import WorkClaim
from service.worker.ci.triggers import follow
from service.worker.outcome import close_check, keep_policy, put_effects
from service.worker.policy import known_policy, posting_of, read_policy
from service.worker.replies import budget_spent, too_large
from service.worker.station import QUICK_LANE, Station

_WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Begun:
    """A round that was started in the database, with what it needs to run and to publish."""

    state: PullState
    policy: Policy
    pull: pulls.Pull
    round_id: int


def run_review(station: Station, claim: WorkClaim, lost: threading.Event) -> None:
    """Runs the round that a row asks for. `lost` aborts it: a newer head, a closed pull request, another owner."""
    repo, number = claim.payload["repo"], claim.payload["number"]
    state = station.forge.pull(repo, number)
    if state.state != "open":
        _settle(station, claim, "the pull request is closed")
        return
    begun = _begin(station, claim, state)
    if begun is None:
        return
    with station.forge.checkout(state) as checkout:
        if why := _refusal(begun, checkout):
            with station.database.write() as connection:
                claim.guard(connection)
                put_effects(station, connection, (why,), begun.pull.id)
                close_check(station, connection, repo, number, why.body)
                station.work.finish(connection, claim)
            return
        result = asyncio.run(_run(station, begun, checkout, lost, full=claim.payload["full"]))
        if station.forge.pull(repo, number).head_sha != state.head_sha:
            _settle(station, claim, "the head moved while the round ran")
            return
        _publish(station, claim, begun, checkout, result)


def _begin(station: Station, claim: WorkClaim, state: PullState) -> _Begun | None:
    """Notes the pull request, its policy and the round, and shows the check in progress."""
    with station.database.read() as connection:
        last_good = known_policy(connection, station.forge_name, state.repo, state.number)
        day = station.clock().date()
        spent = budgets.spent(connection, state.repo, day)
    found = read_policy(station, state, last_good)
    policy, limits = found.policy, found.policy.service.budget
    with station.database.write() as connection:
        claim.guard(connection)
        pull = keep_policy(station, connection, state, found)
        over_tokens = limits.tokens_per_day is not None and spent.tokens >= limits.tokens_per_day
        over_cost = limits.cost_usd_per_day is not None and spent.cost_usd >= limits.cost_usd_per_day
        if over_tokens or over_cost:
            reply = budget_spent(state, policy, spent, day)
            put_effects(station, connection, (reply,), pull.id)
            close_check(station, connection, state.repo, state.number, reply.body)
            station.work.finish(connection, claim)
            return None
        index = pulls.ledger(connection, pull).rounds + 1
        begun = rounds.start(connection, pull.id, index, state.head_sha, state.base_sha, station.clock())
        started = check_started(
            state.repo, state.head_sha, posting_of(policy, station, state.repo), policy.review.language
        )
        put_effects(station, connection, (started,), pull.id)
    station.ring(QUICK_LANE)
    return _Begun(state, policy, pull, begun.id)


def _refusal(begun: _Begun, checkout: GitCheckout) -> Reply | None:
    size, diff = begun.policy.service.size, checkout.diff
    if len(diff.files) > size.files or diff.size > size.patch_bytes:
        return too_large(begun.state, begun.policy, len(diff.files), diff.size)
    return None


async def _run(
    station: Station, begun: _Begun, checkout: GitCheckout, lost: threading.Event, *, full: bool
) -> RoundResult:
    """The round, aborted with its model calls as soon as the claim is lost."""
    policy, state = begun.policy.review, begun.state
    items = station.load_items(policy, partial(station.forge.read_file, state.repo, state.base_ref))
    with station.database.read() as connection:
        ledger = pulls.ledger(connection, begun.pull)
    async with station.open_engine(policy) as opened:
        engine = _Remembering(opened.engine, station, begun.round_id) if opened.engine is not None else None
        running = asyncio.ensure_future(
            run_round(
                _pull_request(begun.state, checkout),
                checkout,
                policy,
                ledger,
                engine,
                items,
                _quiet,
                now=station.clock(),
                full=full,
            )
        )
        while not running.done():
            await asyncio.wait((running,), timeout=_WATCH_SECONDS)
            if lost.is_set():
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
                raise StaleClaim(
                    f"the round of {begun.pull.name} was superseded", "another one takes its place"
                )
        return running.result()


def _publish(
    station: Station, claim: WorkClaim, begun: _Begun, checkout: GitCheckout, result: RoundResult
) -> None:
    """Ledger, round, budget and everything to be posted, in one transaction under the claim's fence."""
    report, now = result.report, station.clock()
    effects = effects_of(
        report, checkout.diff, begun.state, posting_of(begun.policy, station, begun.state.repo)
    )
    with station.database.write() as connection:
        claim.guard(connection)
        if result.reprinted:
            rounds.discard(connection, begun.round_id)
        else:
            pulls.save_ledger(connection, begun.pull, result.ledger, now)
            rounds.finish(connection, begun.round_id, report, now)
            tokens = report.kpi.tokens_in + report.kpi.tokens_out
            budgets.add(connection, begun.state.repo, now.date(), tokens, report.kpi.cost_usd)
        put_effects(station, connection, effects, begun.pull.id)
        follow(station, connection, begun.state.repo, begun.state.number)
        station.work.finish(connection, claim)


def _settle(station: Station, claim: WorkClaim, why: str) -> None:
    with station.database.write() as connection:
        close_check(station, connection, claim.payload["repo"], claim.payload["number"])
        station.work.finish(connection, claim, State.SUPERSEDED, why)


def _pull_request(state: PullState, checkout: GitCheckout) -> PullRequest:
    return PullRequest(
        repo=state.repo,
        number=state.number,
        base_sha=checkout.base_sha,
        head_sha=checkout.head_sha,
        title=state.title,
        body=state.body,
        author=state.author.login,
        labels=state.labels,
    )


def _quiet(progress: Progress) -> None:
    """The service shows a round by its check, not step by step."""


class _Remembering:
    """Keeps every completion of a round, so that a round that is run again after a crash pays for none twice."""

    def __init__(self, engine: Engine, station: Station, round_id: int) -> None:
        self._engine = engine
        self._database: Database = station.database
        self._outputs = RepOutputs(round_id)
        self._clock = station.clock

    async def complete(self, request: Request) -> Completion:
        return await asyncio.to_thread(self._kept, request) or await self._ask(request)

    def warnings(self) -> tuple[str, ...]:
        return self._engine.warnings()

    async def _ask(self, request: Request) -> Completion:
        completion = await self._engine.complete(request)
        await asyncio.to_thread(self._keep, request, completion)
        return completion

    def _kept(self, request: Request) -> Completion | None:
        with self._database.read() as connection:
            return self._outputs.get(connection, request.key, request.prompt_version)

    def _keep(self, request: Request, completion: Completion) -> None:
        with self._database.write() as connection:
            self._outputs.put(connection, request.key, request.prompt_version, completion, self._clock())
