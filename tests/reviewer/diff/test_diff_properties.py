"""Real `git diff` output of generated trees, applied by hand; and arbitrary damage to real patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reviewer.diff import Diff, Hunk, parse

Tree = dict[bytes, tuple[str, bytes]]
BlobId = Callable[[bytes], str]

LINES = [
    b"",
    b"a",
    b"b",
    b"}",
    b"    return x",
    b"\r",
    b"a\r",
    b"lone \r return",
    b"form\ffeed",
    "U+2028 \u2028 and \u0085".encode(),
    b"latin-1 \xe9\xff",
    b"--- a/x",
    b"+++ b/x",
    b"-- a",
    b"++ b",
    b"@@ -1 +1 @@",
    b"@@ -1,3 +1,3 @@ def f():",
    b"diff --git a/x b/x",
    b"-- ",
    b"- ",
    b"+",
    b" ",
    b"\\ No newline at end of file",
    b"GIT binary patch",
]
NAMES = [
    b"a",
    b"b.py",
    b"with space",
    b"x b/x",
    b'quo"te',
    b"tab\tnew\nline",
    b"back\\slash",
    "Größe/\u2028".encode(),
    b"d/latin-\xe9",
    b"d/e/f.c",
    b" ",
    b"-- a",
]
FLAGS = [
    ["-U0"],
    ["-U1", "--no-prefix"],
    ["-U3", "-M", "-C", "--find-copies-harder"],
    ["-U10", "-M", "--binary"],
    ["-U3", "-M", "-B", "--src-prefix=old/", "--dst-prefix=new/"],
    ["-W", "-M01", "--patience"],
]

names = st.sampled_from(NAMES) | st.binary(min_size=1, max_size=6).filter(
    lambda name: (
        not set(name) & set(b"\0/") and name.strip(b". ") and name.lower() != b".git" and name != b"d"
    )
)
lines = st.sampled_from(LINES) | st.binary(max_size=8).map(lambda line: line.replace(b"\n", b""))
texts = st.builds(
    lambda rows, count, end: b"\n".join([*rows, *(b"line %d" % line for line in range(count))]) + end,
    st.lists(lines, max_size=20),
    st.sampled_from([0, 0, 5, 40]),
    st.sampled_from([b"\n", b""]),
)
binaries = st.binary(max_size=300).map(lambda content: b"\0" + content)
commits = st.integers(1, 5).map(lambda number: b"%040x" % number)
files = st.one_of(
    *[st.tuples(st.sampled_from(["100644", "100644", "100755"]), texts)] * 8,
    st.tuples(st.just("100644"), binaries),
    st.tuples(st.just("120000"), st.sampled_from([b"target", b"../\xff"])),
    st.tuples(st.just("160000"), commits),
)


ACTIONS = ["edit", "edit", "edit", "replace", "delete", "rename", "rename", "copy", "mode"]


@st.composite
def changes(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree, and what an author could make of it: edits, renames, copies, other modes and types."""
    base = draw(st.dictionaries(names, files, min_size=2, max_size=5))
    head = dict(base)
    for path, (mode, content) in base.items():
        action = draw(st.sampled_from(ACTIONS))
        edited = mode, content if mode == "160000" else draw(edits(content))
        if action in ("delete", "rename"):
            del head[path]
        if action == "edit":
            head[path] = edited
        elif action == "replace":
            head[path] = draw(files)
        elif action in ("rename", "copy"):
            head[draw(names)] = draw(st.sampled_from([(mode, content), edited]))
        elif action == "mode" and mode.startswith("100"):
            head[path] = (
                "100755" if mode == "100644" else "100644",
                draw(st.sampled_from([content, edited[1]])),
            )
    return base, head | draw(st.dictionaries(names, files, max_size=1))


@st.composite
def edits(draw: st.DrawFn, content: bytes) -> bytes:
    rows = content.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(rows)))
        stop = draw(st.integers(start, min(len(rows), start + 3)))
        rows[start:stop] = draw(st.lists(lines, max_size=3))
    return b"\n".join(rows) or b"\n"


def split(content: bytes) -> list[bytes]:
    """Lines with their `\\n`; the last may lack it."""
    *whole, last = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def apply(hunks: Sequence[Hunk], content: bytes) -> bytes:
    """What the parsed hunks make of `content`; asserts that each line is where its number says."""
    old = split(content)
    new: list[bytes] = []
    done = 0
    for hunk in hunks:
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        assert start >= done
        new += old[done:start]
        done = start
        shown = list(hunk.lines())
        for line in shown:
            text = line.text + (b"\n" if line.newline else b"")
            if line.kind != "+":
                assert line.old == done + 1
                assert old[done] == text
                done += 1
            if line.kind != "-":
                new.append(text)
                assert line.new == len(new)
        assert [line.old for line in shown if line.kind != "+"] == list(hunk.old_range)
        assert [line.new for line in shown if line.kind != "-"] == list(hunk.new_range)
        assert hunk.added == sum(line.kind == "+" for line in shown)
        assert hunk.removed == sum(line.kind == "-" for line in shown)
    return b"".join(new + old[done:])


def diffed(tree: Tree) -> Tree:
    """A tree with the contents that git diffs: of a submodule, the name of its commit."""
    return {
        path: (mode, b"Subproject commit %s\n" % content if mode == "160000" else content)
        for path, (mode, content) in tree.items()
    }


def check(diff: Diff, base: Tree, head: Tree, blob_id: BlobId) -> None:
    """Rebuilds the head from the base and the diff, and compares."""
    sources = {file.raw_old_path for file in diff.files if file.status == "renamed"}
    gone = {file.raw_old_path for file in diff.files if file.status == "deleted"}
    before, after = diffed(base), diffed(head)
    built = dict(before)
    for path in sources | gone:
        del built[path]
    for file in diff.files:
        old_mode, old = before[file.raw_old_path] if file.status != "added" else ("", b"")
        target = after[file.raw_path] if file.status != "deleted" else ("", b"")
        if file.binary:
            assert b"\0" in old + target[1]
            new = target[1]
        elif file.status == "type":
            emptying = [hunk for hunk in file.hunks if not hunk.new_start]
            assert apply(emptying, old) == b""
            new = apply(file.hunks[len(emptying) :], b"")
        else:
            new = apply(file.hunks, old)
        if file.status == "deleted":
            assert new == target[1]
        else:
            built[file.raw_path] = (file.new_mode or old_mode, new)
        if file.old_mode:
            assert file.old_mode == old_mode
        if file.old_blob or file.new_blob:
            for blob, mode, content in ((file.old_blob, old_mode, old), (file.new_blob, *target)):
                if mode and mode != "160000":
                    assert blob == blob_id(content)
        assert diff.file(file.path) is file
        assert file.path == file.raw_path.decode(errors="backslashreplace")
    assert built == after


def run(repository: Any, blob_id: BlobId, change: tuple[Tree, Tree], flags: list[str]) -> None:
    base, head = change
    patch = repository.diff(base, head, *flags)
    diff = parse(patch)
    assert diff.size == len(patch)
    check(diff, base, head, blob_id)


real_diffs = given(change=changes(), flags=st.sampled_from(FLAGS))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@real_diffs
def test_applying_the_hunks_to_the_base_gives_the_head(
    repository: Any, blob_id: BlobId, change: tuple[Tree, Tree], flags: list[str]
) -> None:
    run(repository, blob_id, change, flags)


@pytest.mark.exhaustive
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@real_diffs
def test_applying_the_hunks_to_the_base_gives_the_head_in_many_trees(
    repository: Any, blob_id: BlobId, change: tuple[Tree, Tree], flags: list[str]
) -> None:
    run(repository, blob_id, change, flags)
