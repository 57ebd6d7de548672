"""What can go wrong for whoever starts a runner: one sentence that names the object, one that says what to do."""

from __future__ import annotations


class RunnerError(Exception):
    """The runner cannot go on."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class Unreachable(RunnerError):
    """The service gave no answer for as long as a call may last."""


class Refused(RunnerError):
    """The service said no. `status` is HTTP's."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status


class LeaseLost(Refused):
    """The lease is no longer this runner's: its job must stop, its report has no effect."""
