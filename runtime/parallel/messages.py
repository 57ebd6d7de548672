"""A step's plan from rank 0 to the others: what of its requests they do not know yet, in small.

The others keep a shadow of each request. A message brings requests that are new, every request's place, and the pages and
tokens that it has more than last time; which steps come, and in which order, is rank 0's alone to decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from runtime.beam import BeamParameters
from runtime.config import ModelConfig
from runtime.embeddings import InputEmbeddings, PreparedEmbeddings
from runtime.groups import Group
from runtime.request import Request, SamplingParameters, Token
from runtime.scheduler import Chunk, Decode, Prefill, StepPlan


@dataclass(frozen=True)
class NewRequest:
    """A request that the others hear of for the first time; `key` names it from then on."""

    key: int
    prompt: tuple[int, ...]
    sampling: SamplingParameters
    seed: int
    embeddings: InputEmbeddings | None


@dataclass(frozen=True)
class NewGroup:
    """Requests, all of them new, that share a prompt; the first is their leader."""

    members: tuple[int, ...]
    beams: BeamParameters | None
    stop_ids: frozenset[int]
    vocab_size: int


Place = tuple[int, int, int, int, int, bool, bool, int, list[int], int, list[int]]
"""Of a request: key, computed, pending, row, generation, decodes, whether its group has forked; from which page on pages
follow, and these; likewise tokens."""


@dataclass(frozen=True)
class StepMessage:
    """One step.

    Attributes:
        gone: keys of requests that ended.
        chunks: (key, start, count, samples) of a prefill; None of a decode, which all `lanes` take part in.
        lanes: keys of a decode's requests.
        page_copies: see `Decode`.
    """

    gone: list[int]
    requests: list[NewRequest]
    groups: list[NewGroup]
    places: list[Place]
    chunks: list[tuple[int, int, int, bool]] | None
    lanes: list[int]
    page_copies: Sequence[tuple[int, int]]


@dataclass(slots=True)
class _Sent:
    """What the others know of a request."""

    key: int
    generation: int = -1
    pages: int = 0
    tokens: int = 0


@dataclass
class PlanWriter:
    """Rank 0's side.

    Attributes:
        embeddings: as given, of the requests that have some and were not sent yet.
    """

    embeddings: WeakKeyDictionary[Request, InputEmbeddings] = field(default_factory=WeakKeyDictionary)
    _known: dict[Request, _Sent] = field(default_factory=dict)
    _asked: list[int] = field(default_factory=list)
    _next_key: int = 0

    def message(self, plan: StepPlan) -> StepMessage:
        """The plan as the others need it; it has to reach them before the next one."""
        if isinstance(plan, Decode):
            requests, chunks, copies = list(plan.requests), None, list(plan.page_copies)
        else:
            requests, chunks, copies = [chunk.request for chunk in plan.chunks], plan.chunks, []
        asked = [request.generation for request in requests]
        gone = self._ended() if asked != self._asked else []
        self._asked = asked
        new: list[NewRequest] = []
        groups: list[NewGroup] = []
        for request in requests:
            if request not in self._known:
                self._introduce(request, new, groups)
        if chunks is not None:
            leaders = [one.request for one in chunks if one.samples]
            groups_of = [one.group for one in leaders if one.group is not None and one.group.samples_together]
            requests += [member for group in groups_of for member in group.members[1:]]
        places = [self._place(request) for request in requests]
        return StepMessage(
            gone,
            new,
            groups,
            places,
            None
            if chunks is None
            else [(self._known[one.request].key, one.start, one.count, one.samples) for one in chunks],
            [] if chunks is not None else [place[0] for place in places],
            copies,
        )

    def _ended(self) -> list[int]:
        over = [request for request in self._known if request.finish_reason is not None]
        return [self._known.pop(request).key for request in over]

    def _introduce(self, request: Request, new: list[NewRequest], groups: list[NewGroup]) -> None:
        group = request.group
        together = [request] if group is None else group.members
        for one in together:
            self._known[one] = _Sent(self._next_key)
            self._next_key += 1
            given = self.embeddings.pop(one, None)
            new.append(NewRequest(self._known[one].key, one.prompt, one.sampling, one.seed, given))
        if group is not None:
            keys = tuple(self._known[one].key for one in together)
            groups.append(NewGroup(keys, group.beams, group.stop_ids, group.vocab_size))

    def _place(self, request: Request) -> Place:
        sent = self._known[request]
        if request.generation != sent.generation:
            sent.generation, sent.pages = request.generation, 0
        if request.in_search:
            sent.tokens = 0  # another beam's tokens may have become its own
        pages_from, tokens_from = sent.pages, sent.tokens
        sent.pages, sent.tokens = len(request.pages), len(request.tokens)
        return (
            sent.key,
            request.computed,
            request.pending,
            request.row,
            request.generation,
            request.decodes,
            request.group is not None and request.group.forked,
            pages_from,
            request.pages[pages_from:],
            tokens_from,
            [token.id for token in request.tokens[tokens_from:]],
        )


class PlanReader:
    """The side of another rank, which has the model as `config` says on `device`."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._requests: dict[int, Request] = {}

    @property
    def requests(self) -> Mapping[int, Request]:
        """The shadows of all requests that have not ended, as far as it was said."""
        return self._requests

    def plan(self, message: StepMessage) -> StepPlan:
        """The plan of a message of `PlanWriter`; those before it have been read, in order."""
        for key in message.gone:
            del self._requests[key]
        prepared: dict[InputEmbeddings, PreparedEmbeddings] = {}
        for new in message.requests:
            request = Request(str(new.key), new.prompt, new.sampling, new.seed)
            if (given := new.embeddings) is not None:
                if given not in prepared:  # a group's sequences have the same
                    prepared[given] = given.prepare(self._config, len(new.prompt), self._device)
                request.embeddings = prepared[given]
            self._requests[new.key] = request
        for group in message.groups:
            members = [self._requests[key] for key in group.members]
            Group(members, group.beams, group.stop_ids, group.vocab_size)
        for place in message.places:
            key, computed, pending, row, generation, decodes, forked, pages_from, pages, tokens_from, ids = (
                place
            )
            request = self._requests[key]
            request.computed, request.pending, request.row = computed, pending, row
            request.generation, request.decodes = generation, decodes
            if request.group is not None:
                request.group.forked = forked
            request.pages[pages_from:] = pages
            request.tokens[tokens_from:] = map(Token, ids)
        if message.chunks is None:
            return Decode([self._requests[key] for key in message.lanes], message.page_copies)
        return Prefill(
            [
                Chunk(self._requests[key], start, count, samples)
                for key, start, count, samples in message.chunks
            ]
        )
