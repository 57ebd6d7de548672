"""Arbitrary damage to valid patches: refused with a PatchError, or read into a consistent diff."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reviewer.diff import Diff, parse
from reviewer.errors import PatchError

TEXT = b"".join(b"line %d\n" % line for line in range(30))
BASE = {
    b"f": ("100644", TEXT),
    b"gone": ("100644", b"a\n"),
    b"link": ("120000", b"a"),
    b"mode": ("100644", b""),
    b"image": ("100644", b"\0" + bytes(range(256))),
    b"old name": ("100644", TEXT.replace(b"l", b"L")),
    b"t\ty": ("100644", b"a"),
    b"type": ("100644", b"a\n"),
}
HEAD = {
    b"f": ("100644", TEXT.replace(b"line 3\n", b"--- 3\n").replace(b"line 20\n", b"+++ 20\n@@ -1 +1 @@\n")),
    b"link": ("120000", b"b"),
    b"mode": ("100755", b""),
    b"image": ("100644", b"\0" + bytes(range(255))),
    b"new": ("100644", b"a\n\nb"),
    b"empty": ("100644", b""),
    b"new name": ("100644", TEXT.replace(b"l", b"L") + b"x\n"),
    b"t\ty": ("100644", b"b"),
    b"type": ("120000", b"a"),
    b"lib": ("160000", b"1" * 40),
}
PLAIN = b"--- a/f\t2024\n+++ b/f\t2024\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ b/g\n@@ -0,0 +1 @@\n+b\n"
PIECES = [
    b"\n",
    b"\r\n",
    b"\0",
    b"-",
    b"+",
    b" ",
    b"\\ No newline at end of file\n",
    b"@@ -1 +1 @@\n",
    b"@@ -0,0 +1,999999999999 @@\n",
    b"--- a/f\n+++ b/f\n",
    b"--- /dev/null\n",
    b"diff --git a/f b/f\n",
    b'diff --git "a/f" "b/\\377"\n',
    b"diff --cc f\n",
    b"new file mode 100644\n",
    b"rename from f\n",
    b"Binary files a/f and b/f differ\n",
    b"GIT binary patch\nliteral 0\nHcmV?d00001\n\n",
    b"-- \n",
]


def damage(patch: bytes, cuts: list[tuple[float, int, bytes]]) -> bytes:
    """Replaces a few bytes, at a share of the patch's length, by others; each cut works on the last's result."""
    for share, length, piece in cuts:
        start = int(share * len(patch))
        patch = patch[:start] + piece + patch[start + length :]
    return patch


def check(diff: Diff) -> None:
    assert len({file.path for file in diff.files}) == len(diff.files)
    for file in diff.files:
        assert diff.file(file.path) is file
        assert not {"", ".", ".."} & set(file.path.split("/"))
        assert len(file.digest) == 64
        for hunk in file.hunks:
            lines = list(hunk.lines())
            assert [line.old for line in lines if line.kind != "+"] == list(hunk.old_range)
            assert [line.new for line in lines if line.kind != "-"] == list(hunk.new_range)
            assert hunk.added == sum(line.kind == "+" for line in lines)
            assert hunk.removed == sum(line.kind == "-" for line in lines)
            assert hunk.text().startswith("@@ -")


@pytest.fixture(scope="module")
def patches(repository: Any) -> list[bytes]:
    diff = ["diff", "-M", *repository.commit(BASE, HEAD)]
    valid = [repository.git(*diff, "--binary"), repository.git(*diff, "-U0", "--no-prefix"), PLAIN]
    for patch in valid:
        check(parse(patch))
    return valid


cuts = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(PIECES) | st.binary(max_size=4)),
    min_size=1,
    max_size=4,
)


def refuse_or_read(patch: bytes) -> None:
    with contextlib.suppress(PatchError):
        check(parse(patch))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), cuts=cuts)
def test_a_damaged_patch_is_refused_or_read(
    patches: list[bytes], which: int, cuts: list[tuple[float, int, bytes]]
) -> None:
    refuse_or_read(damage(patches[which], cuts))


@pytest.mark.exhaustive
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), cuts=cuts)
def test_many_damaged_patches_are_refused_or_read(
    patches: list[bytes], which: int, cuts: list[tuple[float, int, bytes]]
) -> None:
    refuse_or_read(damage(patches[which], cuts))


# What stands before or after a cut that no one can see: nothing told that more hunks, more files, the content of a
# new file or a missing last newline were to come.
UNSEEN_BEFORE = re.compile(rb"\n(?:(?:new|deleted) file mode|new mode|deleted file mode \d+\nindex) .*\n\Z")
UNSEEN_AFTER = re.compile(rb"diff --git |@@ |--- .*\n\+\+\+ .*\n@@ -0,0|delta |literal |\\ No newline")


def test_a_cut_patch_is_never_taken_for_a_whole_one(patches: list[bytes]) -> None:
    cuts = 0
    for patch in patches:
        for end in range(1, len(patch)):
            seen = patch[end - 1 : end] != b"\n" or not (
                UNSEEN_BEFORE.search(patch[:end]) or UNSEEN_AFTER.match(patch, end)
            )
            if seen:
                cuts += 1
                with pytest.raises(PatchError):
                    parse(patch[:end])
    assert cuts > 3000
