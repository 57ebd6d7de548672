"""Discovery: every rep reads every shard and says what it finds, alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reviewer.answers import DiscoverAnswer, FindingDraft
from reviewer.ask import Asked, Panel, gather
from reviewer.checklist import Item, applicable, cap
from reviewer.checkout.base import Checkout
from reviewer.model import Finding, PullRequest
from reviewer.plan import Shard


@dataclass(frozen=True, slots=True)
class Pass:
    """One rep's answer on one shard; `asked.answer` is None where the rep was lost there."""

    rep: int
    shard: Shard
    asked: Asked[DiscoverAnswer]


@dataclass(frozen=True, slots=True)
class Discovery:
    """All passes, in order of rep and shard."""

    passes: tuple[Pass, ...]

    @property
    def ok(self) -> int:
        return sum(one.asked.answer is not None for one in self.passes)

    @property
    def lost(self) -> tuple[Pass, ...]:
        return tuple(one for one in self.passes if one.asked.answer is None)

    @property
    def attempts(self) -> int:
        return sum(one.asked.attempts for one in self.passes)

    def valid_reps(self, shard: Shard) -> int:
        """How many reps answered on this shard."""
        return sum(one.asked.answer is not None for one in self.passes if one.shard is shard)

    def voters(self, path: str) -> tuple[set[int], set[int]]:
        """The reps that read the file and answered, and those lost on some part of it.

        For a path that is in no shard these are the reps of the whole change.
        """
        about = [one for one in self.passes if path in one.shard.paths()] or self.passes
        answered = {one.rep for one in about if one.asked.answer is not None}
        return answered, {one.rep for one in about if one.asked.answer is None}


async def discover(
    panel: Panel,
    pull: PullRequest,
    checkout: Checkout,
    shards: Sequence[Shard],
    items: Sequence[Item],
    on_pass: Callable[[Pass], None],
) -> Discovery:
    """Runs `reps` passes over every shard, as many at a time as the engine bears."""
    about = f"{pull.title}\n\n{pull.body}".strip()

    async def run(rep: int, shard: Shard) -> Pass:
        agentic = rep < panel.policy.agentic_reps
        asked = await panel.ask(
            "discover",
            rep,
            shard.subject,
            DiscoverAnswer,
            checkout=checkout if agentic else None,
            agentic=agentic,
            about=about,
            diff=shard.text(rep),
            items=applicable(items, shard.paths()),
        )
        done = Pass(rep, shard, asked)
        on_pass(done)
        return done

    reps = range(panel.policy.reps)
    return Discovery(tuple(await gather(run(rep, shard) for rep in reps for shard in shards)))


def as_finding(draft: FindingDraft, rep: int, items: dict[str, Item], paths: frozenset[str]) -> Finding:
    """A model's draft as a finding: known checklist items only, no severer than the severest item allows."""
    ids = tuple(dict.fromkeys(id_ for id_ in draft.checklist_ids if id_ in items))
    return Finding(
        **draft.model_dump(exclude={"path", "severity", "checklist_ids"}),
        path=_known_path(draft.path, paths),
        severity=cap(draft.severity, (items[id_] for id_ in ids)),
        checklist_ids=ids,
        rep=rep,
    )


def _known_path(path: str, paths: frozenset[str]) -> str:
    """Models copy git's a/ and b/ prefixes, or write ./; the diff knows the path without them."""
    for candidate in (path, path.removeprefix("./"), path.removeprefix("a/"), path.removeprefix("b/")):
        if candidate in paths:
            return candidate
    return path
