"""Who a runner is: its name, and the secret that the service gave it for the registration token."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from ci_dispatch.model import Frozen, Inventory, JobName
from ci_dispatch.protocol import Registration
from ci_dispatch.runner.client import Service
from ci_dispatch.runner.errors import Refused, RunnerError
from ci_dispatch.runner.files import write_private

_REGISTER_PATIENCE = 60.0
_NEW_TOKEN = "make a new one with `whitesmoke runner-token create` on the service's machine"


class Identity(Frozen):
    """What is kept between lives, in a file that only the runner's user reads."""

    url: str
    name: JobName
    runner_id: int
    secret: str
    beat_seconds: float


@contextmanager
def only_agent(folder: Path) -> Iterator[None]:
    """Holds the folder. Raises RunnerError where another agent does."""
    handle = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunnerError(
                f"another runner works in {folder}", "stop it, or give this one a --folder of its own"
            ) from None
        yield
    finally:
        os.close(handle)


def load_identity(folder: Path, url: str, name: str) -> Identity | None:
    """Who this folder's runner is at this service and under this name, where that is known."""
    try:
        identity = Identity.model_validate_json((folder / "identity.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise RunnerError(
            f"{folder / 'identity.json'} cannot be read", "remove it and register again"
        ) from None
    return identity if (identity.url, identity.name) == (url, name) else None


def forget_identity(folder: Path) -> None:
    (folder / "identity.json").unlink(missing_ok=True)


def register(service: Service, folder: Path, name: str, token: str, inventory: Inventory) -> Identity:
    """Spends a registration token. A nonce is kept over restarts, so that an answer that was lost can be asked for again.

    Raises Refused, Unreachable, RunnerError, OSError.
    """
    if not token:
        raise RunnerError(
            f"the service does not know the runner {name} and there is no registration token",
            f"{_NEW_TOKEN}, and give it in a file (--token-file) or in WHITESMOKE_RUNNER_TOKEN",
        )
    nonce_file = folder / "nonce"
    if not nonce_file.exists():
        write_private(nonce_file, secrets.token_hex(16).encode())
    registration = Registration(name=name, inventory=inventory, nonce=nonce_file.read_text())
    try:
        answer = service.register(token, registration, _REGISTER_PATIENCE)
    except Refused as refused:
        if refused.status == 401:
            raise Refused(
                401, "the registration token is unknown, spent or out of date", _NEW_TOKEN
            ) from None
        raise
    identity = Identity(
        url=service.url,
        name=name,
        runner_id=answer.runner_id,
        secret=answer.secret,
        beat_seconds=answer.beat_seconds,
    )
    write_private(folder / "identity.json", identity.model_dump_json().encode())
    nonce_file.unlink()
    return identity
