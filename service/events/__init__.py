"""From what GitHub tells to what the service does about it: payloads, rules, commands, rights. Pure: no I/O."""

from __future__ import annotations

from ci_dispatch.said import says_phrase
from service.events.commands import parse_commands
from service.events.payloads import EVENTS, PayloadError, read_payload
from service.events.permissions import Allowed, Refused, allowed
from service.events.policy import ServerCaps, ServicePolicy, resolve
from service.events.rules import Context, decide

__all__ = [
    "EVENTS",
    "Allowed",
    "Context",
    "PayloadError",
    "Refused",
    "ServerCaps",
    "ServicePolicy",
    "allowed",
    "decide",
    "parse_commands",
    "read_payload",
    "resolve",
    "says_phrase",
]
