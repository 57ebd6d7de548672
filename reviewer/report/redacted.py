"""A report without secrets: every renderer starts from one."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

from reviewer.redact import redact

ModelT = TypeVar("ModelT", bound=BaseModel)


def redacted(model: ModelT) -> ModelT:
    """The same model with `reviewer.redact.redact` applied to every text in it."""
    return type(model).model_validate(_walk(model.model_dump()))


def _walk(value: Any) -> Any:
    if type(value) is str:
        return redact(value)
    if isinstance(value, dict):
        return {key: _walk(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_walk(inner) for inner in value)
    return value
