"""Severity, marks and umbrellas of findings, what was seen of reproducers, replays, related reports.

The signatures of old findings stay as they are: their cause, which is a part of one now, takes compiles to find
(``fuzzcompile corpus refresh``).
"""

import sqlalchemy as sa
from alembic import op

from fuzzcompile.corpus.models import UtcDateTime
from fuzzcompile.severity import severity

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the schema."""
    op.create_table(
        "umbrellas",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("issue", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_umbrellas")),
    )
    op.create_table(
        "related",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("finding_id", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name=op.f("fk_related_finding_id_findings")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_related")),
        sa.UniqueConstraint("finding_id", "url", name=op.f("uq_related_finding_id_url")),
    )
    op.create_table(
        "replays",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("finding_id", sa.Integer(), nullable=False),
        sa.Column("reproducer_sha256", sa.String(length=64), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("torch_git", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("runs", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name=op.f("fk_replays_finding_id_findings")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replays")),
    )
    with op.batch_alter_table("replays", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_replays_finding_id"), ["finding_id"], unique=False)

    with op.batch_alter_table("findings", schema=None) as batch_op:
        batch_op.add_column(sa.Column("severity", sa.String(length=32), nullable=True))
        batch_op.add_column(sa.Column("umbrella", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("issue", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("note", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("duplicate_of_id", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("searched", UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("queries", sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_index(batch_op.f("ix_findings_severity"), ["severity"], unique=False)
        batch_op.create_index(batch_op.f("ix_findings_umbrella"), ["umbrella"], unique=False)
        batch_op.create_foreign_key(
            batch_op.f("fk_findings_duplicate_of_id_findings"), "findings", ["duplicate_of_id"], ["id"]
        )

    with op.batch_alter_table("reproducers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("program", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("shown", sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_index(batch_op.f("ix_reproducers_program"), ["program"], unique=False)
    _rank_findings()


def downgrade() -> None:
    """Change it back."""
    with op.batch_alter_table("reproducers", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_reproducers_program"))
        batch_op.drop_column("shown")
        batch_op.drop_column("program")

    with op.batch_alter_table("findings", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_findings_duplicate_of_id_findings"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_findings_umbrella"))
        batch_op.drop_index(batch_op.f("ix_findings_severity"))
        batch_op.drop_column("queries")
        batch_op.drop_column("searched")
        batch_op.drop_column("duplicate_of_id")
        batch_op.drop_column("note")
        batch_op.drop_column("issue")
        batch_op.drop_column("umbrella")
        batch_op.drop_column("severity")

    with op.batch_alter_table("replays", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_replays_finding_id"))

    op.drop_table("replays")
    op.drop_table("related")
    op.drop_table("umbrellas")


def _rank_findings() -> None:
    """Give each finding the severity of its best run."""
    findings = sa.table("findings", sa.column("id"), sa.column("best_run_id"), sa.column("severity"))
    runs = sa.table("runs", sa.column("id"), sa.column("report", sa.JSON()))
    connection = op.get_bind()
    best = sa.select(findings.c.id, runs.c.report).join(runs, findings.c.best_run_id == runs.c.id)
    for key, report in connection.execute(best).all():
        connection.execute(sa.update(findings).where(findings.c.id == key).values(severity=severity(report)))
