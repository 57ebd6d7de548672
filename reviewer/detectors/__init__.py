"""Deterministic analysers bound to checklist items."""
