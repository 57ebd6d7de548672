"""Settings from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path


class ConfigError(ValueError):
    """The settings are not usable; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class Config:
    num_pages: int = 64
    page_size: int = 16
    width: int = 32
    max_running: int = 8


def load_config(path: Path) -> Config:
    """Reads the file. Raises `ConfigError` for an unknown key or a value that is not a positive integer."""
    values = tomllib.loads(path.read_text("utf-8"))
    known = {field.name for field in fields(Config)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}; known are {', '.join(sorted(known))}")
        if type(value) is not int or value < 1:
            raise ConfigError(f"{path}: {key} must be a positive integer, not {value!r}")
    return Config(**values)
