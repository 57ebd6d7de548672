"""The tables of CI: runners and their GPUs, runs and their jobs, leases, numbers for trends.

That no GPU and no job has two leases is an index's business, not a decision's: two web processes may decide at once.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store.schema import id_column, make_table, words
from service.store.types import BigId, Json, Utc, Words


def _partial(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _moment(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, Utc, nullable=nullable)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, default=0)


def _state(default: str) -> sa.Column[str]:
    return sa.Column("state", sa.String(16), nullable=False, default=default)


def _reference(name: str, table: str, *, nullable: bool = False) -> sa.Column[int]:
    key = sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
    return sa.Column(name, BigId, key, nullable=nullable)


# `listens_until`: a claim waits for its answer until then. `drain` is people's wish, `draining` the runner's own.
runners = make_table(
    "ci_runners",
    id_column(),
    sa.Column("name", Words, nullable=False, unique=True),
    sa.Column("arch", sa.String(16), nullable=False),
    _state("active"),
    sa.Column("secret_digest", sa.String(64), nullable=False, unique=True),
    _count("slots"),
    sa.Column("sandbox", sa.Boolean, nullable=False),
    sa.Column("drain", sa.Boolean, nullable=False, default=False),
    sa.Column("draining", sa.Boolean, nullable=False, default=False),
    _moment("registered_at"),
    _moment("beat_at"),
    _moment("listens_until", nullable=True),
    sa.Column("inventory", Words, nullable=False),
)

# Spent tokens stay for a while: a registration whose answer was lost is asked for again with the same nonce.
tokens = make_table(
    "ci_tokens",
    id_column(),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("arch", sa.String(16), nullable=False, default=""),
    _moment("created_at"),
    _moment("expires_at"),
    _moment("used_at", nullable=True),
    sa.Column("nonce_digest", sa.String(64), nullable=False, default=""),
    _reference("runner_id", "ci_runners", nullable=True),
    sa.Index("ix_ci_tokens_expires_at", "expires_at"),
)

# `quarantined_by` is "runner" (its own evidence; it may take it back) or "person" (only people do).
gpus = make_table(
    "ci_gpus",
    id_column(),
    sa.Column("uuid", Words, nullable=False, unique=True),
    _reference("runner_id", "ci_runners"),
    _state("healthy"),
    words("quarantined_by"),
    words("reason"),
    _moment("changed_at"),
    sa.Index("ix_ci_gpus_runner_id", "runner_id"),
    sa.Index("ix_ci_gpus_quarantined", "uuid", **_partial("state = 'quarantined'")),
)

# `source_sha` is the commit whose files are tested: the head, or its merge into the base. `tested_tree` is its tree.
runs = make_table(
    "ci_runs",
    id_column(),
    sa.Column("key", Words, nullable=False, unique=True),
    _reference("pull_id", "pulls"),
    words("head_sha"),
    words("base_sha"),
    words("source_sha"),
    words("tested_tree"),
    words("qualified_by"),
    words("reason"),
    _state("open"),
    _moment("created_at"),
    _moment("finished_at", nullable=True),
    sa.Column("skipped", Json, nullable=False),
    sa.Index("ix_ci_runs_pull_id", "pull_id", "id"),
    sa.Index("ix_ci_runs_tested_tree", "tested_tree"),
    sa.Index("ix_ci_runs_open", "pull_id", **_partial("state = 'open'")),
)

# `cancel` says how a job that should stop will have ended: "cancelled", "superseded" or "timed_out".
jobs = make_table(
    "ci_jobs",
    id_column(),
    sa.Column("key", Words, nullable=False, unique=True),
    _reference("run_id", "ci_runs"),
    _reference("pull_id", "pulls"),
    words("name"),
    sa.Column("arch", sa.String(16), nullable=False),
    _count("gpus"),
    _count("attempt"),
    sa.Column("trusted", sa.Boolean, nullable=False),
    _count("priority"),
    words("pull"),
    words("author"),
    sa.Column("limit_seconds", sa.Float, nullable=False),
    _state("queued"),
    sa.Column("cancel", sa.String(16), nullable=False, default=""),
    _moment("cancelled_at", nullable=True),
    sa.Column("outcome", sa.String(16), nullable=False, default=""),
    words("reason"),
    _moment("queued_at"),
    _moment("pending_until"),
    _moment("started_at", nullable=True),
    _moment("running_until", nullable=True),
    _moment("reported_at", nullable=True),
    _moment("finished_at", nullable=True),
    _count("fence"),
    sa.Column("avoid", Json, nullable=False),
    sa.Column("job", Words, nullable=False),
    sa.Column("report", Words),
    sa.Column("result", Words),
    sa.Index("ix_ci_jobs_run_id", "run_id", "id"),
    sa.Index("ix_ci_jobs_pull_id", "pull_id", "id"),
    sa.Index("ix_ci_jobs_queued", "pending_until", **_partial("state = 'queued'")),
    sa.Index("ix_ci_jobs_running", "running_until", **_partial("state IN ('leased', 'running')")),
    sa.Index("ix_ci_jobs_cancelled", "cancelled_at", **_partial("state IN ('leased', 'running')")),
    sa.Index("ix_ci_jobs_finished", "finished_at", **_partial("finished_at IS NOT NULL")),
)

# `granted_at`: the runner was given the token. `begun_at`: it has used it, so it has the job.
leases = make_table(
    "ci_leases",
    id_column(),
    _reference("job_id", "ci_jobs"),
    _reference("runner_id", "ci_runners"),
    _state("open"),
    _count("fence"),
    _count("gpus"),
    sa.Column("token_digest", sa.String(64), nullable=False, default=""),
    words("step"),
    _moment("created_at"),
    _moment("granted_at", nullable=True),
    _moment("begun_at", nullable=True),
    _moment("until"),
    _moment("closed_at", nullable=True),
    sa.Index("uq_ci_leases_job", "job_id", unique=True, **_partial("state = 'open'")),
    sa.Index("ix_ci_leases_runner", "runner_id", **_partial("state = 'open'")),
    sa.Index("ix_ci_leases_until", "until", **_partial("state = 'open'")),
    sa.Index("ix_ci_leases_job_id", "job_id", "id"),
    sa.Index("ix_ci_leases_runner_id", "runner_id", "id"),
    sa.Index("ix_ci_leases_closed_at", "closed_at", **_partial("closed_at IS NOT NULL")),
)

lease_gpus = make_table(
    "ci_lease_gpus",
    id_column(),
    _reference("lease_id", "ci_leases"),
    sa.Column("uuid", Words, nullable=False),
    _state("open"),
    sa.Index("uq_ci_lease_gpus_open", "uuid", unique=True, **_partial("state = 'open'")),
    sa.Index("ix_ci_lease_gpus_lease_id", "lease_id"),
)

# Numbers outlive their jobs.
kpis = make_table(
    "ci_kpis",
    id_column(),
    sa.Column("job_id", BigId, nullable=False),
    words("repo"),
    sa.Column("number", sa.Integer, nullable=False),
    words("job"),
    sa.Column("arch", sa.String(16), nullable=False),
    words("name"),
    words("unit"),
    words("head_sha"),
    sa.Column("at", Utc, nullable=False, index=True),
    words("verdict"),
    sa.Column("value", sa.Float, nullable=False),
    *(sa.Column(name, sa.Float) for name in ("base", "ratio", "low", "high", "noise")),
    _count("samples"),
    sa.Column("extra", Json, nullable=False),
    sa.UniqueConstraint("job_id", "name"),
    sa.Index("ix_ci_kpis_chart", "repo", "name", "at"),
)
