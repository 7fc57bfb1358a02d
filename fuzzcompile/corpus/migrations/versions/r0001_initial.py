"""The schema of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    _create_environments()
    _create_campaigns()
    _create_cases()
    _create_findings()
    _create_runs()
    _create_reproducers()
    _create_coverage()
    # Runs refer to findings and findings to their best run: one of the two comes last.
    with op.batch_alter_table("findings") as findings:
        findings.create_foreign_key("fk_findings_best_run_id_runs", "runs", ["best_run_id"], ["id"])


def downgrade() -> None:
    """Drop every table."""
    with op.batch_alter_table("findings") as findings:
        findings.drop_constraint("fk_findings_best_run_id_runs", type_="foreignkey")
    for table in (
        "rewrite_coverage",
        "reproducers",
        "runs",
        "findings",
        "cases",
        "campaigns",
        "environments",
    ):
        op.drop_table(table)


def _create_environments() -> None:
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("device", sa.Text()),
        sa.Column("driver", sa.Text()),
        sa.Column("compiler", sa.Text()),
        sa.Column("cpu", sa.Text()),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environments"),
        sa.UniqueConstraint("sha256", name="uq_environments_sha256"),
    )


def _create_campaigns() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("fuzzcompile_version", sa.Text(), nullable=False),
        sa.Column("counters", sa.JSON(), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_heard", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished", sa.DateTime(timezone=True)),
        sa.Column("ended", sa.String(32)),
        sa.PrimaryKeyConstraint("id", name="pk_campaigns"),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name="fk_campaigns_environment_id_environments"
        ),
    )


def _create_cases() -> None:
    op.create_table(
        "cases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(32), nullable=False),
        sa.Column("spec", sa.JSON()),
        sa.Column("choices", sa.LargeBinary()),
        sa.Column("idioms", sa.JSON(), nullable=False),
        sa.Column("near_misses", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cases"),
        sa.UniqueConstraint("sha256", name="uq_cases_sha256"),
    )


def _create_findings() -> None:
    op.create_table(
        "findings",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("confidence", sa.String(16)),
        sa.Column("culprit", sa.JSON()),
        sa.Column("evidence", sa.JSON()),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("best_run_id", sa.Integer()),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
        sa.UniqueConstraint("signature", name="uq_findings_signature"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("case_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer()),
        sa.Column("finding_id", sa.Integer()),
        sa.Column("stream", sa.Text()),
        sa.Column("stream_index", sa.BigInteger()),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("is_bug", sa.Boolean(), nullable=False),
        sa.Column("seconds", sa.Float()),
        sa.Column("compiles", sa.Integer()),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name="fk_runs_case_id_cases"),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name="fk_runs_environment_id_environments"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name="fk_runs_campaign_id_campaigns"),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name="fk_runs_finding_id_findings"),
    )
    for columns in (["case_id"], ["campaign_id"], ["finding_id"], ["verdict"], ["stream", "stream_index"]):
        op.create_index("_".join(["ix_runs", *columns]), "runs", columns)


def _create_reproducers() -> None:
    op.create_table(
        "reproducers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("finding_id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON()),
        sa.Column("neighbour", sa.Text()),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reproducers"),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name="fk_reproducers_finding_id_findings"),
        sa.UniqueConstraint("finding_id", "sha256", name="uq_reproducers_finding_id_sha256"),
    )


def _create_coverage() -> None:
    identity = ["torch", "stage", "pass_name", "rewrite", "outcome"]
    op.create_table(
        "rewrite_coverage",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("stage", sa.String(32), nullable=False),
        sa.Column("pass_name", sa.Text(), nullable=False),
        sa.Column("rewrite", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_case_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rewrite_coverage"),
        sa.ForeignKeyConstraint(["first_case_id"], ["cases.id"], name="fk_rewrite_coverage_first_case_id_cases"),
        sa.UniqueConstraint(*identity, name="_".join(["uq_rewrite_coverage", *identity])),
    )
