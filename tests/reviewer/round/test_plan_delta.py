"""What a round reads: deltas over real git histories, shards at hunk borders, and what is listed instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from reviewer.checkout.snapshot import GitCheckout, open_range
from reviewer.plan import FileMark, Plan, make_plan, mark
from reviewer.policy import ReviewPolicy
from reviewer.text import load_text
from tests.kit.checkouts import MemoryCheckout, Repo

TEXT = load_text("round/text", "en")
LONG = "".join(f"value_{line} = {line}\n" for line in range(200))


def plan(
    checkout: GitCheckout | MemoryCheckout, marks: dict[str, FileMark] | None = None, **policy: object
) -> Plan:
    return make_plan(checkout.diff, checkout, ReviewPolicy.model_validate(policy), marks or {}, TEXT)


def marks_of(checkout: GitCheckout | MemoryCheckout) -> dict[str, FileMark]:
    return {file.path: mark(file) for file in checkout.diff.files}


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A pull request on branch `pull` that changes the middle of a.py and adds b.py."""
    repo = Repo(tmp_path / "repo")
    repo.commit({"a.py": LONG, "far.py": LONG})
    repo.git("switch", "--quiet", "-c", "pull")
    repo.commit({"a.py": LONG.replace("value_100 = 100", "value_100 = 101"), "b.py": "one = 1\n"})
    return repo


def delta(repo: Repo, marks: dict[str, FileMark]) -> list[str]:
    with open_range(repo.folder, "main", "pull") as checkout:
        return [file.path for file in plan(checkout, marks).delta]


def reviewed(repo: Repo) -> dict[str, FileMark]:
    with open_range(repo.folder, "main", "pull") as checkout:
        return marks_of(checkout)


def rebase(repo: Repo) -> None:
    repo.git("rebase", "--quiet", "main", "pull")


class TestDelta:
    def test_a_rebase_onto_200_base_commits_some_in_the_same_files_adds_none_of_them(
        self, repo: Repo
    ) -> None:
        """REVIEW.md 3. One base commit changes a line within the context of the pull request's hunk."""
        before = reviewed(repo)
        repo.git("switch", "--quiet", "main")
        text = LONG
        for number in range(198):
            repo.commit({f"base/{number % 7}.py": f"x = {number}\n"})
        text = text.replace("value_5 = 5\n", "value_5 = 6\nvalue_5b = 7\n")
        repo.commit({"a.py": text})
        repo.commit({"a.py": text.replace("value_98 = 98", "value_98 = 99")})
        rebase(repo)
        assert delta(repo, before) == []

    def test_an_amend_with_the_same_author_date_is_reviewed_again(self, repo: Repo) -> None:
        """REVIEW.md 2."""
        before = reviewed(repo)
        (repo.folder / "b.py").write_text("one = 2\n")
        repo.git("commit", "--quiet", "--all", "--amend", "--no-edit", "--date=2026-01-01T00:00:00Z")
        assert delta(repo, before) == ["b.py"]

    def test_a_conflict_resolved_while_rebasing_is_reviewed_again(self, repo: Repo) -> None:
        before = reviewed(repo)
        repo.git("switch", "--quiet", "main")
        repo.commit({"a.py": LONG.replace("value_100 = 100", "value_100 = 200")})
        repo.git("switch", "--quiet", "pull")
        repo.git("reset", "--quiet", "--hard", "main")
        repo.commit({"a.py": LONG.replace("value_100 = 100", "value_100 = 201"), "b.py": "one = 1\n"})
        assert delta(repo, before) == ["a.py"]

    def test_a_changed_block_that_moves_between_equal_surroundings_is_reviewed_again(
        self, tmp_path: Path
    ) -> None:
        """Its hunk reads the same at both places: only the blobs tell them apart."""
        block = "try:\n    a()\n    b()\n    c()\n    d()\n    e()\n    f()\nexcept E:\n    pass\n\n\n\n\n"
        base = block * 4
        added = "    check()\n"
        first = block.replace("    c()\n", "    c()\n" + added) + block * 3
        third = block * 2 + block.replace("    c()\n", "    c()\n" + added) + block
        one, two = (
            MemoryCheckout({"x.py": base}, {"x.py": first}),
            MemoryCheckout({"x.py": base}, {"x.py": third}),
        )
        assert one.diff.files[0].digest == two.diff.files[0].digest
        assert [file.path for file in plan(two, marks_of(one)).delta] == ["x.py"]

    def test_a_rename_without_a_change_is_in_the_first_delta_and_costs_no_lines(self, repo: Repo) -> None:
        repo.git("mv", "far.py", "near.py")
        repo.git("commit", "--quiet", "--message", "rename")
        with open_range(repo.folder, "main", "pull") as checkout:
            made = plan(checkout)
        assert "near.py" in [file.path for file in made.delta]
        assert "=== renamed: far.py -> near.py" in made.shards[0].text(0)
        assert made.reviewable == 3

    def test_a_rename_that_was_reviewed_is_not_reviewed_again(self, repo: Repo) -> None:
        repo.git("mv", "far.py", "near.py")
        repo.git("commit", "--quiet", "--message", "rename")
        before = reviewed(repo)
        repo.git("commit", "--quiet", "--allow-empty", "--message", "nothing more")
        assert delta(repo, before) == []


class TestShards:
    def wide(self, hunks: int) -> MemoryCheckout:
        lines = [f"value_{line} = {line}" for line in range(hunks * 20)]
        head = [f"{text} + 1" if index % 20 == 10 else text for index, text in enumerate(lines)]
        return MemoryCheckout({"wide.py": "\n".join(lines) + "\n"}, {"wide.py": "\n".join(head) + "\n"})

    def test_a_patch_is_cut_at_hunks_and_every_hunk_is_in_exactly_one_shard(self) -> None:
        """REVIEW.md 13."""
        checkout = self.wide(40)
        made = plan(checkout, shard_tokens=500)
        packed = [hunk for shard in made.shards for part in shard.parts for hunk in part.hunks]
        assert len(made.shards) > 1
        assert packed == list(checkout.diff.files[0].hunks)
        assert not made.overflow

    def test_a_hunk_over_the_budget_is_listed_as_not_reviewed(self) -> None:
        """REVIEW.md 12."""
        big = "".join(f"name_{line} = compute({line})\n" for line in range(500))
        made = plan(MemoryCheckout({}, {"big.py": big, "small.py": "x = 1\n"}), shard_tokens=500)
        assert [(one.path, one.lines) for one in made.overflow] == [("big.py", 500)]
        assert "more than the 500 of a shard" in made.overflow[0].reason
        assert [shard.paths() for shard in made.shards] == [("small.py",)]

    def test_shards_past_the_limit_are_listed_as_not_reviewed(self) -> None:
        made = plan(self.wide(40), shard_tokens=500, max_shards=1)
        assert len(made.shards) == 1
        covered = sum(part.lines for part in made.shards[0].parts)
        assert covered + sum(one.lines for one in made.overflow) == made.reviewable

    def test_each_rep_reads_the_files_in_an_order_of_its_own_and_the_same_order_each_time(self) -> None:
        head = {f"file_{number}.py": f"x = {number}\n" for number in range(8)}
        shard = plan(MemoryCheckout({}, head)).shards[0]
        texts = [shard.text(rep) for rep in range(5)]
        assert len(set(texts)) > 1
        assert texts == [shard.text(rep) for rep in range(5)]
        assert len({len(text) for text in texts}) == 1

    def test_lines_bear_their_numbers_on_the_side_that_they_are_on(self) -> None:
        text = (
            plan(MemoryCheckout({"a.py": "one\ntwo\nthree\n"}, {"a.py": "one\n2\nthree\n"})).shards[0].text(0)
        )
        assert text.splitlines()[2:] == ["    1  one", "    2 -two", "    2 +2", "    3  three"]


class TestExcluded:
    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("poetry.lock", "lock file"),
            ("web/package-lock.json", "lock file"),
            ("api/service_pb2.py", "generated file"),
            ("dist/app.min.js", "generated file"),
            ("vendor/lib/x.go", "vendored code"),
            ("node_modules/y/index.js", "vendored code"),
            ("docs/notes.txt", "ignored by the policy"),
        ],
    )
    def test_lock_generated_and_vendored_files_are_not_sent_to_a_model_and_are_listed(
        self, path: str, reason: str
    ) -> None:
        """REVIEW.md 19."""
        made = plan(MemoryCheckout({}, {path: "x = 1\n", "a.py": "x = 1\n"}), ignore=["docs/"])
        assert [(one.path, one.reason) for one in made.excluded] == [(path, reason)]
        assert [file.path for file in made.delta] == ["a.py"]

    def test_a_binary_file_and_a_submodule_are_listed(self, repo: Repo) -> None:
        (repo.folder / "logo.png").write_bytes(b"\x89PNG\0\0")
        repo.git("add", "logo.png")
        repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
        repo.git("commit", "--quiet", "--message", "add a picture and a submodule")
        with open_range(repo.folder, "main", "pull") as checkout:
            made = plan(checkout)
        assert {(one.path, one.reason) for one in made.excluded} == {
            ("logo.png", "binary file"),
            ("lib", "submodule"),
        }

    def test_a_file_that_the_base_marks_as_generated_is_listed(self) -> None:
        marked = "# @generated by tool\nx = 1\n"
        made = plan(MemoryCheckout({"gen.py": marked}, {"gen.py": marked + "y = 2\n"}))
        assert [one.reason for one in made.excluded] == ["generated file"]

    def test_a_pull_request_cannot_excuse_its_own_file_by_marking_it_generated(self) -> None:
        evil = "# @generated by tool\nimport os\n"
        made = plan(
            MemoryCheckout({"old.py": "x = 1\n"}, {"new.py": evil, "old.py": "# DO NOT EDIT\nx = 2\n"})
        )
        assert made.excluded == ()
        assert {file.path for file in made.delta} == {"new.py", "old.py"}


def test_coverage_is_of_the_lines_that_a_model_should_see() -> None:
    from tests.kit.rounds import answers, review

    head = {"poetry.lock": "x\n" * 50, "a.py": "x = 1\n", "big.py": "name = compute()\n" * 400}
    report = review(answers(), base={}, head=head, shard_tokens=500).report
    assert report.kpi.coverage == round(1 / 401, 4)
    assert report.kpi.diff_truncated
    assert {one.path for one in report.unreviewed} == {"poetry.lock", "big.py"}
    assert report.verdict.reasons == ("0% of the changed lines were reviewed; the policy asks for 100%",)
