"""What the doctor says of git, the analysers and the model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reviewer.checkout.git import executable
from service.doctor import Finding, diagnose
from service.settings import ServerSettings
from tests.service.doctor.conftest import Settings
from tests.standin.openai_server import OpenAIServer

KEY = "a-key-that-nobody-may-read"


class Endpoint(ThreadingHTTPServer):
    """Lists models and chats, with the statuses that it is given; `asked` are the models that were asked."""

    def __init__(self) -> None:
        self.lists, self.chats = 200, 200
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        assert self.headers["Authorization"] == f"Bearer {KEY}"
        self._answer(self.server.lists, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body["model"])
        self._answer(self.server.chats, OpenAIServer.text("ready").body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("WHITESMOKE_MODELS", "small")
        yield server
        server.shutdown()
        thread.join()


def levels(settings: ServerSettings, part: str, **options: bool) -> tuple[list[str], str]:
    found: list[Finding] = list(diagnose(settings, [part], **options))
    said = "\n".join(f"{one.said}; {one.remedy}" for one in found)
    assert KEY not in said
    return [one.level for one in found], said


def test_git_is_found(settings: Settings) -> None:
    assert levels(settings(), "git")[0] == ["ok"]


def test_no_git_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    executable.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    level, said = levels(settings(), "git")
    executable.cache_clear()
    assert level == ["problem"]
    assert "install git" in said


def test_an_old_git_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "git"
    old.write_text("#!/bin/sh\necho git version 2.1.4\n")
    old.chmod(0o755)
    executable.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    level, said = levels(settings(), "git")
    executable.cache_clear()
    assert level == ["problem"]
    assert "is version 2.1" in said


def test_the_analysers_run(settings: Settings) -> None:
    level, said = levels(settings(), "analysers")
    assert level == ["ok"] * 3
    assert "ruff 0." in said
    assert "bandit 1." in said


def test_an_analyser_that_does_not_run_is_a_problem(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.doctor.tools._MODULES", ("no_such_analyser",))
    level, said = levels(settings(), "analysers")
    assert level == ["problem", "ok"]
    assert "no_such_analyser does not run" in said


# The model


def test_no_model_is_told(settings: Settings) -> None:
    level, said = levels(settings(), "model")
    assert level == ["warning"]
    assert "set OPENAI_API_KEY" in said


def test_an_endpoint_that_answers_is_ok(settings: Settings, endpoint: Endpoint) -> None:
    assert levels(settings(), "model")[0] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("status", "said"), [(401, "refuses the key"), (403, "refuses the key"), (503, "answers 503")]
)
def test_an_endpoint_that_refuses_is_a_problem(
    settings: Settings, endpoint: Endpoint, status: int, said: str
) -> None:
    endpoint.lists = status
    level, told = levels(settings(), "model")
    assert level[0] == "problem"
    assert said in told


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "no address", "http://user:password1@[::1/v1"])
def test_an_endpoint_that_is_not_there_is_a_problem(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    level, said = levels(settings(), "model")
    assert level[0] == "problem"
    assert "correct OPENAI_BASE_URL" in said
    assert "password1" not in said


def test_models_that_only_policies_name_are_told(
    settings: Settings, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHITESMOKE_MODELS")
    level, said = levels(settings(), "model")
    assert level == ["ok", "warning"]
    assert "WHITESMOKE_MODELS" in said


def test_no_model_is_asked_without_being_told_to(settings: Settings, endpoint: Endpoint) -> None:
    levels(settings(), "model")
    assert endpoint.asked == []


def test_each_model_is_asked_when_told_to(
    settings: Settings, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHITESMOKE_MODELS", "small,large")
    level, said = levels(settings(), "model", ask_models=True)
    assert level == ["ok"] * 4
    assert "small answers within" in said
    assert "large answers within" in said
    assert endpoint.asked == ["small", "large"]


def test_a_model_that_the_endpoint_does_not_have_is_a_problem(settings: Settings, endpoint: Endpoint) -> None:
    endpoint.chats = 404
    level, said = levels(settings(), "model", ask_models=True)
    assert level == ["ok", "ok", "problem"]
    assert "small" in said


def test_a_recording_is_looked_for(settings: Settings, tmp_path: Path) -> None:
    assert levels(settings(engine="replay"), "model")[0] == ["problem"]
    missing = settings(engine="replay", recording=tmp_path / "none.jsonl")
    assert levels(missing, "model")[0] == ["problem"]
    (tmp_path / "some.jsonl").write_text("")
    assert levels(settings(engine="replay", recording=tmp_path / "some.jsonl"), "model")[0] == ["ok"]
