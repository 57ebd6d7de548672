"""A repository and a pull request that try to make git execute, fetch, hide or reveal something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reviewer.checkout.git import Git
from reviewer.checkout.repository import locate, resolve
from reviewer.checkout.snapshot import GitCheckout, open_patch, open_range
from reviewer.errors import GitError
from reviewer.model import Side


class Trap:
    """A script that leaves a marker when something executes it."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "sprung"
        self.script = folder / "trap.sh"
        self.script.write_text(f"#!/bin/sh\ntouch {self.marker}\nexit 1\n")
        self.script.chmod(0o755)

    def sprung(self) -> bool:
        """Whether it went off since the last look."""
        there = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        return there


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def use_everything(checkout: GitCheckout) -> None:
    for side in Side:
        for path in checkout.files(side):
            checkout.read(path, side)
        checkout.list_dir("", side)
        checkout.grep("return", side)
    checkout.log(None, 10)
    checkout.log("app.py", 10)
    checkout.show("HEAD")
    file = checkout.diff.file("app.py")
    assert file is not None
    checkout.merge(file.old_blob, file.new_blob, file.old_blob)


@pytest.mark.parametrize(
    ("settings", "springs"),
    [
        ({"core.fsmonitor": "TRAP"}, ["status"]),
        ({"core.hooksPath": "HOOKS"}, ["checkout", "--quiet", "pull"]),
        ({"diff.external": "TRAP"}, ["diff", "main", "pull"]),
        ({"diff.evil.command": "TRAP"}, ["diff", "main", "pull"]),
        ({"diff.evil.textconv": "TRAP"}, ["diff", "main", "pull"]),
        ({"diff.evil.textconv": "TRAP"}, ["grep", "--textconv", "return"]),
        ({"filter.evil.smudge": "TRAP"}, ["cat-file", "--filters", "HEAD:app.py"]),
        ({"log.showSignature": "true", "gpg.program": "TRAP"}, ["log"]),
        ({"alias.hang": "!TRAP"}, ["hang"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_programs_named_by_the_repositorys_configuration_never_run(
    settings: dict[str, str], springs: list[str], repo: Any, trap: Trap, tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (hooks / name).symlink_to(trap.script)
    (repo.folder / ".git" / "info" / "attributes").write_text("* diff=evil filter=evil\n")
    sign(repo)
    patch = repo.raw("diff", "main", "pull")
    for name, value in settings.items():
        repo.git("config", name, value.replace("TRAP", str(trap.script)).replace("HOOKS", str(hooks)))

    repo.git(*springs, check=False)
    assert trap.sprung(), "the trap is not set: this test would prove nothing"

    with open_range(repo.folder, "main", "pull") as checkout:
        use_everything(checkout)
    with open_patch(repo.folder, "main", patch) as checkout:
        use_everything(checkout)
    assert not trap.sprung()


def sign(repo: Any) -> None:
    """Gives the last commit a signature that someone would have to verify."""
    raw = repo.git("cat-file", "commit", "HEAD")
    signed = raw.replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n", 1
    )
    commit = repo.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=signed.encode() + b"\n")
    repo.git("update-ref", "HEAD", commit)


def test_attributes_of_the_pull_request_do_not_hide_its_changes(repo: Any) -> None:
    repo.commit({".gitattributes": "*.py -diff\n*.cu binary\n", "kernel.cu": "__global__ void k() {}\n"})
    assert "Binary files" in repo.git("diff", "main", "pull"), "git itself must fall for it"
    with open_range(repo.folder, "main", "pull") as checkout:
        hunks = {file.path: len(file.hunks) for file in checkout.diff.files}
        assert hunks == {".gitattributes": 1, "app.py": 1, "kernel.cu": 1}
        assert not any(file.binary for file in checkout.diff.files)
        assert [match.path for match in checkout.grep("__global__", Side.RIGHT)] == ["kernel.cu"]


def test_attributes_of_the_repository_do_not_hide_changes(repo: Any) -> None:
    (repo.folder / ".git" / "info" / "attributes").write_text("*.py -diff\n")
    assert "Binary files" in repo.git("diff", "main", "pull")
    with open_range(repo.folder, "main", "pull") as checkout:
        assert len(checkout.diff.files[0].hunks) == 1


def test_replacement_objects_do_not_show_another_change(repo: Any) -> None:
    honest = repo.git("rev-parse", "pull")
    repo.git("replace", "pull", "main")
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.head_sha == honest
        assert checkout.read("app.py", Side.RIGHT) == b"def run():\n    return 2\n"


def test_a_replaced_tag_does_not_name_another_commit(repo: Any) -> None:
    for name, commit in (("v1", "main"), ("v2", "pull")):
        repo.git("tag", "-a", name, "-m", name, commit)
    repo.git("replace", "v1", "v2")
    assert repo.git("rev-parse", "v1^{commit}") == repo.git("rev-parse", "pull")
    assert resolve(locate(repo.folder), "v1") == repo.git("rev-parse", "main")


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"core.fsmonitor": "TRAP"}, ("--work-tree=.", "status")),
        ({"core.hooksPath": "HOOKS"}, ("read-tree", "HEAD")),
        ({"log.showSignature": "true", "gpg.program": "TRAP"}, ("log",)),
        ({"remote.origin.url": "ext::TRAP", "protocol.ext.allow": "always"}, ("ls-remote", "origin")),
    ],
    ids=lambda value: " ".join(value),
)
def test_the_runner_alone_disarms_a_configuration(
    settings: dict[str, str], command: tuple[str, ...], repo: Any, trap: Trap, tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(trap.script)
    sign(repo)
    for name, value in settings.items():
        repo.git("config", name, value.replace("TRAP", str(trap.script)).replace("HOOKS", str(hooks)))
    repo.git(*command, check=False)
    assert trap.sprung(), "the trap is not set: this test would prove nothing"
    Git(repo.folder, repo.folder / ".git").run(*command)
    assert not trap.sprung()


def test_the_runner_reads_no_attributes_from_outside_the_tree(repo: Any, tmp_path: Path) -> None:
    (tmp_path / "attributes").write_text("* -diff\n")
    repo.git("config", "core.attributesFile", str(tmp_path / "attributes"))
    assert "Binary files" in repo.git("diff", "main", "pull")
    assert b"Binary files" not in Git(repo.folder, repo.folder / ".git").out("diff", "main", "pull")


def test_a_partial_clone_fetches_nothing(repo: Any, trap: Trap, tmp_path: Path) -> None:
    repo.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    repo.git("clone", "--quiet", "--no-checkout", "--filter=blob:none", f"file://{repo.folder}", str(clone))
    repo.git("-C", str(clone), "config", "remote.origin.uploadpack", str(trap.script))
    repo.git("-C", str(clone), "config", "protocol.file.allow", "always")
    repo.git("-C", str(clone), "cat-file", "-p", "origin/pull:app.py", check=False)
    assert trap.sprung(), "the trap is not set: this test would prove nothing"

    with pytest.raises(GitError, match="in a partial clone, fetch what is missing with") as caught:
        open_range(clone, "origin/main", "origin/pull")
    assert "\n" not in str(caught.value)
    with pytest.raises(GitError, match="does not have the commit"):
        resolve(locate(clone), "1" * 40)
    assert not trap.sprung()


def test_links_are_not_followed(repo: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("top secret\n")
    for name, target in (
        ("to-file", "../secret"),
        ("to-folder", ".."),
        ("to-git", ".git"),
        ("to-inside", "app.py"),
    ):
        (repo.folder / name).symlink_to(target)
    repo.commit({})
    with open_range(repo.folder, "main", "pull") as checkout:
        for path in ("to-file", "to-inside", "to-folder/secret", "to-git/config"):
            assert checkout.read(path, Side.RIGHT) is None
        for path in ("to-folder", "to-git", "to-git/hooks"):
            assert checkout.list_dir(path, Side.RIGHT) is None
        kinds = {entry.name: entry.kind for entry in checkout.list_dir("", Side.RIGHT) or ()}
        assert kinds["to-file"] == kinds["to-folder"] == "symlink"
        assert checkout.grep("secret", Side.RIGHT) == ()


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        "../secret",
        "src/../app.py",
        "/etc/passwd",
        "./app.py",
        "src/",
        "app.py\0",
        "src//util.py",
    ],
)
def test_only_names_of_the_tree_can_be_read(path: str, repo: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("top secret\n")
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.read("app.py", Side.RIGHT) is not None
        assert checkout.read(path, Side.RIGHT) is None
        assert checkout.list_dir(path, Side.RIGHT) is None


def test_submodules_are_named_and_not_entered(repo: Any, make_repo: Callable[..., Any]) -> None:
    inner = make_repo("inner")
    inner.commit({"secret.py": "password = 1\n"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.folder), "lib")
    repo.commit({})
    with open_range(repo.folder, "main", "pull") as checkout:
        assert "lib" in checkout.files(Side.RIGHT)
        assert checkout.read("lib", Side.RIGHT) is None
        assert checkout.read("lib/secret.py", Side.RIGHT) is None
        assert checkout.list_dir("lib", Side.RIGHT) is None
        assert ("lib", "submodule") in [
            (entry.name, entry.kind) for entry in checkout.list_dir("", Side.RIGHT) or ()
        ]
        assert checkout.grep("password", Side.RIGHT) == ()
        file = checkout.diff.file("lib")
        assert file is not None
        assert file.submodule


def test_commits_outside_the_pull_request_cannot_be_shown(repo: Any) -> None:
    repo.git("checkout", "--quiet", "-b", "private", "main")
    secret = repo.commit({"plan.txt": "unreleased\n"}, "private plan")
    repo.git("tag", "secret-tag")
    repo.git("stash", "list")
    with open_range(repo.folder, "main", "pull") as checkout:
        for revision in (
            secret,
            secret[:10],
            "private",
            "secret-tag",
            "refs/heads/private",
            ":/private",
            "@{-1}",
            "stash",
        ):
            with pytest.raises(ValueError, match="is reachable from the pull request's head"):
                checkout.show(revision)
        assert "private plan" not in checkout.log(None, 100)


@pytest.mark.parametrize(
    "revision",
    [
        "--output=MARK",
        "-p",
        "",
        "HEAD:app.py",
        "HEAD^{tree}",
        "HEAD..base",
        "^HEAD",
        "HEAD --output=MARK",
        "HEAD\n",
        "a\0",
        "\ud800",
    ],
)
def test_what_is_not_one_commit_cannot_be_shown(revision: str, repo: Any, tmp_path: Path) -> None:
    with open_range(repo.folder, "main", "pull") as checkout, pytest.raises(ValueError):  # noqa: PT011
        checkout.show(revision.replace("MARK", str(tmp_path / "mark")))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("pattern", ["--open-files-in-pager=touch MARK", "-OMARK", "-f/etc/passwd"])
def test_a_pattern_is_never_an_option(pattern: str, repo: Any, tmp_path: Path) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.grep(pattern.replace("MARK", str(tmp_path / "mark")), Side.RIGHT, fixed=True) == ()
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "path", [":(attr:x)", ":/", ":!app.py", ":(top)../secret", "../secret", "/etc/passwd"]
)
def test_paths_of_a_search_stay_in_the_tree(path: str, repo: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("return\n")
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.grep("return", Side.RIGHT, paths=("app.py",))
        with contextlib.suppress(ValueError):
            assert checkout.grep("return", Side.RIGHT, paths=(path,)) == ()


def test_the_history_of_a_path_takes_it_literally(repo: Any) -> None:
    with open_range(repo.folder, "main", "pull") as checkout:
        assert checkout.log("app.py", 10).count("\n") == 2
        assert checkout.log("*.py", 10) == ""
        assert checkout.log(":/", 10) == ""
        assert checkout.log("--all", 10) == ""
