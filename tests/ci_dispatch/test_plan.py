"""Which jobs run for a commit that qualified, and which report without running."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ci_dispatch.model import Golden, JobSpec, Outcome, Perf
from ci_dispatch.plan import NO_PATHS, plan
from reviewer.globs import matches
from tests.ci_dispatch.jobs_kit import BENCH, SMOKE, attempt, change, host, policy, spec

KERNELS = spec("kernels", paths=("kernels/**",), arch="sm90", gpus=1)
RUNTIME = spec("runtime", paths=("runtime/**", "!runtime/**/*.md"), arch="sm90", gpus=2)
LINT = spec("lint")
ALL = policy(KERNELS, RUNTIME, LINT)


def names(planned: object) -> list[str]:
    return [job.spec.name for job in planned.jobs]  # type: ignore[attr-defined]


class TestPaths:
    def test_only_jobs_whose_paths_changed_run(self) -> None:
        planned = plan(ALL, change("kernels/rope.py"), matches)
        assert names(planned) == ["kernels", "lint"]
        assert [one.name for one in planned.skipped] == ["runtime"]

    def test_a_docs_only_pull_request_gets_its_required_checks(self) -> None:
        wanted = policy(KERNELS, spec("optional", paths=("kernels/**",), required=False))
        planned = plan(wanted, change("docs/index.md"), matches)
        assert planned.jobs == ()
        assert [(one.name, one.required, one.reason) for one in planned.skipped] == [
            ("kernels", True, NO_PATHS),
            ("optional", False, NO_PATHS),
        ]
        assert planned.successes == (("kernels", NO_PATHS), ("optional", NO_PATHS))

    def test_a_glob_that_excludes_excludes(self) -> None:
        assert names(plan(ALL, change("runtime/docs/a.md"), matches)) == ["lint"]
        assert names(plan(ALL, change("runtime/docs/a.md", "runtime/a.py"), matches)) == ["runtime", "lint"]

    def test_where_nobody_knows_what_changed_every_job_runs(self) -> None:
        assert names(plan(ALL, change(paths=None), matches)) == ["kernels", "runtime", "lint"]

    def test_a_change_of_nothing_runs_nothing(self) -> None:
        assert plan(ALL, change(), matches).jobs == ()


class TestJobs:
    def test_a_job_carries_whose_it_is_and_what_it_tests(self) -> None:
        (job,) = plan(policy(LINT), change("a", author="eve", trusted=False), matches).jobs
        assert (job.author, job.trusted, job.attempt, job.spec) == ("eve", False, 1, LINT)
        assert job.key == "o/r/7/head/base/lint/cpu/0/1"

    @pytest.mark.parametrize(
        ("paths", "flagged"),
        [(("src/a.py",), False), (("src/a.py", "bench/run.py"), True), (None, True)],
    )
    def test_a_change_to_what_measures_it_is_flagged(
        self, paths: tuple[str, ...] | None, flagged: bool
    ) -> None:
        wanted = policy(spec("perf", steps=BENCH, perf=Perf(harness=("bench/**",))))
        (job,) = plan(wanted, change(paths=paths), matches).jobs
        assert job.harness_changed is flagged

    def test_a_job_without_a_harness_is_never_flagged(self) -> None:
        wanted = policy(LINT, spec("perf", steps=BENCH, perf=Perf()))
        assert [job.harness_changed for job in plan(wanted, change("bench/a"), matches).jobs] == [
            False,
            False,
        ]


class TestNobodyOffersIt:
    @pytest.mark.parametrize(
        ("wanted", "hosts", "trusted", "said"),
        [
            (spec("j", arch="sm90", gpus=8), [host("sm90", 4)], True, "8 x sm90 on one host; the most is 4"),
            (spec("j", arch="sm90", gpus=8), [host("sm90", 4), host("sm90", 4)], True, "the most is 4"),
            (spec("j", arch="sm90", gpus=4), [host("sm90", 4, broken=1)], True, "the most is 3"),
            (
                spec("j", arch="sm120", gpus=1),
                [host("sm90", 8)],
                True,
                "no runner offers 1 x sm120 on one host",
            ),
            (spec("j", arch="sm90", gpus=1), [], True, "no runner offers 1 x sm90"),
            (spec("j", arch="sm90", gpus=1), [host("sm90", 8, sandbox=False)], False, "in a sandbox"),
            (spec("j"), [host("sm90", 8, slots=0)], True, "a slot for jobs without a GPU"),
        ],
    )
    def test_it_is_named_at_once_and_waits_all_the_same(
        self, wanted: JobSpec, hosts: list, trusted: bool, said: str
    ) -> None:
        planned = plan(policy(wanted), change("a", trusted=trusted), matches, hosts)
        assert names(planned) == ["j"]
        (lack,) = planned.lacking
        assert lack.name == "j"
        assert said in lack.reason

    @pytest.mark.parametrize(
        ("wanted", "hosts", "trusted"),
        [
            (spec("j", arch="sm90", gpus=8), [host("sm90", 4), host("sm90", 8)], True),
            (spec("j", arch="sm90", gpus=1), [host("sm90", 8, sandbox=False)], True),
            (spec("j", arch="sm90", gpus=1), [host("sm90", 1, sandbox=False), host("sm90", 1)], False),
            (spec("j"), [host("sm90", 8)], True),
        ],
    )
    def test_what_some_runner_offers_is_not_named(self, wanted: JobSpec, hosts: list, trusted: bool) -> None:
        assert plan(policy(wanted), change("a", trusted=trusted), matches, hosts).lacking == ()

    def test_three_gpus_are_no_job(self) -> None:
        with pytest.raises(ValidationError, match="gpus"):
            spec("j", arch="sm90", gpus=3)


class TestEarlierAttempts:
    @pytest.mark.parametrize("outcome", [None, *(o for o in Outcome if o is not Outcome.SUPERSEDED)])
    def test_a_job_of_this_commit_stands(self, outcome: Outcome | None) -> None:
        planned = plan(policy(LINT), change("a"), matches, history=[attempt(LINT, outcome)])
        assert planned.jobs == ()
        (standing,) = planned.standing
        assert (standing.name, standing.outcome, standing.key) == (
            "lint",
            outcome,
            "o/r/7/head/base/lint/cpu/0/1",
        )

    def test_a_head_that_came_back_gets_its_jobs_again(self) -> None:
        history = [attempt(LINT, Outcome.INFRA, 1), attempt(LINT, Outcome.SUPERSEDED, 2)]
        (job,) = plan(policy(LINT), change("a"), matches, history=history).jobs
        assert job.attempt == 3

    def test_the_newest_attempt_counts_whatever_the_order(self) -> None:
        history = [attempt(LINT, None, 2), attempt(LINT, Outcome.SUPERSEDED, 1)]
        assert plan(policy(LINT), change("a"), matches, history=history).jobs == ()

    @pytest.mark.parametrize(
        "changed", [{"head_sha": "other"}, {"base_sha": "other"}, {"number": 8}, {"repo": "o/s"}]
    )
    def test_another_commits_attempt_does_not_stand(self, changed: dict) -> None:
        history = [attempt(LINT, Outcome.CODE, 4, **changed)]
        (job,) = plan(policy(LINT), change("a"), matches, history=history).jobs
        assert job.attempt == 1


class TestSameTree:
    def test_what_passed_for_the_same_files_is_not_run_again_and_is_named(self) -> None:
        earlier = attempt(LINT, Outcome.PASSED, head_sha="earlier", number=9)
        planned = plan(policy(LINT), change("a"), matches, history=[earlier])
        assert planned.jobs == ()
        (reused,) = planned.reused
        assert (reused.name, reused.required, reused.key) == ("lint", True, earlier.job.key)
        assert earlier.job.key in reused.reason
        assert planned.successes == (("lint", reused.reason),)

    @pytest.mark.parametrize("outcome", [None, *(o for o in Outcome if o is not Outcome.PASSED)])
    def test_only_a_pass_is_reused(self, outcome: Outcome | None) -> None:
        earlier = attempt(LINT, outcome, head_sha="earlier")
        assert names(plan(policy(LINT), change("a"), matches, history=[earlier])) == ["lint"]

    def test_other_files_other_declaration_or_no_tree_run(self) -> None:
        passed = Outcome.PASSED
        for earlier in (
            attempt(LINT, passed, tree="other", head_sha="earlier"),
            attempt(spec("lint", running_minutes=3), passed, head_sha="earlier"),
            attempt(LINT, passed, head_sha="earlier", repo="o/s"),
        ):
            assert names(plan(policy(LINT), change("a"), matches, history=[earlier])) == ["lint"]
        earlier = attempt(LINT, passed, tree="", head_sha="earlier")
        assert names(plan(policy(LINT), change("a", tested_tree=""), matches, history=[earlier])) == ["lint"]

    @pytest.mark.parametrize(
        "beside_base",
        [
            spec("j", steps=BENCH, perf=Perf()),
            spec("j", steps=SMOKE, goldens=(Golden(output="o.json", kept="k.json"),)),
        ],
    )
    def test_a_comparison_with_another_base_is_made_anew(self, beside_base: JobSpec) -> None:
        wanted = policy(beside_base)
        for base, runs in (("other", ["j"]), ("base", [])):
            earlier = attempt(beside_base, Outcome.PASSED, head_sha="earlier", base_sha=base)
            assert names(plan(wanted, change("a"), matches, history=[earlier])) == runs

    def test_a_forks_pass_counts_for_forks_alone(self) -> None:
        earlier = attempt(LINT, Outcome.PASSED, head_sha="earlier", trusted=False)
        for trusted, runs in ((True, ["lint"]), (False, [])):
            found = plan(policy(LINT), change("a", trusted=trusted), matches, history=[earlier])
            assert names(found) == runs


@given(
    st.lists(st.sampled_from(["kernels/a.py", "runtime/b.py", "runtime/c.md", "docs/d.md"])),
    st.lists(st.tuples(st.sampled_from([KERNELS, RUNTIME, LINT]), st.sampled_from([None, *Outcome]))),
    st.booleans(),
)
def test_every_job_of_the_policy_is_planned_exactly_once(paths: list, before: list, same_head: bool) -> None:
    head = {} if same_head else {"head_sha": "earlier"}
    history = [attempt(one, outcome, number, **head) for number, (one, outcome) in enumerate(before, 1)]
    planned = plan(ALL, change(*paths), matches, history=history)
    found = names(planned) + [
        one.name for part in (planned.skipped, planned.reused, planned.standing) for one in part
    ]
    assert sorted(found) == ["kernels", "lint", "runtime"]
    assert not {job.key for job in planned.jobs} & {one.job.key for one in history}
