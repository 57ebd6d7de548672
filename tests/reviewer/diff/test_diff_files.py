"""Files: their status, names, modes, blobs and digests, from what git itself writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reviewer.diff import Diff, FileDiff, parse

DiffOf = Callable[..., Diff]
BlobId = Callable[[bytes], str]

TEXT = b"".join(b"line %d\n" % line for line in range(50))


def only(diff: Diff) -> FileDiff:
    (file,) = diff.files
    return file


def test_an_empty_patch_is_a_diff_without_files() -> None:
    assert parse(b"") == Diff((), 0)
    assert parse(b"\n").files == ()


def test_modified(diff_of: DiffOf, blob_id: BlobId) -> None:
    file = only(diff_of({b"f": b"a\n"}, {b"f": b"b\n"}))
    assert (file.status, file.path, file.old_path) == ("modified", "f", "f")
    assert (file.old_mode, file.new_mode) == ("100644", "100644")
    assert (file.old_blob, file.new_blob) == (blob_id(b"a\n"), blob_id(b"b\n"))
    assert (file.similarity, file.binary, file.submodule) == (None, False, False)


def test_added(diff_of: DiffOf, blob_id: BlobId) -> None:
    file = only(diff_of({b"g": b""}, {b"g": b"", b"d/f": b"a\n"}))
    assert (file.status, file.path, file.old_path) == ("added", "d/f", "d/f")
    assert (file.old_mode, file.new_mode) == ("", "100644")
    assert (file.old_blob, file.new_blob) == ("", blob_id(b"a\n"))
    assert (file.added, file.removed) == (1, 0)


def test_deleted(diff_of: DiffOf, blob_id: BlobId) -> None:
    file = only(diff_of({b"g": b"", b"d/f": b"a\n"}, {b"g": b""}))
    assert (file.status, file.path, file.old_path) == ("deleted", "d/f", "d/f")
    assert (file.old_mode, file.new_mode) == ("100644", "")
    assert (file.old_blob, file.new_blob) == (blob_id(b"a\n"), "")
    assert (file.added, file.removed) == (0, 1)


@pytest.mark.parametrize("status", ["added", "deleted"])
def test_an_empty_file_has_no_hunks(diff_of: DiffOf, status: str) -> None:
    with_file, without = {b"g": b"g\n", b"f": b""}, {b"g": b"!\n"}
    diff = diff_of(without, with_file) if status == "added" else diff_of(with_file, without)
    assert [(file.path, file.status, len(file.hunks)) for file in diff.files] == [
        ("f", status, 0),
        ("g", "modified", 1),
    ]


def test_an_empty_file_that_is_filled_is_modified(diff_of: DiffOf) -> None:
    file = only(diff_of({b"f": b""}, {b"f": b"a\n"}))
    assert (file.status, file.added) == ("modified", 1)


def test_renamed_unchanged(diff_of: DiffOf) -> None:
    file = only(diff_of({b"old name": TEXT}, {b"d/new name": TEXT}, "-M"))
    assert (file.status, file.similarity, file.hunks) == ("renamed", 100, ())
    assert (file.old_path, file.path) == ("old name", "d/new name")


def test_renamed_with_changes(diff_of: DiffOf) -> None:
    file = only(diff_of({b"old": TEXT}, {b"new": TEXT.replace(b"line 9\n", b"9\n")}, "-M"))
    assert file.status == "renamed"
    assert 90 <= (file.similarity or 0) < 100
    assert (file.old_path, file.path, file.added, file.removed) == ("old", "new", 1, 1)


def test_renamed_with_another_mode(diff_of: DiffOf) -> None:
    file = only(diff_of({b"old": TEXT}, {b"new": ("100755", TEXT)}, "-M"))
    assert (file.status, file.old_mode, file.new_mode) == ("renamed", "100644", "100755")


def test_copied(diff_of: DiffOf) -> None:
    head = {b"f": TEXT, b"same": TEXT, b"changed": TEXT + b"more\n"}
    diff = diff_of({b"f": TEXT}, head, "-C", "--find-copies-harder")
    assert [(file.status, file.old_path, file.path, file.added) for file in diff.files] == [
        ("copied", "f", "changed", 1),
        ("copied", "f", "same", 0),
    ]


def test_rewritten(diff_of: DiffOf) -> None:
    head = b"".join(b"other %d\n" % line for line in range(90))
    file = only(diff_of({b"f": TEXT}, {b"f": head}, "-B"))
    assert (file.status, file.similarity, file.added, file.removed) == ("modified", None, 90, 50)


def test_mode_change_alone(diff_of: DiffOf) -> None:
    file = only(diff_of({b"f": TEXT}, {b"f": ("100755", TEXT)}))
    assert (file.status, file.old_mode, file.new_mode, file.hunks) == ("mode", "100644", "100755", ())


def test_mode_change_with_content(diff_of: DiffOf) -> None:
    file = only(diff_of({b"f": TEXT}, {b"f": ("100755", TEXT + b"more\n")}))
    assert (file.status, file.old_mode, file.new_mode, file.added) == ("modified", "100644", "100755", 1)


def test_submodule(diff_of: DiffOf) -> None:
    old, new = b"1" * 40, b"2" * 40
    file = only(diff_of({b"lib": ("160000", old)}, {b"lib": ("160000", new)}))
    assert (file.status, file.submodule, file.new_mode) == ("modified", True, "160000")
    assert [line.text for line in file.hunks[0].lines()] == [
        b"Subproject commit " + old,
        b"Subproject commit " + new,
    ]


@pytest.mark.parametrize("status", ["added", "deleted"])
def test_submodule_added_or_deleted(diff_of: DiffOf, status: str) -> None:
    with_module, without = {b"g": b"", b"lib": ("160000", b"1" * 40)}, {b"g": b""}
    file = only(diff_of(without, with_module) if status == "added" else diff_of(with_module, without))
    assert (file.status, file.submodule) == (status, True)


def test_symlink(diff_of: DiffOf) -> None:
    file = only(diff_of({b"l": ("120000", b"old")}, {b"l": ("120000", b"new")}))
    assert (file.status, file.new_mode, file.submodule) == ("modified", "120000", False)
    assert [(line.text, line.newline) for line in file.hunks[0].lines()] == [(b"old", False), (b"new", False)]


@pytest.mark.parametrize(
    ("mode", "content"), [("120000", b"target"), ("160000", b"1" * 40)], ids=["symlink", "submodule"]
)
def test_change_of_type_is_one_file(diff_of: DiffOf, mode: str, content: bytes) -> None:
    file = only(diff_of({b"f": TEXT}, {b"f": (mode, content)}))
    assert (file.status, file.path, file.old_path) == ("type", "f", "f")
    assert (file.old_mode, file.new_mode, file.submodule) == ("100644", mode, mode == "160000")
    assert [(hunk.removed, hunk.added) for hunk in file.hunks] == [(50, 0), (0, 1)]
    assert file.old_blob
    assert file.new_blob


def test_binary(diff_of: DiffOf, blob_id: BlobId) -> None:
    diff = diff_of({b"b": b"\0a", b"f": b"a\n"}, {b"b": b"\0b", b"f": b"b\n"})
    assert [(file.path, file.binary, len(file.hunks)) for file in diff.files] == [
        ("b", True, 0),
        ("f", False, 1),
    ]
    assert (diff.files[0].old_blob, diff.files[0].new_blob) == (blob_id(b"\0a"), blob_id(b"\0b"))


@pytest.mark.parametrize("size", [10, 3000], ids=["literal", "delta"])
def test_binary_patch(diff_of: DiffOf, size: int) -> None:
    noise = b"\0" + bytes(index * index % 251 for index in range(size))
    base = {b"b": noise, b"gone": noise, b"f": b"a\n"}
    diff = diff_of(base, {b"b": noise + b"x", b"new": b"\0\1", b"f": b"b\n"}, "--binary")
    assert [(file.path, file.status, file.binary) for file in diff.files] == [
        ("b", "modified", True),
        ("f", "modified", False),
        ("gone", "deleted", True),
        ("new", "added", True),
    ]


ODD_NAMES = [
    b"with space",
    b"x b/x",
    b"a/x b/a/x",
    b" b/ b",
    b"tab\there",
    b'quo"te',
    b"back\\slash",
    b"new\nline",
    b"bell\a\b\v\f\r",
    b"\x01\x7f",
    "Größe/文件.py".encode(),
    b"latin-1-\xe9",
    b"trailing ",
    b'"quoted"',
    b"-- and -",
    b"a and b",
]


@pytest.mark.parametrize("quote_path", ["true", "false"])
@pytest.mark.parametrize("flags", [[], ["--no-prefix"]], ids=["prefix", "no prefix"])
@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (b"a\n", b"b\n", "modified"),
        (None, b"b\n", "added"),
        (b"a\n", None, "deleted"),
        (None, b"", "added"),
        (b"", None, "deleted"),
        (b"\0", b"\0\0", "modified"),
        (b"a\n", ("100755", b"a\n"), "mode"),
    ],
)
def test_odd_names_are_exact(
    repository: Any, quote_path: str, flags: list[str], before: Any, after: Any, status: str
) -> None:
    trees = [
        {b"other": ("100644", b"")}
        | {
            name: file if isinstance(file, tuple) else ("100644", file)
            for name in ODD_NAMES
            if file is not None
        }
        for file in (before, after)
    ]
    diff = parse(
        repository.git("-c", f"core.quotePath={quote_path}", "diff", *flags, *repository.commit(*trees), "--")
    )
    assert [file.raw_path for file in diff.files] == sorted(ODD_NAMES)
    for file in diff.files:
        assert file.raw_old_path == file.raw_path
        assert file.path == file.raw_path.decode(errors="backslashreplace")
        assert file.status == status


@pytest.mark.parametrize("added", [b"", b"more\n"], ids=["unchanged", "changed"])
@pytest.mark.parametrize("direction", [1, -1], ids=["to odd names", "from odd names"])
def test_odd_names_are_exact_in_renames(diff_of: DiffOf, added: bytes, direction: int) -> None:
    plain = [b"plain %d" % index for index in range(len(ODD_NAMES))]
    texts = [TEXT.replace(b"line", b"text of %d" % index) for index in range(len(ODD_NAMES))]
    old, new = [plain, ODD_NAMES][::direction]
    diff = diff_of(
        dict(zip(old, texts, strict=True)),
        {name: text + added for name, text in zip(new, texts, strict=True)},
        "-M80",
    )
    assert {file.status for file in diff.files} == {"renamed"}
    assert {file.raw_old_path: file.raw_path for file in diff.files} == dict(zip(old, new, strict=True))


def test_paths_are_valid_unicode(diff_of: DiffOf) -> None:
    diff = diff_of({b"\xff.py": TEXT}, {b"\xfe.py": TEXT}, "-M")
    file = only(diff)
    assert (file.old_path, file.path) == ("\\xff.py", "\\xfe.py")
    assert (file.raw_old_path, file.raw_path) == (b"\xff.py", b"\xfe.py")
    assert diff.file("\\xfe.py") is file


@pytest.mark.parametrize(
    "flags", [["--no-prefix"], ["--src-prefix=old/", "--dst-prefix=new/"], ["-R"], ["--abbrev=4"]], ids=str
)
def test_prefixes_are_recognised(diff_of: DiffOf, flags: list[str]) -> None:
    base = {b"a/m": b"1\n", b"a/gone": b"1\n", b"a/old": TEXT, b"x": TEXT}
    head = {b"a/m": b"2\n", b"a/new": b"2\n", b"a/renamed": TEXT + b"2\n", b"x": ("100755", TEXT)}
    diff = diff_of(base, head, "-M", "--no-full-index", *flags)
    assert {"a/m", "a/gone", "a/new", "x"} < {file.path for file in diff.files}
    assert {"a/old", "a/renamed"} == {
        path for file in diff.files for path in (file.old_path, file.path) if file.status == "renamed"
    }


def test_without_index_line() -> None:
    file = only(
        parse(b"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n")
    )
    assert (file.status, file.path, file.old_blob, file.new_blob, file.added) == ("added", "x", "", "", 1)


def test_dev_null_alone_makes_a_file_added_or_deleted() -> None:
    added = b"diff --git a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n"
    deleted = b"diff --git a/y b/y\n--- a/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
    assert [(file.path, file.status) for file in parse(added + deleted).files] == [
        ("x", "added"),
        ("y", "deleted"),
    ]


def test_file_finds_by_the_name_in_the_head(diff_of: DiffOf) -> None:
    diff = diff_of({b"old": TEXT, b"f": b"a\n"}, {b"new": TEXT, b"f": b"b\n"}, "-M")
    assert [diff.file(path) for path in ("f", "new", "old")] == [diff.files[0], diff.files[1], None]
    assert diff.size > 100


class TestDigest:
    def test_is_the_same_where_only_line_numbers_change(self, diff_of: DiffOf) -> None:
        change = TEXT.replace(b"line 30\n", b"30\n")
        before = only(diff_of({b"f": TEXT}, {b"f": change}))
        after = only(diff_of({b"f": b"top\n" * 9 + TEXT}, {b"f": b"top\n" * 9 + change}))
        assert before.hunks != after.hunks
        assert before.digest == after.digest

    def test_changes_with_content_mode_name_status_and_binary_content(self, diff_of: DiffOf) -> None:
        other = b"".join(b"%d\n" % line for line in range(40))
        files = [
            only(diff_of({b"f": TEXT}, {b"f": TEXT + b"1\n"})),
            only(diff_of({b"f": TEXT}, {b"f": TEXT + b"2\n"})),
            only(diff_of({b"f": TEXT}, {b"f": ("100755", TEXT + b"1\n")})),
            only(diff_of({b"f": TEXT}, {b"f": ("100755", TEXT)})),
            only(diff_of({b"f": TEXT}, {b"g": TEXT}, "-M")),
            only(diff_of({b"h": TEXT}, {b"g": TEXT}, "-M")),
            only(diff_of({b"g": TEXT, b"o": other}, {b"g": TEXT, b"o": other, b"f": b""})),
            only(diff_of({b"g": TEXT, b"f": b""}, {b"g": TEXT})),
            only(diff_of({b"f": b"\0a"}, {b"f": b"\0b"})),
            only(diff_of({b"f": b"\0a"}, {b"f": b"\0c"})),
        ]
        assert len({file.digest for file in files}) == len(files)
