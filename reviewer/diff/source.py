"""The patch being read, and how its faults are named."""

from __future__ import annotations

from reviewer.diff.paths import cite
from reviewer.errors import PatchError

_REMEDY = "export the patch again with `git diff BASE...HEAD`, whole and without conversion"


class Source:
    """A patch's bytes. Positions are byte offsets; a line ends at `\\n` and nowhere else."""

    __slots__ = ("data", "size", "view")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.view = memoryview(data)

    def error(self, position: int, problem: str, path: str = "", remedy: str = _REMEDY) -> PatchError:
        """An error that names the line, and the file where one is known."""
        line = self.data.count(b"\n", 0, position) + 1
        place = f"line {line} of the patch, {cite(path)}" if path else f"line {line} of the patch"
        return PatchError(f"{place}: {problem}", remedy)
