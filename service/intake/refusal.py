"""Why a delivery is turned away."""

from __future__ import annotations


class Refusal(Exception):
    """The answer to a request that is not accepted: HTTP status, outcome in the metrics, and one line why."""

    def __init__(self, status: int, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.outcome = outcome
        self.reason = reason


def unavailable(reason: str) -> Refusal:
    """GitHub lists such a delivery as failed, and the reconciler asks for it later."""
    return Refusal(503, "unavailable", reason)
