"""What the author of a comment says: the lines that are not quoted, shown as code or hidden, and whether one is a phrase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_BODY = 65_536  # GitHub's limit: what lies beyond was never in a comment

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HIDING_TAG = re.compile(r"<(/?)(?:blockquote|code|del|details|pre|s|samp|strike)\b", re.IGNORECASE)


def said_lines(body: str) -> Iterator[str]:
    """The lines of paragraphs at the top level that begin with plain text, as one would read them.

    Nothing in quotes, lists, headings, tables, code, links, struck or folded text, nor in HTML comments.
    """
    depth, in_paragraph = 0, False
    for token in _parser().parse(body[:MAX_BODY]):
        if token.type == "html_block" and token.level == 0:
            depth = _hidden(depth, token.content)
        elif token.type == "inline" and in_paragraph:
            for line in _lines(token.children or ()):
                if not depth and line and line[0].type == "text" and line[0].level == 0:
                    yield "".join(map(_readable, line)).strip()
                for piece in line:
                    if piece.type == "html_inline":
                        depth = _hidden(depth, piece.content)
        in_paragraph = token.type == "paragraph_open" and token.level == 0


def says_phrase(body: str, phrase: str) -> bool:
    """Whether a line of plain text is the phrase and nothing else, in any case and spacing."""
    words = phrase.casefold().split()
    # The first look is cheap; most comments end here.
    if not set(words) <= set(body.casefold().split()):
        return False
    return any(line.casefold().split() == words for line in said_lines(body))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    # An e-mail's signature begins with "--", which would make a heading of the command above it.
    parser.disable("lheading")
    # Joining texts would take an escaped or encoded slash for a slash.
    parser.core.ruler.enableOnly(["normalize", "block", "inline"])
    return parser


def _lines(pieces: Sequence[Token]) -> Iterator[list[Token]]:
    line: list[Token] = []
    for piece in pieces:
        if piece.type in ("softbreak", "hardbreak"):
            yield line
            line = []
        else:
            line.append(piece)
    yield line


def _readable(piece: Token) -> str:
    if piece.type == "code_inline":
        return f"{piece.markup}{piece.content}{piece.markup}"
    if piece.type == "html_inline":
        return _COMMENT.sub("", piece.content)
    # Emphasis is its mark alone; the content of the rest is what one sees of it.
    return piece.content or ("" if piece.type.startswith("link") else piece.markup)


def _hidden(depth: int, html: str) -> int:
    """How many elements that hide their content are open after `html`."""
    for tag in _HIDING_TAG.finditer(_COMMENT.sub("", html)):
        depth = max(0, depth - 1) if tag[1] else depth + 1
    return depth
