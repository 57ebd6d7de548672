"""Collectives of the ranks of one model, as a layer and the head need them."""

from typing import Protocol

import torch


class GroupError(RuntimeError):
    """A collective or its set-up failed, mostly because another rank is gone; says which and why the library thinks so."""


class Group(Protocol):
    """The ranks that compute a step together. Every rank calls the same collectives in the same order.

    On a GPU a call puts its work on the current stream, so that a graph captures it, and does not wait.
    """

    rank: int
    size: int

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum x [any shape, contiguous] over the ranks, in place; returns x. Every rank gets the same bits.

        Raises:
            GroupError: another rank is gone, or x cannot be sent.
        """
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, n] of each rank -> [rows, size * n], rank after rank.

        Raises:
            GroupError: as `all_reduce`.
        """
        ...

    def barrier(self) -> None:
        """Wait, on the host, until every rank has come here.

        Raises:
            GroupError: another rank is gone.
        """
        ...

    def abort(self) -> None:
        """Let collectives that wait for a rank that is gone end, with whatever result; called from any thread."""
        ...

    def close(self) -> None:
        """Give the group's resources back. Graphs that hold its collectives have to be gone before.

        Raises:
            GroupError: it cannot be closed within seconds, since something still holds it.
        """
        ...


class Solo:
    """The group of one rank: nothing to do, nothing to wait for."""

    rank, size = 0, 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def barrier(self) -> None:
        """Everybody is here."""

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing was taken."""


def side_by_side(parts: torch.Tensor) -> torch.Tensor:
    """[size, rows, n] -> [rows, size * n]; of a single row, a view."""
    size, rows, width = parts.shape
    return parts.transpose(0, 1).reshape(rows, size * width)


def require_contiguous(x: torch.Tensor) -> None:
    """Raises `GroupError` unless x lies in one piece."""
    if not x.is_contiguous():
        raise GroupError(
            f"collective: expected a contiguous tensor, got strides {list(x.stride())} of {list(x.shape)}"
        )
