"""Webhooks out: signed, delivered one by one by a thread, and bent by the test as GitHub or a network would."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import urllib3

from tests.standin.github.state import App, Repository, World

Json = dict[str, Any]

_SECONDS = 10.0
# Every app gets these, whatever it subscribed to.
_ALWAYS = ("installation", "installation_repositories")


@dataclass(eq=False)
class Hook:
    """Of an app, or of one repository (then every event is sent)."""

    id: int
    url: str
    secret: str
    app: App | None = None
    repo: Repository | None = None


@dataclass(eq=False)
class Delivery:
    """One attempt to hand an event over; a redelivery is another with the same `guid`. `status_code` is 0 until it
    was tried."""

    id: int
    guid: str
    hook: Hook
    event: str
    action: str | None
    body: bytes
    repo: Repository | None
    installation: int | None
    created_at: datetime
    redelivery: bool = False
    status: str = "pending"
    status_code: int = 0
    duration: float = 0.0
    response: str = ""
    trouble: str | None = None

    @property
    def payload(self) -> Json:
        shown: Json = json.loads(self.body)
        return shown

    @property
    def headers(self) -> dict[str, str]:
        """As they are sent, signature included."""
        digest = hmac.new(self.hook.secret.encode(), self.body, hashlib.sha256).hexdigest()
        old = hmac.new(self.hook.secret.encode(), self.body, hashlib.sha1).hexdigest()
        target = "integration" if self.hook.app else "repository"
        owner = self.hook.app or self.hook.repo
        return {
            "Accept": "*/*",
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/5c8a1f0",
            "X-GitHub-Delivery": self.guid,
            "X-GitHub-Event": self.event,
            "X-GitHub-Hook-ID": str(self.hook.id),
            "X-GitHub-Hook-Installation-Target-ID": str(owner.id if owner else 0),
            "X-GitHub-Hook-Installation-Target-Type": target,
            "X-Hub-Signature": f"sha1={old}",
            "X-Hub-Signature-256": f"sha256={digest}",
        }


@dataclass
class _Trouble:
    """What happens to the next deliveries."""

    kind: str
    times: int
    events: tuple[str, ...]


@dataclass
class Hooks:
    world: World
    hooks: list[Hook] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending: deque[Delivery] = deque()
        self._troubles: list[_Trouble] = []
        self._changed = threading.Condition()
        self._held = self._closed = self._busy = False
        self._pool = urllib3.PoolManager(maxsize=1, retries=False)
        self._thread = threading.Thread(target=self._work, name="github-webhooks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_SECONDS)
        self._pool.clear()

    def subscribe(
        self, url: str, secret: str, app: App | None = None, repo: Repository | None = None
    ) -> Hook:
        hook = Hook(self.world.next_id(), url, secret, app, repo)
        self.hooks.append(hook)
        return hook

    # What tests do to deliveries

    def hold(self) -> None:
        """Keeps deliveries back until `release`."""
        with self._changed:
            self._held = True

    def release(self, order: Callable[[list[Delivery]], Iterable[Delivery]] = lambda held: held) -> None:
        """Sends what was held, in the order given (`reversed` for one)."""
        with self._changed:
            self._pending = deque(order(list(self._pending)))
            self._held = False
            self._changed.notify_all()

    def lose(self, times: int = 1, *events: str) -> None:
        """The next deliveries (of these events) do not arrive; GitHub lists them as failed."""
        self._troubles.append(_Trouble("lose", times, events))

    def duplicate(self, times: int = 1, *events: str, new_guid: bool = False) -> None:
        """The next deliveries are sent twice, the second under the same GUID or a new one."""
        self._troubles.append(_Trouble("renamed" if new_guid else "duplicate", times, events))

    def redeliver(self, delivery: Delivery) -> Delivery:
        again = replace(
            delivery,
            id=self.world.next_id(),
            redelivery=True,
            status="pending",
            status_code=0,
            response="",
            created_at=self.world.now(),
        )
        self._enqueue(again)
        return again

    def settle(self, seconds: float = _SECONDS) -> None:
        """Waits until everything that is not held was handed over."""
        with self._changed:
            idle = self._changed.wait_for(lambda: self._held or not (self._pending or self._busy), seconds)
        assert idle, f"webhooks were still being delivered after {seconds} s"

    # What the stand-in calls

    def send(self, event: str, payload: Json, repo: Repository | None, only: App | None = None) -> None:
        """Queues an event for every hook that wants it; `only` is the one app that it concerns."""
        for hook in self.hooks:
            if hook.app is None:
                if hook.repo is None or hook.repo is repo:
                    self._queue(hook, event, payload, repo, None)
                continue
            if only is not None and hook.app is not only:
                continue
            if event not in (*hook.app.events, *_ALWAYS):
                continue
            found = next(
                (
                    one
                    for one in self.world.installations
                    if one.app is hook.app and (repo is None or one.account is repo.owner)
                ),
                None,
            )
            if found is not None and not found.suspended:
                self._queue(hook, event, payload, repo, found.id)

    def _queue(
        self, hook: Hook, event: str, payload: Json, repo: Repository | None, installation: int | None
    ) -> None:
        if installation is not None and "installation" not in payload:
            payload = {**payload, "installation": {"id": installation, "node_id": f"MDIz_{installation}"}}
        body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        made = Delivery(
            id=self.world.next_id(),
            guid=str(uuid.uuid4()),
            hook=hook,
            event=event,
            action=payload.get("action"),
            body=body,
            repo=repo,
            installation=installation,
            created_at=self.world.now(),
        )
        self._enqueue(made)

    def _enqueue(self, delivery: Delivery) -> None:
        with self._changed:
            delivery.trouble = self._trouble(delivery)
            self.deliveries.append(delivery)
            self._pending.append(delivery)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._pending and not self._held))
                if self._closed:
                    return
                delivery = self._pending.popleft()
                self._busy = True
            try:
                self._deliver(delivery)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _deliver(self, delivery: Delivery) -> None:
        if delivery.trouble == "lose":
            delivery.status, delivery.status_code = "failed to connect to host", 502
            return
        self._post(delivery)
        if delivery.trouble is not None:
            guid = str(uuid.uuid4()) if delivery.trouble == "renamed" else delivery.guid
            again = replace(delivery, id=self.world.next_id(), guid=guid)
            with self._changed:
                self.deliveries.append(again)
            self._post(again)

    def _trouble(self, delivery: Delivery) -> str | None:
        for one in self._troubles:
            if one.times and (not one.events or delivery.event in one.events):
                one.times -= 1
                return one.kind
        return None

    def _post(self, delivery: Delivery) -> None:
        started = time.monotonic()
        try:
            answer = self._pool.request(
                "POST", delivery.hook.url, body=delivery.body, headers=delivery.headers, timeout=_SECONDS
            )
        except urllib3.exceptions.NewConnectionError:
            # To urllib3 a refused connection is a timeout too.
            delivery.status, delivery.status_code = "failed to connect to host", 502
        except urllib3.exceptions.TimeoutError:
            delivery.status, delivery.status_code = "timed out", 504
        except urllib3.exceptions.HTTPError:
            delivery.status, delivery.status_code = "failed to connect to host", 502
        else:
            delivery.status_code = answer.status
            delivery.status = "OK" if answer.status < 300 else f"Invalid HTTP Response: {answer.status}"
            delivery.response = answer.data.decode("utf-8", "replace")
        delivery.duration = round(time.monotonic() - started, 3)
