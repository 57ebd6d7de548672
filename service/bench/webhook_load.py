"""Load for the webhook: signed deliveries of the size that GitHub sends, from wrk."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRET = "the secret of a benchmark"
CONNECTIONS = 32
_BODIES = 16
_BODY_BYTES = 22 * 1024
_PORTS = ("archive", "assignees", "blobs", "branches", "collaborators", "comments", "commits", "compare", "contents",
          "contributors", "deployments", "downloads", "events", "forks", "git_refs", "git_tags", "hooks",
          "issue_comment", "issues", "keys", "labels", "languages", "merges", "milestones", "notifications", "pulls",
          "releases", "stargazers", "statuses", "subscribers", "tags", "teams", "trees")  # fmt: skip
_USER = (
    "followers",
    "following",
    "gists",
    "organizations",
    "received_events",
    "repos",
    "starred",
    "subscriptions",
)

# Each delivery has its own id; the signatures are of the bodies, so they can be made beforehand.
_SCRIPT = """
local prefix, count = nil, 0
local bodies, signatures = {}, {}
function init(args)
  prefix = args[1]
  for line in io.lines(args[2] .. "/signatures") do signatures[#signatures + 1] = line end
  for index = 1, #signatures do
    local file = io.open(args[2] .. "/" .. index, "rb")
    bodies[index] = file:read("*a")
    file:close()
  end
end
function request()
  count = count + 1
  local index = count % #bodies + 1
  return wrk.format("POST", "/webhook", {
    ["Accept"] = "*/*",
    ["Content-Type"] = "application/json",
    ["User-Agent"] = "GitHub-Hookshot/0123456",
    ["X-GitHub-Delivery"] = string.format("%s-%012d", prefix, count),
    ["X-GitHub-Event"] = "pull_request",
    ["X-GitHub-Hook-ID"] = "292430182",
    ["X-GitHub-Hook-Installation-Target-ID"] = "79929171",
    ["X-GitHub-Hook-Installation-Target-Type"] = "integration",
    ["X-Hub-Signature-256"] = signatures[index],
  }, bodies[index])
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('\\n{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "errors": %d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw: answers, their rate a second, and how long they took."""

    requests: int
    rate: float
    p50_ms: float
    p99_ms: float


def write_load(folder: Path) -> None:
    """Puts the bodies, their signatures and wrk's script into `folder`."""
    signatures = []
    for index in range(1, _BODIES + 1):
        body = make_body(index)
        (folder / str(index)).write_bytes(body)
        signatures.append("sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest())
    (folder / "signatures").write_text("\n".join(signatures))
    (folder / "load.lua").write_text(_SCRIPT)


def run_load(port: int, folder: Path, seconds: float, prefix: str) -> Load:
    """Sends for `seconds` over 32 connections; delivery ids start with `prefix`.

    Raises RuntimeError where an answer was not a success.
    """
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "-s", str(folder / "load.lua")]
    output = subprocess.run(
        [*command, f"http://127.0.0.1:{port}", "--", prefix, str(folder)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seen = json.loads(output.strip().rpartition("\n")[2])
    if seen["errors"] or not seen["requests"]:
        raise RuntimeError(f"wrk had {seen['errors']} errors and {seen['requests']} answers")
    return Load(seen["requests"], seen["requests"] / seen["seconds"], seen["p50_ms"], seen["p99_ms"])


def make_body(seed: int) -> bytes:
    """A pull_request payload of 22 KiB in GitHub's shape: much of it is URLs, the text is not repeated."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randrange(2, 10))) for _ in range(800)]
    pull = {
        "id": rng.getrandbits(31),
        "number": 7,
        "state": "open",
        "user": _user(rng, "dev"),
        "requested_reviewers": [_user(rng, "reviewer"), _user(rng, "maintainer")],
        "head": {"sha": _sha(rng), "ref": "change", "user": _user(rng, "dev"), "repo": _repository(rng)},
        "base": {"sha": _sha(rng), "ref": "main", "user": _user(rng, "acme"), "repo": _repository(rng)},
        "body": "",
    }
    payload = {
        "action": "synchronize",
        "number": 7,
        "pull_request": pull,
        "before": _sha(rng),
        "after": _sha(rng),
        "repository": _repository(rng),
        "sender": _user(rng, "dev"),
        "installation": {"id": 1, "node_id": "MDIzOkludGVncmF0aW9u"},
    }
    text = " ".join(rng.choices(words, k=_BODY_BYTES // 4))
    pull["body"] = text[: _BODY_BYTES - len(json.dumps(payload))]
    return json.dumps(payload).encode()


def _sha(rng: random.Random) -> str:
    return f"{rng.getrandbits(160):040x}"


def _user(rng: random.Random, login: str) -> dict[str, Any]:
    api = f"https://api.github.com/users/{login}"
    return {
        "login": login,
        "id": rng.getrandbits(27),
        "avatar_url": f"https://avatars.githubusercontent.com/u/{rng.getrandbits(27)}?v=4",
        **{f"{name}_url": f"{api}/{name}" for name in _USER},
        "type": "User",
        "site_admin": False,
    }


def _repository(rng: random.Random) -> dict[str, Any]:
    api = "https://api.github.com/repos/acme/engine"
    return {
        "id": rng.getrandbits(29),
        "name": "engine",
        "full_name": "acme/engine",
        "private": False,
        "owner": _user(rng, "acme"),
        **{f"{name}_url": f"{api}/{name}{{/sha}}" for name in _PORTS},
        "size": rng.getrandbits(16),
        "default_branch": "main",
    }
