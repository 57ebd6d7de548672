from __future__ import annotations

import os
from typing import Any

import pytest

from reviewer.checkout.snapshot import open_patch, open_range
from reviewer.errors import GitError
from reviewer.model import Side


def refusal(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(GitError) as caught:
        open_patch(*arguments, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_patch_gives_the_same_two_sides_as_the_range_it_came_from(repo: Any) -> None:
    repo.commit({"new/deep.py": "a\n", "src/util.py": None, "bin.dat": b"\0\1\2" * 50})
    os.chmod(repo.folder / "app.py", 0o755)
    repo.commit({})
    patch = repo.raw("diff", "--binary", "main", "pull")
    with (
        open_range(repo.folder, "main", "pull") as expected,
        open_patch(repo.folder, "main", patch) as checkout,
    ):
        assert checkout.diff == expected.diff
        assert checkout.files(Side.RIGHT) == expected.files(Side.RIGHT)
        assert all(
            checkout.read(path, side) == expected.read(path, side)
            for side in Side
            for path in expected.files(side)
        )
        assert checkout.base_sha == repo.git("rev-parse", "main")


def test_the_same_patch_is_the_same_head_every_time(repo: Any) -> None:
    patch = repo.raw("diff", "main", "pull")
    heads = set()
    for _ in range(2):
        with open_patch(repo.folder, "main", patch) as checkout:
            heads.add(checkout.head_sha)
            assert (
                checkout.log(None, 1)
                == f"{checkout.head_sha[:12]} 2000-01-01 whitesmoke: The patch under review\n"
            )
    assert len(heads) == 1


def test_a_patch_that_is_already_applied_is_taken_in_reverse(repo: Any) -> None:
    with open_patch(repo.folder, "pull", repo.raw("diff", "main", "pull")) as checkout:
        assert checkout.head_sha == repo.git("rev-parse", "pull")
        assert checkout.read("app.py", Side.LEFT) == b"def run():\n    return 1\n"
        assert checkout.read("app.py", Side.RIGHT) == b"def run():\n    return 2\n"
        assert [line.kind for line in checkout.diff.files[0].hunks[0].lines()] == [" ", "-", "+"]


def test_a_mailed_patch_with_two_commits_applies(repo: Any) -> None:
    repo.commit({"app.py": "def run():\n    return 3\n"})
    with open_patch(repo.folder, "main", repo.raw("format-patch", "--stdout", "main..pull")) as checkout:
        assert checkout.read("app.py", Side.RIGHT) == b"def run():\n    return 3\n"


@pytest.mark.parametrize("patch", [b"", b"\n \n"])
def test_an_empty_patch_changes_nothing(patch: bytes, repo: Any) -> None:
    with open_patch(repo.folder, "main", patch) as checkout:
        assert checkout.diff.files == ()
        assert checkout.head_sha == checkout.base_sha


def test_a_patch_for_another_commit_is_refused_with_gits_first_complaint(repo: Any) -> None:
    patch = (
        repo.raw("diff", "main", "pull").replace(b"return 1", b"return 9").replace(b"return 2", b"return 8")
    )
    assert refusal(repo.folder, "main", patch).endswith(
        ": patch failed: app.py:1; give the commit that it was made from as base"
    )


def test_a_damaged_patch_is_told_apart_from_one_that_does_not_fit(repo: Any) -> None:
    patch = repo.raw("diff", "main", "pull").replace(b"@@ -1,2 +1,2 @@", b"@@ -1,9 +1,9 @@")
    assert refusal(repo.folder, "main", patch).startswith("the patch is damaged (corrupt patch at line ")


def test_text_that_is_no_patch(repo: Any) -> None:
    assert refusal(repo.folder, "main", b"Dear team,\nplease pull.\n") == (
        "the patch holds no change that git can read; make it with `git diff`"
    )


def test_a_binary_change_without_its_content_is_refused(repo: Any) -> None:
    repo.commit({"x.dat": b"\0" * 40})
    patch = repo.raw("diff", "main", "pull", "--", "x.dat")
    assert "make it with `git diff --binary --full-index`" in refusal(repo.folder, "main", patch)


def test_a_200_mb_patch_is_refused_at_once(repo: Any) -> None:
    assert refusal(repo.folder, "main", b"+" * 200_000_000) == (
        "the patch has 190.7 MiB, and 64.0 MiB is the limit; split the change, or leave out generated files"
    )


def test_the_limit_is_the_callers(repo: Any) -> None:
    assert "has 1.5 MiB, and 1.0 MiB is" in refusal(
        repo.folder, "main", b"+" * (3 << 19), patch_limit=1 << 20
    )


@pytest.mark.parametrize("path", ["../outside.txt", ".git/hooks/post-checkout", "/tmp/outside.txt"])
def test_a_patch_cannot_write_outside_the_tree(path: str, repo: Any) -> None:
    patch = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n".encode()
    assert "invalid path" in refusal(repo.folder, "main", patch)


def test_a_patch_cannot_write_through_a_link_that_it_makes(repo: Any, tmp_path: Any) -> None:
    patch = (
        f"diff --git a/link b/link\nnew file mode 120000\n--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+{tmp_path}\n"
        "\\ No newline at end of file\n"
        "diff --git a/link/x b/link/x\nnew file mode 100644\n--- /dev/null\n+++ b/link/x\n@@ -0,0 +1 @@\n+x\n"
    )
    assert "beyond a symbolic link" in refusal(repo.folder, "main", patch.encode())
    assert not (tmp_path / "x").exists()


def test_nothing_is_written_into_the_users_repository(repo: Any) -> None:
    def objects() -> set[str]:
        return {
            os.path.join(root, name) for root, _, files in os.walk(repo.folder / ".git") for name in files
        }

    before = objects()
    with open_patch(
        repo.folder, "main", repo.raw("diff", "main", "pull").replace(b"return 2", b"return 77")
    ) as checkout:
        assert checkout.read("app.py", Side.RIGHT) == b"def run():\n    return 77\n"
        assert objects() == before
    assert repo.git("status", "--porcelain") == ""
