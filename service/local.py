"""A pull request out of a local repository: a range of commits or a patch, its policy, and its description."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reviewer.checkout.repository import Repository, locate, resolve
from reviewer.checkout.snapshot import GitCheckout, open_patch, open_range
from reviewer.errors import GitError, ReviewError
from reviewer.model import PullRequest
from reviewer.policy import POLICY_FILE
from service.policy import Policy, load_policy

_FILE_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class LocalPull:
    """Close the checkout after use."""

    pull: PullRequest
    checkout: GitCheckout


def open_local(repo: Path, base: str, head: str, patch: Path | None) -> LocalPull:
    """The change between two revisions, or the one that a patch file makes to `base`."""
    repository = locate(repo)
    if patch is not None:
        checkout = open_patch(repo, base, _read(patch, "patch"))
        title, body, author = f"Patch {patch.name}", "", ""
    else:
        checkout = open_range(repo, base, head)
        title, body, author = _describe(repository, checkout)
    pull = PullRequest(
        repo=repository.folder.resolve().name,
        number=0,
        base_sha=checkout.base_sha,
        head_sha=checkout.head_sha,
        title=title,
        body=body,
        author=author,
    )
    return LocalPull(pull, checkout)


def identify(repo: Path, base: str, head: str, patch: Path | None) -> tuple[str, ...]:
    """What tells this pull request from others in the data folder, whatever its head is now."""
    repository = locate(repo)
    name = f"patch:{patch.name}" if patch is not None else _branch(repository, head)
    return (str(repository.common_dir.resolve()), base, name)


def read_base(repo: Path, base: str, path: str) -> bytes | None:
    """A file on the base branch, or None where there is none."""
    repository = locate(repo)
    commit = resolve(repository, base)
    found = repository.git.run("cat-file", "blob", f"{commit}:{path}", limit=_FILE_LIMIT)
    return None if found.code else found.out


def base_policy(repo: Path, base: str) -> Policy:
    """The policy on the base branch: never the pull request's own."""
    content = read_base(repo, base, POLICY_FILE)
    if content is None:
        return Policy()
    return load_policy(content.decode("utf-8", "replace"), f"{POLICY_FILE} on {base}")


def read_policy(path: Path) -> Policy:
    """The policy in a file."""
    return load_policy(_read(path, "policy file").decode("utf-8", "replace"), str(path))


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReviewError(
            f"cannot read the {what} {path}: {error.strerror}", "name an existing file"
        ) from error


def _describe(repository: Repository, checkout: GitCheckout) -> tuple[str, str, str]:
    """Title, body and author: of the only commit, or of the newest with a list of the others."""
    log = repository.git.out(
        "log", "--format=%an%x00%s%x00%b%x01", f"{checkout.base_sha}..{checkout.head_sha}", "--"
    ).decode("utf-8", "replace")
    commits = [entry.strip("\n").split("\0") for entry in log.split("\x01") if entry.strip("\n")]
    if not commits:
        return "", "", ""
    author, title, body = commits[0]
    others = "\n".join(f"- {subject}" for _, subject, _ in commits[1:])
    return title, "\n\n".join(part for part in (body.strip(), others) if part), author


def _branch(repository: Repository, head: str) -> str:
    """The branch that `head` names, so that its next commit is the next round of the same pull request."""
    try:
        name = repository.git.out("rev-parse", "--abbrev-ref", "--end-of-options", head)
    except GitError:
        return head
    return name.decode("utf-8", "replace").strip() or head
