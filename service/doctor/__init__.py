"""Looks at an installation, part by part, and says what is wrong with it and what to do."""

from __future__ import annotations

from service.doctor.diagnosis import PARTS, diagnose
from service.doctor.findings import Finding, Level

__all__ = ["PARTS", "Finding", "Level", "diagnose"]
