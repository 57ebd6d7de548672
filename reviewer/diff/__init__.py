"""Git's unified diff, parsed: bytes in, files, hunks and lines out."""

from reviewer.diff.model import Diff, FileDiff, Hunk, Kind, Line, Status
from reviewer.diff.parser import parse

__all__ = ["Diff", "FileDiff", "Hunk", "Kind", "Line", "Status", "parse"]
