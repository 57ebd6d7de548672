"""Column types that behave alike on SQLite and PostgreSQL, and the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import sqlalchemy as sa
import zstandard

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def clean(text: str) -> str:
    """`text` as both databases can keep it: PostgreSQL takes no NUL, neither takes a lone surrogate."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class Utc(sa.types.TypeDecorator[datetime]):
    """A moment in UTC. Naive datetimes are refused: they would mean another moment on another machine."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        # SQLite keeps no zone; what went in was UTC.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(sa.types.TypeDecorator[str]):
    """Text from anywhere; see `clean`."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else clean(value)


class Packed(sa.types.TypeDecorator[bytes]):
    """Bytes, compressed: payloads shrink to a seventh, and writing them costs more than compressing them."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else _codec.pack(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else _codec.unpack(value)


class _Codec(threading.local):
    """A compressor a thread: one serves a single thread at a time, and making it takes as long as using it."""

    def __init__(self) -> None:
        self.pack = zstandard.ZstdCompressor(level=1).compress
        self.unpack = zstandard.ZstdDecompressor().decompress


_codec = _Codec()

# PostgreSQL's plain JSON, not JSONB: JSONB refuses "\u0000", which a payload from outside may hold.
Json = sa.JSON

# SQLite counts rows in an INTEGER primary key only.
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
