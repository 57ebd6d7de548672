"""What the intake is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSettings:
    """Secrets and limits; sizes in bytes.

    `secrets` holds the webhook secret and, while it is being changed, the former one. `events` are those that
    someone acts on; others are stored as ignored and wake nobody. `metrics_token` opens `/metrics` to peers other
    than loopback. GitHub sends at most 25 MB.
    """

    secrets: tuple[bytes, ...] = field(repr=False)
    events: frozenset[str]
    metrics_token: str | None = field(default=None, repr=False)
    body_limit: int = 25 * 1024 * 1024
    # Bodies held at one time, being read or waiting for their commit.
    memory_limit: int = 256 * 1024 * 1024
    queue_limit: int = 4096
