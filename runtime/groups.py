"""Sequences that share a prompt: several answers to it, or the beams of one search."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.beam import BeamParameters, BeamSearch, Choice, Hypothesis
from runtime.request import Request, Token


@dataclass(eq=False)
class Group:
    """One prompt's sequences; the first, the leader, prefills it, the others start from its pages.

    Attributes:
        members: one for each answer, or for each beam.
        beams: how a search goes; None where each member draws tokens of its own.
        stop_ids: that end a sequence of the search.
        forked: whether the others run by themselves.
        attempt: how often the search began: steps in flight of an earlier one count no more.
    """

    members: Sequence[Request]
    beams: BeamParameters | None
    stop_ids: frozenset[int]
    vocab_size: int
    forked: bool = False
    attempt: int = 0
    search: BeamSearch | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.restart()
        for member in self.members:
            member.group = self
            member.in_search = self.beams is not None

    @property
    def leader(self) -> Request:
        return self.members[0]

    @property
    def samples_together(self) -> bool:
        """Whether the prompt's last logits choose a token for every member."""
        return self.beams is None and not self.forked

    def restart(self) -> None:
        """Forget what was generated; a search begins anew.

        Raises:
            RequestError: the search cannot be had with these stop ids.
        """
        self.forked = False
        self.attempt += 1
        if self.beams is not None:
            limit = self.leader.sampling.max_tokens
            self.search = BeamSearch(self.beams, limit, self.stop_ids, self.vocab_size)
            for member in self.members:
                member.tokens.clear()

    def advance(self, ids: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32]) -> Sequence[Choice]:
        """The search's next choices, and each member's tokens changed to what its beam now is; empty at its end.

        Args:
            ids: [beams that ran, candidates], as `BeamSearch.start` and `advance` take them.

        Raises:
            RequestError: a log probability is NaN.
        """
        assert self.search is not None
        choices = (
            self.search.advance(ids, logprobs)
            if self.search.length
            else self.search.start(ids[0], logprobs[0])
        )
        histories = [self.members[choice.parent].tokens for choice in choices]
        for member, history, choice in zip(self.members, histories, choices, strict=False):
            member.tokens = [*history, Token(choice.token)]
        return choices

    def results(self) -> list[Hypothesis]:
        """The sequences to return, best first; none where no sequence could end."""
        assert self.search is not None
        return self.search.results()
