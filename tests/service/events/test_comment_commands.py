from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.report.escape import block, fence, inline
from service.events import parse_commands
from service.events.commands import (
    MAX_COMMANDS,
    CiCancel,
    CiRetry,
    CiRun,
    CiStatus,
    Command,
    Dismiss,
    Explain,
    Help,
    Invalid,
    Reopen,
    Review,
    written,
)

WORD = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.]{0,9}", fullmatch=True)
ID = st.integers(1, 999).map(lambda n: f"F{n}")
COMMAND: st.SearchStrategy[Command] = st.one_of(
    st.builds(Review, full=st.booleans()),
    st.builds(Dismiss, finding=ID, reason=st.lists(WORD, min_size=1, max_size=5).map(" ".join)),
    st.builds(Reopen, finding=ID),
    st.builds(Explain, finding=ID),
    st.builds(CiRun, jobs=st.lists(WORD, max_size=3, unique=True).map(tuple)),
    st.sampled_from([CiRetry(), CiCancel(), CiStatus(), Help()]),
)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/review", Review()),
        ("/review full", Review(full=True)),
        ("  /Review  FULL ", Review(full=True)),
        (
            "/dismiss F3 the cache is cleared above",
            Dismiss(finding="F3", reason="the cache is cleared above"),
        ),
        (
            "/dismiss `f3`: *really* `a_b` is <b>fine</b>",
            Dismiss(finding="F3", reason="*really* `a_b` is <b>fine</b>"),
        ),
        ("/dismiss F3 see [docs](https://x.invalid)", Dismiss(finding="F3", reason="see docs")),
        ("/reopen F12", Reopen(finding="F12")),
        ("/explain F1", Explain(finding="F1")),
        ("/explain F1 <!-- why? -->", Explain(finding="F1")),
        ("/ci run", CiRun()),
        ("/ci run build smoke-sm90 build", CiRun(jobs=("build", "smoke-sm90"))),
        ("/CI Retry", CiRetry()),
        ("/ci cancel", CiCancel()),
        ("/ci status", CiStatus()),
        ("/help", Help()),
    ],
)
def test_a_line_is_a_command(line: str, command: Command) -> None:
    assert parse_commands(line) == (command,)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/review please", "/review [full]"),
        ("/review full full", "/review [full]"),
        ("/dismiss", "/dismiss ID reason"),
        ("/dismiss F3", "/dismiss ID reason"),
        ("/dismiss because", "/dismiss ID reason"),
        ("/dismiss F0 because", "/dismiss ID reason"),
        ("/reopen", "/reopen ID"),
        ("/reopen F1 F2", "/reopen ID"),
        ("/explain 3", "/explain ID"),
        ("/help me", "/help"),
        ("/ci", "/ci run|retry|cancel|status"),
        ("/ci frobnicate", "/ci run|retry|cancel|status"),
        ("/ci run ../x", "/ci run [job ...]"),
        ("/ci run --all", "/ci run [job ...]"),
        ("/ci retry all", "/ci retry"),
    ],
)
def test_wrong_arguments_are_answered_with_the_usage(line: str, hint: str) -> None:
    assert parse_commands(line) == (Invalid(line=line, problem="usage", hint=hint),)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/reveiw", "/review"),
        ("/review.", "/review"),
        ("/reviews full", "/review"),
        ("/dismis F3 x", "/dismiss"),
        ("/re-open F3", "/reopen"),
        ("/hlep", "/help"),
        ("/ci rnu", "/ci run"),
        ("/ci rerun", "/ci run"),
    ],
)
def test_a_verb_almost_right_is_asked_about(line: str, hint: str) -> None:
    assert parse_commands(line) == (Invalid(line=line, problem="unknown", hint=hint),)


@pytest.mark.parametrize(
    "line",
    [
        "/assign @bob",
        "/lgtm",
        "/retest",
        "/hold",
        "/cc @bob",
        "/close",
        "/merge",
        "/usr/bin/env",
        "/ review",
        "//review",
        "/",
    ],
)
def test_paths_and_other_bots_commands_are_not_ours(line: str) -> None:
    assert parse_commands(line) == ()


@pytest.mark.parametrize(
    "body",
    [
        "> /review",
        ">/review",
        "> quoted\n/review",
        "> > deep\n> /review",
        "```\n/review\n```",
        "~~~\n/review\n~~~",
        "```\nno end\n\n/review",
        "    /review",
        "\t/review",
        "text `code\n/review\ncode`",
        "<!-- /review -->",
        "<!--\n/review\n-->",
        "<!--\n\n/review",
        "text <!--\n/review\n-->",
        "<pre>\n/review\n</pre>",
        "<blockquote>\n\n/review\n\n</blockquote>",
        "<details><summary>log</summary>\n\n/review\n\n</details>",
        "text <del>\n/review\n</del>",
        "<details>\n\n<!-- </details> -->\n\n/review",
        "- /review",
        "- item\n  /review",
        "1. item\n\n   /review",
        "# /review",
        "| /review |\n|---|\n| /review |",
        "/review | x\n--- | ---\n",
        "[a\n/review\nb](https://x.invalid)",
        "![a\n/review\nb](https://x.invalid)",
        '[a](https://x.invalid "b\n/review\nc")',
        "~~a\n/review\nb~~",
        "**/review**",
        "\\/review",
        "&#47;review",
        "/usr\n\\/review",
        "/usr\n&#47;review",
        "</details>\n\n<details>\n\n/review",
        "please /review",
        "\u200b/review",
        "[x]:\n/review",
    ],
)
def test_quoted_code_hidden_or_decorated_lines_run_nothing(body: str) -> None:
    assert parse_commands(body) == ()


@pytest.mark.parametrize(
    "body",
    [
        "/review",
        "Hello,\n/review\nthanks",
        "> quoted\n\n/review",
        "```\ncode\n```\n/review",
        "<details>\n\nlog\n\n</details>\n\n/review",
        "<!-- a template -->\n\n/review",
        "- item\n\n/review",
        "text\n        /review",
        "/review\r\nthanks",
        "/review  \nthanks",
        "/review\\\nthanks",
        "/review\n-- \nBob",
        "/review\n---",
    ],
)
def test_a_line_among_others_runs(body: str) -> None:
    assert parse_commands(body) == (Review(),)


def test_commands_run_in_order_and_at_most_ten() -> None:
    assert parse_commands("/review\n/ci run\n\n/help\n/review") == (Review(), CiRun(), Help(), Review())
    ten = parse_commands("/help\n" * MAX_COMMANDS)
    assert ten == (Help(),) * MAX_COMMANDS
    more = parse_commands("/help\n" * MAX_COMMANDS + "/review\n" * 90)
    assert more == (*ten, Invalid(line="/review", problem="too_many"))


def test_what_lies_beyond_githubs_limit_is_not_read() -> None:
    assert parse_commands("x\n" * 32_768 + "/review") == ()
    assert parse_commands("/help\n" + "x\n" * 32_768 + "/review") == (Help(),)
    assert parse_commands("x\n" * 32_000 + "/review") == (Review(),)


@given(st.lists(COMMAND, max_size=MAX_COMMANDS))
def test_what_is_written_is_what_is_read(commands: list[Command]) -> None:
    assert parse_commands("\n".join(map(written, commands))) == tuple(commands)


@given(
    st.lists(COMMAND, min_size=1, max_size=3),
    st.sampled_from(["> {}", "    {}", "- {}", "x {}", "`{}`", "# {}"]),
)
def test_no_command_runs_out_of_a_quotation(commands: list[Command], form: str) -> None:
    assert parse_commands("\n\n".join(form.format(written(one)) for one in commands)) == ()


@given(st.text(alphabet="/review ful`~>-<!*_[]()#&\\|F1\n\r\t\x00é", max_size=120) | st.text(max_size=120))
def test_any_text_gives_at_most_eleven_commands(body: str) -> None:
    found = parse_commands(body)
    assert len(found) <= MAX_COMMANDS + 1
    for command in found:
        assert type(command).model_validate_json(command.model_dump_json()) == command


@given(st.lists(COMMAND | st.sampled_from(["text", "```", "> x"]), max_size=4), st.text(max_size=30))
def test_what_the_bot_posts_of_others_words_runs_nothing(parts: list[Command | str], extra: str) -> None:
    words = "\n".join([*(one if isinstance(one, str) else written(one) for one in parts), extra])
    for safe in (block(words), inline(words), fence(words)):
        assert parse_commands(safe) == ()


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "![",
        "`a``b",
        "*a ",
        "a**b",
        "<",
        "<!-- a ",
        ">",
        "> ",
        "- ",
        "[a](",
        "~~a",
        "&",
        "\\",
        "<?",
        "[a]: b\n",
        "/help\n",
    ],
)
def test_no_comment_takes_long(unit: str) -> None:
    body = "/help\n\n" + unit * (65_000 // len(unit))
    started = time.process_time()
    assert parse_commands(body)[0] == Help()
    assert time.process_time() - started < 8
