"""Path patterns as in .gitignore files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


def check_glob(glob: str) -> str:
    """The glob itself. Raises `ValueError` for one that cannot match."""
    from pathspec.patterns.gitignore import GitIgnorePatternError

    if not glob.strip():
        raise ValueError("an empty glob matches nothing")
    try:
        _spec((glob,))
    except (GitIgnorePatternError, re.error) as error:
        raise ValueError(f"{glob!r} is not a valid glob") from error
    return glob


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether any glob matches the path (the last one decides where `!` negates)."""
    return _spec(tuple(globs)).match_file(path)


@lru_cache(maxsize=512)
def _spec(globs: tuple[str, ...]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(globs)
