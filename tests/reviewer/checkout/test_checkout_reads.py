from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reviewer.checkout import snapshot
from reviewer.checkout.base import Checkout, Entry, Match
from reviewer.checkout.git import Git
from reviewer.checkout.objects import Blobs
from reviewer.checkout.snapshot import GitCheckout, open_range
from reviewer.errors import GitError
from reviewer.model import Side


def as_protocol(checkout: GitCheckout) -> Checkout:
    """Type-checked: the implementation satisfies the protocol."""
    return checkout


def test_both_sides_are_read_byte_for_byte(make_repo: Callable[..., Any]) -> None:
    repo = make_repo()
    content = "ümlaut\r\nlone\rU+2028\u2028end".encode() + b"\xff\0\n\n"
    repo.commit({"a": b"", "b": content})
    repo.commit({"a": content, "b": None})
    with open_range(repo.folder, "HEAD~1", "HEAD") as checkout:
        seen = as_protocol(checkout)
        assert seen.read("a", Side.LEFT) == b""
        assert seen.read("a", Side.RIGHT) == content
        assert seen.read("b", Side.LEFT) == content
        assert seen.read("b", Side.RIGHT) is None
        assert seen.read("none", Side.RIGHT) is None


def test_files_are_sorted_and_complete(repo: Any) -> None:
    repo.commit({"src.py": "", "src/a/b/c.py": "", "Z": "", "é": ""})
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.files(Side.RIGHT) == ("Z", "app.py", "src.py", "src/a/b/c.py", "src/util.py", "é")
        assert checkout.files(Side.LEFT) == ("app.py", "src/util.py")


def test_a_directory_is_listed_with_kinds_and_sizes(repo: Any) -> None:
    repo.commit({"src/deep/x.py": "12345"})
    (repo.folder / "src" / "link").symlink_to("util.py")
    repo.commit({})
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.list_dir("src", Side.RIGHT) == (
            Entry("deep", "directory", 0),
            Entry("link", "symlink", 7),
            Entry("util.py", "file", 10),
        )
        assert checkout.list_dir("src/deep", Side.RIGHT) == (Entry("x.py", "file", 5),)
        assert checkout.list_dir("src/deep", Side.LEFT) is None
        assert checkout.list_dir("app.py", Side.RIGHT) is None
        assert {entry.name for entry in checkout.list_dir("", Side.LEFT) or ()} == {"app.py", "src"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (b"caf\xc3\xa9.py", "café.py"),
        (b"latin-\xe9.py", "latin-\\xe9.py"),
        (b'quo"te\\back.py', 'quo"te\\back.py'),
        (b"tab\tnew\nline.py", "tab\tnew\nline.py"),
        (b"star*[a].py", "star*[a].py"),
        (b"-dash.py", "-dash.py"),
        (b" b/a/ b.py", " b/a/ b.py"),
        (b":colon.py", ":colon.py"),
    ],
)
def test_odd_names_are_spelled_as_in_the_diff(name: bytes, path: str, repo: Any) -> None:
    repo.commit({name: "needle\n", "other.py": "needle\n"})
    with open_range(repo.folder, "HEAD~1", "HEAD") as checkout:
        assert path in [file.path for file in checkout.diff.files]
        assert path in checkout.files(Side.RIGHT)
        assert checkout.read(path, Side.RIGHT) == b"needle\n"
        assert Match(path, 1, "needle") in checkout.grep("needle", Side.RIGHT)
        assert checkout.log(path, 5).count("\n") == 1
        if not path.startswith(":"):
            assert checkout.grep("needle", Side.RIGHT, paths=(path,)) == (Match(path, 1, "needle"),)


def test_grep_finds_lines_with_their_numbers_on_the_side_asked_for(repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.grep("return [0-9]+", Side.RIGHT) == (Match("app.py", 2, "    return 2"),)
        assert checkout.grep("return [0-9]+", Side.LEFT) == (Match("app.py", 2, "    return 1"),)


def test_grep_by_word_by_fixed_string_and_by_path(repo: Any) -> None:
    repo.commit({"src/a.py": "f(x)\nff(x)\n", "src/a.cu": "f(x)\n"})
    with open_range(repo.folder, "main", "pull") as checkout:

        def places(**how: Any) -> list[tuple[str, int]]:
            found = checkout.grep("f(x)", Side.RIGHT, fixed=True, **how)
            return [(match.path, match.line) for match in found]

        assert places() == [("src/a.cu", 1), ("src/a.py", 1), ("src/a.py", 2)]
        assert places(word=True) == [("src/a.cu", 1), ("src/a.py", 1)]
        assert places(paths=("*.py",)) == [("src/a.py", 1), ("src/a.py", 2)]
        assert places(paths=("src/a.cu", "app.py")) == [("src/a.cu", 1)]
        assert places(paths=("src/",)) == places()
        assert places(limit=1) == [("src/a.cu", 1)]
        assert checkout.grep("f(x)", Side.RIGHT) == ()


def test_grep_skips_binary_files_and_survives_odd_bytes(repo: Any) -> None:
    repo.commit({"x.bin": b"needle\0\n", "latin.txt": b"caf\xe9 needle\n", "cr.txt": b"needle\r\n"})
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.grep("needle", Side.RIGHT) == (
            Match("cr.txt", 1, "needle\r"),
            Match("latin.txt", 1, "caf\ufffd needle"),
        )


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}"])
def test_a_pattern_that_git_refuses_is_a_value_error(pattern: str, repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout, pytest.raises(ValueError, match="option"):
        checkout.grep(pattern, Side.RIGHT)


def test_a_search_that_floods_or_takes_too_long_ends(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.commit({"big.txt": "needle in a long line\n" * 100_000})
    monkeypatch.setattr(snapshot, "_GREP_LIMIT", 10_000)
    with open_range(repo.folder, "main", "pull") as checkout:
        found = checkout.grep("needle", Side.RIGHT, limit=10**6)
        assert 100 < len(found) < 1000
        assert {match.text for match in found} == {"needle in a long line"}
        monkeypatch.setattr(snapshot, "_GREP_SECONDS", 0.001)
        with pytest.raises(ValueError, match="took longer than"):
            checkout.grep("needle", Side.RIGHT)


def test_the_log_is_one_line_a_commit_newest_first(repo: Any) -> None:
    repo.commit({"src/util.py": "LIMIT = 4\n"}, "third\n\nwith a body")
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.log(None, 2).splitlines() == [
            f"{repo.git('rev-parse', '--short=12', 'HEAD')} 2024-05-06 Ada: third",
            f"{repo.git('rev-parse', '--short=12', 'HEAD~1')} 2024-05-06 Ada: second",
        ]
        assert [line.rsplit(" ", 1)[1] for line in checkout.log("src/util.py", 9).splitlines()] == [
            "third",
            "first",
        ]
        assert [line.rsplit(" ", 1)[1] for line in checkout.log("src", 9).splitlines()] == ["third", "first"]


@pytest.mark.parametrize("name", ["HEAD", "head", "WHOLE", "SHORT"])
def test_a_commit_is_shown_with_its_patch(name: str, repo: Any) -> None:
    whole = repo.git("rev-parse", "HEAD")
    with open_range(repo.folder, "main", "pull") as checkout:
        shown = checkout.show({"WHOLE": whole, "SHORT": whole[:9]}.get(name, name))
        assert f"commit {whole}" in shown
        assert "+    return 2" in shown
        assert checkout.show(f"{name}~1" if name.lower() == "head" else "base") == checkout.show("base")
        assert "first" in checkout.show("base")


def test_a_merge_is_shown_against_its_first_parent(repo: Any) -> None:
    repo.git("checkout", "--quiet", "main")
    repo.commit({"side.py": "s\n"})
    repo.git("checkout", "--quiet", "pull")
    repo.git("merge", "--quiet", "--no-edit", "main")
    with open_range(repo.folder, "pull~1", "pull") as checkout:
        assert "+s" in checkout.show("HEAD")


def test_a_huge_commit_is_cut_with_a_note(repo: Any) -> None:
    repo.commit({"big.txt": "0123456789\n" * 200_000})
    with open_range(repo.folder, "main", "pull") as checkout:
        shown = checkout.show("HEAD")
        assert shown.endswith("(cut after 1048576 bytes)\n")
        assert len(shown) < 1_100_000


def test_blobs_are_read_by_full_name_only(repo: Any) -> None:
    blob, tree = repo.git("rev-parse", "HEAD:app.py"), repo.git("rev-parse", "HEAD^{tree}")
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.blob(blob) == b"def run():\n    return 2\n"
        for other in (blob[:10], "HEAD:app.py", tree, "0" * 40, "", f"{blob}\n{blob}"):
            assert checkout.blob(other) is None
        assert checkout.blob(blob) == b"def run():\n    return 2\n"


def test_a_file_above_the_read_limit_counts_as_absent(repo: Any) -> None:
    repo.commit({"big": b"x" * 5001, "fits": b"x" * 5000})
    git = Git(repo.folder, repo.folder / ".git")
    blobs = Blobs(git, 5000)
    names = {path: repo.git("rev-parse", f"HEAD:{path}") for path in ("big", "fits")}
    assert blobs.read(names["big"]) is None
    assert blobs.read(names["fits"]) == b"x" * 5000
    blobs.close()


def test_a_damaged_object_is_told_and_the_next_read_works(repo: Any) -> None:
    repo.commit({"bad": random.Random(0).randbytes(100_000), "good": "fine\n"})
    names = {path: repo.git("rev-parse", f"HEAD:{path}") for path in ("bad", "good")}
    with open_range(repo.folder, "HEAD", "HEAD") as checkout:
        file = repo.folder / ".git" / "objects" / names["bad"][:2] / names["bad"][2:]
        os.chmod(file, 0o644)
        file.write_bytes(file.read_bytes()[:50_000])
        with pytest.raises(GitError, match=names["bad"]):
            checkout.read("bad", Side.RIGHT)
        assert checkout.read("good", Side.RIGHT) == b"fine\n"


def test_a_killed_reader_is_told_and_started_anew(repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.read("app.py", Side.LEFT) == b"def run():\n    return 1\n"
        process = checkout._blobs._process
        assert process is not None
        process.kill()
        process.wait()
        with pytest.raises(GitError, match="git cannot read the object"):
            checkout.read("app.py", Side.LEFT)
        assert checkout.read("app.py", Side.LEFT) == b"def run():\n    return 1\n"


def test_closing_ends_the_reader(repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        checkout.read("app.py", Side.LEFT)
        process = checkout._blobs._process
        assert process is not None
        assert process.poll() is None
    assert process.returncode is not None


def blob(repo: Any, text: str | bytes) -> str:
    content = text if isinstance(text, bytes) else text.encode()
    return str(repo.git("hash-object", "-w", "--stdin", stdin=content))


def test_merging_gives_the_old_change_on_the_new_base(repo: Any) -> None:
    lines = [f"line {number}\n" for number in range(9)]
    old_base = "".join(lines)
    old_head = old_base.replace("line 7\n", "line seven\n")
    new_base = old_base.replace("line 1\n", "line one\nand more\n")
    expected = new_base.replace("line 7\n", "line seven\n").encode()
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.merge(blob(repo, old_base), blob(repo, old_head), blob(repo, new_base)) == expected


@pytest.mark.parametrize(
    ("old_head", "new_base"),
    [("a\nB\nc\n", "a\nX\nc\n"), (b"a\0B", "a\nb\nc\n"), ("a\nB\nc\n", None)],
    ids=["conflict", "binary", "missing"],
)
def test_merging_gives_nothing_where_it_cannot_be_proved(
    old_head: str | bytes, new_base: str | None, repo: Any
) -> None:
    target = "0" * 40 if new_base is None else blob(repo, new_base)
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.merge(blob(repo, "a\nb\nc\n"), blob(repo, old_head), target) is None


def test_many_threads_may_use_one_checkout(repo: Any) -> None:
    contents = {f"file{number}.py": f"value = {number}\n" * (number + 1) for number in range(40)}
    repo.commit(dict(contents))
    start = threading.Barrier(8)
    with open_range(repo.folder, "main", "pull") as checkout, ThreadPoolExecutor(8) as pool:

        def read_all(worker: int) -> bool:
            start.wait()
            found = checkout.grep(f"^value = {worker}$", Side.RIGHT, limit=1)
            same = all(checkout.read(path, Side.RIGHT) == text.encode() for path, text in contents.items())
            return same and found == (Match(f"file{worker}.py", 1, f"value = {worker}"),)

        assert list(pool.map(read_all, range(8))) == [True] * 8
