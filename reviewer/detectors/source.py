"""One file as the checks see it: its text, its Python tree, or its C++ code without comments and literals."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""First and last line at fault, 1-based and inclusive."""

_HIDDEN = re.compile(
    r"""//(?:\\\n|[^\n])*                                     # line comment
      | /\*.*?(?:\*/|\Z)                                      # block comment
      | R"(?P<tag>[^()\\\s]{0,16})\(.*?(?:\)(?P=tag)"|\Z)     # raw string
      | "(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z)                     # string
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'                   # character, but no digit separator
    """,
    re.DOTALL | re.VERBOSE,
)


class Source:
    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def tree(self) -> ast.Module:
        """The file's Python tree. Raises `SyntaxError`, `ValueError`, `RecursionError` or `MemoryError`."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree; raises as `tree` does."""
        return list(ast.walk(self.tree))

    @cached_property
    def code(self) -> str:
        """C++ text with comments and the insides of literals turned to blanks: same length, same lines."""
        return _HIDDEN.sub(lambda match: _blank(match.group()), self.text)

    def line_at(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


def _blank(text: str) -> str:
    blank = re.sub(r"[^\n]", " ", text)
    return f"{text[0]}{blank[1:-1]}{text[-1]}" if text[0] in "\"'" and len(text) > 1 else blank


def span(node: ast.stmt | ast.expr) -> Span:
    return node.lineno, node.end_lineno or node.lineno


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of names, and "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
