"""Checks on text of any kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reviewer.detectors.source import Source, Span

_SECRET = re.compile(
    r"""\b(?:
        (?:AKIA|ASIA)[0-9A-Z]{16}                 # AWS
      | gh[pousr]_[A-Za-z0-9]{36}                 # GitHub
      | github_pat_[A-Za-z0-9_]{82}
      | glpat-[A-Za-z0-9_-]{20}                   # GitLab
      | hf_[A-Za-z]{34}                           # Hugging Face
      | npm_[A-Za-z0-9]{36}
      | pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}
      | sk-ant-[a-z]+[0-9]+-[A-Za-z0-9_-]{80,}
      | sk-proj-[A-Za-z0-9_-]{40,}
      | xox[abprs]-[0-9A-Za-z-]{24,}              # Slack
      | AIza[0-9A-Za-z_-]{35}                     # Google
      | [sr]k_live_[0-9A-Za-z]{24,}               # Stripe
    )(?![A-Za-z0-9_-])""",
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(r"example|fake|dummy|test|sample|placeholder|0123456|1234567|abcdef", re.I)
_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----(?:\\n|\s|[\"'+,\\])*[A-Za-z0-9+/]{40}")
_BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069]")


def conflict_markers(source: Source) -> Iterator[Span]:
    """All three markers in order: rows of = alone are headings in some formats."""
    if "<<<<<<< " not in source.text:
        return
    opened, divided = 0, False
    for number, line in enumerate(source.lines, 1):
        if line.startswith("<<<<<<< "):
            opened, divided = number, False
        elif opened and line.rstrip("\r") == "=======":
            divided = True
        elif divided and line.startswith(">>>>>>> "):
            yield opened, opened
            opened, divided = 0, False


def committed_secret(source: Source) -> Iterator[Span]:
    """Credentials whose issuer gave them a form of their own; words and sequences in them mark placeholders."""
    for match in _SECRET.finditer(source.text):
        token = match.group()
        if len(set(token)) >= 12 and not _PLACEHOLDER.search(token):
            line = source.line_at(match.start())
            yield line, line
    for match in _PRIVATE_KEY.finditer(source.text):
        line = source.line_at(match.start())
        yield line, line


def bidirectional_control(source: Source) -> Iterator[Span]:
    for match in _BIDIRECTIONAL.finditer(source.text):
        line = source.line_at(match.start())
        yield line, line
