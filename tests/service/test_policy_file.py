"""The policy file as a whole, and its part on CI."""

import pytest

from ci_dispatch.policy import CiPolicy
from reviewer.errors import ConfigError
from reviewer.report.escape import FORBIDDEN_PHRASES
from service.policy import load_policy

JOB = """\
ci:
  mode: runner
  jobs:
    - name: smoke
      arch: sm90
      gpus: 1
      steps: [{name: smoke, argv: [python3, -m, runtime, smoke], timeout: 60}]
"""


def test_a_job_is_read() -> None:
    (job,) = load_policy(JOB).ci.jobs
    assert (job.name, job.arch, job.gpus) == ("smoke", "sm90", 1)
    assert job.steps[0].argv == ("python3", "-m", "runtime", "smoke")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("gpus: 1", "gpus: 3"), ":6: ci.jobs[0].gpus: expected"),
        (("gpus: 1", "gpus: 0"), "smoke: arch sm90 with 0 gpus; 0 gpus exactly where arch is cpu"),
        (("arch: sm90", "arch: sm91"), ":5: ci.jobs[0].arch: expected"),
        (("name: smoke,", "name: lint,"), ":7: ci.jobs[0].steps[0].name: expected"),
        (("timeout: 60", "timeout: soon"), ":7: ci.jobs[0].steps[0].timeout: expected a number"),
        (("      gpus: 1\n", "      gpus: 1\n      paths: ['!']\n"), "'!' is not a valid glob"),
        (("  mode: runner\n", "  mode: runner\n  gate: {phrase: ' '}\n"), "expected words of letters and digits"),
        (("  mode: runner\n", "  mode: runner\n  gate: {phrase: /ci run}\n"), "expected words of letters"),
        (("  mode: runner\n", "  mode: runner\n  gate: {trusted: ['a b']}\n"), "ci.gate.trusted[0]: expected"),
        (("    - name: smoke\n", "    - name: smoke\n      goldens: [{output: ../x, kept: y}]\n"), "without '..'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_job_is_told(change: tuple[str, str], problem: str) -> None:
    assert change[0] in JOB
    with pytest.raises(ConfigError) as caught:
        load_policy(JOB.replace(*change))
    assert problem in str(caught.value)


def test_two_jobs_of_one_name_are_refused() -> None:
    twice = JOB + JOB.split("jobs:\n")[1].replace("smoke\n", "Smoke\n", 1)
    with pytest.raises(ConfigError, match="two jobs are named smoke"):
        load_policy(twice)


def test_reports_never_say_the_default_phrase() -> None:
    assert (CiPolicy().gate.phrase,) == FORBIDDEN_PHRASES
