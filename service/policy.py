"""`.whitesmoke.yml` as a whole: how reviews are run, how the service runs them, and what CI tests on GPUs."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, field_validator

from ci_dispatch.policy import CiPolicy
from reviewer import yamlfile
from reviewer.globs import check_glob
from reviewer.model import Frozen
from reviewer.policy import POLICY_FILE, ReviewPolicy
from service.events.policy import ServicePolicy


class Policy(Frozen):
    """The whole file."""

    version: Literal[1] = 1
    review: ReviewPolicy = Field(default=ReviewPolicy(), description="how a round is run")
    service: ServicePolicy = Field(default=ServicePolicy(), description="when, by whom and with what effect")
    ci: CiPolicy = Field(default=CiPolicy(), description="which jobs run on which GPUs, and on whose word")

    @field_validator("ci")
    @classmethod
    def _globs(cls, ci: CiPolicy) -> CiPolicy:
        for job in ci.jobs:
            for glob in (*job.paths, *(job.perf.harness if job.perf is not None else ())):
                check_glob(glob)
        return ci


def load_policy(text: str, name: str = POLICY_FILE) -> Policy:
    """Reads a policy file. Raises `ConfigError` naming file, line and what was expected."""
    return yamlfile.load(text, Policy, name) if text.strip() else Policy()


def policy_schema() -> str:
    """The JSON schema (draft 2020-12) of the policy file, as published in docs/policy.schema.json."""
    schema = Policy.model_json_schema()
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "whitesmoke policy",
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
