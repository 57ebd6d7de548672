"""The Jinja environment of the reports' templates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """Templates are named by their file below `templates/report/`. A name that a template uses and was not
    given is an error. Markdown is not HTML: what came from outside is made safe by `reviewer.report.escape`
    before it gets here."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("templates", "report"),
        undefined=StrictUndefined,
        autoescape=select_autoescape(enabled_extensions=("html",)),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_template(name: str, **values: object) -> str:
    """The template filled in, tidied, without a newline at either end."""
    return tidy(environment().get_template(name).render(values))


def tidy(document: str) -> str:
    """No two empty lines in a row, but for code: what a template left out leaves none behind."""
    lines: list[str] = []
    closing = ""
    for line in document.split("\n"):
        bare = line.strip()
        if closing:
            closing = "" if bare == closing else closing
        elif bare.startswith("```") and "`" not in bare.lstrip("`"):
            closing = bare[: len(bare) - len(bare.lstrip("`"))]
        elif not bare and (not lines or not lines[-1]):
            continue
        lines.append(line if closing or bare else "")
    return "\n".join(lines).strip("\n")
