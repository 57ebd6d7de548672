"""What somebody changed outside is made to stand once more."""

from __future__ import annotations

from pathlib import Path

from service.store.database import Database
from service.store.migrations import upgrade
from service.store.outbox import Outbox


def test_what_stands_is_sent_again_and_nothing_else(tmp_path: Path) -> None:
    database, outbox = Database(f"sqlite:///{tmp_path / 'one.db'}"), Outbox()
    upgrade(database)
    keys = ("check:a:1:one", "check:a:1:two", "check:a:2:one", "check:a_1:one")
    with database.write() as connection:
        for key in keys:
            outbox.put(connection, key, "check", {"key": key})
            claim = outbox.claim(connection, ("check",), "me", 60)
            assert claim is not None
            if key != "check:a:1:two":
                outbox.finish(connection, claim, f"id of {key}")
        assert outbox.renew(connection, "check:a:1:") == 1
        again = outbox.claim(connection, ("check",), "me", 60)
        assert again is not None
        assert (again.key, again.external_id, again.payload) == (
            keys[0],
            f"id of {keys[0]}",
            {"key": keys[0]},
        )
        assert outbox.claim(connection, ("check",), "me", 60) is None
        assert outbox.renew(connection, "check:a_1") == 1
    database.close()
