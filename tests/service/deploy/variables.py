"""The table of variables in docs/install.md, from the settings themselves.

    python -m tests.service.deploy.variables

writes it; a test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from service.settings import ServerSettings

GUIDE = Path(__file__).parents[3] / "docs" / "install.md"
_BETWEEN = re.compile(r"(<!-- variables: .*? -->\n).*?(<!-- end of variables -->)", re.DOTALL)


def render() -> str:
    rows = [
        f"| `WHITESMOKE_{name.upper()}` | {field.description} | {_default(field)} |"
        for name, field in ServerSettings.model_fields.items()
    ]
    return "\n".join(["| variable | what | default |", "|---|---|---|", *rows]) + "\n"


def written(text: str) -> str:
    """The guide with its table as it should be."""
    found, count = _BETWEEN.subn(lambda match: match[1] + render() + match[2], text)
    assert count == 1
    return found


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "`~/.local/share/whitesmoke`"
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return "" if value in (None, "", ()) else f"`{value}`"


if __name__ == "__main__":
    GUIDE.write_text(written(GUIDE.read_text()))
