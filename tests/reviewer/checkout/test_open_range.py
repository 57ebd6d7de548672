from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reviewer.checkout.snapshot import GitCheckout, open_range
from reviewer.errors import GitError
from reviewer.model import Side

MakeRepo = Callable[..., Any]


def refusal(*arguments: Any, **settings: Any) -> str:
    """The message of the error that opening gives: one line, whatever is wrong."""
    with pytest.raises(GitError) as caught:
        open_range(*arguments, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def paths(checkout: GitCheckout) -> list[str]:
    return [file.path for file in checkout.diff.files]


def test_the_range_starts_at_the_merge_base_and_not_at_the_tip_of_the_base(repo: Any) -> None:
    fork = repo.git("rev-parse", "main")
    repo.git("checkout", "--quiet", "main")
    repo.commit({"other.py": "only on main\n"})
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.base_sha == fork
        assert checkout.head_sha == repo.git("rev-parse", "pull")
        assert paths(checkout) == ["app.py"]
        assert checkout.read("other.py", Side.LEFT) is None


def test_the_size_of_the_patch_is_known(repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.diff.size == len(repo.raw("diff", "--full-index", "main", "pull"))


def test_the_same_commit_twice_is_an_empty_diff(repo: Any) -> None:
    with open_range(repo.folder, "pull", "HEAD") as checkout:
        assert checkout.diff.files == ()
        assert checkout.base_sha == checkout.head_sha


def test_a_detached_head_works(repo: Any) -> None:
    repo.git("checkout", "--quiet", "--detach", "pull")
    with open_range(repo.folder, "main", "HEAD") as checkout:
        assert paths(checkout) == ["app.py"]


def test_a_bare_repository_works(repo: Any, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--bare", str(repo.folder), str(tmp_path / "bare.git"))
    with open_range(tmp_path / "bare.git", "main", "pull") as checkout:
        assert paths(checkout) == ["app.py"]


def test_a_linked_work_tree_has_its_own_head(repo: Any, tmp_path: Path) -> None:
    repo.git("worktree", "add", "--quiet", "-b", "linked", str(tmp_path / "linked"), "main")
    (tmp_path / "linked" / "new.py").write_text("x\n")
    repo.git("-C", str(tmp_path / "linked"), "add", "--all")
    repo.git("-C", str(tmp_path / "linked"), "commit", "--quiet", "-m", "linked")
    with open_range(tmp_path / "linked", "main", "HEAD") as checkout:
        assert paths(checkout) == ["new.py"]


def test_a_submodule_can_be_reviewed_by_itself(repo: Any, make_repo: MakeRepo) -> None:
    outer = make_repo("outer")
    outer.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo.folder), "inner")
    inner = outer.folder / "inner"
    assert (inner / ".git").is_file()
    with open_range(inner, "origin/main", "origin/pull") as checkout:
        assert paths(checkout) == ["app.py"]


def test_a_subfolder_stands_for_its_repository(repo: Any) -> None:
    with open_range(repo.folder / "src", "main", "pull") as checkout:
        assert paths(checkout) == ["app.py"]


def test_a_sha256_repository_works(make_repo: MakeRepo) -> None:
    repo = make_repo("sha256", "--object-format=sha256")
    repo.commit({"a.py": "1\n"})
    repo.commit({"a.py": "2\n"})
    with open_range(repo.folder, "HEAD~1", "HEAD") as checkout:
        assert len(checkout.head_sha) == 64
        assert checkout.read("a.py", Side.RIGHT) == b"2\n"
        assert checkout.blob(checkout.diff.files[0].old_blob) == b"1\n"


def test_a_repository_at_an_odd_path_works(make_repo: MakeRepo) -> None:
    repo = make_repo('a "quoted"\\ path\nwith two lines: and a colon')
    repo.commit({"a.py": "1\n"})
    repo.commit({"a.py": "2\n"})
    with open_range(repo.folder, "HEAD~1", "HEAD") as checkout:
        assert checkout.read("a.py", Side.LEFT) == b"1\n"


def test_a_borrowing_clone_finds_the_objects_it_borrows(repo: Any, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--shared", str(repo.folder), str(tmp_path / "clone"))
    with open_range(tmp_path / "clone", "origin/main", "origin/pull") as checkout:
        assert paths(checkout) == ["app.py"]


def test_a_rename_is_one_file_and_settings_of_the_user_change_nothing(repo: Any) -> None:
    body = "".join(f"line {number}\n" for number in range(40))
    repo.commit({"old.py": body})
    repo.git("mv", "old.py", "new.py")
    repo.commit({"new.py": body.replace("line 7\n", "line seven\n")})
    with open_range(repo.folder, "HEAD~1", "HEAD") as checkout:
        plain = checkout.diff
    for setting in (
        "diff.noprefix=true",
        "diff.mnemonicPrefix=true",
        "diff.renames=false",
        "diff.renameLimit=1",
        "diff.algorithm=patience",
        "diff.context=0",
        "diff.interHunkContext=20",
        "diff.suppressBlankEmpty=true",
        "diff.orderFile=order",
        "diff.indentHeuristic=false",
        "diff.submodule=log",
        "diff.ignoreSubmodules=all",
        "core.quotePath=false",
        "core.abbrev=5",
        "color.ui=always",
    ):
        repo.git("config", *setting.split("="))
    with open_range(repo.folder, "HEAD~1", "HEAD") as checkout:
        assert checkout.diff == plain
    (file,) = plain.files
    assert (file.status, file.old_path, file.path, file.added, file.removed) == (
        "renamed",
        "old.py",
        "new.py",
        1,
        1,
    )


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none", "main", "HEAD") == (
        f"{tmp_path}/none is not a folder; give the path of a git repository"
    )


def test_a_folder_without_a_repository(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, "main", "HEAD") == f"{tmp_path} is not a git repository; give the path of a clone"
    )


def test_an_unknown_reference_suggests_the_nearest(repo: Any) -> None:
    assert (
        refusal(repo.folder, "mian", "HEAD")
        == f"{repo.folder} has no branch, tag or commit 'mian'; did you mean main?"
    )


def test_an_unknown_reference_like_no_other_says_how_to_list_them(repo: Any) -> None:
    assert "branch -a" in refusal(repo.folder, "zzzzzz", "HEAD")


def test_a_branch_that_only_the_remote_has_is_suggested(repo: Any, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--branch", "pull", str(repo.folder), str(tmp_path / "clone"))
    assert "did you mean origin/main?" in refusal(tmp_path / "clone", "main", "HEAD")


@pytest.mark.parametrize("name", ["--output=/tmp/x", "-", "", "a\0b"])
def test_what_cannot_be_a_revision_never_reaches_git(name: str, repo: Any) -> None:
    assert "is not a revision; give a branch, a tag or a commit" in refusal(repo.folder, name, "HEAD")


@pytest.mark.parametrize(("name", "kind"), [("HEAD:app.py", "blob"), ("HEAD^{tree}", "tree")])
def test_something_else_than_a_commit(name: str, kind: str, repo: Any) -> None:
    assert f"{name} is a {kind} in" in refusal(repo.folder, "main", name)


def test_a_commit_that_was_never_fetched(repo: Any) -> None:
    assert "does not have the commit 1111" in refusal(repo.folder, "1" * 40, "HEAD")


def test_an_annotated_tag_stands_for_its_commit(repo: Any) -> None:
    repo.git("tag", "-a", "v1", "-m", "one", "main")
    with open_range(repo.folder, "v1", "pull") as checkout:
        assert checkout.base_sha == repo.git("rev-parse", "main")


def test_a_repository_without_commits(make_repo: MakeRepo) -> None:
    assert "has no commits yet; commit something first" in refusal(make_repo().folder, "main", "HEAD")


def test_a_repository_with_a_detached_head_and_no_branch_has_commits(repo: Any) -> None:
    repo.git("checkout", "--quiet", "--detach")
    repo.git("branch", "--quiet", "-D", "main", "pull")
    assert "has no branch, tag or commit 'main'" in refusal(repo.folder, "main", "HEAD")


def test_unrelated_histories(repo: Any) -> None:
    repo.git("checkout", "--quiet", "--orphan", "island")
    repo.commit({"x": "y\n"})
    assert refusal(repo.folder, "main", "island") == (
        "main and island have no common commit; name a base that the head was branched from"
    )


def test_a_shallow_clone_without_the_merge_base(repo: Any, tmp_path: Path) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"more.py": "x\n"})
    clone = tmp_path / "clone"
    repo.git("clone", "--quiet", "--depth=1", "--no-single-branch", f"file://{repo.folder}", str(clone))
    assert refusal(clone, "origin/main", "origin/pull").endswith(
        f"; get the whole history: git -C {clone} fetch --unshallow"
    )


def test_a_shallow_clone_that_reaches_the_merge_base_works(repo: Any, tmp_path: Path) -> None:
    for number in range(3):
        repo.commit({"app.py": f"VALUE = {number}\n"})
    repo.git("branch", "--force", "main", "pull~1")
    clone = tmp_path / "clone"
    repo.git("clone", "--quiet", "--depth=2", "--no-single-branch", f"file://{repo.folder}", str(clone))
    with open_range(clone, "origin/main", "origin/pull") as checkout:
        assert paths(checkout) == ["app.py"]
        assert checkout.log(None, 10).count("\n") == 3


def test_a_patch_above_the_limit_is_refused_before_it_is_whole(repo: Any) -> None:
    repo.commit({"big.txt": "0123456789\n" * 300_000})
    message = refusal(repo.folder, "main", "HEAD", patch_limit=1 << 20)
    assert message.endswith(
        "is larger, and 1.0 MiB is the limit; split the change, or leave out generated files"
    )


def test_a_failed_opening_leaves_no_scratch_repository(
    repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    refusal(repo.folder, "main", "HEAD", patch_limit=10)
    assert list(scratch.iterdir()) == []
    with open_range(repo.folder, "main", "HEAD") as checkout:
        assert checkout.read("app.py", Side.RIGHT)
        assert len(list(scratch.iterdir())) == 1
    assert list(scratch.iterdir()) == []


def test_the_repository_is_not_written_to(repo: Any) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {
            os.path.join(root, name): (
                os.stat(os.path.join(root, name)).st_mtime_ns,
                os.stat(os.path.join(root, name)).st_size,
            )
            for root, folders, files in os.walk(repo.folder)
            for name in folders + files
        }

    before = state()
    with open_range(repo.folder, "main", "pull") as checkout:
        checkout.grep("return", Side.RIGHT)
        checkout.show("HEAD")
    assert state() == before


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("chown"), reason="changing the owner needs root")
def test_a_repository_that_belongs_to_someone_else_is_read(repo: Any) -> None:
    repo.raw("rev-parse", "HEAD")
    for root, folders, files in os.walk(repo.folder):
        for name in [".", *folders, *files]:
            os.chown(os.path.join(root, name), 12345, 12345)
    with open_range(repo.folder, "main", "pull") as checkout:
        assert paths(checkout) == ["app.py"]
