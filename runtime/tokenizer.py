"""Text to token ids and back; back also a token at a time, without ever giving half a character."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

REPLACEMENT = "\ufffd"


class TokenizerError(ValueError):
    """A model folder has no tokenizer that can be read."""


class Tokenizer:
    """The folder's `tokenizer.json`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def read(cls, folder: Path) -> "Tokenizer":
        """Read `folder/tokenizer.json`.

        Raises:
            TokenizerError: there is none, or it cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.exists():
            raise TokenizerError(f"{path}: no such file")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise TokenizerError(f"{path}: cannot be read: {error}") from None

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


class TextStream:
    """Turns token ids into text as they come, and ends it at a stop string.

    A character may span tokens, and a stop string may too: text is held back while it could still become either.

    Args:
        stop: strings that end the text, whichever is complete first; it is left out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._ids: list[int] = []
        # Decoding starts at `_context`, a few tokens back, since some decoders strip a space at the start; what
        # `_given` tokens decode to has been passed on.
        self._context = 0
        self._given = 0
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that `token` completes, maybe none."""
        if self.stopped:
            return ""
        self._ids.append(token)
        return self._pass_on(self._completed(final=False), final=False)

    def finish(self) -> str:
        """What was held back; half a character becomes U+FFFD."""
        if self.stopped:
            return ""
        return self._pass_on(self._completed(final=True), final=True)

    def _completed(self, *, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._context : self._given])
        now = self._tokenizer.decode(self._ids[self._context :])
        if not final and (now.endswith(REPLACEMENT) or len(now) <= len(before)):
            return ""
        self._context, self._given = self._given, len(self._ids)
        return now[len(before) :]

    def _pass_on(self, text: str, *, final: bool) -> str:
        self._held += text
        # The stop string that is complete first ends the text, so that the split into tokens does not matter.
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._take(min(found)[1])
        return self._take(len(self._held) - (0 if final else self._could_be_a_stop()))

    def _could_be_a_stop(self) -> int:
        """Length of the longest end of the held text that a stop string starts with."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken
