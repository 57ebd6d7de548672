"""Merging on the local forge, and what else CI asks of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from service.forge import local_tables as tables
from service.forge.base import Edited, ForgeError, MergeMethod
from service.forge.local import LocalForge
from tests.kit.checkouts import Repo

REPO = "acme/cache"


def head(repo: Repo, branch: str) -> str:
    return repo.git("rev-parse", branch)


@pytest.mark.parametrize(
    ("method", "parents", "subject"),
    [("merge", 2, "Merge pull request #1: Spell the tenth line"), ("squash", 1, "Spell the tenth line (#1)")],
)
def test_a_merge_moves_the_base_and_closes_the_pull_request(
    forge: LocalForge, ada: LocalForge, repo: Repo, method: MergeMethod, parents: int, subject: str
) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"other.txt": "changed on main\n"}, "Go on")
    repo.git("checkout", "--quiet", "--detach", "topic")
    assert forge.mergeable(REPO, 1) is True
    made = forge.merge(REPO, 1, head(repo, "topic"), method)
    assert head(repo, "main") == made
    assert repo.git("log", "-1", "--format=%s", "main") == subject
    assert len(repo.git("log", "-1", "--format=%P", "main").split()) == parents
    assert forge.read_file(REPO, "main", "other.txt") == b"changed on main\n"
    assert b"line ten\n" in (forge.read_file(REPO, "main", "pages.txt") or b"")
    pull = forge.pull(REPO, 1)
    assert (pull.state, pull.merged) == ("closed", True)
    assert forge.mergeable(REPO, 1) is None


def test_another_head_than_the_one_named_is_409_and_merges_nothing(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    approved, before = head(repo, "topic"), head(repo, "main")
    repo.commit({"evil.txt": "pushed after the approval\n"})
    with pytest.raises(ForgeError, match="no longer") as refused:
        forge.merge(REPO, 1, approved, "squash")
    assert refused.value.status == 409
    assert (head(repo, "main"), forge.pull(REPO, 1).state) == (before, "open")


def test_a_conflict_is_known_before_and_refused(forge: LocalForge, ada: LocalForge, repo: Repo) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"pages.txt": "all else\n"})
    assert forge.mergeable(REPO, 1) is False
    before = head(repo, "main")
    with pytest.raises(ForgeError, match="conflicts with main") as refused:
        forge.merge(REPO, 1, head(repo, "topic"), "merge")
    assert (refused.value.status, head(repo, "main")) == (405, before)


@pytest.mark.parametrize(
    ("change", "method", "problem"),
    [
        ({"draft": True}, "squash", "a draft"),
        ({"state": "closed"}, "squash", "is closed"),
        ({}, "rebase", "rebases nothing"),
    ],
)
def test_what_is_not_to_be_merged_is_405(
    forge: LocalForge, ada: LocalForge, repo: Repo, change: dict[str, bool], method: MergeMethod, problem: str
) -> None:
    ada.change_pull(REPO, 1, **change)  # type: ignore[arg-type]
    with pytest.raises(ForgeError, match=problem) as refused:
        forge.merge(REPO, 1, head(repo, "topic"), method)
    assert refused.value.status == 405


def test_a_work_tree_of_the_base_follows(forge: LocalForge, ada: LocalForge, repo: Repo) -> None:
    topic = head(repo, "topic")
    repo.git("checkout", "--quiet", "main")
    made = forge.merge(REPO, 1, topic, "squash")
    assert head(repo, "HEAD") == made
    assert "line ten\n" in (repo.folder / "pages.txt").read_text()
    assert repo.git("status", "--porcelain") == ""


def test_uncommitted_work_is_never_lost_to_a_merge(forge: LocalForge, ada: LocalForge, repo: Repo) -> None:
    topic, before = head(repo, "topic"), head(repo, "main")
    repo.git("checkout", "--quiet", "main")
    (repo.folder / "pages.txt").write_text("not committed\n")
    with pytest.raises(ForgeError, match="commit or stash what is in") as refused:
        forge.merge(REPO, 1, topic, "squash")
    assert refused.value.status == 405
    assert (repo.folder / "pages.txt").read_text() == "not committed\n"
    assert (head(repo, "main"), forge.pull(REPO, 1).state) == (before, "open")


def test_nothing_that_the_repository_configures_is_run(
    forge: LocalForge, ada: LocalForge, repo: Repo, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    repo.git("config", "merge.own.driver", f"touch {proof}")
    hook = repo.folder / ".git" / "hooks" / "post-merge"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    repo.commit({".gitattributes": "pages.txt merge=own\n"})
    topic = head(repo, "topic")
    repo.git("checkout", "--quiet", "main")
    text = (repo.folder / "pages.txt").read_text()
    repo.commit(
        {
            "pages.txt": text.replace("line 39\n", "line thirty-nine\n"),
            ".gitattributes": "pages.txt merge=own\n",
        }
    )
    forge.merge(REPO, 1, topic, "merge")
    merged = (repo.folder / "pages.txt").read_text()
    assert "line ten\n" in merged
    assert "line thirty-nine\n" in merged
    assert not proof.exists()


def test_a_merge_whose_record_was_lost_is_merged_once(forge: LocalForge, ada: LocalForge, repo: Repo) -> None:
    topic = head(repo, "topic")
    made = forge.merge(REPO, 1, topic, "squash")
    with forge._database.write() as connection:
        connection.execute(sa.delete(tables.merges))
        connection.execute(sa.update(tables.pulls).values(state="open"))
    assert forge.merge(REPO, 1, topic, "squash") == made
    assert head(repo, "main") == made
    assert forge.pull(REPO, 1).merged


def test_a_base_that_moves_in_between_is_tried_again(
    forge: LocalForge, ada: LocalForge, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.forge import local_merge

    make = local_merge.make_merge

    def overtaken(*arguments: object) -> str:
        made = make(*arguments)  # type: ignore[arg-type]
        repo.git(
            "branch",
            "--force",
            "main",
            repo.git("commit-tree", "main^{tree}", "-p", "main", "-m", "Overtake"),
        )
        return made

    monkeypatch.setattr(local_merge, "make_merge", overtaken)
    with pytest.raises(ForgeError, match="was moved meanwhile") as refused:
        forge.merge(REPO, 1, head(repo, "topic"), "merge")
    assert (refused.value.status, refused.value.retry_after is not None) == (405, True)
    assert repo.git("log", "-1", "--format=%s", "main") == "Overtake"
    monkeypatch.undo()
    forge.merge(REPO, 1, head(repo, "topic"), "merge")
    assert repo.git("log", "-2", "--first-parent", "--format=%s", "main").splitlines()[1] == "Overtake"


def test_a_title_makes_no_second_line_and_no_other_author(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    ada.change_pull(REPO, 1, title="Fine\n\nCo-authored-by: mallory <m@x>")
    forge.merge(REPO, 1, head(repo, "topic"), "squash")
    assert repo.git("log", "-1", "--format=%B", "main").strip().splitlines() == [
        "Fine Co-authored-by: mallory <m@x> (#1)"
    ]
    assert repo.git("log", "-1", "--format=%an", "main") == "whitesmoke[bot]"


def test_edits_are_known(forge: LocalForge, ada: LocalForge) -> None:
    bob = forge.as_user("bob")
    said, kept = bob.create_comment(REPO, 1, "thanks"), bob.create_comment(REPO, 1, "hm")
    topic = forge.pull(REPO, 1).head_sha
    reviewed = bob.create_review(REPO, 1, topic, "ok", "COMMENT", [])
    approved = bob.create_review(REPO, 1, topic, "fine", "APPROVE", [])
    assert forge.edited(REPO, 1) == Edited(frozenset(), frozenset())
    ada.edit_comment(REPO, 1, said, "lgtm ready to ci")
    ada.edit_review(REPO, 1, reviewed, "lgtm ready to ci")
    ada.edit_review(REPO, 1, reviewed, "LGTM ready to ci")
    forge.dismiss_review(REPO, 1, approved, "no")
    assert forge.edited(REPO, 1) == Edited(frozenset({said}), frozenset({reviewed}))
    assert not ada.edit_review(REPO, 1, 999, "x")
    assert kept not in forge.edited(REPO, 1).comments


def test_there_are_no_workflows_but_ours(forge: LocalForge, ada: LocalForge, repo: Repo) -> None:
    topic = head(repo, "topic")
    assert list(forge.workflow_runs(REPO, topic)) == []
    assert forge.push_seen(REPO, topic, "topic") is None
    for ask in (lambda: forge.rerun_workflow(REPO, 7, True), lambda: forge.approve_workflow(REPO, 7)):
        with pytest.raises(ForgeError, match=r"no workflow run 7; set ci\.mode: runner") as refused:
            ask()
        assert refused.value.status == 404
