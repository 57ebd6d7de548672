"""What a pull request reads about its CI: checks, the comment, the terminal."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import yaml

from ci_dispatch import report
from ci_dispatch.model import (
    Artifact,
    Comparison,
    Golden,
    JobSpec,
    Outcome,
    Step,
)
from ci_dispatch.report import CheckText, JobView, check, comment, terminal
from tests.ci_dispatch.report_kit import (
    ABOUT,
    DIFFERENT,
    HOSTILE,
    KEPT,
    WRITING,
    done,
    hostile,
    job,
    kpi,
    size,
    writing,
)


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
