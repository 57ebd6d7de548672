"""GitHub's REST and GraphQL as the service's own identity: paths in, JSON out, refusals as `ForgeError`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from requests.utils import parse_header_links

from service.forge.base import ForgeError
from service.forge.github.credentials import Credentials
from service.forge.github.errors import RETRY_SECONDS, one_line, refusal
from service.forge.github.transport import Answer, Transport

_PER_PAGE = 100
_NAME = re.compile(r"(?!\.{1,2}/)[\w.-]+/(?!\.{1,2}$)[\w.-]+", re.ASCII)
_GRAPHQL_STATUS = {"NOT_FOUND": 404, "FORBIDDEN": 403, "UNPROCESSABLE": 422, "RATE_LIMITED": 429}
_PASSING = (429, 502)
GONE = frozenset({404, 410})


class Client:
    """Paths are within a repository ("/pulls/7"); with `repo` None they are the App's or the user's own ("/app")."""

    def __init__(self, transport: Transport, credentials: Credentials) -> None:
        self._transport = transport
        self.credentials = credentials

    def get(
        self,
        repo: str | None,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        absent: Collection[int] = (),
    ) -> Any:
        """The JSON there, or None where the status is among `absent`."""
        answer = self._request("GET", repo, path, params=params, conditional=True)
        return self._data("GET", repo, path, answer, absent)

    def pages(
        self, repo: str | None, path: str, params: Mapping[str, Any] | None = None, *, within: str = ""
    ) -> Iterator[Any]:
        """The items of a list, page after page; `within` names the list inside an object."""
        asked: dict[str, Any] = {"per_page": _PER_PAGE, **(params or {})}
        while True:
            answer = self._request("GET", repo, path, params=asked)
            data = self._data("GET", repo, path, answer, ())
            yield from data[within] if within else data
            links = parse_header_links(answer.headers.get("link", ""))
            following = next((one["url"] for one in links if one.get("rel") == "next"), None)
            if following is None:
                return
            # Its query alone: behind a proxy GitHub may name itself otherwise than we do.
            asked = dict(parse_qsl(urlsplit(following).query))

    def send(
        self,
        method: str,
        repo: str | None,
        path: str,
        body: Any = None,
        *,
        absent: Collection[int] = (),
        repeatable: bool = False,
    ) -> Any:
        """Changes something, once: only what is `repeatable` is sent again after a failure."""
        answer = self._request(method, repo, path, body=body, repeatable=repeatable)
        return self._data(method, repo, path, answer, absent)

    def query(self, repo: str, text: str, **variables: Any) -> Any:
        """The data of a GraphQL query, or of a mutation for which twice is once."""
        url = self._transport.graphql_url
        sent = {"query": text, "variables": variables}
        answer = self._authorized(repo, "POST", url, body=sent, repeatable=True)
        if answer.status >= 400:
            raise refusal("POST", "/graphql", answer.status, answer.headers, answer.data)
        if errors := answer.data.get("errors"):
            kind, message = errors[0].get("type", ""), one_line(str(errors[0].get("message")))
            # GitHub's own failures come without a type.
            status = _GRAPHQL_STATUS.get(kind, 400 if kind else 502)
            raise ForgeError(
                f"GitHub's GraphQL answered {kind or 'an error'} for {repo}: {message}",
                "grant Pull requests: write and Contents: write to the App or token" if status == 403 else "",
                status=status,
                retry_after=RETRY_SECONDS if status in _PASSING else None,
            )
        return answer.data["data"]

    def token(self, repo: str) -> str:
        """What opens the repository. Raises `ForgeError` for what is not the name of one."""
        if not _NAME.fullmatch(repo):
            raise ForgeError(f"{one_line(repo)!r} is not the name of a repository", "name it owner/name")
        return self.credentials.token(repo)

    def _request(self, method: str, repo: str | None, path: str, **options: Any) -> Answer:
        return self._authorized(repo, method, _locate(repo, path), **options)

    def _authorized(self, repo: str | None, method: str, path: str, **options: Any) -> Answer:
        if repo is None:
            return self._transport.request(method, path, self.credentials.own_authorization(), **options)
        token = self.token(repo)
        answer = self._transport.request(method, path, f"Bearer {token}", **options)
        if answer.status == 401 and self.credentials.forget(repo, token):
            # What is refused so had no effect.
            token = self.token(repo)
            answer = self._transport.request(method, path, f"Bearer {token}", **options)
        return answer

    def _data(self, method: str, repo: str | None, path: str, answer: Answer, absent: Collection[int]) -> Any:
        if answer.status in absent:
            return None
        if not 200 <= answer.status < 300:
            raise refusal(method, _locate(repo, path), answer.status, answer.headers, answer.data)
        return answer.data


def _locate(repo: str | None, path: str) -> str:
    return path if repo is None else f"/repos/{repo}{path}"
