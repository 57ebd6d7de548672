"""Repositories, commits, files and comparisons."""

from __future__ import annotations

import base64
from urllib.parse import quote

from tests.standin.github.patch import FileChange
from tests.standin.github.render.base import Json, node_id, time, user
from tests.standin.github.state import Repository, User, World

_TEMPLATES = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}


def repo_url(world: World, repo: Repository) -> str:
    return f"{world.api_url}/repos/{repo.full_name}"


def repo_page(world: World, repo: Repository) -> str:
    return f"{world.html_url}/{repo.full_name}"


def minimal(world: World, repo: Repository) -> Json:
    url = repo_url(world, repo)
    return {
        "id": repo.id,
        "node_id": node_id("R", repo.id),
        "name": repo.name,
        "full_name": repo.full_name,
        "private": repo.private,
        "owner": user(world, repo.owner),
        "html_url": repo_page(world, repo),
        "description": None,
        "fork": repo.parent is not None,
        "url": url,
        **{name: url + tail for name, tail in _TEMPLATES.items()},
    }


def repository(world: World, repo: Repository) -> Json:
    page = repo_page(world, repo)
    forks = sum(one.parent is repo for one in world.repos.values())
    opened = sum(one.state == "open" for one in repo.pulls.values())
    return {
        **minimal(world, repo),
        "git_url": page.replace("http:", "git:") + ".git",
        "ssh_url": f"git@{page.removeprefix('http://')}.git",
        "clone_url": page + ".git",
        "svn_url": page,
        "mirror_url": None,
        "homepage": None,
        "language": None,
        "license": None,
        "forks_count": forks,
        "forks": forks,
        "stargazers_count": 0,
        "watchers_count": 0,
        "watchers": 0,
        "size": 1,
        "default_branch": repo.default_branch,
        "open_issues_count": opened,
        "open_issues": opened,
        "is_template": False,
        "topics": [],
        "has_issues": True,
        "has_projects": True,
        "has_wiki": True,
        "has_pages": False,
        "has_downloads": True,
        "has_discussions": False,
        "archived": False,
        "disabled": False,
        "visibility": "private" if repo.private else "public",
        "pushed_at": time(repo.created_at),
        "created_at": time(repo.created_at),
        "updated_at": time(repo.created_at),
        "allow_forking": True,
        "web_commit_signoff_required": False,
    }


def full(world: World, repo: Repository) -> Json:
    shown = {**repository(world, repo), "network_count": 0, "subscribers_count": 0}
    if repo.parent is not None:
        shown["parent"] = shown["source"] = repository(world, repo.parent)
    return shown


def _person(world: World, name: str) -> Json | None:
    found: User | None = world.users.get(name.lower())
    return user(world, found) if found else None


def commit(world: World, repo: Repository, sha: str) -> Json:
    url, page = repo_url(world, repo), repo_page(world, repo)
    told = repo.git.describe(sha)
    return {
        "sha": sha,
        "node_id": "C_" + sha[:12],
        "commit": {
            "author": {"name": told["author"], "email": told["author_email"], "date": told["author_date"]},
            "committer": {
                "name": told["committer"],
                "email": told["committer_email"],
                "date": told["committer_date"],
            },
            "message": told["message"].rstrip("\n"),
            "tree": {"sha": told["tree"], "url": f"{url}/git/trees/{told['tree']}"},
            "url": f"{url}/git/commits/{sha}",
            "comment_count": 0,
            "verification": {
                "verified": False,
                "reason": "unsigned",
                "signature": None,
                "payload": None,
                "verified_at": None,
            },
        },
        "url": f"{url}/commits/{sha}",
        "html_url": f"{page}/commit/{sha}",
        "comments_url": f"{url}/commits/{sha}/comments",
        "author": _person(world, told["author"]),
        "committer": _person(world, told["committer"]),
        "parents": [
            {"sha": one, "url": f"{url}/commits/{one}", "html_url": f"{page}/commit/{one}"}
            for one in told["parents"].split()
        ],
    }


def simple_commit(world: World, repo: Repository, sha: str) -> Json:
    told = repo.git.describe(sha)
    return {
        "id": sha,
        "tree_id": told["tree"],
        "message": told["message"].rstrip("\n"),
        "timestamp": told["author_date"],
        "author": {"name": told["author"], "email": told["author_email"]},
        "committer": {"name": told["committer"], "email": told["committer_email"]},
    }


def change(world: World, repo: Repository, one: FileChange, sha: str) -> Json:
    page, path = repo_page(world, repo), quote(one.path)
    shown: Json = {
        "sha": one.oid,
        "filename": one.path,
        "status": one.status,
        "additions": one.additions,
        "deletions": one.deletions,
        "changes": one.additions + one.deletions,
        "blob_url": f"{page}/blob/{sha}/{path}",
        "raw_url": f"{page}/raw/{sha}/{path}",
        "contents_url": f"{repo_url(world, repo)}/contents/{path}?ref={sha}",
    }
    if one.patch is not None:
        shown["patch"] = one.patch
    if one.previous is not None:
        shown["previous_filename"] = one.previous
    return shown


def content(world: World, repo: Repository, ref: str, path: str, kind: str, oid: str, size: int) -> Json:
    """An entry of a folder: everything but what is in it."""
    url = f"{repo_url(world, repo)}/contents/{quote(path)}?ref={ref}"
    blob = f"{repo_url(world, repo)}/git/{'trees' if kind == 'tree' else 'blobs'}/{oid}"
    page = f"{repo_page(world, repo)}/{'tree' if kind == 'tree' else 'blob'}/{ref}/{quote(path)}"
    raw = f"{repo_page(world, repo)}/raw/{ref}/{quote(path)}" if kind == "blob" else None
    return {
        "name": path.rpartition("/")[2],
        "path": path,
        "sha": oid,
        "size": size,
        "url": url,
        "html_url": page,
        "git_url": blob,
        "download_url": raw,
        "type": {"tree": "dir", "commit": "submodule"}.get(kind, "file"),
        "_links": {"self": url, "git": blob, "html": page},
    }


def file(world: World, repo: Repository, ref: str, path: str, oid: str) -> Json:
    data = repo.git.blob(oid)
    shown = content(world, repo, ref, path, "blob", oid, len(data))
    # GitHub gives no content for files above one megabyte.
    small = len(data) <= 1 << 20
    coded = base64.encodebytes(data).decode() if small else ""
    return {**shown, "content": coded, "encoding": "base64" if small else "none"}
