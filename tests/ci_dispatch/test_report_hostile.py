"""Whatever a job said, its report is bounded and harmless."""

from __future__ import annotations

import re

import pytest

from ci_dispatch.model import (
    Difference,
    Notice,
    Outcome,
    StepRun,
)
from ci_dispatch.report import JobView, RunView, check, comment, terminal
from tests.ci_dispatch.report_kit import (
    ABOUT,
    BASE,
    DIFFERENT,
    HEAD,
    HOSTILE,
    SECRET,
    WRITING,
    done,
    hostile,
    html,
    job,
    kpi,
    size,
    writing,
)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_hostile_text_stays_text(language: str) -> None:
    view, style = hostile(), writing(language)
    waiting = JobView(job("w"), "waiting", reason=HOSTILE)
    running = JobView(job("r"), "running", step=HOSTILE, log_tail=HOSTILE)
    about = RunView(HEAD, BASE, qualified=HOSTILE, warnings=(HOSTILE,))
    texts = [comment(about, [view, waiting, running], style)]
    for one in (view, waiting, running):
        made = check(one, style)
        texts += [made.summary, made.text]
        assert "lgtm ready to ci" not in made.title
        assert "\n" not in made.title
    for text in texts:
        page = html(text)
        assert "<img" not in page
        assert "<h1" not in page
        assert "href=" not in page.replace('href="https://ci.example', "")
        assert page.count("<details") == page.count("</details") == page.count("<summary")
        outside = re.sub(r"<code.*?</code>", "", page, flags=re.DOTALL)
        assert "@everyone" not in outside
        assert "#1" not in outside
        assert "lgtm ready to ci" not in text.lower()
        assert not re.search(r"^/ci", text, re.MULTILINE)
        assert "<!--" not in text
        assert not set(text) & set("\x1b\x00\u202e")
    (table,) = re.findall(r"<table>.*?</table>", html(texts[0]), re.DOTALL)[:1]
    assert table.count("<tr>") == 4
    rows = re.findall(r"^\|.*\|$", texts[0], re.MULTILINE)
    widths = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
    assert set(widths) == {
        8,
        6,
    }  # seven cells of jobs and of KPIs, five of a difference: a bar never makes another


def test_secrets_are_taken_out_of_every_text_before_it_is_cut() -> None:
    def holding(text: str) -> JobView:
        return done(
            Outcome.GOLDEN,
            reason=text,
            runs=(StepRun(name="build", ending="not_started", seconds=0, detail=text),),
            comparisons=(
                DIFFERENT.model_copy(
                    update={
                        "differences": (
                            Difference(case=text, request=0, field=text, expected=text, actual=text),
                        ),
                        "failures": (text,),
                        "notes": (text,),
                    }
                ),
            ),
            bad_numbers=(text,),
            notices=(Notice(kind="agent", detail=text),),
            environment={"token": text},
            left_out=(text,),
            log_tail=text,
            kpis=(kpi("k", detail=text),),
        )

    for text in (SECRET, "x" * 100 + SECRET):
        view = holding(text)
        made = check(view, WRITING)
        running = check(JobView(job(), "running", log_tail=text), WRITING)
        about = RunView(HEAD, BASE, qualified=text, warnings=(text,))
        shown = (
            made.title + made.summary + made.text + comment(about, [view], WRITING) + terminal(view, WRITING)
        )
        assert SECRET[:14] not in shown + running.text


def enormous(name: str) -> JobView:
    long = "🔥" * 500
    difference = Difference(case=long, request=0, field=long, expected=long, actual=long)
    return done(
        Outcome.GOLDEN,
        job(name, perf=True),
        reason=long * 2,
        runs=tuple(
            StepRun(name="bench", ending="exited", status=n, seconds=1, round=n, detail=f"{n}" + long)
            for n in range(150)
        ),
        comparisons=tuple(
            DIFFERENT.model_copy(update={"differences": (difference,) * 50, "failures": (long,) * 20})
            for _ in range(16)
        ),
        bad_numbers=(long,) * 100,
        notices=(Notice(kind="agent", detail=long * 4),) * 50,
        environment={f"{n}": long for n in range(100)},
        log_tail=(long + "\n") * 500,
        kpis=tuple(kpi(f"{n} {'🔥' * 190}", detail=long) for n in range(1_000)),
        url="https://ci.example/" + "u" * 300,
    )


def test_the_largest_reports_fit_and_say_what_they_left_out() -> None:
    made = check(enormous("huge"), WRITING)
    assert size(made.text) <= 65_535
    assert size(made.summary) <= 65_535
    assert len(made.title) <= 200
    assert "more left out" in made.text
    html(made.text)
    views = [enormous(f"job-{n:02}{'n' * 94}") for n in range(100)]
    views[7] = done(Outcome.CODE, job("red"), log_tail=("🔥" * 200 + "\n") * 100)
    text = comment(ABOUT, views, WRITING)
    assert size(text) <= 65_536
    assert "job-00" in text
    assert text.endswith("edit this comment in place</sub>")
    small = comment(
        ABOUT, [done(Outcome.PERF, job(perf=True), kpis=tuple(kpi(f"k{n}") for n in range(150)))], WRITING
    )
    assert "left out" not in small
    assert "`k149`" in small
