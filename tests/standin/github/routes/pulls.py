"""Pull requests: the requests themselves, their files, commits and labels."""

from __future__ import annotations

from tests.standin.github.actions import pulls as actions
from tests.standin.github.answer import Answer, Refused, invalid, not_found
from tests.standin.github.render import base, pulls, repos
from tests.standin.github.routing import Call, route
from tests.standin.github.state import PullRequest

_REPO = "/repos/{owner}/{repo}"
_PULL = f"{_REPO}/pulls/{{pull_number}}"
_LABELS = f"{_REPO}/issues/{{issue_number}}/labels"


@route(f"GET {_REPO}/pulls", "pull_requests:read")
def list_pulls(call: Call) -> Answer:
    wanted = call.query.get("state", "open")
    found = [one for one in call.repo().pulls.values() if wanted in ("all", one.state)]
    for name in ("head", "base"):
        if name in call.query:
            text = call.query[name]
            found = [
                one
                for one in found
                if text == (one.base_ref if name == "base" else f"{one.head_owner.login}:{one.head_ref}")
            ]
    key = {"updated": lambda one: (one.updated_at, one.number)}.get(
        call.query.get("sort", "created"), lambda one: (one.created_at, one.number)
    )
    newest = call.query.get("direction", "asc" if call.query.get("sort", "created") != "created" else "desc")
    found.sort(key=key, reverse=newest == "desc")
    return call.page(found, lambda one: pulls.simple(call.world, one))


@route(f"POST {_REPO}/pulls", "pull_requests:write")
def open_pull(call: Call) -> Answer:
    repo = call.repo()
    owner, colon, ref = call.body["head"].rpartition(":")
    head_repo = next(
        (
            one
            for one in call.world.repos.values()
            if one.owner.login == owner and (one is repo or one.parent is repo)
        ),
        None,
    )
    head_repo = head_repo if colon else repo
    if head_repo is None or head_repo.git.resolve(ref) is None:
        raise invalid("PullRequest", "head")
    if repo.git.resolve(call.body["base"]) is None:
        raise invalid("PullRequest", "base")
    title = call.text_field("title", "PullRequest")
    draft = bool(call.body.get("draft"))
    body = call.body.get("body")
    made = actions.open_pull(
        call.world, repo, head_repo, ref, call.body["base"], call.sender(), title, body, draft=draft
    )
    return Answer(201, _full(call, made))


def _full(call: Call, pull: PullRequest) -> base.Json:
    known = call.switches.mergeability_known and pull.state == "open"
    return pulls.full(call.world, pull, _mergeable(pull) if known else None)


def _mergeable(pull: PullRequest) -> bool:
    return pull.repo.git.merge_tree(pull.base_sha, pull.head_sha) is not None


@route(f"GET {_PULL}", "pull_requests:read")
def get_pull(call: Call) -> Answer:
    pull = call.pull()
    accept = call.headers.get("accept", "")
    if "diff" not in accept:
        return Answer(200, _full(call, pull))
    if len(pull.changes()) > call.switches.largest_diff:
        message = (
            "Sorry, the diff exceeded the maximum number of files "
            f"({call.switches.largest_diff}). Consider using 'List pull requests files' API or locally cloning "
            "the repository instead."
        )
        error = {"resource": "PullRequest", "field": "diff", "code": "too_large"}
        raise Refused(406, message, [error])
    git = pull.repo.git
    text = git.diff(git.merge_base(pull.base_sha, pull.head_sha), pull.head_sha)
    return Answer(200, text, media="application/vnd.github.diff; charset=utf-8")


@route(f"PATCH {_PULL}", "pull_requests:write", role="triage")
def edit_pull(call: Call) -> Answer:
    pull, sender = call.pull(), call.sender()
    actions.edit(
        call.world,
        pull,
        sender,
        title=call.body.get("title"),
        body=call.body.get("body"),
        base=call.body.get("base"),
    )
    if call.body.get("state") == "closed":
        actions.close(call.world, pull, sender)
    elif call.body.get("state") == "open":
        actions.reopen(call.world, pull, sender)
    return Answer(200, _full(call, pull))


@route(f"PUT {_PULL}/merge", "contents:write", role="write")
def merge_pull(call: Call) -> Answer:
    pull = call.pull()
    if call.body.get("sha", pull.head_sha) != pull.head_sha:
        raise Refused(409, "Head branch was modified. Review and try the merge again.")
    if pull.draft:
        raise Refused(405, "Pull Request is still a draft")
    if pull.state != "open" or not _mergeable(pull):
        raise Refused(405, "Pull Request is not mergeable")
    actions.close(call.world, pull, call.sender(), merge=call.body.get("merge_method", "merge"))
    merged = {"sha": pull.merge_commit, "merged": True, "message": "Pull Request successfully merged"}
    return Answer(200, merged)


@route(f"GET {_PULL}/files", "pull_requests:read")
def list_files(call: Call) -> Answer:
    pull = call.pull()
    # GitHub lists 3,000 files and no more.
    changes = pull.changes()[:3000]
    return call.page(changes, lambda one: repos.change(call.world, pull.repo, one, pull.head_sha))


@route(f"GET {_PULL}/commits", "pull_requests:read")
def list_commits(call: Call) -> Answer:
    pull = call.pull()
    shas = pull.repo.git.commits(pull.base_sha, pull.head_sha)[:250]
    return call.page(shas, lambda sha: repos.commit(call.world, pull.repo, sha))


@route(f"GET {_REPO}/issues/{{issue_number}}", "issues:read", "pull_requests:read")
def get_issue(call: Call) -> Answer:
    return Answer(200, pulls.issue(call.world, call.pull()))


@route(f"GET {_LABELS}", "issues:read", "pull_requests:read")
def list_labels(call: Call) -> Answer:
    pull = call.pull()
    return call.page(pull.labels, lambda name: _show_label(call, pull, name))


@route(f"POST {_LABELS}", "issues:write", "pull_requests:write", role="triage")
def add_labels(call: Call) -> Answer:
    pull, sender = call.pull(), call.sender()
    for one in call.body["labels"]:
        actions.add_label(call.world, pull, sender, one if isinstance(one, str) else one["name"])
    return Answer(200, [_show_label(call, pull, name) for name in pull.labels])


@route(f"PUT {_LABELS}", "issues:write", "pull_requests:write", role="triage")
def set_labels(call: Call) -> Answer:
    pull, sender = call.pull(), call.sender()
    wanted = [one if isinstance(one, str) else one["name"] for one in call.body["labels"]]
    for name in [one for one in pull.labels if one not in wanted]:
        actions.remove_label(call.world, pull, sender, name)
    for name in wanted:
        actions.add_label(call.world, pull, sender, name)
    return Answer(200, [_show_label(call, pull, name) for name in pull.labels])


@route(f"DELETE {_LABELS}/{{name}}", "issues:write", "pull_requests:write", role="triage")
def remove_label(call: Call) -> Answer:
    pull = call.pull()
    if not actions.remove_label(call.world, pull, call.sender(), call.params["name"]):
        raise Refused(404, "Label does not exist")
    return Answer(200, [_show_label(call, pull, name) for name in pull.labels])


@route(f"GET {_REPO}/labels", "issues:read", "pull_requests:read")
def list_repo_labels(call: Call) -> Answer:
    repo = call.repo()
    return call.page(list(repo.labels.values()), lambda one: base.label(call.world, repo, one))


@route(f"GET {_REPO}/labels/{{name}}", "issues:read", "pull_requests:read")
def get_label(call: Call) -> Answer:
    repo = call.repo()
    found = repo.labels.get(call.params["name"].lower())
    if found is None:
        raise not_found()
    return Answer(200, base.label(call.world, repo, found))


@route(f"POST {_REPO}/labels", "issues:write", "pull_requests:write", role="triage")
def create_label(call: Call) -> Answer:
    repo = call.repo()
    name = call.text_field("name", "Label")
    if name.lower() in repo.labels:
        raise invalid("Label", "name", "already_exists")
    made = actions.label_named(call.world, repo, name)
    made.color = call.body.get("color", made.color)
    made.description = call.body.get("description")
    return Answer(201, base.label(call.world, repo, made))


def _show_label(call: Call, pull: PullRequest, name: str) -> base.Json:
    return base.label(call.world, pull.repo, pull.repo.labels[name.lower()])
