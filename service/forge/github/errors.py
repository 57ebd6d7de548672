"""GitHub's refusals as `ForgeError`: what was asked, why not, what to do, and when to ask again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.forge.base import ForgeError

RETRY_SECONDS = 30.0
"""After a failure that has no time of its own."""

_MESSAGE = 300

# What an App needs for a path, the first match deciding.
_PERMISSIONS = (
    (r"/check-(runs|suites)", "Checks"),
    (r"/statuses/", "Commit statuses"),
    (r"/actions/", "Actions"),
    (r"/pulls/\d+/merge$", "Contents"),
    (r"/contents/", "Contents"),
    (r"/collaborators/", "Metadata"),
    (r"/(pulls|issues)\b", "Pull requests"),
)


def refusal(method: str, path: str, status: int, headers: Mapping[str, str], data: Any) -> ForgeError:
    """The error for an answer of 400 or more."""
    message = describe(data)
    problem = f"GitHub answered {status} to {method} {path}: {message}"
    if status >= 500:
        return ForgeError(
            problem, "it is tried again; see githubstatus.com", status=status, retry_after=RETRY_SECONDS
        )
    if status == 401:
        remedy = "check the token, or the App's id and key (WHITESMOKE_GITHUB_...)"
    elif status == 403:
        remedy = f"grant {_needed(method, path, headers)} to the App or token"
    elif status in (404, 410):
        remedy = f"check that it exists and that the App or token has {_needed(method, path, headers)} there"
    elif status == 422 and "internal error" in message.lower():
        return ForgeError(problem, "it is tried again", status=502, retry_after=RETRY_SECONDS)
    else:
        remedy = ""
    return ForgeError(problem, remedy, status=status)


def unanswered(method: str, path: str, reason: str) -> ForgeError:
    """The error where no answer came: whether there was an effect is not known."""
    return ForgeError(
        f"GitHub did not answer {method} {path}: {one_line(reason)}",
        "it is tried again; check the network and WHITESMOKE_GITHUB_URL",
        retry_after=RETRY_SECONDS,
    )


def describe(data: Any) -> str:
    """GitHub's message with the details of its `errors`, on one line."""
    if not isinstance(data, dict):
        return one_line(str(data or "no reason given"))
    details = [
        one if isinstance(one, str) else str(one.get("message") or f"{one.get('field')} {one.get('code')}")
        for one in data.get("errors") or ()
        if isinstance(one, str | dict)
    ]
    return one_line("; ".join([str(data.get("message") or "no reason given"), *details]))


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:_MESSAGE]


def _needed(method: str, path: str, headers: Mapping[str, str]) -> str:
    told = headers.get("x-accepted-github-permissions", "")
    if told:
        return one_line(told).replace("_", " ").replace("=", ": ")
    level = "read" if method == "GET" else "write"
    found = next((name for pattern, name in _PERMISSIONS if re.search(pattern, path)), None)
    return f"{found}: {level}" if found else "access"
