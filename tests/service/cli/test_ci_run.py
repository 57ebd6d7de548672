"""`whitesmoke ci run --local`: the policy's jobs on this host, from a repository's commits, with their report and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci_dispatch.model import Job, JobResult, JobSpec, Outcome, Step
from ci_dispatch.report_parts import JobView
from service.cli.ci import exit_status
from tests.kit.checkouts import Repo
from tests.service.cli.conftest import Run

POLICY = """\
version: 1
ci:
  mode: runner
  jobs:
    - name: answers
      memory_mb: 512
      disk_mb: 64
      paths: ["app/**"]
      steps:
        - {name: build, argv: [sh, -c, "test -f app/answers.json"], timeout: 60}
        - {name: smoke, argv: [cp, app/answers.json, $OUT/raw.json], timeout: 60}
      goldens:
        - {output: raw.json, kept: golden.json}
    - name: docs
      memory_mb: 512
      paths: ["docs/**"]
      steps:
        - {name: smoke, argv: [sh, -c, "echo checked; exit 4"], timeout: 60}
    - name: on-a-gpu
      paths: ["app/**"]
      arch: sm120
      gpus: 8
      steps:
        - {name: smoke, argv: [nvidia-smi], timeout: 60}
"""


def answers(text: str) -> str:
    origin = {"suite": "s", "arch": "cpu", "dtype": "bf16"}
    return json.dumps({"provenance": origin, "cases": {"one": [{"text": text}]}})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """`main` declares the jobs and their golden; branch `pull`, checked out, changes what they test."""
    repo = Repo(tmp_path / "project")
    repo.commit(
        {".whitesmoke.yml": POLICY, "app/answers.json": answers("old"), "golden.json": answers("old")},
        "start",
    )
    repo.git("switch", "--quiet", "-c", "pull")
    repo.commit({"app/other.py": "x = 1\n"}, "Add")
    monkeypatch.chdir(repo.folder)
    return repo


def test_jobs_that_the_change_concerns_run_and_the_others_are_skipped(run: Run, project: Repo) -> None:
    ran = run("ci", "run", "--local")
    assert ran.status == 0
    assert "1/1" in ran.out
    assert "compare diff count: 0" in ran.out
    assert "docs [cpu]: skipped: no matching paths" in ran.out
    assert "answers: build" in ran.err


def test_a_golden_that_is_not_met_fails_and_names_the_difference(run: Run, project: Repo) -> None:
    project.commit({"app/answers.json": answers("new"), "golden.json": answers("new")}, "Change both")
    ran = run("ci", "run", "--local")
    assert ran.status == 1
    assert "compare diff count: 1" in ran.out
    assert '"old"' in ran.out
    assert '"new"' in ran.out


def test_jobs_are_chosen_by_name_whatever_changed(run: Run, project: Repo) -> None:
    ran = run("ci", "run", "--local", "--job", "docs")
    assert ran.status == 1
    assert "docs [cpu]: code" in ran.out
    assert "status 4" in ran.out
    assert "answers" not in ran.out


def test_all_jobs_run_whatever_changed(run: Run, project: Repo) -> None:
    ran = run("ci", "run", "--local", "--all")
    assert ran.status == 1
    assert "docs [cpu]: code" in ran.out
    assert "answers [cpu]: passed" in ran.out


def test_a_job_asked_for_whose_gpus_are_not_here_is_not_tested(run: Run, project: Repo) -> None:
    ran = run("ci", "run", "--local", "--job", "on-a-gpu")
    assert ran.status == 2
    assert "8 x sm120" in ran.out


def test_logs_artifacts_and_results_are_kept_where_asked(run: Run, project: Repo, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    (out / "docs/artifacts").mkdir(parents=True)
    (out / "docs/artifacts/stale").touch()
    run("ci", "run", "--local", "--all", "--out", out)
    assert json.loads((out / "answers/artifacts/smoke/raw.json").read_text())["cases"]
    assert "checked" in (out / "docs/log.txt").read_text()
    assert not (out / "docs/artifacts/stale").exists()
    result = JobResult.model_validate_json((out / "answers/result.json").read_text())
    assert result.outcome is Outcome.PASSED
    assert result.report.artifacts[0].path == "smoke/raw.json"


def test_what_jobs_print_is_shown_where_asked(run: Run, project: Repo) -> None:
    assert "checked" in run("ci", "run", "--local", "--job", "docs", "--log").err
    assert "\nchecked" not in run("ci", "run", "--local", "--job", "docs").err


def test_the_policy_is_the_base_branchs_unless_a_file_is_named(run: Run, project: Repo) -> None:
    loose = POLICY.replace("exit 4", "exit 0")
    project.commit({".whitesmoke.yml": loose}, "Make it pass")
    assert run("ci", "run", "--local", "--job", "docs").status == 1
    assert run("ci", "run", "--local", "--job", "docs", "--config", ".whitesmoke.yml").status == 0


def test_a_revision_range_is_run_whatever_is_checked_out(run: Run, project: Repo) -> None:
    project.commit({"app/answers.json": answers("new")}, "Change")
    assert run("ci", "run", "--local", "--head", "HEAD~1").status == 0
    assert run("ci", "run", "--local", "--base", "HEAD~1", "--config", ".whitesmoke.yml").status == 1


def test_jobs_run_unconfined_where_asked(run: Run, project: Repo) -> None:
    ran = run("ci", "run", "--local", "--no-sandbox")
    assert ran.status == 0
    assert "sandbox: none" in ran.out


def test_a_name_that_no_job_has_is_an_error_that_lists_them(run: Run, project: Repo) -> None:
    ran = run("ci", "run", "--local", "--job", "nope")
    assert ran.status == 2
    assert "choose of: answers, docs, on-a-gpu" in ran.err


def test_a_policy_without_jobs_is_an_error(run: Run, repo: Repo) -> None:
    ran = run("ci", "run", "--local", "--repo", repo.folder)
    assert ran.status == 2
    assert "declares no CI jobs" in ran.err


def test_without_local_it_says_what_to_do(run: Run, project: Repo) -> None:
    ran = run("ci", "run")
    assert ran.status == 2
    assert "--local" in ran.err


def test_a_job_leaves_no_folder_of_work(run: Run, project: Repo, data: Path) -> None:
    run("ci", "run", "--local")
    assert list((data / "ci/jobs").iterdir()) == []


def view(outcome: Outcome | None, state: str = "done") -> JobView:
    spec = JobSpec(name="a", steps=(Step(name="smoke", argv=("true",), timeout=1),))
    job = Job(repo="r", number=0, head_sha="a", base_sha="b", spec=spec)
    result = JobResult(outcome=outcome, reason="x") if outcome is not None else None
    return JobView(job, state, result)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "waiting", "asked", "status"),
    [
        ([], False, False, 0),
        ([Outcome.PASSED], False, False, 0),
        ([Outcome.PASSED], True, False, 0),
        ([Outcome.PASSED], True, True, 2),
        ([], True, False, 2),
        ([Outcome.PASSED, Outcome.PERF], False, False, 1),
        ([Outcome.TIMED_OUT, Outcome.INFRA], False, False, 1),
        ([Outcome.INFRA, Outcome.PASSED], False, False, 2),
        ([Outcome.HARDWARE], False, False, 2),
        ([Outcome.CANCELLED], False, False, 2),
    ],
)
def test_exit_status(outcomes: list[Outcome], waiting: bool, asked: bool, status: int) -> None:
    views = [view(outcome) for outcome in outcomes] + ([view(None, "waiting")] if waiting else [])
    assert exit_status([*views, view(None, "skipped")], asked) == status
