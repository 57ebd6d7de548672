"""`whitesmoke doctor` and `whitesmoke app` as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.doctor import PARTS
from tests.service.doctor.conftest import SECRET

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The command in a process of its own, with these WHITESMOKE_ variables and none of ours."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "WHITESMOKE_DATA": str(tmp_path / "data"),
        }
        environment |= {f"WHITESMOKE_{name.upper()}": value for name, value in variables.items()}
        return subprocess.run(
            [sys.executable, "-m", "service.cli.main", *arguments],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


def test_all_parts_are_looked_at_and_a_problem_ends_with_1(run: Run) -> None:
    done = run("doctor")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert {line.split()[1] for line in lines} == set(PARTS)
    assert any(line.startswith("problem  secret") for line in lines)
    assert done.stderr == ""


def test_without_a_problem_it_ends_with_0_though_warned(run: Run) -> None:
    done = run("doctor", "secret", "address", webhook_secret=SECRET)
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["ok", "secret"],
        ["warning", "address"],
    ]
    assert SECRET not in done.stdout


def test_findings_as_json(run: Run) -> None:
    done = run("doctor", "secret", "git", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [(one["part"], one["level"]) for one in found] == [("secret", "problem"), ("git", "ok")]
    assert found[0]["remedy"].startswith("set WHITESMOKE_WEBHOOK_SECRET")


def test_settings_that_cannot_be_read_are_a_finding(run: Run) -> None:
    done = run("doctor", "--json", port="a lot")
    (found,) = json.loads(done.stdout)
    assert (done.returncode, found["part"], found["level"]) == (1, "settings", "problem")
    assert "WHITESMOKE_PORT" in found["said"]


def test_a_part_that_there_is_not_is_refused(run: Run) -> None:
    done = run("doctor", "plumbing")
    assert done.returncode == 2
    assert "'plumbing' is not one of 'secret'" in done.stderr


def test_the_manifest_is_json_for_the_address_that_is_set(run: Run) -> None:
    done = run("app", "manifest", public_url="https://smoke.example")
    made = json.loads(done.stdout)
    assert made["hook_attributes"]["url"] == "https://smoke.example/webhook"
    given = json.loads(run("app", "manifest", "--url", "https://other", "--name", "mine", "--ci").stdout)
    assert (given["url"], given["name"], given["default_permissions"]["actions"]) == (
        "https://other", "mine", "write",
    )  # fmt: skip


def test_a_manifest_without_an_address_says_what_to_do(run: Run) -> None:
    done = run("app", "manifest")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "WHITESMOKE_PUBLIC_URL" in done.stderr


def test_the_link_goes_to_the_github_that_is_set(run: Run) -> None:
    done = run("app", "link", "--url", "https://h", "--org", "acme", web_url="https://git.example.org")
    assert done.stdout.startswith(
        "https://git.example.org/organizations/acme/settings/apps/new?name=whitesmoke&"
    )
