"""The publisher's fixed phrases."""

from __future__ import annotations

from reviewer import text
from reviewer.model import Language


def load_text(language: Language) -> text.Text:
    return text.load_text("service/publisher", language)
