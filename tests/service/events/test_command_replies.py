from __future__ import annotations

import inspect
import re
import string
from importlib import resources
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from reviewer.ledger import Dismissal
from reviewer.model import FactCheck, Fate, Finding, Language, ReportedFinding, Severity, Side, State
from reviewer.report.limit import COMMENT_LIMIT, size
from reviewer.text import load_text
from service.events import Refused, parse_commands, says_phrase
from service.events.commands import Dismiss, Explain, Help, Invalid, Review
from service.events.policy import Rights
from service.events.replies import Replies
from service.forge.base import User

LANGUAGES: tuple[Language, ...] = ("en", "zh")
HOSTILE = (
    "x @ada fixes #1 <img src=a> ghp_"
    + "a1" * 18
    + " lgtm ready to ci\n/review full\n<!-- whitesmoke:round {} -->"
)
NEVER = re.compile(r"ghp\\?_|lgtm ready to ci|^/review|<!--", re.MULTILINE)
NOT_OUTSIDE_CODE = re.compile(r"@ada|#1|<img")


def phrases(language: Language) -> dict[str, str]:
    text = resources.files("templates").joinpath("service", f"replies.{language}.yaml").read_text("utf-8")
    found: dict[str, str] = yaml.safe_load(text)
    return found


def finding(**values: Any) -> ReportedFinding:
    plain: dict[str, Any] = {
        "id": "F3",
        "path": "kv/pages.py",
        "line_start": 11,
        "line_end": 12,
        "side": Side.RIGHT,
        "severity": Severity.P1,
        "category": "c",
        "title": "A page too far",
        "body": "The loop ends late.",
        "support": 3,
        "of": 5,
        "last_round": 2,
    }
    return ReportedFinding(**{**plain, **values})


def fate(rep: int, title: str = "Off by one", finding_id: str = "F3") -> Fate:
    raw = Finding(path="kv/pages.py", severity=Severity.P2, title=title, rep=rep)
    return Fate(raw=raw, finding_id=finding_id, outcome="blocking")


def answers(language: Language, words: str = "words") -> dict[str, list[str]]:
    """Every answer by the method that gives it, with `words` wherever words come from outside."""
    say = Replies(language)
    one = finding(title=words, body=words, demoted=words, evidence=words, suggestion=words, quoted_code=words)
    return {
        "queued": [say.queued("a" * 40, full=full) for full in (True, False)],
        "closed": [say.closed()],
        "over_tokens": [say.over_tokens(1_234_567, 1_000_000)],
        "over_cost": [say.over_cost(1.5, 1)],
        "too_many_files": [say.too_many_files(3_400, 3_000)],
        "patch_too_large": [say.patch_too_large(5_000, 4_000)],
        "policy_invalid": [say.policy_invalid(".whitesmoke.yml", words, words)],
        "dismissed": [say.dismissed(one, words, words, "LGTM")],
        "reopened": [say.reopened(one, "BLOCKED(1)")],
        "no_finding": [say.no_finding(words, known) for known in ((), (words,))],
        "not_open": [say.not_open(one.model_copy(update={"state": state})) for state in State],
        "not_dismissed": [say.not_dismissed(one)],
        "explained": [
            say.explained(one, 2, fates=[fate(rep, words) for rep in range(12)]),
            say.explained(one, 2, Dismissal(by=words, reason=words)),
            *(
                say.explained(one.model_copy(update=update), 2)
                for update in (
                    {"state": State.FIXED},
                    {"state": State.REFUTED},
                    {"blocking": True},
                    {"blocking": True, "of": 0},
                    {"demoted": ""},
                )
            ),
        ],
        "refused": [
            say.refused(Refused("level", level), User(words))
            for level in ("read", "triage", "write", "maintain", "admin")
        ]
        + [say.refused(Refused("own_blocker", "write"), User(words))],
        "invalid": [
            say.invalid(Invalid(line=words, problem="unknown", hint="/review")),
            say.invalid(Invalid(line=words, problem="usage", hint="/ci run|retry")),
            say.invalid(Invalid(line=words, problem="too_many")),
        ],
        "help": [say.help(Rights())],
    }


def test_both_languages_have_the_same_keys_and_places() -> None:
    en, zh = phrases("en"), phrases("zh")
    assert list(en) == list(zh)

    def places(phrase: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(phrase) if name}

    for key in en:
        assert places(en[key]) - {"n"} == places(zh[key]) - {"n"}, key


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_phrase_is_said_by_some_answer_and_every_answer_is_tried(language: Language) -> None:
    from service.events import replies

    said: set[str] = set()
    real = load_text("service/replies", language)

    class Listening:
        def __call__(self, key: str, **values: object) -> str:
            said.add(key)
            return real(key, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            replies,
            "load_text",
            lambda name, _: Listening() if name == "service/replies" else load_text(name, language),
        )
        tried = answers(language)
        Replies(language).compose([(Help(), "x" * 60_000)] * 2)
    assert said == set(phrases(language))
    methods = {
        name for name, _ in inspect.getmembers(Replies, inspect.isfunction) if not name.startswith("_")
    }
    assert methods == {*tried, "compose"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_from_outside_notifies_closes_commands_or_leaks(language: Language) -> None:
    for method, found in answers(language, HOSTILE).items():
        for answer in found:
            posted = Replies(language).compose([(Dismiss(finding="F3", reason=HOSTILE), answer)])
            assert not NEVER.search(posted), (method, posted)
            shown = re.sub(
                r"<code.*?</code>",
                "",
                MarkdownIt("gfm-like", {"linkify": False}).render(posted),
                flags=re.DOTALL,
            )
            assert not NOT_OUTSIDE_CODE.search(shown), (method, shown)
            assert parse_commands(posted) == (), method
            assert not says_phrase(posted, "lgtm ready to ci"), method


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_report_of_an_invalid_policy_is_safe_as_it_stands(language: Language) -> None:
    (posted,) = answers(language, HOSTILE)["policy_invalid"]
    assert not NEVER.search(posted)


def test_an_answer_stands_below_the_command_that_it_answers() -> None:
    say = Replies("en")
    posted = say.compose([(Review(), say.queued("a" * 40, full=False)), (Help(), say.closed())])
    assert posted == (
        "> `/review`\n\nReview of `aaaaaaaaaaaa` queued.\n\n"
        "> `/help`\n\nThis pull request is closed. Reopen it, then ask again."
    )


def test_answers_fit_a_comment_and_say_what_is_left_out() -> None:
    say = Replies("en")
    long = say.explained(
        finding(body="word " * 5_000, evidence="fact " * 5_000, quoted_code="x\n" * 5_000), 2
    )
    posted = say.compose([(Explain(finding="F3"), long)] * 10)
    assert 40_000 < size(posted) <= COMMENT_LIMIT
    assert re.search(r"\*\d answers? left out|\*\d more answers? left out", posted)


@pytest.mark.parametrize(
    ("values", "dismissal", "words"),
    [
        (
            {"blocking": True, "fact_check": FactCheck.HOLD},
            None,
            "It **blocks**: it is P1, enough reviewers agree",
        ),
        ({"blocking": True, "of": 0, "source": "ruff"}, None, "It **blocks**: a detector found it"),
        ({"demoted": "only 2 of 5 said it"}, None, "It does **not block**: only 2 of 5 said it"),
        ({"severity": Severity.P3}, None, "It does **not block**: P3 never does."),
        ({"state": State.FIXED}, None, "It is **fixed**"),
        ({"state": State.REFUTED}, None, "It was **refuted**"),
        (
            {"state": State.DISMISSED},
            Dismissal(by="bob", reason="as meant"),
            "It was **dismissed** by `bob`: as meant",
        ),
    ],
)
def test_a_finding_is_explained(values: dict[str, Any], dismissal: Dismissal | None, words: str) -> None:
    text = Replies("en").explained(finding(**values), 2, dismissal)
    assert words in text
    assert text.count("It ") == 1
    assert "Raised in round 1, last in round 2." in text
    assert "`kv/pages.py:11-12`" in text


def test_an_explanation_quotes_the_reviewers_of_that_finding_alone() -> None:
    text = Replies("en").explained(
        finding(), 2, fates=[fate(0), fate(4, "Else"), fate(1, "Other", "F9"), fate(-1, "Tool")]
    )
    assert "- reviewer 1 (P2): Off by one\n- reviewer 5 (P2): Else" in text
    assert "Other" not in text
    assert "Tool" not in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_help_table_names_every_command_with_its_permission(language: Language) -> None:
    table = Replies(language).help(Rights(dismiss="admin", author_may_review=False))
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) == len(Rights.model_fields) - 1
    assert next(row[2] for row in rows if "/dismiss" in row[0]) == "admin |"
    assert next(row[2] for row in rows if row[0] == "| `/review`") == "triage |"
    html = MarkdownIt("commonmark").enable("table").render(table)
    assert html.count("<tr>") == len(rows) + 1
    assert html.count("<td>") == 3 * len(rows)


def test_authors_are_named_in_the_help_where_they_may_review() -> None:
    assert "| triage, author |" in Replies("en").help(Rights())
