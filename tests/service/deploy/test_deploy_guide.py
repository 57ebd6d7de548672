"""docs/install.md: its commands are run, its table is current, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.manifest import APP_EVENTS, PERMISSIONS
from service.publisher.effects import CHECK_NAME
from tests.service.deploy.variables import GUIDE, written
from tests.standin.github import GitHub

ROOT = GUIDE.parents[1]
TEXT = GUIDE.read_text()

# What needs root, a container engine, a name in the internet, a person's editor, or an installation of its own.
ELSEWHERE = ("sudo", "docker", "caddy", "journalctl", "make", "cp", "echo", "pg_dump")
RUN_HERE = ("export", "whitesmoke", "curl")
# They would ask a real model.
LEFT_OUT = ("export OPENAI_API_KEY=", "export WHITESMOKE_MODELS=")


def commands(text: str) -> list[str]:
    blocks = re.findall(r"^( *)```sh\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [line for _, block in blocks for line in textwrap.dedent(block).splitlines()]


def until(true: Callable[[], object], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come to pass"
        time.sleep(0.05)


def test_every_command_is_either_run_or_known_not_to_be() -> None:
    found = commands(TEXT)
    assert len(found) > 30
    assert {line.split()[0] for line in found} == {*ELSEWHERE, *RUN_HERE}


@pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("openssl") is None, reason="needs curl and openssl"
)
def test_the_guide_leads_from_nothing_to_a_first_review(hub: GitHub, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    repo = hub.create_repo("acme/app", files={"a.py": "x = 1\n"})
    app = hub.create_app(permissions=PERMISSIONS, events=APP_EVENTS)
    hook = hub.webhook(f"{address}/webhook", "not yet known", app=app)
    hub.install(app, "acme")
    (tmp_path / "app.pem").write_text(app.private_key)

    here = [line for line in commands(TEXT) if line.startswith(RUN_HERE) and not line.startswith(LEFT_OUT)]
    assert here.count("whitesmoke serve") == 1
    at = here.index("whitesmoke serve")
    script = "\n".join(
        [
            "set -e",
            *here[:at],
            'cd "$HOME"; printenv WHITESMOKE_WEBHOOK_SECRET >secret',
            "whitesmoke serve 2>serve.log & serve=$!",
            f"until curl --silent --fail {address}/readyz; do sleep 0.1; done",
            *here[at + 1 :],
            "touch ready; until [ -e stop ]; do sleep 0.1; done",
            "kill -TERM $serve; wait $serve",
        ]
    )
    for old, new in (
        ("https://smoke.example.com", address),
        ("127.0.0.1:8377", f"127.0.0.1:{port}"),
        ("123456", str(app.id)),
        ("$PWD/.venv/bin", str(Path(sys.executable).parent)),
    ):
        assert old in script
        script = script.replace(old, new)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "WHITESMOKE_PORT": port,
        "WHITESMOKE_GITHUB_URL": hub.api_url,
    }
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            ["sh", "-c", script], cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: (tmp_path / "ready").exists() or process.poll() is not None)
        assert process.poll() is None, output.read_text()
        hook.secret = (tmp_path / "secret").read_text().strip()
        pull = repo.open_pull(files={"a.py": "def f(x=[]):\n    return x\n"})
        until(lambda: [one for one in repo.checks(pull.head_sha) if one.status == "completed"])
        until(lambda: pull.comments)
    finally:
        (tmp_path / "stop").touch()
        status = process.wait(60)
    assert status == 0, output.read_text()
    (check,) = repo.checks(pull.head_sha)
    assert check.name == CHECK_NAME
    assert "round 1" in pull.comments[0].body
    assert pull.reviews is not None
    assert pull.inline_comments is not None
    said = output.read_text()
    assert "problem " not in said
    assert '"default_permissions"' in said
    assert "/settings/apps/new?name=whitesmoke&" in said
    assert "whitesmoke_deliveries_total" in said
    assert (tmp_path / "whitesmoke-backup.db").stat().st_size > 0


def test_the_table_of_variables_is_current() -> None:
    assert written(TEXT) == TEXT, "run python -m tests.service.deploy.variables"


def test_the_table_of_permissions_is_current() -> None:
    rows = re.findall(r"^\| ([A-Z][a-z ]+): (read|write) \|", TEXT, re.MULTILINE)
    assert {name.lower().replace(" ", "_"): level for name, level in rows} == PERMISSIONS


def test_files_that_are_linked_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", TEXT)
    assert links
    assert all((GUIDE.parent / link).exists() for link in links)
