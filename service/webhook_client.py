"""Sends a webhook as GitHub does: signed, with an id of its own."""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.error
import urllib.request
import uuid
from typing import Any

from reviewer.errors import ReviewError

_TIMEOUT_SECONDS = 10


class DeliveryRefused(ReviewError):
    """The service did not accept a delivery."""


def deliver(url: str, secret: bytes, event: str, payload: dict[str, Any], *, guid: str = "") -> str:
    """Posts one delivery to `url` (its `/webhook`) and returns its id. Raises `DeliveryRefused`."""
    body = json.dumps(payload).encode()
    guid = guid or str(uuid.uuid4())
    request = urllib.request.Request(
        f"{url}/webhook",
        data=body,
        headers={
            "Content-Type": "application/json",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": guid,
            "X-Hub-Signature-256": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest(),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
            return guid
    except urllib.error.HTTPError as error:
        raise DeliveryRefused(
            f"{url} refused the delivery with status {error.code}: {error.read(500).decode('utf-8', 'replace')}",
            "check WHITESMOKE_WEBHOOK_SECRET on both sides"
            if error.code == 401
            else "try again, and see its log",
        ) from error
    except OSError as error:
        raise DeliveryRefused(
            f"{url} does not answer: {error}", "start it with `whitesmoke serve`"
        ) from error
