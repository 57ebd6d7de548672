"""Damaged and hostile patches: refused with line and file, never half read, never slow."""

from __future__ import annotations

import contextlib
import time

import pytest

from reviewer.diff import parse
from reviewer.errors import PatchError

START = "diff --git a/d/f b/d/f\nindex 7898192..6178079 100644\n"
HEADER = START + "--- a/d/f\n+++ b/d/f\n"
RENAME = "diff --git a/f b/d/f\nsimilarity index 98%\nrename from f\nrename to d/f\n"
NEXT = "diff --git a/g b/g\nold mode 100644\nnew mode 100755\n"


@pytest.mark.parametrize(
    ("patch", "line", "problem"),
    [
        (HEADER + "@@ -1,2 +1,2 @@\n a\n", 7, "patch ends here, but 1 old and 1 new lines are missing"),
        (HEADER + "@@ -1,2 +1,2 @@\n a\n" + NEXT, 7, "not part of the hunk, but 1 old and 1 new lines"),
        (HEADER + "@@ -1,2 +1,2 @@\n a\n@@ -9 +9 @@\n-a\n+b\n", 7, "not part of the hunk"),
        (HEADER + "@@ -1,2 +1,3 @@\n a\n+b\n+c", 8, "stops in the middle of this line"),
        (HEADER + "@@ -1 +1 @@", 5, "hunk header is malformed"),
        (HEADER + "@@ -1 +1 @@\n a\n+b\n", 7, "more lines than its header says"),
        (HEADER + "@@ -1 +1 @@\n a\n b\n", 7, "more lines than its header says"),
        (HEADER + "@@ -1 +1 @@\n a\n-b\n", 7, "more lines than its header says"),
        (HEADER + "@@ -1 +1 @@\n a\n-- \n+b\n", 7, "more lines than its header says"),
        (HEADER + "@@ -1 +1 @@\n-a\n-b\n", 7, "not part of the hunk, but 0 old and 1 new lines"),
        (HEADER + "@@ -1,2 +1,2 @@\n a\n+b\n+c\n", 8, "not part of the hunk, but 1 old and 0 new lines"),
        (HEADER + "@@ -1,3 +1,3 @@\n a\nrubbish\n c\n", 7, "not part of the hunk"),
        (HEADER + "@@ -1,3 +1,3 @@\n a\n\tb\n c\n", 7, "not part of the hunk"),
        (HEADER + "@@ -1 +1 @@\n\\ No newline\n-a\n+b\n", 6, "not part of the hunk"),
        (HEADER + "@@ -1,2 +1 @@\n-a\n\\ No newline\n-b\n+c\n", 7, "ends here without a newline, but"),
        (HEADER + "@@ -1 +1,2 @@\n-a\n+b\n\\ No newline\n+c\n", 8, "ends here without a newline, but"),
        (HEADER + "@@ -1,2 +1,2 @@\n a\n\\ No newline\n b\n", 7, "ends here without a newline, but"),
        (HEADER + "@@ -1 +1 @@\n a\n\\ No newline\n\\ No newline\n", 8, "more lines than its header says"),
        (HEADER + "@@ -5 +5 @@\n-a\n+b\n@@ -5 +9 @@\n-a\n+b\n", 8, "lie before or within the one above"),
        (HEADER + "@@ -5 +5 @@\n-a\n+b\n@@ -9 +5 @@\n-a\n+b\n", 8, "lie before or within the one above"),
        (HEADER + "@@ -0 +1 @@\n-a\n+b\n", 5, "lie before or within the one above"),
        (HEADER + "@@ -x +1 @@\n-a\n+b\n", 5, "hunk header is malformed"),
        (HEADER + f"@@ -{'1' * 5000} +1 @@\n-a\n+b\n", 5, "hunk header is malformed"),
        (HEADER, 5, "no hunk follows"),
        (HEADER + NEXT, 5, "no hunk follows"),
        (START, 3, "content changed, but no hunk follows"),
        (START + NEXT, 3, "content changed, but no hunk follows"),
        (START.replace("index", "old mode 100644\nnew mode 100755\nindex"), 5, "but no hunk follows"),
        ("diff --git a/d/f b/d/f\nnew file mode 100644\nindex 0000000..6178079\n", 4, "but no hunk follows"),
        (RENAME + "index 7898192..6178079 100644\n", 6, "content changed, but no hunk follows"),
        (RENAME, 5, "content changed, but no hunk follows"),
        ("diff --git a/d/f b/d/f\n", 2, "names this file, but no change of it"),
        ("diff --git a/d/f b/d/f\nindex 7898192..7898192 100644\n", 3, "but no change of it"),
    ],
)
def test_damage_in_a_file_is_named_with_file_and_line(patch: str, line: int, problem: str) -> None:
    with pytest.raises(PatchError) as caught:
        parse(patch.encode())
    message = str(caught.value)
    assert message.startswith(f"line {line} of the patch, 'd/f': ")
    assert problem in message
    assert "git diff BASE...HEAD" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("patch", "line", "problem"),
    [
        ("some words\n@@ -1 +1 @@\n-a\n+b\n", 2, "belongs to no file"),
        (NEXT + "@@ -1 +1 @@\n-a\n+b\n", 4, "damaged or out of place"),
        ("diff --git a/f b/f\nindex 12..zz\n--- a/f\n+++ b/f\n", 2, "damaged or out of place"),
        ("diff --git a/f b/f\n--- a/f\n@@ -1 +1 @@\n", 2, "damaged or out of place"),
        ("diff --git a/f b/f\nnew file mode 1006\n", 2, "damaged or out of place"),
        ("diff --git a/f b/f\nGIT binary patch\nliteral 3\nKcmZ\n", 2, "damaged or out of place"),
        ("diff --git a/f b/f\nGIT binary patch\nliteral 3\nKcmZQzU|?i`\n", 2, "damaged or out of place"),
        ("diff --git a/f b/f\nold mode 100644\n", 3, "only one mode is named"),
        ("diff --git a/f b/f\nrename from f\n", 1, "one name is missing"),
        ("diff --git a/f b/g\n", 1, "cannot be told apart"),
        ("diff --git nothing\n", 1, "cannot be told apart"),
        ('diff --git "a/f b/f\n', 1, "is not closed"),
        (NEXT + "diff --git a/h b/h", 4, "stops in the middle of this line"),
        (NEXT + "diff --git a/h b/h\nnew file mo", 5, "no change of it"),
        ('diff --git a/f "b/f\\q"\n', 1, "unknown escape"),
        ('diff --git "a/f" "b/f\n', 1, "is not closed"),
        ("diff --git a/f b/f\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n", 1, "is called both 'f' and 'b/g'"),
        ("diff --git a/f b/f\n--- a/f\n+++ b/d/f\n@@ -1 +1 @@\n", 1, "is called both 'f' and 'b/d/f'"),
        ("diff --git a/../f b/../f\n", 1, "does not stay within the repository"),
        ("--- a/f\n+++ b/../../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", 1, "does not stay within the repository"),
        ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n+b\n", 1, "does not stay within the repository"),
        ('diff --git "a/f\\000" "b/f\\000"\n', 1, "holds a NUL"),
        ("Binary files a/x\n--- a/f\n+++ b/f\n", 4, "no hunk follows"),
        ("diff --git a/f b/f", 1, "holds no diff"),
    ],
)
def test_damage_in_a_header_is_named_with_its_line(patch: str, line: int, problem: str) -> None:
    with pytest.raises(PatchError) as caught:
        parse(patch.encode())
    message = str(caught.value)
    assert message.startswith(f"line {line} of the patch")
    assert problem in message
    assert "\n" not in message


def test_a_name_in_an_error_is_short_and_cannot_command_a_terminal() -> None:
    name = "\x1b[2J" + "x" * 5000
    with pytest.raises(PatchError) as caught:
        parse(f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n".encode())
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


SLOW_IF_QUADRATIC = {
    "blanks": b" " * 400_000,
    "quotes": b'diff --git "' + b'\\"' * 400_000 + b"\n",
    "long pair": b"diff --git " + b"a/ b/ " * 200_000 + b"\n",
    "differ": b"Binary files " + b" and x differ" * 100_000 + b"\n",
    "names": b"--- a\n" * 100_000,
    "no hunks": b"--- a\n+++ b\n" * 100_000,
    "removed lines": HEADER.encode() + b"@@ -1,9999999 +1 @@\n" + b"--- a\n" * 100_000,
    "hunks": HEADER.encode() + b"".join(b"@@ -%d +%d @@\n-\n+\n" % (n, n) for n in range(1, 50_000)),
    "stripped hunks": HEADER.encode() + b"".join(b"@@ -%d +%d @@\n\n" % (n, n) for n in range(1, 50_000)),
    "base85": b"diff --git a/f b/f\nGIT binary patch\nliteral 9\n" + b"zcmZQzU\n" * 100_000,
    "fields": b"diff --git a/f b/f\n" + b"old mode 100644\n" * 50_000,
}


@pytest.mark.parametrize("patch", SLOW_IF_QUADRATIC.values(), ids=SLOW_IF_QUADRATIC.keys())
def test_no_patch_takes_more_than_linear_time(patch: bytes) -> None:
    start = time.process_time()
    with contextlib.suppress(PatchError):
        parse(patch)
    assert time.process_time() - start < 5  # quadratic time would be minutes
