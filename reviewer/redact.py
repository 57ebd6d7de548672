"""Secrets out of text: everything that is posted, logged or recorded passes through here.

A false alarm costs a few readable characters, a miss costs a credential, so a pattern asks for little more than a
token's fixed prefix and enough characters after it. Every pattern runs in time linear in the text, hostile text
included: a start that fails may only look ahead a bounded way, or up to where the next start begins. Boundaries are
looked behind for after the literal prefix, not before it, so that the prefix keeps driving the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

SHORTEST_KNOWN_SECRET = 8


class _Pattern(NamedTuple):
    """`hint` is a string without which `regex` cannot match. `value`, in the regex, is the part to replace; the
    whole match where there is none."""

    kind: str
    hint: str
    regex: re.Pattern[str]


_KEY_LABEL = r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_CREDENTIAL = r"[A-Za-z0-9._~+/-]"
_PLACEHOLDER = r"\$?\{[\w.]+\}@|\$[A-Z][A-Z0-9_]*@|\*+@|%s@"

_PATTERNS = (
    # A key's body ends at its END line; where that is missing (a cut quotation), with its last line of base64.
    _Pattern(
        "private-key",
        "PRIVATE KEY",
        re.compile(
            rf"-----BEGIN {_KEY_LABEL}"
            rf"(?:(?:[^\"-]|-(?!----))*+-----+END {_KEY_LABEL}"
            r"|(?:[\s\"'\\,|>+-]{0,80}(?:\d{1,6}[:|\t ]+)?[A-Za-z0-9+/]{32,}={0,2})++)"
        ),
    ),
    _Pattern("github-token", "gh", re.compile(r"gh[pousr]_[A-Za-z0-9]{20,255}")),
    _Pattern("github-token", "github_pat_", re.compile(r"github_pat_[A-Za-z0-9_]{20,255}")),
    # Kebab-case words that begin with sk- carry no digit.
    _Pattern(
        "api-key",
        "sk-",
        re.compile(r"sk-(?<![A-Za-z0-9]sk-)(?=[A-Za-z_-]{0,80}[0-9])[A-Za-z0-9_-]{20,}"),
    ),
    _Pattern("aws-key", "IA", re.compile(r"A[KS]IA(?<![A-Za-z0-9/+]....)[A-Z0-9]{16}(?![A-Za-z0-9/+])")),
    _Pattern(
        "aws-key",
        "",
        re.compile(
            r"secret_?access_?key[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
            re.IGNORECASE,
        ),
    ),
    _Pattern("google-key", "AIza", re.compile(r"AIza[A-Za-z0-9_-]{35}")),
    _Pattern("huggingface-token", "hf_", re.compile(r"hf_[A-Za-z]{34}(?![A-Za-z])")),
    _Pattern("slack-token", "xox", re.compile(r"xox[abeoprs]-[A-Za-z0-9-]{10,}")),
    _Pattern("slack-token", "xapp-", re.compile(r"xapp-[A-Za-z0-9-]{10,}")),
    _Pattern(
        "slack-webhook",
        "hooks.slack.com",
        re.compile(r"hooks\.slack\.com/services/(?P<value>[A-Za-z0-9/]{20,})"),
    ),
    # The payload's {" is what tells a JSON web token from other dotted words. What is glued to its front goes too.
    _Pattern(
        "jwt",
        ".eyJ",
        re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{6,}+(?:\.[A-Za-z0-9_-]*+)?"),
    ),
    # Prose about bearers and tokens goes on in lower-case words; a credential has a digit or a capital.
    _Pattern(
        "authorization",
        "",
        re.compile(
            r"authorization[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?:bearer|basic|token)\s{1,8}"
            rf"(?=(?-i:[a-z._~+/-]{{0,80}}[A-Z0-9]))(?P<value>{_CREDENTIAL}{{8,}}=*)",
            re.IGNORECASE,
        ),
    ),
    _Pattern(
        "authorization",
        "earer ",
        re.compile(rf"earer (?=[A-Za-z._~+/-]{{0,80}}[0-9])(?P<value>{_CREDENTIAL}{{16,}}=*)"),
    ),
    _Pattern(
        "password",
        "://",
        re.compile(rf"://[^\s/?#\"'<>:@]{{0,200}}:(?!{_PLACEHOLDER})(?P<value>[^\s/?#\"'<>]{{1,1000}})@"),
    ),
)


class Redactor:
    """Replaces secrets by `[redacted:<kind>]`: what looks like one, and the `extra` values known to be.

    A known value shorter than 8 characters is left alone: it would blot out ordinary words, and tell which.
    """

    def __init__(self, extra: Iterable[str] = ()) -> None:
        known = {value for value in extra if len(value) >= SHORTEST_KNOWN_SECRET}
        self._known = sorted(known, key=lambda value: (-len(value), value))

    def __call__(self, text: str) -> str:
        for value in self._known:
            text = text.replace(value, "[redacted:known]")
        for pattern in _PATTERNS:
            if pattern.hint in text:
                text = _replace(pattern, text)
        return text


def _replace(pattern: _Pattern, text: str) -> str:
    mark = f"[redacted:{pattern.kind}]"
    if "value" not in pattern.regex.groupindex:
        return pattern.regex.sub(mark, text)
    parts: list[str] = []
    end = 0
    for match in pattern.regex.finditer(text):
        parts += text[end : match.start("value")], mark
        end = match.end("value")
    return "".join((*parts, text[end:]))


def redact(text: str) -> str:
    """`text` without anything that looks like a secret. Doing it twice changes nothing more."""
    return _DEFAULT(text)


_DEFAULT = Redactor()
