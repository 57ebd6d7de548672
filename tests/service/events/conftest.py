from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@octokit/webhooks-examples"
VERSION = "7.6.1"

Examples = dict[str, list[tuple[str, dict[str, Any]]]]


@pytest.fixture(scope="session")
def examples() -> Examples:
    """(event, payload) by server: all of GitHub's own examples, kept beside the virtual environment."""
    kept = Path(sys.prefix, "octokit-webhooks-examples", VERSION)
    if not kept.exists():
        _fetch(kept)
    found: Examples = {}
    for index in sorted((kept / PACKAGE).glob("*/index.json")):
        found[index.parent.name] = [
            (event["name"], example)
            for event in json.loads(index.read_text("utf-8"))
            for example in event["examples"]
        ]
    return found


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is needed to fetch {PACKAGE}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", f"--prefix={folder}"]
        done = subprocess.run([*command, f"{PACKAGE}@{VERSION}"], capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(
                f"npm could not fetch {PACKAGE}: {(done.stderr.splitlines() or ['no reason given'])[0]}"
            )
        try:
            Path(folder, "node_modules").rename(kept)  # whole or not at all
        except OSError:
            assert kept.exists(), "another run has fetched it meanwhile"
