"""The schema of the first release; revision 0001 was never released."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = None
branch_labels = None
depends_on = None

# In this order each table refers only to earlier ones, but for the best run of a finding. Constraints get their names
# from the naming convention of ``models.Base``.
TABLES = ("environments", "campaigns", "cases", "findings", "runs", "reproducers", "rewrite_coverage")


def upgrade() -> None:
    """Create every table."""
    _create_campaigns()
    _create_findings()
    _create_runs()
    _create_coverage()
    with op.batch_alter_table("findings") as findings:
        findings.create_foreign_key("fk_findings_best_run_id_runs", "runs", ["best_run_id"], ["id"])


def downgrade() -> None:
    """Drop every table."""
    with op.batch_alter_table("findings") as findings:
        findings.drop_constraint("fk_findings_best_run_id_runs", type_="foreignkey")
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_campaigns() -> None:
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("device", sa.Text()),
        sa.Column("driver", sa.Text()),
        sa.Column("compiler", sa.Text()),
        sa.Column("cpu", sa.Text()),
        sa.Column("details", sa.JSON(), nullable=False),
    )
    op.create_table(
        "campaigns",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("fuzzcompile_version", sa.Text(), nullable=False),
        sa.Column("counters", sa.JSON(), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_heard", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished", sa.DateTime(timezone=True)),
        sa.Column("ended", sa.String(32)),
    )


def _create_findings() -> None:
    op.create_table(
        "cases",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(32), nullable=False),
        sa.Column("spec", sa.JSON()),
        sa.Column("choices", sa.LargeBinary()),
        sa.Column("idioms", sa.JSON(), nullable=False),
        sa.Column("near_misses", sa.JSON(), nullable=False),
        sa.Column("features", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "findings",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("signature", sa.Text(), nullable=False, unique=True),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("confidence", sa.String(16)),
        sa.Column("culprit", sa.JSON()),
        sa.Column("evidence", sa.JSON()),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("best_run_id", sa.Integer()),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("case_id", sa.Integer(), sa.ForeignKey("cases.id"), nullable=False, index=True),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("campaign_id", sa.Integer(), sa.ForeignKey("campaigns.id"), index=True),
        sa.Column("finding_id", sa.Integer(), sa.ForeignKey("findings.id"), index=True),
        sa.Column("stream", sa.Text()),
        sa.Column("stream_index", sa.BigInteger()),
        sa.Column("verdict", sa.String(32), nullable=False, index=True),
        sa.Column("is_bug", sa.Boolean(), nullable=False),
        sa.Column("screened", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("seconds", sa.Float()),
        sa.Column("compiles", sa.Integer()),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_runs_stream_stream_index", "runs", ["stream", "stream_index"])
    op.create_table(
        "reproducers",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("finding_id", sa.Integer(), sa.ForeignKey("findings.id"), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON()),
        sa.Column("neighbour", sa.Text()),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("finding_id", "sha256"),
    )


def _create_coverage() -> None:
    op.create_table(
        "rewrite_coverage",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("stage", sa.String(32), nullable=False),
        sa.Column("pass_name", sa.Text(), nullable=False),
        sa.Column("rewrite", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_case_id", sa.Integer(), sa.ForeignKey("cases.id"), nullable=False),
        sa.UniqueConstraint("torch", "stage", "pass_name", "rewrite", "outcome"),
    )
