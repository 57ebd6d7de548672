"""What a caller asks for, checked once at the door, and what it gets back."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from runtime.errors import RequestError
from runtime.kv_cache import PrefixKeys
from runtime.processors import ProcessorParameters

if TYPE_CHECKING:
    from runtime.aux_info import AuxInfo
    from runtime.embeddings import PreparedEmbeddings
    from runtime.groups import Group

MAX_TOP_LOGPROBS = 20


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class SamplingParameters:
    """How tokens are chosen, and when to end.

    Attributes:
        temperature: 0 takes the likeliest token; else logits are divided by it.
        top_k: keep that many of the likeliest tokens; 0 keeps all.
        top_p: keep the fewest of the likeliest tokens whose probabilities reach this sum.
        min_p: keep tokens at least this fraction as likely as the likeliest.
        seed: same seed, same tokens; None lets the engine choose one.
        max_tokens: most tokens generated.
        stop: strings that end the text and do not appear in it.
        stop_ids: token ids that end the sequence, beside the model's own.
        ignore_stop_ids: go on to `max_tokens` whatever token comes.
        logprobs: how many alternatives to report with each token; None reports no log probability at all.
        processors: penalties, biases and bans.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_stop_ids: bool = False
    logprobs: int | None = None
    processors: ProcessorParameters = field(default_factory=ProcessorParameters)

    def __post_init__(self) -> None:
        self._require("temperature", 0 <= self.temperature < math.inf, "a finite number of at least 0")
        self._require("top_k", self.top_k >= 0, "at least 0 (0: all)")
        self._require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        self._require("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        self._require("max_tokens", self.max_tokens >= 1, "at least 1")
        self._require("seed", self.seed is None or 0 <= self.seed < 1 << 63, "from 0 to 2^63 - 1")
        self._require(
            "logprobs",
            self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
            f"from 0 to {MAX_TOP_LOGPROBS}",
        )

    @classmethod
    def parse(cls, values: dict[str, object]) -> "SamplingParameters":
        """Make parameters of named values, as a server gets them.

        Raises:
            RequestError: a field is unknown, of another type, or out of range.
        """
        processing = ProcessorParameters.__dataclass_fields__
        own = cls.__dataclass_fields__.keys() - {"processors"}
        unknown = sorted(values.keys() - own - processing.keys())
        if unknown:
            known = ", ".join(sorted({*own, *processing}))
            raise RequestError(f"{unknown[0]}: no such sampling field; there are {known}")
        checked = {name: _typed(name, value) for name, value in values.items() if name in own}
        given = {name: value for name, value in values.items() if name in processing}
        return cls(**checked, processors=ProcessorParameters(**given))  # type: ignore[arg-type]  # each was checked by name

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise RequestError(f"{name}: expected {expected}, got {self.__dict__[name]}")


def _typed(name: str, value: object) -> object:
    if (
        name in ("temperature", "top_p", "min_p")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        return float(value)
    if name in ("top_k", "max_tokens") and type(value) is int:
        return value
    if name in ("seed", "logprobs") and (value is None or type(value) is int):
        return value
    if name == "ignore_stop_ids" and isinstance(value, bool):
        return value
    if name == "stop" and isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return tuple(value)
    if (
        name == "stop_ids"
        and isinstance(value, list | tuple | set | frozenset)
        and all(type(i) is int for i in value)
    ):
        return frozenset(value)
    raise RequestError(f"{name}: unexpected value {value!r}")


@dataclass(frozen=True)
class Token:
    """One generated token.

    Attributes:
        logprob: natural log of its probability, after penalties and biases, before temperature and cuts; None unless asked
            for.
        alternatives: (id, logprob) of the likeliest tokens, as many as asked for.
    """

    id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """A sequence being served; the engine and the scheduler write it, callers read `tokens` and `finish_reason`.

    Attributes:
        text: what was generated, where the engine has a tokenizer.
        error: what went wrong, with `FinishReason.ERROR`.
        computed: tokens whose keys and values are in the cache, or will be once the steps in flight have run.
        pending: tokens that steps in flight are choosing.
        pages: cache pages held, in order.
        row: place in the device's state of sequences; -1 unless running.
        generation: another number each time that the request starts to run or its pages are exchanged.
        decodes: whether its next step is a decode: all but the newest token are in the cache.
        last_step: number of the last step that computed some of its prompt.
        cached_prefix: prompt tokens that came from another request's pages.
        group: the sequences that share its prompt, if there are others; the siblings to read are in `siblings`.
        in_search: it is a beam: what it goes on with is chosen for its whole group, once a step has run.
        embeddings: of prompt tokens, in place of their ids' own.
        aux: filled in when it ends.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParameters
    seed: int
    tokens: list[Token] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    text: str = ""
    error: str = ""
    computed: int = 0
    pending: int = 0
    pages: list[int] = field(default_factory=list)
    row: int = -1
    generation: int = -1
    decodes: bool = False
    last_step: int = 0
    cached_prefix: int = 0
    preemptions: int = 0
    prefix: PrefixKeys | None = None
    registered: int = 0
    group: "Group | None" = None
    in_search: bool = False
    embeddings: "PreparedEmbeddings | None" = None
    submitted: float = field(default_factory=time.perf_counter)
    first_token: float = math.nan
    steps: int = 0
    aux: "AuxInfo | None" = None

    def __post_init__(self) -> None:
        self.limit = len(self.prompt) + self.sampling.max_tokens

    @property
    def siblings(self) -> "Sequence[Request]":
        """All answers to its prompt, itself among them; of a search, those that are returned."""
        if self.group is None:
            return (self,)
        beams = self.group.beams
        return self.group.members[: None if beams is None else beams.return_sequences]

    @property
    def length(self) -> int:
        """Prompt and generated tokens, those that steps in flight are choosing among them."""
        return len(self.prompt) + len(self.tokens) + self.pending

    def ids(self, start: int, stop: int) -> list[int]:
        """Known token ids from `start` to `stop`, prompt and generated."""
        known = len(self.prompt)
        ids = list(self.prompt[start:stop])
        if stop > known:
            ids += [token.id for token in self.tokens[max(0, start - known) : stop - known]]
        return ids


def check_prompt(prompt: Sequence[int], vocab_size: int, max_length: int, max_tokens: int) -> tuple[int, ...]:
    """The prompt as a tuple.

    Raises:
        RequestError: it is empty, too long with what is to be generated, or has an id outside the vocabulary.
    """
    ids = tuple(prompt)
    if not ids:
        raise RequestError("prompt: expected at least one token, got none")
    if len(ids) + max_tokens > max_length:
        raise RequestError(
            f"prompt: expected at most {max_length - max_tokens} tokens (length limit {max_length}, less max_tokens"
            f" {max_tokens}), got {len(ids)}"
        )
    for position, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise RequestError(
                f"prompt: expected token ids from 0 to {vocab_size - 1}, got {token!r} at {position}"
            )
    return ids
