"""Pull requests and what stands on them."""

from __future__ import annotations

from tests.standin.github.render.base import (
    Json,
    app,
    association,
    label,
    node_id,
    reactions,
    time,
    user,
)
from tests.standin.github.render.repos import repo_page, repo_url, repository
from tests.standin.github.state import IssueComment, PullRequest, Review, ReviewComment, World


def pull_url(world: World, pull: PullRequest) -> str:
    return f"{repo_url(world, pull.repo)}/pulls/{pull.number}"


def pull_page(world: World, pull: PullRequest) -> str:
    return f"{repo_page(world, pull.repo)}/pull/{pull.number}"


def issue_url(world: World, pull: PullRequest) -> str:
    return f"{repo_url(world, pull.repo)}/issues/{pull.number}"


def simple(world: World, pull: PullRequest) -> Json:
    url, page, issue = pull_url(world, pull), pull_page(world, pull), issue_url(world, pull)
    api = repo_url(world, pull.repo)
    head = pull.head_repo
    links = {
        "self": url,
        "html": page,
        "issue": issue,
        "comments": f"{issue}/comments",
        "review_comments": f"{url}/comments",
        "review_comment": f"{api}/pulls/comments{{/number}}",
        "commits": f"{url}/commits",
        "statuses": f"{api}/statuses/{pull.head_sha}",
    }
    return {
        "id": pull.id,
        "node_id": node_id("PR", pull.id),
        "url": url,
        "html_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "issue_url": issue,
        **{f"{name}_url": links[name] for name in list(links)[3:]},
        "number": pull.number,
        "state": pull.state,
        "locked": False,
        "title": pull.title,
        "user": user(world, pull.user),
        "body": pull.body,
        "labels": [label(world, pull.repo, pull.repo.labels[name.lower()]) for name in pull.labels],
        "milestone": None,
        "active_lock_reason": None,
        "created_at": time(pull.created_at),
        "updated_at": time(pull.updated_at),
        "closed_at": time(pull.closed_at),
        "merged_at": time(pull.merged_at),
        "merge_commit_sha": pull.merge_commit,
        "assignee": None,
        "assignees": [],
        "requested_reviewers": [],
        "requested_teams": [],
        "head": {
            "label": f"{pull.head_owner.login}:{pull.head_ref}",
            "ref": pull.head_ref,
            "sha": pull.head_sha,
            "user": user(world, pull.head_owner),
            "repo": repository(world, head) if head else None,
        },
        "base": {
            "label": f"{pull.repo.owner.login}:{pull.base_ref}",
            "ref": pull.base_ref,
            "sha": pull.base_sha,
            "user": user(world, pull.repo.owner),
            "repo": repository(world, pull.repo),
        },
        "_links": {name: {"href": href} for name, href in links.items()},
        "author_association": association(pull.repo, pull.user),
        "auto_merge": None,
        "draft": pull.draft,
    }


def full(world: World, pull: PullRequest, mergeable: bool | None = None) -> Json:
    changes = pull.changes()
    state = {None: "unknown", True: "clean", False: "dirty"}[mergeable]
    return {
        **simple(world, pull),
        "merged": pull.merged_at is not None,
        "mergeable": mergeable,
        "rebaseable": mergeable,
        "mergeable_state": state,
        "merged_by": user(world, pull.merged_by) if pull.merged_by else None,
        "comments": len(pull.comments),
        "review_comments": len(pull.review_comments()),
        "maintainer_can_modify": False,
        "commits": len(pull.repo.git.commits(pull.base_sha, pull.head_sha)),
        "additions": sum(one.additions for one in changes),
        "deletions": sum(one.deletions for one in changes),
        "changed_files": len(changes),
    }


def issue(world: World, pull: PullRequest) -> Json:
    """A pull request as an issue."""
    url, page = issue_url(world, pull), pull_page(world, pull)
    return {
        "id": pull.id,
        "node_id": node_id("PR", pull.id),
        "url": url,
        "repository_url": repo_url(world, pull.repo),
        "labels_url": f"{url}/labels{{/name}}",
        "comments_url": f"{url}/comments",
        "events_url": f"{url}/events",
        "timeline_url": f"{url}/timeline",
        "html_url": page,
        "number": pull.number,
        "state": pull.state,
        "state_reason": None,
        "title": pull.title,
        "body": pull.body,
        "user": user(world, pull.user),
        "labels": [label(world, pull.repo, pull.repo.labels[name.lower()]) for name in pull.labels],
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "locked": False,
        "active_lock_reason": None,
        "comments": len(pull.comments),
        "closed_at": time(pull.closed_at),
        "created_at": time(pull.created_at),
        "updated_at": time(pull.updated_at),
        "author_association": association(pull.repo, pull.user),
        "draft": pull.draft,
        "performed_via_github_app": None,
        "reactions": reactions(url, []),
        "pull_request": {
            "url": pull_url(world, pull),
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "merged_at": time(pull.merged_at),
        },
    }


def comment(world: World, pull: PullRequest, one: IssueComment) -> Json:
    url = f"{repo_url(world, pull.repo)}/issues/comments/{one.id}"
    return {
        "id": one.id,
        "node_id": node_id("IC", one.id),
        "url": url,
        "html_url": f"{pull_page(world, pull)}#issuecomment-{one.id}",
        "issue_url": issue_url(world, pull),
        "user": user(world, one.user),
        "body": one.body,
        "created_at": time(one.created_at),
        "updated_at": time(one.updated_at),
        "author_association": association(pull.repo, one.user),
        "performed_via_github_app": app(world, one.app) if one.app else None,
        "reactions": reactions(url, one.reactions),
    }


def review(world: World, pull: PullRequest, one: Review) -> Json:
    page = f"{pull_page(world, pull)}#pullrequestreview-{one.id}"
    shown = {
        "id": one.id,
        "node_id": node_id("PRR", one.id),
        "user": user(world, one.user),
        "body": one.body,
        "state": one.state,
        "html_url": page,
        "pull_request_url": pull_url(world, pull),
        "author_association": association(pull.repo, one.user),
        "_links": {"html": {"href": page}, "pull_request": {"href": pull_url(world, pull)}},
        "commit_id": one.commit,
    }
    return shown if one.submitted_at is None else {**shown, "submitted_at": time(one.submitted_at)}


def review_comment(world: World, pull: PullRequest, one: ReviewComment) -> Json:
    url = f"{repo_url(world, pull.repo)}/pulls/comments/{one.id}"
    page = f"{pull_page(world, pull)}#discussion_r{one.id}"
    shown = {
        "id": one.id,
        "node_id": node_id("PRRC", one.id),
        "url": url,
        "pull_request_review_id": one.review.id,
        "diff_hunk": one.diff_hunk,
        "path": one.path,
        "commit_id": one.commit,
        "original_commit_id": one.original_commit,
        "user": user(world, one.user),
        "body": one.body,
        "created_at": time(one.created_at),
        "updated_at": time(one.updated_at),
        "html_url": page,
        "pull_request_url": pull_url(world, pull),
        "author_association": association(pull.repo, one.user),
        "_links": {
            "self": {"href": url},
            "html": {"href": page},
            "pull_request": {"href": pull_url(world, pull)},
        },
        "reactions": reactions(url, one.reactions),
        "subject_type": one.subject_type,
        "original_position": one.position or 1,
        "position": 1 if one.subject_type == "file" else None if one.outdated else one.position,
        "line": None if one.outdated else one.line or 1,
        "original_line": one.original_line or 1,
        "side": one.side,
        "start_line": None if one.outdated else one.start_line,
        "original_start_line": one.original_start_line,
        "start_side": one.start_side,
    }
    return shown if one.reply_to is None else {**shown, "in_reply_to_id": one.reply_to.id}
