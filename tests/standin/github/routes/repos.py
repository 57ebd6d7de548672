"""Repositories, their files, commits, comparisons and people."""

from __future__ import annotations

from tests.standin.github.answer import Answer, Refused, not_found
from tests.standin.github.render import base, pulls, repos
from tests.standin.github.routing import Call, route
from tests.standin.github.state import ROLES

_ROOT = "/repos/{owner}/{repo}"


@route(f"GET {_ROOT}")
def get_repo(call: Call) -> Answer:
    return Answer(200, repos.full(call.world, call.repo()))


@route("GET /user")
def get_me(call: Call) -> Answer:
    if call.actor.user is None or call.actor.installation is not None:
        raise Refused(403 if call.actor.app else 401, "Resource not accessible by integration")
    return Answer(200, _profile(call, call.actor.user.login))


@route("GET /users/{username}")
def get_user(call: Call) -> Answer:
    if call.params["username"].lower() not in call.world.users:
        raise not_found()
    return Answer(200, _profile(call, call.params["username"]))


def _profile(call: Call, login: str) -> base.Json:
    names = ("name", "company", "blog", "location", "email", "hireable", "bio", "twitter_username")
    counts = ("public_repos", "public_gists", "followers", "following")
    when = base.time(call.world.now())
    return {
        **base.user(call.world, call.world.users[login.lower()]),
        **dict.fromkeys(names),
        **dict.fromkeys(counts, 0),
        "created_at": when,
        "updated_at": when,
    }


@route(f"GET {_ROOT}/collaborators/{{username}}/permission")
def get_permission(call: Call) -> Answer:
    repo = call.repo()
    user = call.world.users.get(call.params["username"].lower())
    if user is None:
        raise not_found()
    role = repo.role(user)
    # The old field knows four words; `role_name` says which role it is.
    legacy = {"triage": "read", "maintain": "write"}.get(role, role)
    flags = ("pull", "triage", "push", "maintain", "admin")
    rank = ROLES.index(role)
    shown = {
        **base.user(call.world, user),
        "permissions": {flag: rank > at for at, flag in enumerate(flags)},
        "role_name": role,
    }
    return Answer(200, {"permission": legacy, "role_name": role, "user": shown})


@route(f"GET {_ROOT}/contents/{{path}}", "contents:read")
def get_content(call: Call) -> Answer:
    repo = call.repo()
    ref = call.query.get("ref") or repo.default_branch
    sha = repo.git.resolve(ref)
    if sha is None:
        raise Refused(404, f"No commit found for the ref {ref}")
    path = call.params["path"].strip("/")
    found = repo.git.entry(sha, path)
    if found is None:
        raise not_found()
    kind, oid = found
    if "raw" in call.headers.get("accept", "") and kind == "blob":
        return Answer(200, repo.git.blob(oid), media="application/vnd.github.raw+json; charset=utf-8")
    if kind == "tree":
        rows = [
            repos.content(call.world, repo, ref, f"{path}/{name}".lstrip("/"), each, one, size)
            for each, one, name, size in repo.git.children(oid)
        ]
        return Answer(200, rows)
    return Answer(200, repos.file(call.world, repo, ref, path, oid))


@route(f"GET {_ROOT}/commits/{{ref}}", "contents:read")
def get_commit(call: Call) -> Answer:
    repo, sha = call.repo(), call.commit()
    shown = repos.commit(call.world, repo, sha)
    first = (repo.git.describe(sha)["parents"].split() or [repo.git.empty_tree()])[0]
    changes = repo.git.changes(first, sha)
    added, removed = sum(one.additions for one in changes), sum(one.deletions for one in changes)
    shown["stats"] = {"additions": added, "deletions": removed, "total": added + removed}
    shown["files"] = [repos.change(call.world, repo, one, sha) for one in changes[:300]]
    return Answer(200, shown)


@route(f"GET {_ROOT}/commits/{{commit_sha}}/pulls", "pull_requests:read")
def pulls_of_commit(call: Call) -> Answer:
    """Open and closed pull requests that contain a commit, those from forks included."""
    repo = call.repo()
    sha = call.commit("commit_sha")
    found = [
        one
        for one in repo.pulls.values()
        if repo.git.is_ancestor(sha, one.head_sha) and not repo.git.is_ancestor(sha, one.base_sha)
    ]
    return call.page(found, lambda one: pulls.simple(call.world, one))


@route(f"GET {_ROOT}/compare/{{basehead}}", "contents:read")
def compare(call: Call) -> Answer:
    repo = call.repo()
    left, dots, right = call.params["basehead"].partition("...")
    base_sha, head_sha = repo.git.resolve(left), repo.git.resolve(right)
    if not dots or base_sha is None or head_sha is None:
        raise not_found()
    merge_base = repo.git.merge_base(base_sha, head_sha)
    if "diff" in call.headers.get("accept", ""):
        return Answer(
            200, repo.git.diff(merge_base, head_sha), media="application/vnd.github.diff; charset=utf-8"
        )
    ahead, behind = repo.git.commits(base_sha, head_sha), repo.git.commits(head_sha, base_sha)
    status = "diverged" if ahead and behind else "ahead" if ahead else "behind" if behind else "identical"
    url = f"{repos.repo_url(call.world, repo)}/compare/{left}...{right}"
    page = f"{repos.repo_page(call.world, repo)}/compare/{left}...{right}"
    shown = {
        "url": url,
        "html_url": page,
        "permalink_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "base_commit": repos.commit(call.world, repo, base_sha),
        "merge_base_commit": repos.commit(call.world, repo, merge_base),
        "status": status,
        "ahead_by": len(ahead),
        "behind_by": len(behind),
        "total_commits": len(ahead),
    }
    page_of = call.page(ahead, lambda sha: repos.commit(call.world, repo, sha))
    changes = repo.git.changes(merge_base, head_sha)[:300]
    shown["commits"] = page_of.body
    # Files come with the first page only.
    first = call.query.get("page", "1") == "1"
    shown["files"] = [repos.change(call.world, repo, one, head_sha) for one in changes] if first else []
    return Answer(200, shown, page_of.headers)


@route(f"GET {_ROOT}/branches/{{branch}}", "contents:read")
def get_branch(call: Call) -> Answer:
    repo = call.repo()
    name = call.params["branch"]
    sha = repo.git.branches().get(name)
    if sha is None:
        raise Refused(404, "Branch not found")
    url = f"{repos.repo_url(call.world, repo)}/branches/{name}"
    shown = {
        "name": name,
        "commit": repos.commit(call.world, repo, sha),
        "_links": {"html": f"{repos.repo_page(call.world, repo)}/tree/{name}", "self": url},
        "protected": False,
        "protection": {"enabled": False},
        "protection_url": f"{url}/protection",
    }
    return Answer(200, shown)
