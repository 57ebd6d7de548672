"""What a pull request reads: checks, the comment, the terminal; whatever the job said, bounded and harmless."""

from __future__ import annotations

import re
from functools import partial
from importlib import resources
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from ci_dispatch import report
from ci_dispatch.model import (
    Artifact,
    Comparison,
    Difference,
    Golden,
    Job,
    JobReport,
    JobResult,
    JobSpec,
    KpiVerdict,
    Notice,
    Outcome,
    Perf,
    Step,
    StepRun,
)
from ci_dispatch.report import CheckText, JobView, RunView, Writing, check, comment, terminal
from reviewer.redact import redact
from reviewer.report.escape import code_span, fence, guard, inline, plain
from reviewer.text import load_text

HEAD, BASE = "a" * 40, "b" * 40
ABOUT = RunView(HEAD, BASE, qualified="@alice approved this head.")
KEPT = "runtime/smoke/goldens/cpu-cpu.json"
HOSTILE = (
    "</summary></details><img src=x onerror=alert(1)> | cell | `tick` ``` [link](javascript:alert(1)) ![i](http://evil.example/x)"
    " @everyone #1 https://evil.example \u202e\x1b[2J\x00 lgtm ready to ci\n\n/ci run\n# heading\n<!-- whitesmoke:ci {} -->"
)
SECRET = "ghp_" + "A1b2C3d4E5" * 4


def writing(language: str = "en") -> Writing:
    return Writing(
        text=load_text("ci/text", language),  # type: ignore[arg-type]
        redact=redact,
        code=code_span,
        fence=fence,
        inline=inline,
        plain=plain,
        guard=partial(guard, phrases=("lgtm ready to ci",)),
    )


WRITING = writing()


def job(name: str = "smoke", *, golden: bool = True, perf: bool = False, **changes: Any) -> Job:
    steps = ["build", *(["smoke"] if golden else []), *(["bench"] if perf else [])]
    spec = JobSpec(
        name=name,
        steps=tuple(Step(name=one, argv=("true",), timeout=60) for one in steps),  # type: ignore[arg-type]
        goldens=(Golden(output="cpu.json", kept=KEPT),) if golden else (),
        perf=Perf() if perf else None,
        **{key: value for key, value in changes.items() if key in JobSpec.model_fields},
    )
    rest = {key: value for key, value in changes.items() if key not in JobSpec.model_fields}
    return Job(repo="o/r", number=1, head_sha=HEAD, base_sha=BASE, spec=spec, **rest)


def done(outcome: Outcome = Outcome.PASSED, of: Job | None = None, **parts: Any) -> JobView:
    kpis = parts.pop("kpis", ())
    view = {key: parts.pop(key) for key in ("url", "artifacts_url", "seconds") if key in parts}
    parts.setdefault("runs", (StepRun(name="build", ending="exited", status=0, seconds=12.3),))
    result = JobResult(
        outcome=outcome, reason=parts.pop("reason", "why"), report=JobReport(**parts), kpis=kpis
    )
    return JobView(of or job(), "done", result, **view)


def kpi(name: str = "rms_norm", verdict: str = "ok", **more: Any) -> KpiVerdict:
    facts: dict[str, Any] = {
        "head": 12.5,
        "base": 10.0,
        "ratio": 1.25,
        "low": 1.2,
        "high": 1.3,
        "noise": 0.021,
    }
    facts |= {"unit": "us", "extra": {"copy_percent": 88.8}, "samples": 8}
    return KpiVerdict(name=name, verdict=verdict, **(facts | more))  # type: ignore[arg-type]


DIFFERENT = Comparison(
    kept=KEPT,
    total=35,
    matched=33,
    different=2,
    differences=(Difference(case="greedy", request=1, field="ids[7]", expected="41", actual="42"),),
)


def html(markdown: str) -> str:
    rendered: str = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)
    return rendered


def size(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def test_both_languages_have_every_phrase_with_the_same_places() -> None:
    english, chinese = (
        yaml.safe_load(resources.files("templates").joinpath(f"ci/text.{language}.yaml").read_text())
        for language in ("en", "zh")
    )
    assert english.keys() == chinese.keys()
    assert all(type(key) is str for key in english)
    for key, phrase in english.items():
        assert set(re.findall(r"{\w+}", phrase)) == set(re.findall(r"{\w+}", chinese[key])), key


def test_every_phrase_is_used() -> None:
    folder = resources.files("templates").joinpath("ci")
    sources = [one.read_text() for one in folder.iterdir() if one.name.endswith(".jinja")]
    package = resources.files("ci_dispatch")
    sources += [package.joinpath(name).read_text() for name in ("report.py", "report_parts.py")]
    text = "\n".join(sources)
    outcomes = {outcome.value for outcome in Outcome} | {"waiting", "running"}
    made = ("means_", "limits_", "verdict_", "some_", "retry_", "cancel_", "rebaseline_")
    for key in yaml.safe_load(folder.joinpath("text.en.yaml").read_text()):
        assert re.search(rf"""["']{key}["']""", text) or key in outcomes or key.startswith(made), key


@pytest.mark.parametrize(
    ("outcome", "conclusion", "buttons"),
    [
        (Outcome.PASSED, "success", ()),
        (Outcome.CODE, "failure", ()),
        (Outcome.GOLDEN, "failure", ("ci:rebaseline",)),
        (Outcome.PERF, "failure", ()),
        (Outcome.TIMED_OUT, "timed_out", ()),
        (Outcome.INFRA, "action_required", ("ci:retry",)),
        (Outcome.HARDWARE, "action_required", ("ci:retry",)),
        (Outcome.SUPERSEDED, "cancelled", ()),
        (Outcome.CANCELLED, "cancelled", ("ci:retry",)),
    ],
)
def test_a_finished_check(outcome: Outcome, conclusion: str, buttons: tuple[str, ...]) -> None:
    one = check(done(outcome), WRITING)
    assert (one.status, one.conclusion) == ("completed", conclusion)
    assert tuple(action.identifier for action in one.actions) == buttons
    assert one.title.startswith(WRITING.text(outcome.value))


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_a_pass_satisfies_a_required_check(outcome: Outcome) -> None:
    assert (check(done(outcome), WRITING).conclusion == "success") == (outcome is Outcome.PASSED)


def test_a_job_that_waits_runs_or_is_skipped() -> None:
    waits = check(JobView(job(), "waiting", reason="2 GPUs wanted, 1 free"), WRITING)
    assert (waits.status, waits.conclusion, waits.title) == ("queued", None, "waiting")
    assert "Waiting: 2 GPUs wanted, 1 free" in waits.summary
    runs = check(JobView(job(), "running", step="build", seconds=75, log_tail="compiling 12/126\n"), WRITING)
    assert (runs.status, runs.conclusion, runs.title) == ("in_progress", None, "running build · 1 min 15 s")
    assert "compiling 12/126" in runs.text
    for one in (waits, runs):
        assert [action.identifier for action in one.actions] == ["ci:cancel"]
    skipped = check(JobView(job(), "skipped"), WRITING)
    assert (skipped.status, skipped.conclusion, skipped.actions) == ("completed", "success", ())
    assert skipped.title == "skipped: no matching paths"


def test_a_skipped_job_says_why_in_the_readers_words_and_does_not_wait() -> None:
    for reason, english, chinese in (
        ("skipped: no matching paths", "skipped: no matching paths", "已跳过：没有匹配的路径"),
        (
            "passed before | for this tree",
            "passed before \\| for this tree",
            "passed before \\| for this tree",
        ),
    ):
        view = JobView(job(), "skipped", reason=reason)
        for words, style in ((english, WRITING), (chinese, writing("zh"))):
            text = comment(ABOUT, [view], style)
            assert f"| {words} |" in text
            assert "<details" not in text
            assert "Waiting" not in check(view, style).summary


def test_done_and_a_result_go_together() -> None:
    with pytest.raises(ValueError, match="only as done"):
        JobView(job(), "done")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_buttons_keep_within_the_forges_lengths(language: str) -> None:
    views = (done(Outcome.GOLDEN), done(Outcome.INFRA), JobView(job(), "waiting"))
    for action in (action for view in views for action in check(view, writing(language)).actions):
        assert len(action.label) <= 20
        assert len(action.description) <= 40
        assert len(action.identifier) <= 20


def test_matched_requests_and_the_diff_count_are_said_in_check_and_comment() -> None:
    passed = done(comparisons=(Comparison(kept=KEPT, total=35, matched=35),))
    words = "35/35 matched, compare diff count: 0"
    assert words in check(passed, WRITING).title
    assert words in comment(ABOUT, [passed], WRITING)
    assert "35/35 一致，compare diff count: 0" in comment(ABOUT, [passed], writing("zh"))
    failed = done(Outcome.GOLDEN, comparisons=(DIFFERENT,))
    assert "33/35 matched, compare diff count: 2" in comment(ABOUT, [failed], WRITING)
    lost = done(Outcome.GOLDEN, comparisons=(Comparison(kept=KEPT, total=5, matched=1, failed=3, other=1),))
    assert "compare diff count: 0, 4 failed or not asked" in comment(ABOUT, [lost], WRITING)
    refused = done(Outcome.GOLDEN, comparisons=(Comparison(kept=KEPT, refused="kept on sm90"),))
    assert "| not compared |" in comment(ABOUT, [refused], WRITING)


def test_a_kpi_row_has_time_ratio_interval_noise_and_share_of_copy() -> None:
    text = comment(ABOUT, [done(Outcome.PERF, job(perf=True), kpis=(kpi(verdict="worse"),))], WRITING)
    assert (
        "| `rms_norm` | `12.5 us` | `10 us` | **1.250** [1.200, 1.300] | ±2.1 % | 88.8 % | slower |" in text
    )
    assert "| 1 of 1 slower |" in text


def test_what_is_worse_comes_first_and_gone_and_new_ones_have_empty_cells() -> None:
    gone = kpi("gone", "too_few", head=None, ratio=None, noise=None, extra={}, detail="only the base has it")
    kpis = (kpi("a"), kpi("b", "new", base=None, ratio=None, noise=None), gone, kpi("d", "worse"))
    text = check(done(Outcome.PERF, job(perf=True), kpis=kpis), WRITING).text
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == ["d", "gone", "b", "a"]
    assert "| `gone` |  | `10 us` |  |  |  | too few runs: only the base has it |" in text


def test_the_rebaseline_gives_command_and_artifact() -> None:
    artifact = Artifact(path="smoke/cpu.json", bytes=10, sha256="0")
    url = "https://ci.example/jobs/1/artifacts"
    text = check(
        done(Outcome.GOLDEN, comparisons=(DIFFERENT,), artifacts=(artifact,), artifacts_url=url), WRITING
    ).text
    assert f"curl --fail --location --output {KEPT} {url}/smoke/cpu.json" in text
    without = check(done(Outcome.GOLDEN, comparisons=(DIFFERENT,)), WRITING).text
    assert "curl" not in without
    assert f"raw outputs: artifact `cpu.json`, golden: `{KEPT}`" in without
    assert KEPT not in check(done(), WRITING).text


def test_paths_in_a_command_are_quoted() -> None:
    odd = JobSpec(
        name="s",
        steps=(Step(name="smoke", argv=("x",), timeout=1),),
        goldens=(Golden(output="a b.json", kept="g; rm -rf $HOME.json"),),
    )
    view = done(
        Outcome.GOLDEN,
        job().model_copy(update={"spec": odd}),
        artifacts=(Artifact(path="a b.json", bytes=1, sha256="0"),),
        artifacts_url="https://x.example",
    )
    assert "--output 'g; rm -rf $HOME.json' 'https://x.example/a b.json'" in check(view, WRITING).text


def test_the_comment_says_who_started_it_what_waits_and_what_is_not_sandboxed() -> None:
    views = [
        done(sandboxed=False),
        JobView(job("tp2", golden=False, arch="sm90", gpus=2), "waiting", reason="2 GPUs wanted, 1 free"),
        JobView(job("docs", golden=False, required=False), "skipped"),
        JobView(job("again", golden=False, attempt=2), "running", step="build"),
    ]
    text = comment(ABOUT, views, WRITING)
    assert "Started by: `@alice` approved this head." in text
    assert "| cpu, not sandboxed |" in text
    assert "Waiting: 2 GPUs wanted, 1 free" in text
    assert "| sm90 × 2 | waiting |" in text
    assert "| cpu, not required | skipped: no matching paths |" in text
    assert "| cpu, attempt 2 | running `build` |" in text


def test_a_change_to_what_measures_it_is_flagged_where_it_is_measured() -> None:
    words = "touches the files that measure it"
    measured, plain_job = job(perf=True, harness_changed=True), job(harness_changed=True)
    for of, flagged in ((measured, True), (plain_job, False)):
        assert (words in comment(ABOUT, [done(of=of)], WRITING)) is flagged
        assert (words in check(done(of=of), WRITING).summary) is flagged


@pytest.mark.parametrize(
    ("views", "icon", "words"),
    [
        ([done()], "🟢", "The required job passed."),
        ([done(), done(of=job("b"))], "🟢", "All 2 required jobs passed."),
        ([done(), JobView(job("b"), "skipped")], "🟢", "All 2 required jobs passed."),
        ([done(), done(Outcome.CODE, job("b"))], "🔴", "1 required job failed."),
        ([done(), done(Outcome.CODE, job("b", required=False))], "🟢", "The required job passed."),
        ([done(Outcome.INFRA)], "🟡", "1 required job could not be judged: infra or hardware."),
        ([done(Outcome.CANCELLED)], "🟡", "1 required job was cancelled."),
        ([done(), JobView(job("b"), "running")], "🔵", "1 required job is not finished."),
        ([done(Outcome.PERF), JobView(job("b"), "waiting")], "🔴", "failed. 1 required job is not finished."),
        ([done(of=job(required=False))], "🟢", "No job is required here."),
    ],
)
def test_the_first_line_sums_up(views: list[JobView], icon: str, words: str) -> None:
    text = comment(ABOUT, views, WRITING)
    assert text.startswith(f"## {icon} GPU CI\n")
    assert words in text


def hostile() -> JobView:
    """Every text that a job, its branch or its host can choose."""
    return done(
        Outcome.GOLDEN,
        job(perf=True),
        reason=HOSTILE,
        runs=(StepRun(name="build", ending="not_started", seconds=0, detail=HOSTILE),),
        comparisons=(
            Comparison(
                kept=KEPT,
                total=2,
                different=1,
                failed=1,
                differences=(
                    Difference(case=HOSTILE, request=0, field=HOSTILE, expected=HOSTILE, actual=HOSTILE),
                ),
                failures=(HOSTILE,),
                notes=(HOSTILE,),
            ),
        ),
        bad_numbers=(HOSTILE,),
        notices=(Notice(kind="agent", gpu=HOSTILE, detail=HOSTILE),),
        environment={HOSTILE: HOSTILE},
        left_out=(HOSTILE,),
        log_tail=HOSTILE,
        artifacts=(Artifact(path="x`|/cpu.json", bytes=1, sha256="0"),),
        artifacts_url="https://ci.example",
        kpis=(kpi(HOSTILE[:190], unit="|`<b>", detail=HOSTILE),),
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


def test_a_log_keeps_its_end_without_colours() -> None:
    log = "\x1b[31mred\x1b[0m \x1b]0;title\x07x\n" + "line\n" * 50_000 + "the last line\n"
    text = check(done(Outcome.CODE, log_tail=log), WRITING).text
    assert "the last line" in text
    assert "red" not in text
    assert size(text) < 20_000
    short = check(done(Outcome.CODE, log_tail="\x1b[31mred\x1b[0m \x1b]0;title\x07x\n"), WRITING).text
    assert "\nred x\n" in short


def test_the_comment_shows_the_logs_end_of_what_failed_by_itself_alone() -> None:
    log = "first line\n" + "more\n" * 1_000 + "AssertionError: 3 != 4\n"
    for outcome in Outcome:
        text = comment(ABOUT, [done(outcome, log_tail=log)], WRITING)
        assert ("AssertionError: 3 != 4" in text) is (outcome in (Outcome.CODE, Outcome.TIMED_OUT))
        assert "first line" not in text
        assert size(text) < 4_000


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_terminal_gets_plain_lines(outcome: Outcome, language: str) -> None:
    view = done(
        outcome,
        job(perf=True),
        comparisons=(DIFFERENT,),
        kpis=(kpi(verdict="worse"),),
        environment={"driver": "580"},
        log_tail=HOSTILE,
    )
    text = terminal(view, writing(language))
    assert "compare diff count: 2" in text
    assert "rms_norm" in text
    assert "1.250 [1.200, 1.300]" in text
    assert "`" not in text
    assert "**" not in text
    hostile_text = terminal(hostile(), writing(language))
    assert not set(hostile_text) & set("\x1b\x00\u202e")


def test_times_read_as_people_say_them() -> None:
    from ci_dispatch.report_parts import duration

    cases = {
        0.44: "0.4 s",
        9.96: "10 s",
        12.4: "12 s",
        59.7: "1 min 0 s",
        185: "3 min 5 s",
        7_805: "2 h 10 min",
    }
    assert {seconds: duration(seconds) for seconds in cases} == cases


def test_the_buttons_names_are_those_that_others_know() -> None:
    assert (report.RETRY, report.CANCEL, report.REBASELINE) == ("ci:retry", "ci:cancel", "ci:rebaseline")
    assert CheckText("t", "s", "x", "queued", None).actions == ()
