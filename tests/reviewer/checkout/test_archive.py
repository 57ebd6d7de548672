"""The files of a commit as an archive, and the tree that a merge gives."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from reviewer.checkout.snapshot import open_range
from reviewer.errors import GitError
from reviewer.model import Side


def content(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        files = (member for member in opened if member.isfile())
        return {member.name: opened.extractfile(member).read() for member in files}  # type: ignore[union-attr]


def test_an_archive_holds_every_file_of_a_commit_with_its_mode(repo: Any, tmp_path: Path) -> None:
    repo.commit({"tools/run.sh": "#!/bin/sh\n"})
    (repo.folder / "tools/run.sh").chmod(0o755)
    repo.commit({"deep/er/x": "x\n"})
    archive = tmp_path / "head.tar.gz"
    with open_range(repo.folder, "main", "pull") as checkout:
        checkout.archive(checkout.head_sha, archive)
        names = set(checkout.files(Side.RIGHT))
    assert set(content(archive)) == names
    with tarfile.open(archive) as opened:
        assert opened.getmember("tools/run.sh").mode & 0o111


def test_a_merge_gives_the_tree_of_both_sides(repo: Any, tmp_path: Path) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"other.py": "only on main\n"})
    with open_range(repo.folder, "main", "pull") as checkout:
        tip = repo.git("rev-parse", "main")
        tree = checkout.merge_tree(tip)
        assert tree is not None
        checkout.archive(tree, tmp_path / "merge.tar.gz")
        assert tree not in (checkout.tree_of(tip), checkout.tree_of(checkout.head_sha))
        head = tmp_path / "head.tar.gz"
        checkout.archive(checkout.head_sha, head)
    merged = content(tmp_path / "merge.tar.gz")
    assert merged.pop("other.py") == b"only on main\n"
    assert merged == content(head)


def test_a_merge_that_changes_nothing_gives_the_heads_own_tree(repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        tree = checkout.merge_tree(checkout.base_sha)
        assert tree == checkout.tree_of(checkout.head_sha)


def test_a_conflict_gives_no_tree(repo: Any) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"app.py": "another change altogether\n"})
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.merge_tree(repo.git("rev-parse", "main")) is None


def test_an_archive_that_cannot_be_written_says_so(repo: Any, tmp_path: Path) -> None:
    with open_range(repo.folder, "main", "pull") as checkout, pytest.raises(GitError, match="cannot write"):
        checkout.archive("0" * 40, tmp_path / "none.tar.gz")
