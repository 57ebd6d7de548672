"""Errors that a user reads: each says what is wrong, with which object, and what to do about it."""

from __future__ import annotations


class ReviewError(Exception):
    """Base of every error that the review raises on purpose; printed as one line, never as a traceback.

    `problem` names the object and what is wrong with it; `remedy` says what to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class GitError(ReviewError):
    """A git repository, reference or object is not as needed."""


class PatchError(ReviewError):
    """A patch is malformed: the message names the byte offset or line."""


class ConfigError(ReviewError):
    """A policy or checklist file is invalid: the message names file and line."""


class EngineError(ReviewError):
    """A model endpoint cannot be used at all (as opposed to one completion that failed)."""


class LedgerError(ReviewError):
    """The ledger cannot be read or written; what was there before is intact."""
