"""Text token by token equals text at once, for any text, any split of its characters, any stop strings."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from runtime.tokenizer import TextStream, Tokenizer, TokenizerError


def byte_level() -> Tokenizer:
    """A small byte-level BPE made here: every byte is a token, so characters are split across tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=["<end>"],
    )
    tokenizer.train_from_iterator(["white smoke over the roof, white smoke again"], trainer)
    return Tokenizer(tokenizer)


TOKENIZER = byte_level()


def stream(text: str, *stop: str) -> tuple[list[str], TextStream]:
    reader = TextStream(TOKENIZER, stop)
    pieces = [reader.push(token) for token in TOKENIZER.encode(text)]
    return [*pieces, reader.finish()], reader


@settings(deadline=None)
@given(st.text(max_size=40))
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(stream(text)[0]) == text


def test_no_piece_holds_half_a_character() -> None:
    pieces, _ = stream("naïve 🎺 für 12 €")
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == "naïve 🎺 für 12 €"
    assert "" in pieces  # bytes of the trumpet were held back


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    reader = TextStream(TOKENIZER)
    tokens = TOKENIZER.encode("🎺")
    assert "".join(reader.push(token) for token in tokens[:-1]) == ""
    assert "\ufffd" in reader.finish()


@settings(deadline=None)
@given(st.text("ab🎺", max_size=30), st.lists(st.text("ab🎺", min_size=1, max_size=4), max_size=3))
def test_ends_before_the_stop_string_that_is_complete_first(text: str, stops: list[str]) -> None:
    pieces, reader = stream(text, *stops)
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    assert "".join(pieces) == (text[: min(found)[1]] if found else text)
    assert reader.stopped == bool(found)


def test_what_could_become_a_stop_string_is_held_until_it_cannot() -> None:
    reader = TextStream(TOKENIZER, ["xyz"])
    given_out = [reader.push(token) for token in TOKENIZER.encode("axy")]
    assert "".join(given_out) == "a"
    assert "".join(reader.push(token) for token in TOKENIZER.encode("q")) == "xyq"


def test_nothing_comes_after_a_stop() -> None:
    reader = TextStream(TOKENIZER, ["b"])
    assert "".join(reader.push(token) for token in TOKENIZER.encode("abc")) == "a"
    assert reader.push(TOKENIZER.encode("d")[0]) + reader.finish() == ""


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        Tokenizer.read(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.read(tmp_path)
