"""Reads a patch file by file; `header` reads what is said about a file, `hunks` what is inside it."""

from __future__ import annotations

import re
from dataclasses import replace

from reviewer.diff import paths
from reviewer.diff.header import bare_file, read_git_header, status_by_names
from reviewer.diff.hunks import read_hunks
from reviewer.diff.model import Diff, FileDiff
from reviewer.diff.source import Source

# Where a file begins, or something that must not be passed over as talk between files.
_START = re.compile(
    rb"^(?:diff --git (?P<pair>.*)\n|diff --(?:cc|combined) (?P<merged>.*)\n|--- (?P<old>.*)\n\+\+\+ (?P<new>.*)\n"
    rb"|Binary files (?P<binary>.*) differ\n|(?P<orphan>@@ -\d).*\n)",
    re.MULTILINE,
)
_ONE_PATCH = "give one patch for the whole change, `git diff BASE...HEAD`"
_EMPTY_BLOBS = (  # the names of the empty blob, in SHA-1 and SHA-256
    "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
)


def parse(patch: bytes) -> Diff:
    """Reads the output of `git diff`, `git show` or `git format-patch`, or of `diff -u`.

    Text between the files is skipped. An empty patch is a diff without files. Raises `PatchError` for
    anything that is damaged, that is the diff of a merge, or that changes one file twice.
    """
    source = Source(patch)
    files: list[FileDiff] = []
    known: set[str] = set()
    position = 0
    while start := _START.search(patch, position):
        try:
            file, position = _read_file(source, start)
        except paths.BadName as error:
            raise source.error(start.start(), str(error)) from error
        if file.path not in known:
            known.add(file.path)
            files.append(file)
        elif _is_type_change(files[-1], file):
            files[-1] = _join(files[-1], file)
        else:
            fault = "the patch changes this file a second time"
            raise source.error(start.start(), fault, file.path, _ONE_PATCH)
    if not files and patch.strip():
        raise source.error(0, "what was given as a patch holds no diff")
    if files and not patch.endswith(b"\n"):
        raise source.error(source.size, "the patch stops in the middle of this line")
    return Diff(tuple(files), source.size)


def _read_file(source: Source, start: re.Match[bytes]) -> tuple[FileDiff, int]:
    if start[0].endswith(b"\r\n"):
        raise source.error(start.start(), "the patch was converted: its own lines end in CRLF")
    if start["pair"] is not None:
        return _read_git_file(source, start)
    if start["old"] is not None:
        return _read_plain_file(source, start)
    if start["binary"] is not None:
        old, new = paths.split_binary(start["binary"])
        return replace(_plain_file(old, new), binary=True), start.end()
    if start["orphan"] is not None:
        raise source.error(start.start(), "this hunk belongs to no file")
    path = paths.show(paths.unquote(start["merged"]))
    raise source.error(start.start(), "this is a merge's diff against several parents", path, _ONE_PATCH)


def _read_git_file(source: Source, start: re.Match[bytes]) -> tuple[FileDiff, int]:
    file, end, named = read_git_header(source, start.end(), start["pair"])
    if named:
        hunks, end = read_hunks(source, end, file.path)
        return replace(file, hunks=hunks), end
    if file.binary or file.status == "deleted":  # `git diff -D` shows no content of deleted files
        return file, end
    same = file.old_blob == file.new_blob and file.similarity in (None, 100)
    empty = file.status == "added" and any(name.startswith(file.new_blob) for name in _EMPTY_BLOBS)
    if not (same or empty):
        raise source.error(end, "the file's content changed, but no hunk follows", file.path)
    if file.status == "modified":
        if file.old_mode == file.new_mode:
            raise source.error(end, "the patch names this file, but no change of it", file.path)
        file = replace(file, status="mode")
    return file, end


def _read_plain_file(source: Source, start: re.Match[bytes]) -> tuple[FileDiff, int]:
    file = _plain_file(paths.header_name(start["old"]), paths.header_name(start["new"]))
    hunks, end = read_hunks(source, start.end(), file.path)
    first = hunks[0]
    # `diff -N` gives an absent file its usual name: only the hunk that fills or empties it tells.
    if file.status == "modified" and not (first.old_start and first.new_start):
        file = replace(file, status="deleted" if first.old_start else "added")
    return replace(file, hunks=hunks), end


def _plain_file(old: bytes, new: bytes) -> FileDiff:
    return bare_file(*paths.strip_prefixes(old, new), status_by_names(old, new))


def _is_type_change(before: FileDiff, after: FileDiff) -> bool:
    """Whether these are the two halves of one change of type, which git writes as deletion and addition."""
    return (
        before.path == after.path
        and (before.status, after.status) == ("deleted", "added")
        and before.old_mode[:3] != after.new_mode[:3]
    )


def _join(before: FileDiff, after: FileDiff) -> FileDiff:
    return replace(
        after,
        status="type",
        old_mode=before.old_mode,
        old_blob=before.old_blob,
        binary=before.binary or after.binary,
        hunks=before.hunks + after.hunks,
    )
