"""What a round reads: the files whose changes are new since they were last reviewed, cut into shards.

A file is in the delta when the digest of its hunks, without line numbers, changed since its last complete
review. Where that digest changed only because the base moved underneath, a three-way merge proves it: the old
change carried onto the new base gives exactly the new file. So base changes never enter.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from reviewer import tokens
from reviewer.checkout.base import Checkout
from reviewer.diff import Diff, FileDiff, Hunk
from reviewer.exclude import why_excluded
from reviewer.model import Frozen, Unreviewed
from reviewer.policy import ReviewPolicy
from reviewer.text import Text

_HEADER_TOKENS = 40


class FileMark(Frozen):
    """A file's change as it stood when a round last reviewed it completely."""

    base_blob: str
    head_blob: str
    digest: str


@dataclass(frozen=True, slots=True)
class Part:
    """The hunks of one file that go into one shard; none for a change without content (a rename, a mode)."""

    file: FileDiff
    hunks: tuple[Hunk, ...]

    @property
    def lines(self) -> int:
        """Added and removed lines."""
        return sum(hunk.added + hunk.removed for hunk in self.hunks)

    def digests(self) -> tuple[str, ...]:
        """The content, without line numbers."""
        return (_heading(self.file), *(hunk.digest for hunk in self.hunks))

    def text(self) -> str:
        """The hunks with each line's number in front: the new side's, or the old side's for removed lines."""
        lines = [_heading(self.file)]
        for hunk in self.hunks:
            lines.append(f"@@ {hunk.heading.decode('utf-8', 'replace')}".rstrip())
            for line in hunk.lines():
                number = line.old if line.kind == "-" else line.new
                lines.append(f"{number:>5} {line.kind}{line.text.decode('utf-8', 'replace')}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Shard:
    """A piece of the patch that fits one prompt, made of whole hunks."""

    index: int
    parts: tuple[Part, ...]

    @cached_property
    def subject(self) -> str:
        """A digest of the content, whatever its line numbers and the order in which a rep reads it."""
        return digest(*(name for part in self.parts for name in part.digests()))

    def paths(self) -> tuple[str, ...]:
        return tuple(part.file.path for part in self.parts)

    def text(self, rep: int) -> str:
        """The diff as rep number `rep` reads it: files in an order of its own, seeded by the content."""
        parts = list(self.parts)
        random.Random(f"{self.subject}:{rep}").shuffle(parts)
        return "\n\n".join(part.text() for part in parts)


@dataclass(frozen=True)
class Plan:
    """What to review, and what not, with the reason.

    `reviewable` counts the added and removed lines of the delta that a model should see, `excluded` lists
    what never goes to a model (lock files and the like), `overflow` the hunks that fitted no shard.
    """

    delta: tuple[FileDiff, ...]
    shards: tuple[Shard, ...]
    reviewable: int
    excluded: tuple[Unreviewed, ...] = ()
    overflow: tuple[Unreviewed, ...] = ()
    changed_paths: frozenset[str] = field(default=frozenset())


def make_plan(
    diff: Diff,
    checkout: Checkout,
    policy: ReviewPolicy,
    marks: Mapping[str, FileMark],
    text: Text,
    *,
    full: bool = False,
) -> Plan:
    """Decides what this round reads. `marks` are the files as last reviewed; `full` ignores them."""
    delta: list[FileDiff] = []
    excluded: list[Unreviewed] = []
    for file in diff.files:
        if reason := why_excluded(file, checkout, policy):
            excluded.append(Unreviewed(path=file.path, reason=text(reason), lines=_lines(file)))
        elif full or not _seen(file, marks.get(file.path), checkout):
            delta.append(file)
    shards, overflow = _pack(delta, policy, text)
    return Plan(
        delta=tuple(delta),
        shards=shards,
        reviewable=sum(_lines(file) for file in delta),
        excluded=tuple(excluded),
        overflow=overflow,
        changed_paths=frozenset(file.path for file in delta),
    )


def mark(file: FileDiff) -> FileMark:
    """The mark to keep once a round has reviewed the whole file."""
    return FileMark(base_blob=file.old_blob, head_blob=file.new_blob, digest=file.digest)


def digest(*texts: str) -> str:
    """A short stable name for what a prompt is about."""
    sha = hashlib.sha256()
    for text in texts:
        sha.update(text.encode("utf-8", "surrogatepass"))
        sha.update(b"\0")
    return sha.hexdigest()[:16]


def _seen(file: FileDiff, before: FileMark | None, checkout: Checkout) -> bool:
    if before is None:
        return False
    same_base = bool(file.old_blob) and file.old_blob == before.base_blob
    if file.digest == before.digest:
        # On the same base another head is another change, even where equal hunks only moved.
        return not same_base or file.new_blob == before.head_blob
    if same_base:
        return False
    carried = checkout.merge(before.base_blob, before.head_blob, file.old_blob)
    return carried is not None and carried == checkout.blob(file.new_blob)


def _pack(
    delta: list[FileDiff], policy: ReviewPolicy, text: Text
) -> tuple[tuple[Shard, ...], tuple[Unreviewed, ...]]:
    """Files in order, each hunk whole, into as few shards as come out of one pass."""
    packed: list[list[Part]] = []
    overflow: list[Unreviewed] = []
    room = 0
    for file in delta:
        for hunks, cost in _portions(file, policy.shard_tokens, overflow, text):
            if cost > room:
                if len(packed) == policy.max_shards:
                    lines = sum(hunk.added + hunk.removed for hunk in hunks)
                    reason = text("too_many_shards", shards=policy.max_shards)
                    overflow.append(Unreviewed(path=file.path, reason=reason, lines=lines))
                    continue
                packed.append([])
                room = policy.shard_tokens
            packed[-1].append(Part(file, hunks))
            room -= cost
    shards = tuple(Shard(index, tuple(parts)) for index, parts in enumerate(packed))
    return shards, tuple(overflow)


def _portions(
    file: FileDiff, budget: int, overflow: list[Unreviewed], text: Text
) -> Iterator[tuple[tuple[Hunk, ...], int]]:
    """The file's hunks in runs that fit a shard, each with its tokens; a hunk over the budget is left out."""
    run: list[Hunk] = []
    cost = _HEADER_TOKENS
    for hunk in file.hunks:
        size = tokens.estimate(bytes(hunk.body))
        if _HEADER_TOKENS + size > budget:
            reason = text("hunk_too_large", tokens=size, budget=budget, line=hunk.new_start)
            overflow.append(Unreviewed(path=file.path, reason=reason, lines=hunk.added + hunk.removed))
            continue
        if run and cost + size > budget:
            yield tuple(run), cost
            run, cost = [], _HEADER_TOKENS
        run.append(hunk)
        cost += size
    if run or not file.hunks:
        yield tuple(run), cost


def _lines(file: FileDiff) -> int:
    return file.added + file.removed


def _heading(file: FileDiff) -> str:
    if file.status in ("renamed", "copied"):
        return f"=== {file.status}: {file.old_path} -> {file.path}"
    if file.old_mode != file.new_mode and file.status not in ("added", "deleted"):
        return f"=== {file.status}: {file.path} (mode {file.old_mode} -> {file.new_mode})"
    return f"=== {file.status}: {file.path}"
