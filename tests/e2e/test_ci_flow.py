"""CI from a comment to its report, with a real runner's process over HTTP, on the local forge."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.checkouts import Repo
from tests.kit.ci_service import NAME, CiService

PHRASE = "lgtm ready to ci"
ANSWERS = {
    "provenance": {"suite": "cpu", "arch": "cpu", "dtype": "float32", "torch": "1"},
    "cases": {"greedy": [{"ids": [1, 2], "text": "ab", "logprobs": [-0.5, -0.25]}]},
}
SMOKE = """
import json, os, sys, time
answers = json.load(open("goldens/cpu.json"))
exec(open("model.py").read())
print("serving", flush=True)
json.dump(answers, open(os.environ["OUT"] + "/cpu.json", "w"))
"""
POLICY = """\
ci:
  mode: runner
  jobs:
    - name: smoke
      paths: ["*.py"]
      steps: [{name: smoke, argv: [python3, smoke.py], timeout: 60}]
      goldens: [{output: cpu.json, kept: goldens/cpu.json, tolerances: {logprobs: {absolute: 1.0e-3}}}]
    - name: docs
      paths: ["docs/**"]
      steps: [{name: build, argv: ["true"], timeout: 10}]
"""


def make_repo(folder: Path, policy: str = POLICY, model: str = "pass") -> Repo:
    repo = Repo(folder)
    files = {
        ".whitesmoke.yml": policy,
        "smoke.py": SMOKE,
        "model.py": "pass\n",
        "goldens/cpu.json": json.dumps(ANSWERS),
        "docs/index.md": "Words.\n",
    }
    repo.commit(dict(files), "base")
    repo.git("checkout", "--quiet", "-b", "pull")
    repo.commit({"model.py": f"{model}\n# changed\n"}, "change")
    repo.git("checkout", "--quiet", "main")
    return repo


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CiService]:
    options = {"policy": POLICY, "model": "pass"} | dict(getattr(request, "param", {}))
    repo = make_repo(tmp_path / "repo", **options)
    with CiService(tmp_path, repo).up() as service:
        yield service


def ended(service: CiService, number: int) -> bool:
    found = service.jobs(number)
    return bool(found) and all(job.outcome for job in found)


def test_a_comment_starts_the_jobs_whose_paths_changed_and_the_report_says_how_they_ended(
    service: CiService,
) -> None:
    number = service.open("pull")
    with service.runner():
        service.say(number, "owner", PHRASE)
        service.wait(lambda: ended(service, number), "the job did not end")
        service.wait(lambda: "**passed**" in service.report(number), "no report")
    (job,) = service.jobs(number)
    assert (job.name, job.outcome, job.attempt) == ("smoke", "passed", 1)
    service.wait(lambda: service.conclusion(number, "smoke") == "success", "no check")
    checks = service.checks(number)
    skipped = checks["whitesmoke/ci/docs"]
    assert (skipped.conclusion, "no matching paths" in skipped.title + skipped.summary) == ("success", True)
    report = service.report(number)
    assert "compare diff count: 0" in report
    assert "owner said" in report
    assert len([body for body in service.said(number) if body.startswith("<!-- whitesmoke:ci ")]) == 1


@pytest.mark.parametrize("service", [{"model": "answers['cases']['greedy'][0]['ids'][1] = 3"}], indirect=True)
def test_another_answer_than_the_base_kept_fails_and_is_named(service: CiService) -> None:
    number = service.open("pull")
    with service.runner():
        service.review(number, "owner", "APPROVE")
        service.wait(lambda: ended(service, number), "the job did not end")
        service.wait(lambda: "golden" in service.report(number), "no report")
    (job,) = service.jobs(number)
    assert job.outcome == "golden"
    check = service.checks(number)["whitesmoke/ci/smoke"]
    assert check.conclusion == "failure"
    assert "compare diff count: 1" in check.title + check.summary + check.text
    assert [button.identifier for button in check.buttons] == ["ci:rebaseline"]


def test_a_command_that_names_jobs_starts_those_whatever_changed_and_no_others_later(
    service: CiService,
) -> None:
    number = service.open("pull")
    service.say(number, "owner", "/ci run docs")
    service.wait(lambda: service.jobs(number), "no job")
    service.review(number, "mallory", "COMMENT", "Looks odd.")
    service.say(number, "owner", "/ci status")
    service.wait(lambda: any("waits for a machine" in body for body in service.said(number)), "no status")
    service.settle()
    assert [job.name for job in service.jobs(number)] == ["docs"]


def test_words_that_do_not_count_are_answered_and_nothing_runs(service: CiService) -> None:
    number = service.open("pull")
    service.say(number, "owner", "/ci status")
    service.wait(lambda: any("No job" in body for body in service.said(number)), "no status")
    service.say(number, "mallory", PHRASE)
    service.wait(
        lambda: any("mallory has no write permission" in body for body in service.said(number)), "no answer"
    )
    assert service.jobs(number) == []


def test_approval_of_one_head_and_a_push_before_dispatch_runs_nothing_of_either(service: CiService) -> None:
    """CI.md 2 and 3."""
    number = service.open("pull")
    service.review(number, "owner", "APPROVE")
    service.wait(lambda: service.jobs(number), "no job")
    old = service.forge.pull(NAME, number).head_sha
    service.repo.git("checkout", "--quiet", "pull")
    service.repo.commit({"model.py": "raise SystemExit(1)\n"}, "pushed over")
    service.push(number)
    service.wait(lambda: service.conclusion(number, "smoke", old) == "cancelled", "still open")
    with service.runner():
        service.say(number, "owner", "/ci status")
        service.wait(
            lambda: any("No job was asked for" in body for body in service.said(number)), "no status"
        )
        assert service.jobs(number) == []


def test_ten_pushes_have_one_comment(service: CiService) -> None:
    """CI.md 19."""
    number = service.open("pull")
    with service.runner():
        for turn in range(10):
            service.say(number, "owner", PHRASE if turn == 0 else "/ci run")
            service.wait(lambda: service.jobs(number), f"no job for push {turn}")
            service.repo.git("checkout", "--quiet", "pull")
            service.repo.commit({"model.py": f"pass  # {turn}\n"}, f"push {turn}")
            service.push(number)
        service.say(number, "owner", "/ci run")
        service.wait(lambda: ended(service, number), "the last did not end")
        head = service.forge.pull(NAME, number).head_sha[:12]
        service.wait(
            lambda: "**passed**" in service.report(number) and head in service.report(number), "no report"
        )
    assert len([body for body in service.said(number) if body.startswith("<!-- whitesmoke:ci ")]) == 1


SLOW = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize("service", [{"model": SLOW}], indirect=True)
def test_a_command_stops_a_job_that_ignores_the_signal(service: CiService) -> None:
    number = service.open("pull")
    with service.runner():
        service.say(number, "owner", "/ci run smoke")
        service.wait(lambda: [job.state for job in service.jobs(number)] == ["running"], "not running")
        service.say(number, "owner", "/ci cancel")
        service.wait(lambda: ended(service, number), "it was not stopped")
    assert [job.outcome for job in service.jobs(number)] == ["cancelled"]
    service.wait(lambda: service.conclusion(number, "smoke") == "cancelled", "check open")


@pytest.mark.parametrize(
    "service", [{"model": "time.sleep(600 if not os.path.exists('/tmp/x') else 0)"}], indirect=True
)
def test_a_runner_that_is_killed_is_no_fault_of_the_change_and_the_job_runs_elsewhere(
    service: CiService,
) -> None:
    """CI.md 10."""
    number = service.open("pull")
    with service.runner("one") as first:
        service.say(number, "owner", "/ci run")
        service.wait(lambda: [job.state for job in service.jobs(number)] == ["running"], "not running")
        first.send_signal(signal.SIGKILL)
        with service.runner("two"):
            service.wait(lambda: len(service.jobs(number)) == 2, "no second attempt")
            service.wait(
                lambda: service.jobs(number)[1].state == "running", "the second attempt does not run"
            )
            assert service.jobs(number)[0].outcome == "infra"
            service.say(number, "owner", "/ci cancel")
            service.wait(lambda: ended(service, number), "not stopped")
