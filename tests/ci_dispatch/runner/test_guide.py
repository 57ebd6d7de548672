"""docs/gpu-runner.md and the systemd unit say what is so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci_dispatch.model import PROGRAM_XIDS
from ci_dispatch.runner.cli import runner

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/gpu-runner.md").read_text()
UNIT = ROOT / "deploy/whitesmoke-runner.service"
PROGRAM = "/opt/whitesmoke-runner/bin/whitesmoke-runner"


def test_the_table_has_every_option_with_its_variable() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| (?:`(\w+)`)? ?\|", GUIDE, re.MULTILINE)
    options = [(one.opts[0], one.envvar or "") for one in runner.params]
    assert rows == options


def test_variables_of_the_example_are_options() -> None:
    text = (ROOT / "deploy/runner.env.example").read_text()
    named = set(re.findall(r"^#?(WHITESMOKE_\w+)=", text, re.MULTILINE))
    assert named <= {one.envvar for one in runner.params}


def test_the_xids_of_programs_are_those_of_the_code() -> None:
    (named,) = re.findall(r"a wrong kernel causes \(([\d, ]+)\)", GUIDE)
    assert {int(one) for one in named.split(",")} == PROGRAM_XIDS


def test_files_that_are_linked_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", GUIDE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert text.count(PROGRAM) == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(PROGRAM, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("bwrap") or not shutil.which("setpriv"),
    reason="needs root and bubblewrap",
)
@pytest.mark.parametrize("without", ["", "CAP_NET_ADMIN"])
def test_the_unit_s_capabilities_are_enough_for_a_sandbox(without: str) -> None:
    named = re.findall(
        r"CAP_\w+", " ".join(re.findall(r"^CapabilityBoundingSet=.*", UNIT.read_text(), re.MULTILINE))
    )
    kept = ",".join(f"+{one.removeprefix('CAP_').lower()}" for one in named if one != without)
    script = "from ci_dispatch.runner.sandbox import confinement; print(confinement().works)"
    done = subprocess.run(
        [
            "setpriv",
            "--no-new-privs",
            f"--bounding-set=-all,{kept}",
            "--inh-caps=-all",
            sys.executable,
            "-c",
            script,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    # One that is taken away shows that the answer can be another.
    assert done.stdout.strip() == str(not without)
