"""Patches from elsewhere than `git diff`: mail, `git show`, plain `diff -u`; and those that are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from reviewer.diff import FileDiff, parse
from reviewer.errors import PatchError

A_FILE = b"diff --git a/f b/f\nindex 7898192..6178079 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


def only(patch: bytes) -> FileDiff:
    (file,) = parse(patch).files
    return file


@pytest.fixture
def commit(repository: Any) -> str:
    """A commit whose patch adds a file and ends with a hunk that removes a line `- `."""
    text = b"1\n2\n3\n- \n"
    _, head = repository.commit(
        {b"z": ("100644", text)}, {b"a": ("100755", b"a\n"), b"z": ("100644", b"1\n2\n3\n")}
    )
    return str(head)


@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["show", "--stat", "--patch"],
        ["show", "--format=email"],
        ["show", "--patch-with-raw"],
        ["log", "-1", "-p"],
        ["log", "-1", "-p", "--oneline"],
        ["format-patch", "-1", "--stdout"],
        ["format-patch", "-1", "--stdout", "--attach"],
        ["format-patch", "-1", "--stdout", "--signature=a signature of\ntwo lines"],
    ],
    ids=" ".join,
)
def test_what_surrounds_the_diff_is_skipped(repository: Any, commit: str, command: list[str]) -> None:
    diff = parse(repository.git(*command, commit))
    assert [(file.path, file.status, file.added, file.removed) for file in diff.files] == [
        ("a", "added", 1, 0),
        ("z", "modified", 0, 1),
    ]
    assert [line.text for line in diff.files[1].hunks[0].lines()] == [b"1", b"2", b"3", b"- "]


def test_a_signature_is_not_a_removed_line() -> None:
    assert only(A_FILE + b"-- \n2.39.5\n\n").removed == 1
    assert only(A_FILE + b"--\n2.39.5\n").removed == 1
    assert only(A_FILE + b"-- \n").removed == 1


class TestPlain:
    def test_with_times(self) -> None:
        patch = (
            b"--- a/d/f.py\t2024-01-01 00:00:00.000000000 +0000\n"
            b"+++ b/d/f.py\t2024-01-02 00:00:00.000000000 +0000\n"
            b"@@ -1 +1,2 @@\n a\n+b\n"
        )
        file = only(patch)
        assert (file.path, file.status, file.added, file.old_mode, file.new_blob) == (
            "d/f.py",
            "modified",
            1,
            "",
            "",
        )

    def test_several_files_without_a_word_between(self) -> None:
        patch = b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n--- x\n+++ y\n"
        diff = parse(patch)
        assert [(file.path, file.added, file.removed) for file in diff.files] == [("f", 1, 1), ("g", 1, 1)]
        assert [line.text for line in diff.files[1].hunks[0].lines()] == [b"-- x", b"++ y"]

    def test_without_prefix(self) -> None:
        assert (
            only(
                b"Index: d/f\n====\n--- d/f\t(revision 1)\n+++ d/f\t(working copy)\n@@ -1 +1 @@\n-a\n+b\n"
            ).path
            == "d/f"
        )

    def test_dev_null(self) -> None:
        patch = b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+b\n--- a/g\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n"
        assert [(file.path, file.status) for file in parse(patch).files] == [("f", "added"), ("g", "deleted")]

    def test_of_two_names_is_a_rename(self) -> None:
        file = only(b"--- f.orig\n+++ f\n@@ -1 +1 @@\n-a\n+b\n")
        assert (file.old_path, file.path, file.status, file.similarity) == ("f.orig", "f", "renamed", None)

    def test_of_real_folders(self, tmp_path: Path) -> None:
        for side, tree in {
            "a": {"f": "1\n", "gone": "1\n", "with space": "1\n", "bin": "\0", 'q"\t': "1\n"},
            "b": {"f": "2", "new": "1\n", "with space": "2\n", "bin": "\0\0", 'q"\t': "2\n"},
        }.items():
            (tmp_path / side).mkdir()
            for name, text in tree.items():
                (tmp_path / side / name).write_text(text)
        patch = subprocess.run(
            ["diff", "-ruN", "a", "b"], cwd=tmp_path, capture_output=True, check=False, env={"LC_ALL": "C"}
        ).stdout
        assert {file.path: (file.status, file.binary) for file in parse(patch).files} == {
            "bin": ("modified", True),
            "f": ("modified", False),
            "gone": ("deleted", False),
            "new": ("added", False),
            'q"\t': ("modified", False),
            "with space": ("modified", False),
        }


MERGE = b"""\
diff --{kind} d/f
index 1234567,2345678..3456789
--- a/d/f
+++ b/d/f
@@@ -1,1 -1,1 +1,2 @@@
  a
++b
"""


@pytest.mark.parametrize("kind", [b"cc", b"combined"])
def test_a_merge_is_refused_by_name(kind: bytes) -> None:
    with pytest.raises(PatchError, match=r"line 8 of the patch, 'd/f': .*several parents.*git diff BASE"):
        parse(A_FILE + MERGE.replace(b"{kind}", kind))


def test_a_real_merge_is_refused(repository: Any) -> None:
    _, one = repository.commit({b"f": ("100644", b"1\n")}, {b"f": ("100644", b"2\n")})
    _, two = repository.commit({b"f": ("100644", b"1\n")}, {b"f": ("100644", b"3\n")})
    tree = repository.commit({b"f": ("100644", b"4\n")})[0]
    merge = (
        repository.git(
            *("-c", "user.name=Tester", "-c", "user.email=tester@example.org"),
            *("commit-tree", "-m", "merge", "-p", one, "-p", two, f"{tree}^{{tree}}"),
        )
        .decode()
        .strip()
    )
    with pytest.raises(PatchError, match=r"'f': .*several parents"):
        parse(repository.git("show", merge))


def test_one_file_twice_is_refused() -> None:
    with pytest.raises(PatchError, match=r"line 8 of the patch, 'f': .*second time.*one patch"):
        parse(A_FILE + A_FILE)


def test_a_deletion_and_an_addition_of_one_type_are_not_a_change_of_type() -> None:
    gone = b"diff --git a/f b/f\ndeleted file mode 100644\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
    new = b"diff --git a/f b/f\nnew file mode 100755\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"
    with pytest.raises(PatchError, match="second time"):
        parse(gone + new)


def test_a_patch_with_converted_line_ends_is_refused() -> None:
    for patch in (A_FILE, A_FILE.partition(b"100644\n")[2]):
        with pytest.raises(PatchError, match=r"line 1 of the patch: .*CRLF"):
            parse(patch.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    "text",
    [
        b"<html>Sign in</html>\n",
        A_FILE.decode().encode("utf-16"),
        b"\x1b[1m" + A_FILE.replace(b"\n", b"\n\x1b[1m"),
    ],
    ids=["a web page", "UTF-16", "coloured"],
)
def test_what_holds_no_diff_is_refused_and_not_taken_for_an_empty_change(text: bytes) -> None:
    with pytest.raises(PatchError, match="holds no diff"):
        parse(text)
