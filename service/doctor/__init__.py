"""Looks at an installation, part by part, and says what is wrong with it and what to do."""

from __future__ import annotations

from service.doctor.diagnosis import Finding, Level, diagnose

__all__ = ["Finding", "Level", "diagnose"]
