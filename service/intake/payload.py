"""The JSON object inside a webhook body."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ValidationError

from service.intake.refusal import Refusal

_FORM = b"application/x-www-form-urlencoded"
_JSON = b"application/json"


class _AnyObject(BaseModel):
    """Any JSON object. Events are read by pydantic too, so what passes here can be read later."""


def extract(content_type: bytes, body: bytes) -> bytes:
    """The JSON object of a body sent as `application/json`, or as the field `payload` of a form.

    Raises Refusal: 400 for what is not a JSON object, 415 for other content types.
    """
    payload = _decode(content_type, body)
    try:
        _AnyObject.model_validate_json(payload)
    except ValidationError as error:
        raise Refusal(400, "malformed", "the body is not a JSON object") from error
    return payload


def _decode(content_type: bytes, body: bytes) -> bytes:
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == _JSON:
        return body
    if kind != _FORM:
        raise Refusal(415, "malformed", f"the content type is neither {_JSON.decode()} nor {_FORM.decode()}")
    for field in body.split(b"&"):
        name, _, value = field.partition(b"=")
        if name == b"payload":
            return unquote_to_bytes(value.replace(b"+", b" "))
    raise Refusal(400, "malformed", "the form has no field `payload`")
