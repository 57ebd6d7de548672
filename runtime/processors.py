"""What a request asks of its logits before sampling: penalties, biases and bans (see `kernels.logits_processors`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.token_history import MAX_BIAS
from runtime.errors import RequestError

MAX_NGRAM = 64


@dataclass(frozen=True)
class ProcessorParameters:
    """How the logits of a request are changed; the defaults change nothing.

    Attributes:
        repetition_penalty: 0.01 to 100; logits of tokens in the prompt or generated are multiplied by it if below 0,
            else divided.
        presence_penalty: -2 to 2; subtracted from the logits of tokens generated.
        frequency_penalty: -2 to 2; subtracted from them for each time they were generated.
        no_repeat_ngram_size: no so many tokens in a row come twice, prompt included; at most 64, off at 0.
        min_tokens: stop ids are banned until so many tokens are generated; stop strings are not held back.
        logit_bias: token id -> what is added to its logit, -inf to ban it; at most 300.

    Raises:
        RequestError: a field is of another type or out of range.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    min_tokens: int = 0
    # A mapping has no hash; equal parameters still have equal ones without it.
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("repetition_penalty", 0.01, 100),
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
        ):
            value = self.__dict__[name]
            self._require(name, _is_number(value) and low <= value <= high, f"a number from {low} to {high}")
        for name, most in (("no_repeat_ngram_size", MAX_NGRAM), ("min_tokens", (1 << 31) - 1)):
            value = self.__dict__[name]
            self._require(name, type(value) is int and 0 <= value <= most, f"a whole number from 0 to {most}")
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias: expected a mapping, got {type(self.logit_bias).__name__}")
        if len(self.logit_bias) > MAX_BIAS:
            raise RequestError(f"logit_bias: expected at most {MAX_BIAS} tokens, got {len(self.logit_bias)}")
        for token, bias in self.logit_bias.items():
            if type(token) is not int or token < 0:
                raise RequestError(f"logit_bias: expected token ids of at least 0, got {token!r}")
            if not _is_number(bias) or not (abs(bias) <= 1e4 or bias == -math.inf):
                raise RequestError(
                    f"logit_bias: expected numbers from -10000 to 10000, or -inf, got {bias!r} for token {token}"
                )
        # A copy: what was checked stays as it was.
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @property
    def is_neutral(self) -> bool:
        """Nothing is changed, so no history is needed."""
        return self == _NEUTRAL

    @property
    def flags(self) -> int:
        """What `kernels.token_history.ProcessorLanes.flags` holds for the request."""
        return int(not self.is_neutral)

    def check(self, vocab_size: int) -> None:
        """Check what depends on the model.

        Raises:
            RequestError: a biased token is outside the vocabulary.
        """
        largest = max(self.logit_bias, default=0)
        if largest >= vocab_size:
            raise RequestError(f"logit_bias: expected token ids from 0 to {vocab_size - 1}, got {largest}")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise RequestError(f"{name}: expected {expected}, got {self.__dict__[name]!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_NEUTRAL = ProcessorParameters()
