"""Jobs that run again: by themselves after a fault of the fleet, or on `/ci run` and `/ci retry`."""

from __future__ import annotations

import pytest

from ci_dispatch.model import Outcome
from ci_dispatch.rerun import Left, retry, retry_again, run_again
from reviewer.globs import matches
from tests.ci_dispatch.jobs_kit import attempt, change, ended, host, policy, spec

KERNELS = spec("kernels-sm90", paths=("kernels/**",), arch="sm90", gpus=1)
SMOKE = spec("runtime-smoke", paths=("runtime/**",))
LINT = spec("Lint", retries=1)
ALL = policy(KERNELS, SMOKE, LINT)
FATE = (Outcome.INFRA, Outcome.HARDWARE)


class TestNextAttempt:
    @pytest.mark.parametrize("outcome", FATE)
    def test_a_fault_of_the_fleet_is_tried_again_up_to_the_cap(self, outcome: Outcome) -> None:
        first = attempt(SMOKE, outcome)
        second = retry(first.job, ended(outcome), [first])
        assert second is not None
        assert second == first.job.model_copy(update={"attempt": 2})
        before = [first, attempt(SMOKE, outcome, 2)]
        third = retry(second, ended(outcome), before)
        assert third is not None
        assert third.attempt == 3
        assert retry(third, ended(outcome), [*before, attempt(SMOKE, outcome, 3)]) is None

    def test_the_job_itself_need_not_be_in_the_history(self) -> None:
        job = attempt(LINT, None).job
        assert retry(job, ended(Outcome.INFRA), []) is not None
        assert retry(job, ended(Outcome.INFRA), [attempt(LINT, None)]) is not None
        assert retry(attempt(LINT, None, 2).job, ended(Outcome.INFRA), [attempt(LINT, Outcome.INFRA)]) is None

    @pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome not in FATE])
    def test_what_the_change_did_or_people_decided_is_never_tried_again(self, outcome: Outcome) -> None:
        assert retry(attempt(SMOKE, outcome).job, ended(outcome), []) is None

    def test_no_runner_in_time_is_not_waited_for_once_more(self) -> None:
        assert retry(attempt(SMOKE, None).job, ended(Outcome.INFRA, "no_runner"), []) is None
        assert retry(attempt(SMOKE, None).job, ended(Outcome.INFRA, "lost"), []) is not None

    def test_where_somebody_was_faster_there_is_no_second_one(self) -> None:
        later = attempt(SMOKE, None, 2)
        assert retry(attempt(SMOKE, None).job, ended(Outcome.INFRA), [later]) is None

    def test_other_commits_and_jobs_do_not_count(self) -> None:
        others = [
            attempt(LINT, Outcome.INFRA, 3, head_sha="other"),
            attempt(LINT, Outcome.INFRA, 3, base_sha="other"),
            attempt(LINT, Outcome.INFRA, 3, number=8),
            attempt(SMOKE, Outcome.INFRA, 3),
        ]
        assert retry(attempt(LINT, None).job, ended(Outcome.INFRA), others) is not None

    def test_an_attempt_that_a_person_asked_for_is_not_doubled_beyond_the_cap(self) -> None:
        history = [attempt(LINT, Outcome.INFRA), attempt(LINT, Outcome.INFRA, 2)]
        assert retry(attempt(LINT, None, 3).job, ended(Outcome.INFRA), history) is None

    def test_a_job_without_retries_has_none(self) -> None:
        assert retry(attempt(spec("j", retries=0), None).job, ended(Outcome.INFRA), []) is None


class TestRun:
    def test_named_jobs_run_whatever_changed_and_however_they_ended(self) -> None:
        for outcome in (None, *Outcome):
            history = [] if outcome is None else [attempt(SMOKE, outcome)]
            answer = run_again(ALL, change("docs/a"), ["runtime-smoke"], matches, history)
            assert [(job.spec.name, job.attempt) for job in answer.jobs] == [
                ("runtime-smoke", len(history) + 1)
            ]
            assert [(one.name, one.after) for one in answer.started] == [("runtime-smoke", outcome)]

    def test_an_open_job_is_not_started_twice(self) -> None:
        answer = run_again(ALL, change("a"), ["lint"], matches, [attempt(LINT, None)])
        assert answer.jobs == ()
        assert [one.why for one in answer.left] == [Left.OPEN]
        assert answer.left[0].sentence == "Lint waits or runs already"

    def test_names_are_known_in_any_case_and_count_once(self) -> None:
        answer = run_again(ALL, change("a"), ["LINT", "lint"], matches, [])
        assert [job.spec.name for job in answer.jobs] == ["Lint"]

    def test_an_unknown_name_is_answered_with_close_ones_and_the_known_ones_run(self) -> None:
        answer = run_again(ALL, change("a"), ["lint", "kernel-sm90", "zzz"], matches, [])
        assert [job.spec.name for job in answer.jobs] == ["Lint"]
        near, far = answer.unknown
        assert near.close == ("kernels-sm90",)
        assert near.sentence == "no job is named kernel-sm90; did you mean kernels-sm90?"
        assert far.sentence == "no job is named zzz; there are kernels-sm90, runtime-smoke, Lint"

    def test_without_names_those_run_whose_paths_changed_and_that_have_not_passed(self) -> None:
        answer = run_again(ALL, change("runtime/a"), [], matches, [attempt(LINT, Outcome.PASSED)])
        assert [job.spec.name for job in answer.jobs] == ["runtime-smoke"]
        assert {one.name: one.why for one in answer.left} == {
            "kernels-sm90": Left.NO_PATHS,
            "Lint": Left.PASSED,
        }

    @pytest.mark.parametrize(
        "outcome", [Outcome.CODE, Outcome.GOLDEN, Outcome.PERF, Outcome.TIMED_OUT, *FATE]
    )
    def test_without_names_what_failed_runs_again(self, outcome: Outcome) -> None:
        answer = run_again(policy(LINT), change("a"), [], matches, [attempt(LINT, outcome)])
        assert [job.attempt for job in answer.jobs] == [2]

    def test_what_passed_for_the_same_files_has_passed(self) -> None:
        earlier = [attempt(LINT, Outcome.PASSED, head_sha="earlier")]
        assert run_again(policy(LINT), change("a"), [], matches, earlier).left[0].why is Left.PASSED
        assert [
            job.attempt for job in run_again(policy(LINT), change("a"), ["lint"], matches, earlier).jobs
        ] == [1]

    def test_what_no_runner_offers_is_said(self) -> None:
        answer = run_again(ALL, change("a"), ["kernels-sm90"], matches, [], [host("sm120", 8)])
        assert [one.name for one in answer.lacking] == ["kernels-sm90"]


class TestRetry:
    @pytest.mark.parametrize("outcome", [*FATE, Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.SUPERSEDED])
    def test_what_was_not_the_changes_doing_runs_again(self, outcome: Outcome) -> None:
        answer = retry_again(policy(LINT), change("a"), matches, [attempt(LINT, outcome, 3)])
        assert [job.attempt for job in answer.jobs] == [4]
        assert [(one.name, one.after) for one in answer.started] == [("Lint", outcome)]
        assert answer.left == ()

    @pytest.mark.parametrize("outcome", [Outcome.CODE, Outcome.GOLDEN, Outcome.PERF])
    def test_what_the_change_did_is_left_and_said(self, outcome: Outcome) -> None:
        answer = retry_again(policy(LINT), change("a"), matches, [attempt(LINT, outcome)])
        assert answer.jobs == ()
        (left,) = answer.left
        assert (left.why, left.outcome) == (Left.BY_ITSELF, outcome)
        assert outcome.value in left.sentence
        assert "`/ci run Lint`" in left.sentence

    def test_the_rest_is_left_with_its_reason(self) -> None:
        history = [attempt(LINT, None)]
        answer = retry_again(ALL, change("runtime/a"), matches, history)
        assert answer.jobs == ()
        assert {one.name: one.why for one in answer.left} == {
            "kernels-sm90": Left.NO_PATHS,
            "runtime-smoke": Left.NEVER_RAN,
            "Lint": Left.OPEN,
        }
        reused = [attempt(SMOKE, Outcome.PASSED, head_sha="earlier"), attempt(LINT, Outcome.PASSED)]
        left = retry_again(ALL, change("runtime/a"), matches, reused).left
        assert [one.why for one in left] == [Left.NO_PATHS, Left.PASSED, Left.PASSED]

    def test_only_the_newest_attempt_counts(self) -> None:
        history = [attempt(LINT, Outcome.CODE, 2), attempt(LINT, Outcome.INFRA, 1)]
        assert retry_again(policy(LINT), change("a"), matches, history).jobs == ()
