"""The systemd unit, as systemd reads it."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy" / "whitesmoke.service"
PROGRAM = "/opt/whitesmoke/bin/whitesmoke"
MOST_EXPOSED = 20
"""Tenths, as systemd-analyze counts: 10 is open, 100 unprotected."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is there: systemd looks for it."""
    text = UNIT.read_text()
    assert text.count(PROGRAM) == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(PROGRAM, sys.executable))
    return copy


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    done = analyze("verify", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_would_tell_a_mistake_in_it(unit: Path) -> None:
    """The check above can fail."""
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=very"))
    assert "Failed to parse protect system value" in analyze("verify", unit).stderr


def test_the_unit_is_little_exposed(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit)
    assert done.returncode == 0, done.stdout


def test_the_unit_protects_what_matters_and_writes_to_its_state_alone() -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    service = parser["Service"]
    assert service["User"] == "whitesmoke"
    assert service["ExecStart"].endswith("whitesmoke serve")
    assert (service["ProtectSystem"], service["ProtectHome"]) == ("strict", "yes")
    assert (service["NoNewPrivileges"], service["PrivateTmp"]) == ("yes", "yes")
    assert service["CapabilityBoundingSet"] == ""
    assert service["StateDirectory"] == "whitesmoke"
    assert "ReadWritePaths" not in service


def test_the_service_gets_the_time_to_stop_that_its_processes_take() -> None:
    from service.supervisor import _GRACE_SECONDS

    given = next(line for line in UNIT.read_text().splitlines() if line.startswith("TimeoutStopSec="))
    assert int(given.partition("=")[2]) > _GRACE_SECONDS


@pytest.mark.parametrize("option", ["ProtectSystem", "NoNewPrivileges", "SystemCallFilter"])
def test_each_protection_counts(unit: Path, option: str) -> None:
    """Without it systemd holds the unit for more exposed."""

    def exposure() -> float:
        done = analyze("security", "--offline=true", "--json=short", unit)
        return sum(float(row["exposure"] or 0) for row in json.loads(done.stdout))

    whole = exposure()
    lines = unit.read_text().splitlines()
    unit.write_text("\n".join(line for line in lines if not line.startswith(f"{option}=")))
    assert exposure() > whole
