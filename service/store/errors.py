"""What can go wrong with the store, as users read it."""

from __future__ import annotations

from reviewer.errors import ReviewError


class StoreError(ReviewError):
    """The database did not do what was asked; the transaction had no effect."""


class StaleClaim(StoreError):
    """A worker's claim is no longer its own: its lease ran out, or the row was superseded."""


class Conflict(StoreError):
    """A row changed since it was read; read it again and decide anew."""
