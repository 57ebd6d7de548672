from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.engines.base import Completion, CompletionFailed, Engine, Key, Request, ToolCall
from reviewer.engines.budget import Budgeted
from reviewer.engines.openai import OpenAIEngine, OpenAISettings
from reviewer.engines.recording import Recorder, Replay
from reviewer.errors import ReviewError
from reviewer.policy import ModelLimits

TOKEN = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
WHEN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FULL = Completion(
    text='{"findings": []}',
    tool_calls=(ToolCall("c1", "grep", '{"pattern": "x"}'),),
    tokens_in=1234,
    tokens_out=56,
    cost_usd=0.1 + 0.2,
    model="m",
    seconds=1.0 / 3.0,
    finish="tool_calls",
)


class Scripted:
    """Answers with the given results in order, raising those that are exceptions."""

    def __init__(self, results: Sequence[Completion | Exception], *warnings: str) -> None:
        self._results = iter(results)
        self._warnings = warnings

    async def complete(self, request: Request) -> Completion:
        result = next(self._results)
        if isinstance(result, Exception):
            raise result
        return result

    def warnings(self) -> tuple[str, ...]:
        return self._warnings


def request(
    step: str = "discover", rep: int = 0, *, turn: int = 0, attempt: int = 0, prompt: str = "p1"
) -> Request:
    return Request(Key(step, rep, "s", turn, attempt), (), prompt_version=prompt)


def ask(engine: Engine, *requests: Request) -> list[Any]:
    async def scene() -> list[Any]:
        return [(await asyncio.gather(engine.complete(each), return_exceptions=True))[0] for each in requests]

    return asyncio.run(scene())


def record(path: Path, *asked: tuple[Request, Completion | Exception], **options: Any) -> list[Any]:
    """What the round saw while it was recorded."""
    recorder = Recorder(Scripted([result for _, result in asked]), path, **options)
    seen = ask(recorder, *(each for each, _ in asked))
    recorder.close()
    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "round.jsonl"


def test_a_completion_is_replayed_as_it_was_seconds_and_cost_included(path: Path) -> None:
    record(path, (request(), FULL))
    assert ask(Replay(path), request(), request()) == [FULL, FULL]


def test_the_file_begins_with_a_header_and_holds_one_line_a_completion(path: Path) -> None:
    record(path, (request(), FULL), (request(rep=1), FULL), note="written by hand", now=lambda: WHEN)
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert header == {
        "whitesmoke_recording": 1,
        "recorded_at": "2026-03-01T12:00:00+00:00",
        "note": "written by hand",
    }
    assert [line["key"]["rep"] for line in lines] == [0, 1]
    assert lines[0]["prompt_version"] == "p1"
    replay = Replay(path)
    assert (replay.recorded_at, replay.note) == (header["recorded_at"], header["note"])


def test_every_part_of_the_key_tells_completions_apart(path: Path) -> None:
    requests = [request(), request("confirm"), request(rep=1), request(turn=1), request(attempt=1)]
    completions = [Completion(str(number)) for number in range(5)]
    record(path, *zip(requests, completions, strict=True))
    assert ask(Replay(path), *reversed(requests)) == completions[::-1]


def test_a_failure_is_recorded_and_replayed(path: Path) -> None:
    record(path, (request(), CompletionFailed("timeout", "no answer within 5 s")))
    (failed,) = ask(Replay(path), request())
    assert isinstance(failed, CompletionFailed)
    assert (failed.reason, str(failed)) == ("timeout", "no answer within 5 s")


def test_a_missing_key_is_named(path: Path) -> None:
    record(path, (request(), FULL))
    (failed,) = ask(Replay(path), request("confirm", 6, turn=2))
    assert isinstance(failed, CompletionFailed)
    assert failed.reason == "replay_miss"
    assert str(failed) == "round.jsonl holds no answer for step confirm rep 6 subject s turn 2 attempt 0"


def test_a_changed_prompt_is_answered_and_reported_once_a_step(path: Path) -> None:
    asked = [request(rep=rep) for rep in range(3)] + [request("dedup"), request("confirm", prompt="p2")]
    record(path, *((each, FULL) for each in asked))
    replay = Replay(path)
    now = [request(rep=rep, prompt="p2") for rep in (0, 0, 1)]
    now += [request("dedup", prompt="p2"), request("confirm", prompt="p2")]
    assert ask(replay, *now) == [FULL] * 5
    assert replay.warnings() == (
        "the prompt of step dedup changed since this recording was made (1 completion)",
        "the prompt of step discover changed since this recording was made (2 completions)",
    )


def test_a_replay_of_unchanged_prompts_warns_of_nothing(path: Path) -> None:
    record(path, (request(), FULL))
    replay = Replay(path)
    ask(replay, request())
    assert replay.warnings() == ()


def test_keys_never_asked_for_are_unused(path: Path) -> None:
    record(
        path,
        (request(), FULL),
        (request(rep=1), FULL),
        (request("dedup"), CompletionFailed("timeout", "late")),
    )
    replay = Replay(path)
    ask(replay, request(), request("recheck"))
    assert replay.unused() == (request(rep=1).key, request("dedup").key)


def test_a_recording_is_continued_and_the_last_answer_of_a_key_holds(path: Path) -> None:
    record(path, (request(), Completion("old")), (request(rep=1), Completion("kept")), now=lambda: WHEN)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))  # as some editors leave it
    record(path, (request(), Completion("new")))
    replay = Replay(path)
    assert [each.text for each in ask(replay, request(), request(rep=1))] == ["new", "kept"]
    assert replay.recorded_at == WHEN.isoformat()


def test_secrets_reach_neither_the_file_nor_the_round(path: Path) -> None:
    leak = Completion(f"see {TOKEN}", tool_calls=(ToolCall("c", "grep", json.dumps({"pattern": TOKEN})),))
    asked = [(request(), leak), (request(rep=1), CompletionFailed("server_error", f"echo {TOKEN}"))]
    seen = record(path, *asked)
    assert TOKEN not in path.read_text()
    assert TOKEN not in str(seen)
    assert json.loads(seen[0].tool_calls[0].arguments) == {"pattern": "[redacted:github-token]"}
    # What the round saw is what a replay of it sees.
    completion, failed = ask(Replay(path), request(), request(rep=1))
    assert completion == seen[0]
    assert str(failed) == str(seen[1]) == "echo [redacted:github-token]"


def test_a_redactor_of_ones_own_is_used(path: Path) -> None:
    (seen,) = record(
        path, (request(), Completion("my secret")), redact=lambda text: text.replace("secret", "***")
    )
    assert seen.text == "my ***"


def test_what_ends_the_round_is_not_recorded(path: Path) -> None:
    (error,) = record(path, (request(), ReviewError("endpoint gone", "start it")))
    assert isinstance(error, ReviewError)
    assert len(path.read_text().splitlines()) == 1


def test_what_the_engine_warned_of_is_recorded_too(path: Path) -> None:
    recorder = Recorder(Scripted([FULL], "the budget is spent", f"no tools at {TOKEN}"), path)
    ask(recorder, request())
    told = ("the budget is spent", "no tools at [redacted:github-token]")
    assert recorder.warnings() == told
    recorder.close()
    replay = Replay(path)
    assert ask(replay, request()) == [FULL]
    assert replay.warnings() == told
    ask(replay, request(prompt="p2"))
    assert replay.warnings()[:2] == told
    assert len(replay.warnings()) == 3


def test_a_recording_bears_its_time_to_the_microsecond_and_zone(path: Path) -> None:
    now = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=8)))
    record(path, now=lambda: now)
    assert datetime.fromisoformat(Replay(path).recorded_at) == now


def test_each_line_is_in_the_file_as_soon_as_it_is_answered(path: Path) -> None:
    with closing(Recorder(Scripted([FULL]), path)) as recorder:
        ask(recorder, request())
        assert ask(Replay(path), request()) == [FULL]


def test_a_second_writer_is_refused(path: Path) -> None:
    first = Recorder(Scripted([]), path)
    with pytest.raises(ReviewError, match=r"round\.jsonl is being written"):
        Recorder(Scripted([]), path)
    first.close()
    Recorder(Scripted([]), path).close()


class FullDisk(io.BytesIO):
    """Takes three bytes more of each line, then no more."""

    def write(self, data: Any) -> int:
        super().write(bytes(data)[:3])
        return 3


def test_a_full_disk_leaves_whole_lines_and_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(Scripted([FULL]), path)
    recorder.close()
    disk = FullDisk()
    monkeypatch.setattr(recorder, "_file", disk)
    with pytest.raises(ReviewError, match=r"round\.jsonl cannot be written: no space left") as caught:
        asyncio.run(recorder.complete(request()))
    assert "free some space" in caught.value.remedy
    assert disk.getvalue() == b""


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(ReviewError, match="cannot be written") as caught:
            Recorder(Scripted([]), path)
        assert str(path) in caught.value.problem


def test_a_missing_recording_is_named(path: Path) -> None:
    with pytest.raises(ReviewError, match=r"round\.jsonl cannot be read: No such file"):
        Replay(path)


@pytest.mark.parametrize(
    ("edit", "place", "told"),
    [
        (lambda lines: ["{}", *lines[1:]], ":1 ", "is no recording (recorded_at: Field required)"),
        (lambda lines: [], ":1 ", "is no recording"),
        (lambda lines: [lines[0].replace("1,", "2,", 1), *lines[1:]], ":1 ", "whitesmoke_recording"),
        (lambda lines: [*lines, lines[1][:-9]], ":3 ", "is malformed (line: Invalid JSON"),
        (lambda lines: [lines[0], "", lines[1]], ":2 ", "is malformed"),
        (
            lambda lines: [lines[0], lines[1].replace('"finish":"tool_calls"', '"finish":"x"')],
            ":2 ",
            "finish",
        ),
        (lambda lines: [lines[0], lines[1].replace('"rep"', '"rap"')], ":2 ", "key.rep"),
        (lambda lines: [lines[0], "\ufffe"], ":2 ", "is malformed"),
    ],
)
def test_a_malformed_line_is_named(path: Path, edit: Any, place: str, told: str) -> None:
    record(path, (request(), FULL))
    path.write_text("\n".join(edit(path.read_text().splitlines())))
    with pytest.raises(ReviewError) as caught:
        Replay(path)
    assert f"{path}{place}" in caught.value.problem
    assert told in caught.value.problem
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_recording_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(ReviewError, match=r"notes\.txt:1 is no recording") as caught:
        Recorder(Scripted([]), path)
    assert path.read_text() == "mine\n"
    # Nor does it stay locked, for as long as the error lives.
    path.write_text("")
    Recorder(Scripted([]), path).close()
    assert caught.value


def test_what_an_endpoint_answered_is_replayed_without_it(path: Path, server: Any) -> None:
    server.play(server.tools(("grep", "{}")), server.error(400, "too long"), server.text("{}", delay=0.01))
    asked = [request(), request(rep=1), request(rep=2)]

    async def live() -> list[Any]:
        settings = OpenAISettings(server.url, "key", ("m",), prices={"m": (1.0, 3.0)})
        async with OpenAIEngine(settings) as engine:
            with closing(Recorder(Budgeted(engine, ModelLimits()), path)) as recorder:
                return [
                    (await asyncio.gather(recorder.complete(r), return_exceptions=True))[0] for r in asked
                ]

    seen = asyncio.run(live())
    assert isinstance(seen[1], CompletionFailed)
    assert list(map(repr, ask(Replay(path), *asked))) == list(map(repr, seen))
    assert len(server.requests) == 3


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["\u2028", "\r", "\x0c\x85\0"]
)


@given(
    st.builds(
        Completion,
        text=texts,
        tool_calls=st.lists(st.builds(ToolCall, texts, texts, texts), max_size=2).map(tuple),
        tokens_in=st.integers(0, 10**9),
        cost_usd=st.floats(0, 1e6),
        seconds=st.floats(0, 1e6),
        model=texts,
    )
)
def test_any_completion_survives_recording_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, completion: Completion
) -> None:
    path = tmp_path_factory.mktemp("recording") / "any.jsonl"
    (seen,) = record(path, (request(), completion), redact=str)
    assert seen == completion
    assert ask(Replay(path), request()) == [completion]
