"""What the doctor says of the service's own parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from reviewer.redact import Redactor
from service.doctor import Finding, Level, diagnose
from service.doctor.findings import Check, run_checks
from service.queue.valkey import embedded_valkey
from service.store.database import Database
from service.store.migrations import upgrade
from tests.service.doctor.conftest import Settings


def only(findings: Iterator[Finding], level: Level) -> list[str]:
    return [f"{one.said}; {one.remedy}" for one in findings if one.level == level]


# Settings


def test_a_sound_secret_and_address_are_ok(settings: Settings) -> None:
    found = list(diagnose(settings(), ["secret", "address"]))
    assert [(one.part, one.level) for one in found] == [("secret", "ok"), ("address", "ok")]
    assert "https://smoke.example" in found[1].said


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ({"webhook_secret": ""}, "no webhook secret is set"),
        ({"webhook_secret": "short"}, "fewer than 16 characters"),
        (
            {"webhook_secret": "", "webhook_secret_old": "an-old-secret-that-is-long"},
            "only the old webhook secret",
        ),
    ],
)
def test_a_weak_or_missing_secret_is_a_problem(
    settings: Settings, secrets: dict[str, str], said: str
) -> None:
    (problem,) = only(diagnose(settings(**secrets), ["secret"]), "problem")
    assert said in problem
    assert "WHITESMOKE_WEBHOOK_SECRET" in problem or "openssl rand" in problem


def test_a_secret_being_changed_is_told(settings: Settings) -> None:
    found = diagnose(settings(webhook_secret_old="an-old-secret-that-is-long"), ["secret"])
    assert "unset WHITESMOKE_WEBHOOK_SECRET_OLD" in only(found, "warning")[0]


def test_metrics_that_nobody_can_read_from_afar_are_told(settings: Settings) -> None:
    far = {"host": "0.0.0.0"}
    assert "WHITESMOKE_METRICS_TOKEN" in only(diagnose(settings(**far), ["address"]), "warning")[0]
    assert not only(diagnose(settings(**far, metrics_token="t"), ["address"]), "warning")
    assert not only(diagnose(settings(host="localhost"), ["address"]), "warning")


def test_a_missing_public_address_is_told(settings: Settings) -> None:
    assert "WHITESMOKE_PUBLIC_URL" in only(diagnose(settings(public_url=""), ["address"]), "warning")[0]


# Data and disk


def test_a_folder_that_is_not_there_is_not_made(settings: Settings, tmp_path: Path) -> None:
    found = list(diagnose(settings(), ["data", "database"]))
    assert [one.level for one in found] == ["ok"] * 3
    assert "will be created" in found[0].said
    assert not (tmp_path / "data").exists()


def test_a_folder_below_a_file_is_a_problem(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problems = only(diagnose(settings(data=tmp_path / "file" / "data"), ["data"]), "problem")
    assert "cannot be created" in problems[0]


def test_a_folder_that_takes_no_file_is_a_problem(settings: Settings) -> None:
    """Even root writes nothing there."""
    problems = only(diagnose(settings(data=Path("/proc")), ["data"]), "problem")
    assert problems
    assert problems[0].startswith("cannot write in /proc")


def test_clones_that_would_not_fit_the_disk_are_told(settings: Settings) -> None:
    found = only(diagnose(settings(disk_limit_mb=10**9), ["data"]), "warning")
    assert "WHITESMOKE_DISK_LIMIT_MB" in found[0]


def test_a_full_disk_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.doctor.server._LEAST_DISK", 1 << 60)
    assert "GiB of disk are free; free some" in only(diagnose(settings(), ["data"]), "problem")[0]


# Database


def test_a_database_with_this_versions_schema_is_ok(settings: Settings, tmp_path: Path) -> None:
    made = settings(database_url=f"sqlite:///{tmp_path / 'w.db'}")
    database = Database(made.database)
    upgrade(database)
    database.close()
    assert [one.level for one in diagnose(made, ["database"])] == ["ok"]


def test_a_database_with_another_schema_is_told(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "w.db").touch()
    found = only(diagnose(settings(database_url=f"sqlite:///{tmp_path / 'w.db'}"), ["database"]), "warning")
    assert "has not this version's schema" in found[0]


def test_a_database_that_does_not_answer_is_a_problem_told_without_its_password(settings: Settings) -> None:
    made = settings(database_url="postgresql://smoke:pass-of-the-database@127.0.0.1:1/smoke")
    (problem,) = only(diagnose(made, ["database"]), "problem")
    assert "connection" in problem
    assert "pass-of-the-database" not in problem


def test_a_file_that_is_no_database_is_a_problem(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "w.db").write_bytes(b"not a database, however long one looks at it" * 100)
    assert only(diagnose(settings(database_url=f"sqlite:///{tmp_path / 'w.db'}"), ["database"]), "problem")


# Queue


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[str]:
    with embedded_valkey(tmp_path / "valkey") as url:
        yield url


def test_the_bundled_queue_is_tried(settings: Settings) -> None:
    (found,) = diagnose(settings(), ["queue"])
    assert (found.level, "bundled Valkey starts" in found.said) == ("ok", True)


def test_a_queue_as_it_should_be_is_ok(settings: Settings, valkey: str) -> None:
    (found,) = diagnose(settings(queue_url=valkey), ["queue"])
    assert (found.level, found.said.startswith("valkey 9")) == ("ok", True)


def test_a_queue_that_may_forget_is_told(settings: Settings, valkey: str) -> None:
    client = redis.Redis.from_url(valkey)
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "no")
    client.close()
    found = list(diagnose(settings(queue_url=valkey), ["queue"]))
    assert [(one.level, one.remedy) for one in found[1:]] == [
        ("problem", "set maxmemory-policy to noeviction"),
        ("warning", "set appendonly to yes"),
    ]


def test_a_queue_that_wants_another_password_is_a_problem(settings: Settings, valkey: str) -> None:
    client = redis.Redis.from_url(valkey)
    client.config_set("requirepass", "the-real-password")
    wrong = valkey.replace("redis://", "redis://:the-wrong-password@")
    (problem,) = only(diagnose(settings(queue_url=wrong), ["queue"]), "problem")
    assert "invalid username-password pair" in problem
    assert "the-wrong-password" not in problem


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "http://127.0.0.1/", "nonsense"])
def test_a_queue_that_is_not_there_is_a_problem(settings: Settings, url: str) -> None:
    assert "WHITESMOKE_QUEUE_URL" in json.dumps(only(diagnose(settings(queue_url=url), ["queue"]), "problem"))


# Every check


def test_a_check_that_hangs_ends_and_the_next_one_runs() -> None:
    import threading

    never = threading.Event()

    def hang() -> Iterator[tuple[Level, str, str]]:
        never.wait(30)
        yield "ok", "late", ""

    checks = [Check("slow", hang, seconds=0.1), Check("next", lambda: [("ok", "here", "")])]
    found = list(run_checks(checks, Redactor()))
    never.set()
    assert [(one.part, one.level) for one in found] == [("slow", "problem"), ("next", "ok")]
    assert "no answer within 0.1 s" in found[0].said


def test_a_check_that_fails_keeps_what_it_saw() -> None:
    def fail() -> Iterator[tuple[Level, str, str]]:
        yield "ok", "first", ""
        raise ValueError("broken\nover two lines")

    found = list(run_checks([Check("odd", fail)], Redactor()))
    assert [one.level for one in found] == ["ok", "problem"]
    assert found[1].said == "unexpected ValueError: broken over two lines"


def test_no_check_prints_a_secret() -> None:
    secret = "a-secret-that-an-error-quotes"
    check = Check("leak", lambda: [("problem", f"refused {secret}", f"not {secret}")])
    (found,) = run_checks([check], Redactor([secret]))
    assert secret not in found.said + found.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook_secret", "{}"),
        ("webhook_secret_old", "{}"),
        ("metrics_token", "{}"),
        ("github_token", "{}"),
        ("queue_url", "redis://:{}@127.0.0.1/0"),
        ("database_url", "postgresql://smoke:{}@127.0.0.1/smoke"),
    ],
)
def test_every_secret_of_the_settings_is_kept_out_of_what_libraries_say(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    secret = "jane%20the%20secret"
    monkeypatch.setattr(
        "service.doctor.tools.check_git", lambda: [("problem", f"it said {secret} or jane the secret", "")]
    )
    (found,) = diagnose(settings(**{name: value.format(secret)}), ["git"])
    assert secret not in found.said
    if value != "{}":
        assert "jane the secret" not in found.said


def test_the_models_key_is_kept_out_too(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-a-model")
    monkeypatch.setattr("service.doctor.tools.check_git", lambda: [("problem", "a-key-of-a-model", "")])
    (found,) = diagnose(settings(), ["git"])
    assert found.said == "[redacted:known]"
