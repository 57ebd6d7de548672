"""One request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """`prompt` and `output` are token ids; the request is done after `max_tokens` of output."""

    id: str
    prompt: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def done(self) -> bool:
        return len(self.output) >= self.max_tokens
