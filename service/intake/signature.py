"""The signature that proves that a delivery comes from GitHub."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from reviewer.errors import ConfigError

_PREFIX = b"sha256="


class Signatures:
    """Checks X-Hub-Signature-256 against the webhook secret; against two while the secret is being changed."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(secrets):
            raise ConfigError(
                "the webhook secret is empty", "set the secret that the GitHub App or webhook was given"
            )
        self._secrets = tuple(secrets)

    def valid(self, header: bytes, body: bytes) -> bool:
        """Whether `header` signs the raw `body`; compared in constant time."""
        if not header.startswith(_PREFIX):
            return False
        claimed = header[len(_PREFIX) :]
        return any(
            hmac.compare_digest(hmac.digest(secret, body, "sha256").hex().encode(), claimed)
            for secret in self._secrets
        )
