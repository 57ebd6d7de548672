"""The tools themselves: what each takes, and what it says about the checkout.

Every function returns text for the model and raises `ToolError`, in words that the model can act on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from reviewer.checkout.base import Checkout, Match
from reviewer.engines.base import Tool
from reviewer.model import Side
from reviewer.tools.symbols import Role, role_finder

_LINES = 400
_LINE_WIDTH = 400
_MATCHES = 200
_SYMBOL_MATCHES = 5000
_USES = 60


class ToolError(Exception):
    """The call cannot be answered; the message tells the model why."""


def _upper(value: object) -> object:
    """`right` is as good as `RIGHT`, and models say head and base."""
    names = {"HEAD": "RIGHT", "NEW": "RIGHT", "BASE": "LEFT", "OLD": "LEFT"}
    return names.get(value.upper(), value.upper()) if isinstance(value, str) else value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


OnSide = Annotated[
    Literal["LEFT", "RIGHT"],
    BeforeValidator(_upper),
    Field(description="RIGHT: the pull request's head (the default); LEFT: its base"),
]
Path = Annotated[str, Field(description="relative to the root of the repository, with /")]


class Arguments(BaseModel):
    """Unknown keys are ignored: models add some, and nothing is lost with them."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ReadFile(Arguments):
    path: Path
    start_line: int = Field(default=1, ge=1, description="first line, from 1")
    end_line: int | None = Field(default=None, ge=1, description=f"last line; at most {_LINES} lines a call")
    side: OnSide = "RIGHT"


class Grep(Arguments):
    pattern: str = Field(min_length=1, description=r"POSIX extended regular expression ([0-9], not \d)")
    paths: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = Field(
        default=(), description="files, folders or globs such as *.py; all text files if empty"
    )
    side: OnSide = "RIGHT"


class ListDir(Arguments):
    path: Path = ""
    side: OnSide = "RIGHT"


class FindSymbol(Arguments):
    name: str = Field(min_length=1, description="an identifier, such as a function, class, struct or macro")


class GitLog(Arguments):
    path: Path = ""
    limit: int = Field(default=20, ge=1, le=200)


class GitShow(Arguments):
    revision: str = Field(description="a commit's name from git_log, or head, base, head~1")


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


@dataclass(frozen=True, slots=True)
class Offer(Generic[ArgumentsT]):
    """One tool: its name and purpose, its arguments, and what does the work."""

    name: str
    description: str
    arguments: type[ArgumentsT]
    work: Callable[[Checkout, ArgumentsT], str]

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.arguments.model_json_schema())

    def run(self, checkout: Checkout, given: dict[str, Any]) -> str:
        """Checks the arguments and does the work; pydantic's `ValidationError` where they do not fit."""
        # Models write null for what they leave out.
        present = {name: value for name, value in given.items() if value is not None}
        return self.work(checkout, self.arguments.model_validate(present))


def _inside(path: str) -> str:
    """The path as the checkout spells it, or `ToolError` for one that would lead out of it."""
    if "\0" in path:
        raise ToolError("a path cannot hold a NUL byte")
    if path.startswith("/"):
        raise ToolError(f"{path!r} is not inside the repository; give a path relative to its root")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolError(f"{path!r} has '..' in it; give a path relative to the root of the repository")
    if any(part.lower() == ".git" for part in parts):
        raise ToolError("'.git' is not part of what is reviewed")
    return "/".join(parts)


def _why_unreadable(checkout: Checkout, path: str, side: Side) -> str:
    """Names the first part of the path that is not what it should be: a link may stand anywhere in it."""
    parts = path.split("/") if path else []
    for depth, name in enumerate(parts):
        entries = checkout.list_dir("/".join(parts[:depth]), side) or ()
        entry = next((item for item in entries if item.name == name), None)
        so_far = "/".join(parts[: depth + 1])
        if entry is None:
            other = Side.LEFT if side is Side.RIGHT else Side.RIGHT
            hint = f"; the {other} side has it" if path in checkout.files(other) else ""
            return f"no file {path!r} on the {side} side{hint}"
        if entry.kind == "symlink":
            return f"{so_far!r} is a symbolic link, and links are not followed"
        if entry.kind == "submodule":
            return f"{so_far!r} is a submodule, and its content is not part of this repository"
        if entry.kind == "file":
            break
    else:
        return f"{path!r} is a directory; use list_dir"
    if so_far != path:
        return f"{so_far!r} is a file, not a directory"
    return f"{path!r} is too large to read ({entry.size} bytes); use grep"


def _shorten(text: str) -> str:
    return (
        text if len(text) <= _LINE_WIDTH else f"{text[:_LINE_WIDTH]}… (+{len(text) - _LINE_WIDTH} characters)"
    )


def _read_file(checkout: Checkout, given: ReadFile) -> str:
    path, side = _inside(given.path), Side(given.side)
    content = checkout.read(path, side)
    if content is None:
        raise ToolError(_why_unreadable(checkout, path, side))
    if b"\0" in content[:8000]:
        raise ToolError(f"{path!r} is binary ({len(content)} bytes)")
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    last = min(given.end_line or len(lines), given.start_line + _LINES - 1, len(lines))
    if last < given.start_line:
        raise ToolError(
            f"{path!r} has {len(lines)} lines; there are none from {given.start_line} to {given.end_line or 'its end'}"
        )
    shown = [
        f"{number:>5} {_shorten(lines[number - 1].decode(errors='replace'))}"
        for number in range(given.start_line, last + 1)
    ]
    return "\n".join([f"{path} ({side}), lines {given.start_line}-{last} of {len(lines)}", *shown])


def _grep(checkout: Checkout, given: Grep) -> str:
    paths = tuple(path for path in map(_inside, given.paths) if path)
    found = checkout.grep(given.pattern, Side(given.side), paths=paths, limit=_MATCHES + 1)
    if not found:
        perl = re.search(r"\\[dDhHKQ]|\(\?", given.pattern)
        return "no match" + (
            r"; this is a POSIX extended expression: write [0-9] for \d, and no (?...)" if perl else ""
        )
    more = ["(there are more; narrow the pattern or the paths)"] if len(found) > _MATCHES else []
    return "\n".join([*_listed(found[:_MATCHES]), *more])


def _listed(matches: tuple[Match, ...] | list[Match]) -> Iterator[str]:
    return (f"{match.path}:{match.line}: {_shorten(match.text)}" for match in matches)


def _list_dir(checkout: Checkout, given: ListDir) -> str:
    path, side = _inside(given.path), Side(given.side)
    entries = checkout.list_dir(path, side)
    if entries is None:
        raise ToolError(f"no directory {path!r} on the {side} side")
    marks = {"directory": "/", "symlink": " (symbolic link)", "submodule": " (submodule)"}
    return "\n".join(
        f"{entry.name}{marks[entry.kind]}" if entry.kind in marks else f"{entry.name} ({entry.size} bytes)"
        for entry in entries
    )


def _find_symbol(checkout: Checkout, given: FindSymbol) -> str:
    # `Class.method` and `space::name` are found by what stands last.
    name = re.split(r"\.|::|->", given.name.strip().removesuffix("()"))[-1]
    if not re.fullmatch(r"[^\W\d]\w*", name):
        raise ToolError(f"{given.name!r} is not an identifier; use grep")
    found = checkout.grep(name, Side.RIGHT, fixed=True, word=True, limit=_SYMBOL_MATCHES)
    if not found:
        return f"{name!r} does not occur on the RIGHT side"
    role = role_finder(name)
    by_role: dict[Role, list[Match]] = {each: [] for each in Role}
    for match in found:
        by_role[role(match.path, match.text[:_LINE_WIDTH])].append(match)
    uses = by_role[Role.USE]
    answer = [] if by_role[Role.DEFINITION] else [f"no line looks like a definition of {name!r}"]
    for title, matches in (
        ("definitions", by_role[Role.DEFINITION]),
        ("declarations", by_role[Role.DECLARATION]),
        ("uses", uses[:_USES]),
    ):
        if matches:
            answer += [f"{title}:", *_listed(matches)]
    if len(uses) > _USES:
        answer.append(f"({len(uses) - _USES} further uses; use grep with paths)")
    if len(found) == _SYMBOL_MATCHES:
        answer.append(f"(only the first {_SYMBOL_MATCHES} lines with the name were looked at)")
    return "\n".join(answer)


def _git_log(checkout: Checkout, given: GitLog) -> str:
    return checkout.log(_inside(given.path) or None, given.limit) or "no commits"


def _git_show(checkout: Checkout, given: GitShow) -> str:
    return checkout.show(given.revision.strip())


OFFERS: dict[str, Offer[Any]] = {
    offer.name: offer
    for offer in (
        Offer("read_file", "Reads lines of a text file, with their numbers.", ReadFile, _read_file),
        Offer("grep", "Finds lines in text files; gives path:line: text.", Grep, _grep),
        Offer("list_dir", "Lists one directory.", ListDir, _list_dir),
        Offer(
            "find_symbol",
            "Finds where a name is defined, then where it is used, in the head.",
            FindSymbol,
            _find_symbol,
        ),
        Offer(
            "git_log", "Lists commits, newest first, of the whole history or of one path.", GitLog, _git_log
        ),
        Offer(
            "git_show",
            "Shows one commit of the pull request or of the history before it, with its patch.",
            GitShow,
            _git_show,
        ),
    )
}
