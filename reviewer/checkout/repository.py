"""The repository under review, and the scratch repository in which it is looked at.

Only its location and its references are asked of the repository itself. Everything after that runs in a
temporary bare repository that borrows its objects: there its configuration, hooks, attributes, replacements
and remotes do not exist, and what is written (the tree of a patch) does not touch it.
"""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from reviewer.checkout.git import Git
from reviewer.errors import GitError


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository found on disk. `common_dir` holds objects and references; `shallow` history is cut."""

    git: Git
    common_dir: Path
    shallow: bool
    object_format: str

    @property
    def folder(self) -> Path:
        return self.git.folder


def locate(folder: Path) -> Repository:
    """Finds the repository that holds `folder`: a work tree, a linked one, a submodule or a bare one."""
    if not folder.is_dir():
        raise GitError(f"{folder} is not a folder", "give the path of a git repository")
    result = Git(folder, None).run(
        "rev-parse", "--absolute-git-dir", "--is-shallow-repository", "--show-object-format"
    )
    if result.code:
        if "not a git repository" in result.complaint:
            raise GitError(f"{folder} is not a git repository", "give the path of a clone")
        raise GitError(f"git cannot open {folder}: {result.complaint}", "check it with `git status`")
    # A path may hold newlines, what follows it does not: so split from the end.
    git_dir, shallow, object_format = os.fsdecode(result.out).removesuffix("\n").rsplit("\n", 2)
    git = Git(folder, Path(git_dir))
    common_dir = os.fsdecode(git.out("rev-parse", "--path-format=absolute", "--git-common-dir"))
    return Repository(git, Path(common_dir.removesuffix("\n")), shallow == "true", object_format)


def resolve(repository: Repository, revision: str) -> str:
    """The full name of the commit that `revision` names; `GitError` says why there is none."""
    git, folder = repository.git, repository.folder
    if not revision or revision.startswith("-") or "\0" in revision:
        raise GitError(f"{revision!r} is not a revision", "give a branch, a tag or a commit")
    parse = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    found = git.run(*parse, f"{revision}^{{commit}}")
    if not found.code:
        return found.out.decode().strip()
    named = git.run(*parse, revision)
    if named.code:
        raise _unknown(repository, revision)
    kind = git.run("cat-file", "-t", named.out.decode().strip())
    if kind.code:
        raise GitError(
            f"{folder} does not have the commit {revision}",
            f"fetch it: git -C {folder} fetch origin {revision}",
        )
    raise GitError(
        f"{revision} is a {kind.out.decode().strip()} in {folder}, not a commit",
        "give a branch, a tag or a commit",
    )


def _unknown(repository: Repository, revision: str) -> GitError:
    folder = repository.folder
    listed = repository.git.out(
        "for-each-ref",
        "--count=5000",
        "--format=%(refname:lstrip=2)",
        "refs/heads",
        "refs/remotes",
        "refs/tags",
    )
    names = listed.decode(errors="replace").splitlines()
    if not names and repository.git.run("rev-parse", "--verify", "--quiet", "HEAD").code:
        return GitError(f"{folder} has no commits yet", "commit something first")
    # `main` where only `origin/main` exists is the commonest slip in a fresh clone.
    tails = [name for name in names if name.endswith(f"/{revision}")]
    close = (tails + [name for name in difflib.get_close_matches(revision, names) if name not in tails])[:3]
    remedy = (
        f"did you mean {' or '.join(close)}?" if close else f"list what there is: git -C {folder} branch -a"
    )
    return GitError(f"{folder} has no branch, tag or commit {revision!r}", remedy)


def open_scratch(repository: Repository) -> tuple[Git, tempfile.TemporaryDirectory[str]]:
    """A temporary bare repository with the objects of `repository`; cleaning up the folder is its end."""
    owner = tempfile.TemporaryDirectory(prefix="whitesmoke-")
    scratch = Path(owner.name)
    try:
        Git(scratch, scratch).out(
            "init", "--quiet", "--bare", "--template=", f"--object-format={repository.object_format}"
        )
        # HEAD stays unborn: some gits read .gitattributes from the HEAD of a bare repository.
        objects = str(repository.common_dir / "objects")
        quoted = objects.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        alternates = scratch / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_bytes(os.fsencode(f'"{quoted}"\n'))
        if repository.shallow:
            shutil.copyfile(repository.common_dir / "shallow", scratch / "shallow")
    except BaseException:
        owner.cleanup()
        raise
    return Git(scratch, scratch), owner
