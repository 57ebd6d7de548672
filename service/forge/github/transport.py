"""One request to GitHub at a time, through PyGithub: timeouts, limits, retries of what may be repeated, ETags."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import requests
from github.Requester import Requester

from service.forge.github.errors import describe, refusal, unanswered
from service.forge.github.etags import Etags, Kept
from service.forge.github.limits import Limits

_TIMEOUT = 30
_ATTEMPTS = 3
_FIRST_BACKOFF = 0.5

# At DEBUG it logs whole answers, and one of them is an installation's token.
logging.getLogger("github.Requester").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class Answer:
    """`data` is the JSON of the body, None where it is empty. Header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    data: Any


class Transport:
    """Safe to use from several threads. `url` is the API's address; `sleep` is what waits between attempts."""

    def __init__(self, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._url = url.rstrip("/")
        self._sleep = sleep
        self._limits = Limits(sleep)
        self._etags = Etags()
        # PyGithub keeps the request under way in its connection, so that threads must not share one.
        self._local = threading.local()

    @property
    def graphql_url(self) -> str:
        return str(self._requester().graphql_url)

    def request(
        self,
        method: str,
        path: str,
        authorization: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        repeatable: bool = False,
        conditional: bool = False,
    ) -> Answer:
        """The answer, whatever its status below 500. A `conditional` GET asks whether the answer that is known still
        holds; pages of a list are asked for whole, as a first page stays the same when a second one comes to be.

        Only what GETs, and what is `repeatable`, is sent again after a failure: else nobody knows whether the first
        one had its effect. Raises `ForgeError` for no answer, 5xx, and limits that last.
        """
        resource = "core" if path.startswith("/") else "graphql"
        repeatable = repeatable or method == "GET"
        attempt = 0
        while True:
            self._limits.admit(authorization, resource)
            attempt += 1
            try:
                answer = self._send(method, path, authorization, params or {}, body, conditional)
            except (requests.RequestException, ValueError, RuntimeError) as error:
                # ValueError: not the JSON that it should be. RuntimeError: PyGithub's for redirections elsewhere.
                failure = unanswered(method, path, str(error))
            else:
                message = describe(answer.data) if answer.status >= 400 else ""
                if self._limits.note(authorization, resource, answer.status, answer.headers, message):
                    if attempt < _ATTEMPTS:
                        continue
                    raise self._limits.exceeded(authorization, resource)
                if answer.status < 500:
                    return answer
                failure = refusal(method, path, answer.status, answer.headers, answer.data)
            if not repeatable or attempt >= _ATTEMPTS:
                raise failure
            self._sleep(_FIRST_BACKOFF * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))

    def _send(
        self,
        method: str,
        path: str,
        authorization: str,
        params: Mapping[str, Any],
        body: Any,
        conditional: bool,
    ) -> Answer:
        headers = {"Authorization": authorization}
        key = f"{path}?{urlencode(sorted(params.items()))}"
        kept = self._etags.get(key) if conditional else None
        if kept is not None:
            headers["If-None-Match"] = kept.etag
        status, answered, text = self._requester().requestJson(
            method, path, parameters=dict(params), headers=headers, input=body
        )
        if status == 304 and kept is not None:
            return Answer(200, answered, json.loads(kept.text))
        if status >= 400:
            return Answer(status, answered, _parse_refusal(text))
        data = json.loads(text) if text else None
        if conditional and "etag" in answered:
            self._etags.put(key, Kept(answered["etag"], text))
        return Answer(status, answered, data)

    def _requester(self) -> Requester:
        if not hasattr(self._local, "requester"):
            self._local.requester = Requester(
                auth=None,
                base_url=self._url,
                timeout=_TIMEOUT,
                user_agent="whitesmoke",
                per_page=100,
                verify=True,
                retry=None,
                pool_size=None,
                api_version="2022-11-28",
            )
        found: Requester = self._local.requester
        return found


def _parse_refusal(text: str) -> Any:
    """A gateway in between answers with a page, not with JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None
