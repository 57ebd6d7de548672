"""How reports of CI are written: the house's own escaping, handed to `ci_dispatch`, which knows nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from ci_dispatch.report_parts import Writing
from reviewer.model import Language
from reviewer.redact import redact
from reviewer.report.escape import code_span, fence, guard, inline, plain
from reviewer.text import load_text


def make_writing(language: Language, forbidden: Sequence[str]) -> Writing:
    """The house's own ways of escaping. `forbidden` are phrases that the bot must never say."""
    return Writing(
        text=load_text("ci/text", language),
        redact=redact,
        code=code_span,
        fence=fence,
        inline=inline,
        plain=plain,
        guard=lambda text: guard(text, forbidden),
    )
