"""Text from outside, made safe to post.

What a model, a pull request or a file name says is rebuilt from a small part of Markdown: paragraphs, lists,
emphasis, code spans and fences. All else shows as plain characters. Links, issue references and mentions become
code, where a forge neither notifies, links nor closes anything. A code span never crosses a line, a fence starts
and ends at the margin, and no other backtick is left, so that every Markdown parser agrees with this module on
what is code.

Escaping twice changes nothing more.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

PRODUCT = "whitesmoke"
FORBIDDEN_PHRASES = ("lgtm ready to ci",)

_ZERO_WIDTH = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2064\u206a-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
)
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
_DROPPED = re.compile(f"[{_ZERO_WIDTH}]")
_INVISIBLE = re.compile(f"[{_ZERO_WIDTH}{_BIDI}{_CONTROL}]")
_SURROGATE = re.compile("[\ud800-\udfff]")

_CODE_OR_ESCAPE = re.compile(r"\\.|`+", re.DOTALL)
_LINK = re.compile(r"!?(?<!\\)\[([^\[\]\\]{0,300})\]\(\s{0,9}<?([^()<>\s]{1,2000})>?(?:\s[^()]{0,300})?\)")
_ESCAPE_OR_ENTITY = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|(?P<entity>&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)"
)
_TOKEN = re.compile(
    r"""
      \\(?P<literal>[\\*_~])
    | (?P<url>(?:[A-Za-z][A-Za-z0-9+.-]{1,20}://|(?<![A-Za-z0-9])[wW]{3}\.)[!-;=?-_a-~]*)
    | (?P<mention>(?<![A-Za-z0-9])@[A-Za-z0-9][\w.-]{0,99}(?:/[\w.-]{1,99})?)
    | (?P<reference>(?:(?<![\w./-])(?:[\w.-]{1,99}/)?[\w.-]{1,99})?\#[0-9]+|(?<![A-Za-z0-9])[Gg][Hh]-[0-9]+)
    | (?P<mark>[*_~])
    """,
    re.VERBOSE,
)
_URL_END = ".,;:!?)]}'\"*_~\\"
_SPECIAL = re.compile(r"[<`\\\[\]]|&(?=[#\w])")
_ESCAPED = {"<": "&lt;", "`": "&#96;", "\\": "\\\\", "[": "\\[", "]": "\\]", "&": "&amp;"}

_FENCE = re.compile(r"[ \t]*(?P<marks>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)$", re.DOTALL)
_ACTIVE_INFO = frozenset({"geojson", "math", "mermaid", "stl", "suggestion", "topojson"})
_ITEM = re.compile(r"(?P<number>[0-9]{1,9})?(?P<mark>(?(number)[.)]|[-*+]))\s+(?=\S)")
_RULE = re.compile(r"[-=_*~|:+ \t]+")
_HEADING = re.compile(r"#{1,6}(?:\s+|$)")
_COMMAND = re.compile(r"/[A-Za-z][\w./-]*")
_COMMAND_IN_CODE = re.compile(r"^(?=/[A-Za-z][\w-]*(?:\s|$))", re.MULTILINE)
_MARKER = re.compile(rf"<!--(?=\s*{PRODUCT})", re.IGNORECASE)


class _Piece(NamedTuple):
    """`mark` opens or closes emphasis; `literal` is the same character meant as itself."""

    kind: Literal["text", "code", "mark", "literal"]
    value: str


def block(text: str) -> str:
    """Markdown of several paragraphs, without a newline at the end; every fence is closed."""
    out: list[str] = []
    depth = 0  # columns by which a line may be indented and still belong to a list item, not to a code block
    lines = iter(_lines(text))
    for line in lines:
        opening = _FENCE.match(line)
        if opening:
            if out and out[-1]:
                out.append("")
            out += fence(_fenced(lines, opening), opening["info"]), ""
            depth = 0
        else:
            after_blank = not out or not out[-1]
            safe, depth = _prose(line, depth, after_blank=after_blank) if line.strip() else ("", depth)
            if safe or not after_blank:
                out.append(safe)
    return "\n".join(out).strip("\n")


def inline(text: str) -> str:
    """Markdown on one line and without emphasis: for titles and the items of our own lists."""
    line = " ".join(" ".join(_lines(text)).split())
    return _start(_markdown(_pieces(line), emphasis=False))


def inline_html(text: str) -> str:
    """The same for the inside of an HTML element such as `<summary>`, where Markdown is not read."""
    line = " ".join(" ".join(_lines(text)).split())
    return "".join(
        f"<code>{html.escape(_code(piece.value), quote=False)}</code>"
        if piece.kind == "code"
        else html.escape(piece.value, quote=False)
        for piece in _pieces(line)
    )


def visible(text: str) -> str:
    """`text` with `\\n` for every line end, and with what cannot be seen written out as ⟨U+202E⟩."""
    text = _SURROGATE.sub("\ufffd", re.sub("\r\n?", "\n", text))
    return _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def plain(text: str) -> str:
    """One line for a terminal: nothing in it moves the cursor, changes colours or the writing direction."""
    return " ".join(visible(text).split())


def code_span(text: str) -> str:
    """`text` as it stands, on one line, in as many backticks as it needs."""
    code = _code(text)
    ticks = "`" * (_longest_run(code) + 1)
    spaced = code[:1] == code[-1:] == " " and code.strip(" ")
    pad = " " if spaced or code.startswith("`") or code.endswith("`") else ""
    return f"{ticks}{pad}{code}{pad}{ticks}" if code else ""


def fence(code: str, info: str = "") -> str:
    """A fenced block, longer than any run of backticks inside. `info` is the language, if it is a plain word
    and not one that a forge acts on."""
    word = (info.split() or [""])[0]
    if not re.fullmatch(r"[A-Za-z0-9_+.#-]{1,30}", word) or word.lower() in _ACTIVE_INFO:
        word = ""
    code = _MARKER.sub("<! --", visible(code).rstrip("\n"))
    # Bots take a line that starts with a slash for a command, in code or not.
    code = _COMMAND_IN_CODE.sub(" ", code)
    ticks = "`" * max(3, _longest_run(code) + 1)
    return f"{ticks}{word}\n{code}\n{ticks}"


def guard(document: str, phrases: Iterable[str]) -> str:
    """Breaks every occurrence of `phrases`, whatever the case and whatever stands between the words, by a dot
    inside the first word. Made for whole documents: nothing else changes."""
    for phrase in phrases:
        words = [re.escape(word) for word in re.findall(r"[^\W_]+", phrase)]
        if words:
            anywhere = r"[\W_]*?".join(words)
            document = re.sub(f"(?={anywhere}).", r"\g<0>·", document, flags=re.IGNORECASE)
    return document


def _lines(text: str) -> list[str]:
    return _SURROGATE.sub("\ufffd", re.sub("\r\n?", "\n", text)).split("\n")


def _fenced(lines: Iterator[str], opening: re.Match[str]) -> str:
    """Takes the lines up to the closing fence, or all that are left."""
    marks = opening["marks"]
    indent = opening.start("marks")
    closing = re.compile(rf"\s*{re.escape(marks[0])}{{{len(marks)},}}\s*")
    code = []
    for line in lines:
        if closing.fullmatch(line):
            break
        code.append(line[min(indent, len(line) - len(line.lstrip())) :])
    return "\n".join(code)


def _prose(line: str, depth: int, *, after_blank: bool) -> tuple[str, int]:
    line = line.expandtabs(4)
    content = line.strip()
    indent = min(len(line) - len(line.lstrip(" ")), depth)
    item = None if _RULE.fullmatch(content) else _ITEM.match(content)
    lead = f"{item['number'] or ''}{item['mark']} " if item else ""
    safe = _start(_markdown(_pieces(content[item.end() if item else 0 :]), emphasis=True))
    if item:
        depth = indent + len(lead)
    elif after_blank:
        depth = indent
    return (" " * indent + lead + safe if safe else ""), depth


def _start(safe: str) -> str:
    """Keeps the start of a line of Markdown from meaning more than its characters."""
    safe = safe.strip()
    if safe.startswith(">"):
        return "&gt;" + safe[1:]
    if item := _ITEM.match(safe):
        return f"{item['number'] or ''}\\{safe[item.start('mark') :]}"
    if _RULE.fullmatch(safe) or safe.startswith("~~~"):
        return "\\" + safe
    return safe


def _pieces(line: str) -> Iterator[_Piece]:
    """Reads one line as Markdown would, but with our idea of what becomes code. It is no heading, and a
    command that it starts with is code."""
    for index, (is_code, value) in enumerate(_spans(line)):
        if is_code:
            yield _Piece("code", value)
            continue
        text = _decode(value)
        if index == 0:
            text = text.lstrip()
            while heading := _HEADING.match(text):
                text = text[heading.end() :]
            if command := _COMMAND.match(text):
                yield _Piece("code", command[0])
                text = text[command.end() :]
        yield from _tokens(text)


def _spans(line: str) -> Iterator[tuple[bool, str]]:
    """Splits a line into text and the contents of code spans."""
    runs: dict[int, list[int]] = {}
    for run in re.finditer("`+", line):
        runs.setdefault(len(run[0]), []).append(run.start())
    start = position = 0
    while found := _CODE_OR_ESCAPE.search(line, position):
        position = found.end()
        if found[0][0] == "\\":
            continue
        closers = runs.get(len(found[0]), [])
        index = bisect_left(closers, position)
        if index == len(closers):
            continue
        code = line[position : closers[index]]
        if code[0] == code[-1] == " " and code.strip(" "):
            code = code[1:-1]
        yield False, line[start : found.start()]
        yield True, code
        start = position = closers[index] + len(found[0])
    yield False, line[start:]


def _decode(text: str) -> str:
    """Undoes links, backslash escapes and entities, so that what is seen is what `_tokens` sees. A backslash
    stays before the characters of emphasis alone."""

    def character(match: re.Match[str]) -> str:
        value = match["escaped"] or html.unescape(match["entity"])
        return "".join(f"\\{c}" if c in "\\*_~" else c for c in value)

    text = _ESCAPE_OR_ENTITY.sub(character, _LINK.sub(r"\1 (\2)", text))
    return visible(_DROPPED.sub("", text)).replace("\n", " ")


def _tokens(text: str) -> Iterator[_Piece]:
    position = 0
    while token := _TOKEN.search(text, position):
        kind, value = token.lastgroup, token[0]
        if token.start() > position:
            yield _Piece("text", text[position : token.start()])
        position = token.end()
        if kind == "literal":
            yield _Piece("literal", value[1])
        elif kind == "mark":
            yield _Piece("mark", value)
        else:
            value = value.rstrip(_URL_END) if kind == "url" else value
            yield _Piece("code", value)
            # A forge reads what follows code as a new text, in which `a@b` would begin with a mention.
            text, position = text[token.start() + len(value) :], 0
    if position < len(text):
        yield _Piece("text", text[position:])


def _markdown(pieces: Iterable[_Piece], *, emphasis: bool) -> str:
    out = ""
    parts: list[str] = []
    for kind, value in pieces:
        if kind == "text":
            out = _SPECIAL.sub(lambda match: _ESCAPED[match[0]], value)
        elif kind == "code":
            # Two code spans side by side would read as one.
            out = (" " if out.endswith("`") else "") + code_span(value)
        else:
            out = value if kind == "mark" and emphasis else f"\\{value}"
        parts.append(out)
    return "".join(parts)


def _code(text: str) -> str:
    return _MARKER.sub("<! --", visible(text).replace("\n", " "))


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
