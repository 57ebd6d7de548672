"""The tables of CI.

Revision ID: 0003
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _partial(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "ci_kpis",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("arch", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("base", sa.Float(), nullable=True),
        sa.Column("ratio", sa.Float(), nullable=True),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("noise", sa.Float(), nullable=True),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ci_kpis"),
        sa.UniqueConstraint("job_id", "name", name="uq_ci_kpis_job_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ci_kpis_at", "ci_kpis", ["at"])
    op.create_index("ix_ci_kpis_chart", "ci_kpis", ["repo", "name", "at"])
    op.create_table(
        "ci_runners",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("arch", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("secret_digest", sa.String(length=64), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("sandbox", sa.Boolean(), nullable=False),
        sa.Column("drain", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("listens_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ci_runners"),
        sa.UniqueConstraint("name", name="uq_ci_runners_name"),
        sa.UniqueConstraint("secret_digest", name="uq_ci_runners_secret_digest"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ci_gpus",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("runner_id", ID, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("quarantined_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["runner_id"], ["ci_runners.id"], name="fk_ci_gpus_runner_id_ci_runners", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ci_gpus"),
        sa.UniqueConstraint("uuid", name="uq_ci_gpus_uuid"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ci_gpus_quarantined", "ci_gpus", ["uuid"], **_partial("state = 'quarantined'"))
    op.create_index("ix_ci_gpus_runner_id", "ci_gpus", ["runner_id"])
    op.create_table(
        "ci_runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("pull_id", ID, nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("base_sha", sa.Text(), nullable=False),
        sa.Column("source_sha", sa.Text(), nullable=False),
        sa.Column("tested_tree", sa.Text(), nullable=False),
        sa.Column("qualified_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("skipped", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pull_id"], ["pulls.id"], name="fk_ci_runs_pull_id_pulls", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ci_runs"),
        sa.UniqueConstraint("key", name="uq_ci_runs_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ci_runs_open", "ci_runs", ["pull_id"], **_partial("state = 'open'"))
    op.create_index("ix_ci_runs_pull_id", "ci_runs", ["pull_id", "id"])
    op.create_index("ix_ci_runs_tested_tree", "ci_runs", ["tested_tree"])
    op.create_table(
        "ci_tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("arch", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("nonce_digest", sa.String(length=64), nullable=False),
        sa.Column("runner_id", ID, nullable=True),
        sa.ForeignKeyConstraint(
            ["runner_id"], ["ci_runners.id"], name="fk_ci_tokens_runner_id_ci_runners", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ci_tokens"),
        sa.UniqueConstraint("digest", name="uq_ci_tokens_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ci_tokens_expires_at", "ci_tokens", ["expires_at"])
    op.create_table(
        "ci_jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("pull_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("arch", sa.String(length=16), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pull", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("limit_seconds", sa.Float(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cancel", sa.String(length=16), nullable=False),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pending_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("running_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("avoid", sa.JSON(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["pull_id"], ["pulls.id"], name="fk_ci_jobs_pull_id_pulls", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["ci_runs.id"], name="fk_ci_jobs_run_id_ci_runs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ci_jobs"),
        sa.UniqueConstraint("key", name="uq_ci_jobs_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_ci_jobs_cancelled", "ci_jobs", ["cancelled_at"], **_partial("state IN ('leased', 'running')")
    )
    op.create_index("ix_ci_jobs_finished", "ci_jobs", ["finished_at"], **_partial("finished_at IS NOT NULL"))
    op.create_index("ix_ci_jobs_pull_id", "ci_jobs", ["pull_id", "id"])
    op.create_index("ix_ci_jobs_queued", "ci_jobs", ["pending_until"], **_partial("state = 'queued'"))
    op.create_index("ix_ci_jobs_run_id", "ci_jobs", ["run_id", "id"])
    op.create_index(
        "ix_ci_jobs_running", "ci_jobs", ["running_until"], **_partial("state IN ('leased', 'running')")
    )
    op.create_table(
        "ci_leases",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("runner_id", ID, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("token_digest", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["ci_jobs.id"], name="fk_ci_leases_job_id_ci_jobs", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["runner_id"], ["ci_runners.id"], name="fk_ci_leases_runner_id_ci_runners", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ci_leases"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ci_leases_closed_at", "ci_leases", ["closed_at"], **_partial("closed_at IS NOT NULL"))
    op.create_index("ix_ci_leases_job_id", "ci_leases", ["job_id", "id"])
    op.create_index("ix_ci_leases_runner", "ci_leases", ["runner_id"], **_partial("state = 'open'"))
    op.create_index("ix_ci_leases_runner_id", "ci_leases", ["runner_id", "id"])
    op.create_index("ix_ci_leases_until", "ci_leases", ["until"], **_partial("state = 'open'"))
    op.create_index("uq_ci_leases_job", "ci_leases", ["job_id"], unique=True, **_partial("state = 'open'"))
    op.create_table(
        "ci_lease_gpus",
        sa.Column("id", ID, nullable=False),
        sa.Column("lease_id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["ci_leases.id"], name="fk_ci_lease_gpus_lease_id_ci_leases", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ci_lease_gpus"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ci_lease_gpus_lease_id", "ci_lease_gpus", ["lease_id"])
    op.create_index(
        "uq_ci_lease_gpus_open", "ci_lease_gpus", ["uuid"], unique=True, **_partial("state = 'open'")
    )
