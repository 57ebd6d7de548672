"""The life of a pull request."""

from __future__ import annotations

from tests.standin.github.gitstore import Files
from tests.standin.github.render.base import label as show_label
from tests.standin.github.render.repos import simple_commit
from tests.standin.github.state import Label, PullRequest, Repository, User, World

Changes = dict[str, dict[str, object]]


def open_pull(
    world: World,
    repo: Repository,
    head_repo: Repository,
    head_ref: str,
    base_ref: str,
    user: User,
    title: str,
    body: str | None,
    *,
    draft: bool,
) -> PullRequest:
    head_sha, base_sha = head_repo.git.resolve(head_ref), repo.git.resolve(base_ref)
    assert head_sha, f"{head_ref} must be a branch"
    assert base_sha, f"{base_ref} must be a branch"
    number = len(repo.pulls) + 1
    now = world.now()
    pull = PullRequest(
        id=world.next_id(),
        number=number,
        repo=repo,
        head_repo=head_repo,
        head_owner=head_repo.owner,
        head_ref=head_ref,
        head_sha=head_sha,
        base_ref=base_ref,
        base_sha=base_sha,
        user=user,
        title=title,
        body=body,
        draft=draft,
        created_at=now,
        updated_at=now,
    )
    repo.git.take(head_repo.git, head_sha, f"refs/pull/{number}/head")
    repo.pulls[number] = pull
    world.emit("pull_request", "opened", repo, user, pull)
    return pull


def push(
    world: World, repo: Repository, branch: str, files: Files, message: str, user: User, parent: str | None
) -> str:
    """Commits on top of `parent` and moves the branch there; open pull requests of the branch follow."""
    before = repo.git.resolve(branch)
    sha = repo.git.commit(branch, files, message, user.login, world.now(), parent=parent)
    moved(world, repo, branch, before, sha, user)
    return sha


def moved(world: World, repo: Repository, branch: str, before: str | None, sha: str, user: User) -> None:
    """Announces that a branch now stands at another commit, and brings pull requests up to date."""
    forced = before is not None and not repo.git.is_ancestor(before, sha)
    news = [sha] if before is None or forced else repo.git.commits(before, sha)
    shown = [_pushed(world, repo, one) for one in news[-20:]]
    zero = "0" * 40
    world.emit(
        "push",
        None,
        repo,
        user,
        ref=f"refs/heads/{branch}",
        before=before or zero,
        after=sha,
        created=before is None,
        deleted=False,
        forced=forced,
        base_ref=None,
        compare=f"{world.html_url}/{repo.full_name}/compare/{(before or zero)[:12]}...{sha[:12]}",
        commits=shown,
        head_commit=shown[-1],
        pusher={"name": user.login, "email": f"{user.login}@users.noreply.example.org"},
    )
    for pull in list(world.pulls()):
        if pull.state != "open":
            continue
        if pull.head_repo is repo and pull.head_ref == branch:
            _follow(world, pull, before or zero, sha, user)
        elif pull.repo is repo and pull.base_ref == branch:
            # No event of the pull request is sent for it.
            pull.base_sha = sha


def _follow(world: World, pull: PullRequest, before: str, after: str, user: User) -> None:
    assert pull.head_repo is not None
    pull.head_sha = after
    pull.base_sha = pull.repo.git.resolve(pull.base_ref) or pull.base_sha
    pull.updated_at = world.now()
    pull.repo.git.take(pull.head_repo.git, after, f"refs/pull/{pull.number}/head")
    _outdate(pull)
    world.emit("pull_request", "synchronize", pull.repo, user, pull, before=before, after=after)


def _outdate(pull: PullRequest) -> None:
    """A review comment is outdated when its line is no longer what the diff shows there."""
    changes = {one.path: one for one in pull.changes()} if pull.threads else {}
    for comment in pull.review_comments():
        change = changes.get(comment.path)
        if comment.subject_type == "file":
            comment.outdated = change is None
            continue
        found = next(
            (
                line
                for line in (change.lines() if change else ())
                if comment.line is not None
                and change is not None
                and (line.sign == "-") == (comment.side == "LEFT")
                and change.excerpt(line).split("\n")[-1] == comment.diff_hunk.split("\n")[-1]
            ),
            None,
        )
        comment.outdated = found is None
        if found is not None:
            comment.commit = pull.head_sha
            comment.position = found.position
            shift = ((found.old if comment.side == "LEFT" else found.new) or 0) - (comment.line or 0)
            comment.line = (comment.line or 0) + shift
            if comment.start_line is not None:
                comment.start_line += shift


def edit(
    world: World,
    pull: PullRequest,
    user: User,
    *,
    title: str | None = None,
    body: str | None = None,
    base: str | None = None,
) -> None:
    changes: Changes = {}
    if title is not None and title != pull.title:
        changes["title"] = {"from": pull.title}
        pull.title = title
    if body is not None and body != pull.body:
        changes["body"] = {"from": pull.body or ""}
        pull.body = body
    if base is not None and base != pull.base_ref:
        changes["base"] = {"ref": {"from": pull.base_ref}, "sha": {"from": pull.base_sha}}
        sha = pull.repo.git.resolve(base)
        assert sha, f"{base} must be a branch"
        pull.base_ref, pull.base_sha = base, sha
        _outdate(pull)
    if changes:
        pull.updated_at = world.now()
        world.emit("pull_request", "edited", pull.repo, user, pull, changes=changes)


def set_draft(world: World, pull: PullRequest, user: User, draft: bool) -> None:
    if pull.draft != draft:
        pull.draft = draft
        pull.updated_at = world.now()
        action = "converted_to_draft" if draft else "ready_for_review"
        world.emit("pull_request", action, pull.repo, user, pull)


def close(world: World, pull: PullRequest, user: User, *, merge: str = "") -> None:
    """`merge` is a method of merging: merge, or squash and rebase, which both leave one commit here."""
    if pull.state == "closed":
        return
    now = world.now()
    if merge:
        git = pull.repo.git
        tree = git.merge_tree(pull.base_sha, pull.head_sha)
        assert tree, "the pull request conflicts with its base"
        parents = (pull.base_sha, pull.head_sha) if merge == "merge" else (pull.base_sha,)
        sha = git.commit_tree(tree, parents, f"Merge pull request #{pull.number}", user.login, now)
        pull.merge_commit, pull.merged_at, pull.merged_by = sha, now, user
    pull.state, pull.closed_at, pull.updated_at = "closed", now, now
    world.emit("pull_request", "closed", pull.repo, user, pull)
    if merge and pull.merge_commit:
        before = pull.repo.git.resolve(pull.base_ref)
        pull.repo.git.point(f"refs/heads/{pull.base_ref}", pull.merge_commit)
        moved(world, pull.repo, pull.base_ref, before, pull.merge_commit, user)


def reopen(world: World, pull: PullRequest, user: User) -> None:
    if pull.state == "closed" and not pull.merged_at:
        pull.state, pull.closed_at, pull.updated_at = "open", None, world.now()
        world.emit("pull_request", "reopened", pull.repo, user, pull)


def label_named(world: World, repo: Repository, name: str) -> Label:
    """The repository's label of this name, made where there is none."""
    return repo.labels.setdefault(name.lower(), Label(world.next_id(), name))


def add_label(world: World, pull: PullRequest, user: User, name: str) -> None:
    label = label_named(world, pull.repo, name)
    if label.name not in pull.labels:
        pull.labels.append(label.name)
        shown = show_label(world, pull.repo, label)
        world.emit("pull_request", "labeled", pull.repo, user, pull, label=shown)


def remove_label(world: World, pull: PullRequest, user: User, name: str) -> bool:
    label = pull.repo.labels.get(name.lower())
    if label is None or label.name not in pull.labels:
        return False
    pull.labels.remove(label.name)
    shown = show_label(world, pull.repo, label)
    world.emit("pull_request", "unlabeled", pull.repo, user, pull, label=shown)
    return True


def _pushed(world: World, repo: Repository, sha: str) -> dict[str, object]:
    shown = simple_commit(world, repo, sha)
    parents = repo.git.describe(sha)["parents"].split()
    changes = repo.git.changes(parents[0], sha) if parents else ()
    return {
        **shown,
        "author": {**shown["author"], "username": shown["author"]["name"]},
        "committer": {**shown["committer"], "username": shown["committer"]["name"]},
        "distinct": True,
        "url": f"{world.html_url}/{repo.full_name}/commit/{sha}",
        "added": [one.path for one in changes if one.status == "added"],
        "removed": [one.path for one in changes if one.status == "removed"],
        "modified": [one.path for one in changes if one.status not in ("added", "removed")],
    }
