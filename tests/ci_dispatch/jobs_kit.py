"""Policies, changes and earlier attempts as plan tests speak of them."""

from __future__ import annotations

from typing import Any

from ci_dispatch.model import Gpu, Inventory, Job, JobReport, JobResult, JobSpec, Notice, Outcome, Step
from ci_dispatch.plan import Attempt, Change
from ci_dispatch.policy import CiPolicy

STEPS = (Step(name="build", argv=("make",), timeout=60),)
BENCH = (Step(name="bench", argv=("bench",), timeout=60),)
SMOKE = (Step(name="smoke", argv=("smoke",), timeout=60),)


def spec(name: str, **changed: Any) -> JobSpec:
    return JobSpec.model_validate({"name": name, "steps": STEPS, **changed})


def policy(*specs: JobSpec) -> CiPolicy:
    return CiPolicy(mode="runner", jobs=specs)


def change(*paths: str, **changed: Any) -> Change:
    values = {"repo": "o/r", "number": 7, "head_sha": "head", "base_sha": "base", "tested_tree": "tree"}
    return Change(**{**values, "author": "ada", "trusted": True, "paths": paths, **changed})


def attempt(
    spec: JobSpec, outcome: Outcome | None, nth: int = 1, tree: str = "tree", **changed: Any
) -> Attempt:
    values = {"repo": "o/r", "number": 7, "head_sha": "head", "base_sha": "base", "trusted": True}
    return Attempt(Job(**{**values, "spec": spec, "attempt": nth, **changed}), tree, outcome)


def ended(outcome: Outcome, *notices: str) -> JobResult:
    report = JobReport(notices=tuple(Notice.model_validate({"kind": kind}) for kind in notices))
    return JobResult(outcome=outcome, reason="for a test", report=report)


def host(arch: str, gpus: int, sandbox: bool = True, slots: int = 1, broken: int = 0) -> Inventory:
    found = tuple(
        Gpu.model_validate({"uuid": f"{arch}-{i}", "index": i, "arch": arch, "healthy": i >= broken})
        for i in range(gpus)
    )
    return Inventory.model_validate({"arch": arch, "gpus": found, "slots": slots, "sandbox": sandbox})
