"""Turns a patch into a commit, in the scratch repository, without a work tree."""

from __future__ import annotations

from reviewer.checkout.git import Git
from reviewer.errors import GitError

_APPLY = ("apply", "--cached", "--whitespace=nowarn")
_SECONDS = 300.0

# A fixed author and date make the same patch the same commit.
_SIGNATURE = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "whitesmoke"),
        ("EMAIL", "whitesmoke@localhost"),
        ("DATE", "2000-01-01T00:00:00+0000"),
    )
}


def apply(git: Git, commit: str, patch: bytes) -> tuple[str, str]:
    """The base and the head of a patch: `commit` and what the patch makes of it.

    Where the patch only applies in reverse, `commit` holds it already: that is then the head.
    """
    if not patch.strip():
        return commit, commit
    index = {"GIT_INDEX_FILE": str(git.folder / "index")}
    git.out("read-tree", commit, env=index)
    forward = git.run(*_APPLY, stdin=patch, env=index, timeout=_SECONDS)
    if forward.code:
        backward = git.run(*_APPLY, "--reverse", stdin=patch, env=index, timeout=_SECONDS)
        if backward.code:
            raise _refusal(commit, forward.complaint)
    tree = git.out("write-tree", env=index).decode().strip()
    made = git.out("commit-tree", tree, "-p", commit, stdin=b"The patch under review\n", env=_SIGNATURE)
    other = made.decode().strip()
    return (other, commit) if forward.code else (commit, other)


def _refusal(commit: str, complaint: str) -> GitError:
    if complaint.startswith(("No valid patches", "unrecognized input")):
        return GitError("the patch holds no change that git can read", "make it with `git diff`")
    if complaint.startswith("corrupt patch"):
        return GitError(f"the patch is damaged ({complaint})", "take it anew from `git diff`, unedited")
    if "binary patch" in complaint:
        return GitError(
            f"the patch lacks binary content ({complaint})", "make it with `git diff --binary --full-index`"
        )
    return GitError(
        f"the patch does not apply to {commit[:12]}: {complaint}",
        "give the commit that it was made from as base",
    )
