"""Settings from a TOML file and from the command line."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from quire.layouts import PAGE_FORMATS


class ConfigError(ValueError):
    """The settings are not usable; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class Config:
    num_pages: int = 64
    page_size: int = 16
    width: int = 32
    max_running: int = 8
    page_format: str = "float32"


def load_config(path: Path | None, overrides: dict[str, object] | None = None) -> Config:
    """Reads the file, if any, and lays the overrides over it.

    Raises `ConfigError` for an unknown key or page format, or a number that is not a positive integer.
    """
    values = tomllib.loads(path.read_text("utf-8")) if path else {}
    overrides = overrides or {}
    values.update(overrides)
    known = {field.name for field in fields(Config)}
    for key, value in values.items():
        where = "--set" if key in overrides else path
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
        if key == "page_format":
            if value not in list(PAGE_FORMATS):
                raise ConfigError(f"{where}: page_format must be {' or '.join(PAGE_FORMATS)}, not {value!r}")
        elif type(value) is not int or value < 1:
            raise ConfigError(f"{where}: {key} must be a positive integer, not {value!r}")
    return Config(**values)


def parse_override(text: str) -> tuple[str, object]:
    """Reads KEY=VALUE. Digits are a number, anything else is a string."""
    key, _, value = text.partition("=")
    return key, int(value) if value.isdecimal() else value
