from __future__ import annotations

from inspect import signature

import pytest

from reviewer.errors import GitError
from reviewer.model import Side
from service.forge.base import Forge, ForgeError, Permission, User
from service.forge.local import LocalForge
from tests.kit.checkouts import Repo

REPO = "acme/cache"


def test_the_local_forge_has_every_method_of_a_forge_with_the_same_parameters() -> None:
    names = [name for name in vars(Forge) if not name.startswith("_")]
    assert names
    for name in names:
        ours, asked = (list(signature(getattr(one, name)).parameters) for one in (LocalForge, Forge))
        assert ours == asked, name


def test_a_pull_request_is_a_branch_compared_with_its_base(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    pull = forge.pull(REPO, 1)
    assert (pull.title, pull.body, pull.author) == ("Spell the tenth line", "Spelled out.", User("ada"))
    assert (pull.head_ref, pull.base_ref, pull.state, pull.draft, pull.merged, pull.is_fork) == (
        "topic", "main", "open", False, False, False,
    )  # fmt: skip
    assert pull.head_sha == repo.git("rev-parse", "topic")
    assert pull.base_sha == repo.git("rev-parse", "main")


def test_a_push_is_seen_at_once_and_found_by_its_commit(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    head = repo.commit({"new.txt": "more\n"})
    assert forge.pull(REPO, 1).head_sha == head
    assert forge.pulls_of(REPO, head) == (1,)
    assert forge.pulls_of(REPO, repo.git("rev-parse", "main")) == ()


def test_numbers_count_up_and_opening_the_same_branches_again_gives_the_same(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    repo.git("branch", "second")
    assert ada.open_pull(REPO, "second", "main").number == 2
    assert ada.open_pull(REPO, "topic", "main", title="again").number == 1
    assert [one.number for one in forge.open_pulls(REPO)] == [1, 2]
    ada.change_pull(REPO, 1, state="closed")
    assert [one.number for one in forge.open_pulls(REPO)] == [2]
    assert ada.open_pull(REPO, "topic", "main").number == 3


def test_a_closed_pull_request_stays_as_it_was_and_is_merged_once_its_base_holds_it(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    head = repo.git("rev-parse", "topic")
    assert ada.change_pull(REPO, 1, state="closed").merged is False
    repo.commit({"new.txt": "pushed after closing\n"})
    repo.git("checkout", "--quiet", "main")
    repo.git("merge", "--quiet", head)
    pull = forge.pull(REPO, 1)
    assert (pull.state, pull.head_sha, pull.merged) == ("closed", head, True)


def test_a_pull_request_whose_branch_is_gone_keeps_its_last_head(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    head = repo.commit({"new.txt": "more\n"})
    assert forge.pull(REPO, 1).head_sha == head
    repo.git("checkout", "--quiet", "main")
    repo.git("branch", "-D", "topic")
    pull = forge.pull(REPO, 1)
    assert (pull.head_sha, pull.head_repo, pull.is_fork) == (head, "", True)


def test_what_a_person_may_change_is_changed(forge: LocalForge, ada: LocalForge, repo: Repo) -> None:
    repo.git("branch", "stable", "main~0")
    pull = ada.change_pull(REPO, 1, title="New", body="Text", draft=True, base_ref="stable")
    assert (pull.title, pull.body, pull.draft, pull.base_ref) == ("New", "Text", True, "stable")
    assert ada.change_pull(REPO, 1, draft=False).title == "New"


@pytest.mark.parametrize(("head", "base"), [("nowhere", "main"), ("topic", "nowhere"), ("--help", "main")])
def test_a_missing_branch_is_refused_by_name(forge: LocalForge, repo: Repo, head: str, base: str) -> None:
    with pytest.raises(ForgeError, match=r"acme/cache has no branch '(nowhere|--help)'") as caught:
        forge.open_pull(REPO, head, base)
    assert caught.value.status == 422


def test_what_is_not_there_is_named(forge: LocalForge) -> None:
    for call in (
        lambda: forge.pull(REPO, 9),
        lambda: list(forge.comments(REPO, 9)),
        lambda: forge.create_comment(REPO, 9, "x"),
    ):
        with pytest.raises(ForgeError, match="acme/cache has no pull request 9") as caught:
            call()
        assert caught.value.status == 404
    with pytest.raises(ForgeError, match="no local repository 'acme/other'; known ones: acme/cache"):
        forge.pull("acme/other", 1)


def test_the_checkout_shows_the_change_since_the_branches_parted(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"upstream.txt": "not ours\n"})
    with forge.checkout(forge.pull(REPO, 1)) as checkout:
        assert [file.path for file in checkout.diff.files] == ["pages.txt"]
        assert b"line ten\n" in (checkout.read("pages.txt", Side.RIGHT) or b"")


def test_a_file_is_read_at_a_branch_or_commit(forge: LocalForge, repo: Repo) -> None:
    assert b"line 10\n" in (forge.read_file(REPO, "main", "pages.txt") or b"")
    assert b"line ten\n" in (forge.read_file(REPO, repo.git("rev-parse", "topic"), "pages.txt") or b"")
    for ref, path in (
        ("main", "nothing.txt"),
        ("nowhere", "pages.txt"),
        ("--all", "pages.txt"),
        ("main", "../x"),
        ("main", ""),
    ):
        assert forge.read_file(REPO, ref, path) is None


def test_who_runs_the_process_is_admin_and_others_may_what_they_were_granted(forge: LocalForge) -> None:
    assert forge.permission(REPO, "Olga") is Permission.ADMIN
    assert forge.permission(REPO, "bob") is Permission.READ
    forge.grant(REPO, "Bob", Permission.TRIAGE)
    forge.grant(REPO, "bob", Permission.WRITE)
    assert forge.permission(REPO, "BOB") is Permission.WRITE
    forge.grant(REPO, "bob", Permission.NONE)
    assert forge.permission(REPO, "bob") is Permission.NONE


def test_a_folder_that_is_no_repository_is_an_error_at_once(
    forge: LocalForge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(GitError, match="is not a git repository"):
        LocalForge(forge._database, {REPO: tmp_path_factory.mktemp("plain")}, owner="olga")
