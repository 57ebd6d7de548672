"""How a suggestion is shown: as words, or in a fence where it is nothing but code."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from reviewer.report.escape import block, fence

_LANGUAGES = {
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cu": "cuda",
    ".cuh": "cuda",
    ".go": "go",
    ".h": "cpp",
    ".hpp": "cpp",
    ".java": "java",
    ".js": "js",
    ".json": "json",
    ".md": "markdown",
    ".proto": "proto",
    ".py": "python",
    ".pyi": "python",
    ".rs": "rust",
    ".sh": "sh",
    ".sql": "sql",
    ".toml": "toml",
    ".ts": "ts",
    ".yaml": "yaml",
    ".yml": "yaml",
}
# A line that no sentence looks like: an assignment, a lone call, a statement that ends as only code does.
_CODE = re.compile(
    r"""
      (?:import|from)\s[\w.]+(?:\simport\s.+)?$
    | (?:def|class|if|elif|for|while|with|else|try|except|finally|async\sdef)\b.*:$
    | (?:return|raise|assert|yield|del|await)\s[^\s]+[\[(.].*[\])]$
    | @[\w.]+(?:\(.*\))?$
    | [\w.\[\]"'*&>-]+(?:\s*,\s*[\w.]+)*(?:\s*:\s*[\w\[\], |.]+)?\s*(?:[-+*/%|&^]|//|\*\*|<<|>>)?=(?!=)\s*\S.*$
    | [\w.:>-]+\(.*\)$
    | .*[;{}]$
    | (?://|/\*|\#\s|\#include\b).*$
    """,
    re.VERBOSE,
)


def render_suggestion(text: str, path: str) -> str:
    """Markdown: a fence in the language of `path` where `text` is code, else its own paragraphs."""
    return fence(text, language_of(path)) if is_code(text) else block(text)


def is_code(text: str) -> bool:
    """Whether every line that is not indented reads like a statement. Prose with a line of code in it is prose."""
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    margin = [line for line in lines if not line[0].isspace()]
    fenced = any(line.lstrip().startswith("```") for line in lines)
    return bool(margin) and not fenced and all(_CODE.match(line) for line in margin)


def language_of(path: str) -> str:
    """The word after a fence that colours this file's code, or nothing."""
    return _LANGUAGES.get(PurePosixPath(path).suffix.lower(), "")
