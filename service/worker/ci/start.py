"""From a qualified head to jobs in the queue: what changed decides which, and runners get the files from here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ci_dispatch.gate import Decision
from ci_dispatch.plan import Change, Plan, plan
from ci_dispatch.reasons import Why, give
from ci_dispatch.rerun import Answer, retry_again, run_again
from reviewer.checkout.snapshot import GitCheckout
from reviewer.globs import matches
from service.events.ci_replies import in_words
from service.forge.base import PullState
from service.policy import Policy
from service.publisher.effects import Effect
from service.runner_api.files import CiFiles
from service.store import jobs, pulls
from service.store.jobs import NewRun
from service.store.work import WorkClaim
from service.worker.ci.asked import Asked, note_decision, replies_of
from service.worker.ci.history import history_of, inventories
from service.worker.ci.merge import merge_tested
from service.worker.outcome import put_effects
from service.worker.station import Station


def start(
    station: Station,
    claim: WorkClaim,
    pull: pulls.Pull,
    state: PullState,
    policy: Policy,
    decision: Decision,
    asked: Asked,
) -> None:
    """Queues what is to run for the head; what ran for it before stands. Then merges, where nothing is waited for."""
    merged = policy.ci.tree == "merge"
    with station.forge.checkout(state, whole=True) as checkout:
        base = state.base_sha if merged else checkout.base_sha
        tree = checkout.merge_tree(base) if merged else checkout.tree_of(state.head_sha)
        if tree is None:
            conflict = give(Why.CONFLICT, head=state.head_sha[:12])
            answer = asked.reply(replies_of(policy).refused((conflict,)))
            _store(station, claim, pull, state, None, decision, answer)
            _finish(station, claim)
            return
        source = tree if merged else state.head_sha
        change = Change(
            repo=state.repo,
            number=state.number,
            head_sha=state.head_sha,
            base_sha=base,
            tested_tree=tree,
            author=state.author.login,
            trusted=not state.is_fork,
            paths=_paths(checkout),
        )
        chosen = _choose(station, pull, policy, change, asked)
        if chosen.jobs:
            files = CiFiles(station.data)
            for commit in dict.fromkeys((source, base)):
                _archive(files, checkout, commit)
    run = NewRun(
        key=f"{state.repo}#{state.number}:{state.head_sha}:{base}",
        pull_id=pull.id,
        head_sha=state.head_sha,
        base_sha=base,
        source_sha=source,
        tested_tree=tree,
        qualified_by=decision.login,
        reason=in_words(decision.reason, policy.review.language),
        skipped=chosen.successes if isinstance(chosen, Plan) else (),
    )
    _store(station, claim, pull, state, (run, chosen), decision, _answer(policy, asked, chosen))
    if not chosen.jobs:
        merge_tested(station, pull, state, policy, decision)
    _finish(station, claim)


def _choose(
    station: Station, pull: pulls.Pull, policy: Policy, change: Change, asked: Asked
) -> Plan | Answer:
    with station.database.read() as connection:
        history = history_of(connection, pull.id, change.tested_tree)
        offered = inventories(connection, station.clock())
    if asked.retry:
        return retry_again(policy.ci, change, matches, history, offered)
    if asked.again:
        return run_again(policy.ci, change, asked.jobs, matches, history, offered)
    return plan(policy.ci, change, matches, offered, history)


def _paths(checkout: GitCheckout) -> tuple[str, ...]:
    """All that changed, a renamed file's old path among them."""
    files = checkout.diff.files
    return tuple(dict.fromkeys(path for file in files for path in (file.path, file.old_path) if path))


def _archive(files: CiFiles, checkout: GitCheckout, commit: str) -> None:
    """Puts all files of a commit where runners fetch them; by renaming, so that nobody gets half of them."""
    target = files.source_path(commit)
    if target.exists():
        os.utime(target)
        return
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as folder:
        fresh = Path(folder) / target.name
        checkout.archive(commit, fresh)
        fresh.rename(target)


def _answer(policy: Policy, asked: Asked, chosen: Plan | Answer) -> tuple[Effect, ...]:
    """What is said of jobs that somebody asked for and that do not run."""
    if isinstance(chosen, Plan):
        return ()
    left = [one.sentence for one in chosen.unknown]
    if not chosen.jobs:
        left += [one.sentence for one in chosen.left]
    return asked.reply(replies_of(policy).left(left)) if left else ()


def _store(
    station: Station,
    claim: WorkClaim,
    pull: pulls.Pull,
    state: PullState,
    started: tuple[NewRun, Plan | Answer] | None,
    decision: Decision,
    effects: tuple[Effect, ...],
) -> None:
    with station.database.write() as connection:
        claim.guard(connection)
        note_decision(station, connection, state, decision)
        if started is not None:
            run, chosen = started
            jobs.create_run(connection, run, chosen.jobs, station.clock())
        put_effects(station, connection, effects, pull.id)


def _finish(station: Station, claim: WorkClaim) -> None:
    with station.database.write() as connection:
        claim.guard(connection)
        station.work.finish(connection, claim)
