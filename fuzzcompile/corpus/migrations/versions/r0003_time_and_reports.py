"""Severity, marks, umbrellas and former names of findings, what was seen of reproducers, replays, related reports.

The signatures of old findings stay as they are: their cause, which is a part of one now, takes compiles to find
(``fuzzcompile corpus refresh``).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fuzzcompile.corpus.merge import find_umbrella, in_short, speaks_for
from fuzzcompile.corpus.models import AnyText, UtcDateTime
from fuzzcompile.model.severity import rank, rate_severity

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
        sa.Column("issue", AnyText(), nullable=True),
        sa.Column("note", AnyText(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_umbrellas")),
    )
    op.create_table(
        "related",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("finding_id", sa.Integer(), nullable=False),
        sa.Column("url", AnyText(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("title", AnyText(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("why", AnyText(), nullable=False),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name=op.f("fk_related_finding_id_findings")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_related")),
        sa.UniqueConstraint("finding_id", "url", name=op.f("uq_related_finding_id_url")),
    )
    op.create_table(
        "replays",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("finding_id", sa.Integer(), nullable=False),
        sa.Column("reproducer_sha256", sa.String(length=64), nullable=False),
        sa.Column("torch", AnyText(), nullable=False),
        sa.Column("torch_git", AnyText(), nullable=True),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("runs", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("output", AnyText(), nullable=False),
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
        batch_op.add_column(sa.Column("issue", AnyText(), nullable=True))
        batch_op.add_column(sa.Column("note", AnyText(), nullable=True))
        batch_op.add_column(sa.Column("duplicate_of_id", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("searched", UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("best_reproducer_id", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("case_id", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("speaks_by_reproducer", sa.Boolean(), server_default=sa.false(), nullable=False))
        batch_op.add_column(sa.Column("queries", sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_index(batch_op.f("ix_findings_severity"), ["severity"], unique=False)
        batch_op.create_index(batch_op.f("ix_findings_umbrella"), ["umbrella"], unique=False)
        batch_op.create_foreign_key(
            batch_op.f("fk_findings_duplicate_of_id_findings"), "findings", ["duplicate_of_id"], ["id"]
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_findings_best_reproducer_id_reproducers"), "reproducers", ["best_reproducer_id"], ["id"]
        )
        batch_op.create_foreign_key(batch_op.f("fk_findings_case_id_cases"), "cases", ["case_id"], ["id"])

    with op.batch_alter_table("reproducers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("case_id", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("environment_id", sa.Integer(), nullable=True))
        batch_op.create_index(batch_op.f("ix_reproducers_case_id"), ["case_id"], unique=False)
        batch_op.create_foreign_key(batch_op.f("fk_reproducers_case_id_cases"), "cases", ["case_id"], ["id"])
        batch_op.create_foreign_key(
            batch_op.f("fk_reproducers_environment_id_environments"), "environments", ["environment_id"], ["id"]
        )
        batch_op.add_column(sa.Column("program", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("shown", sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_index(batch_op.f("ix_reproducers_program"), ["program"], unique=False)
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_runs_finding_id"))
        batch_op.create_index(
            batch_op.f("ix_runs_finding_id_environment_id"), ["finding_id", "environment_id"], unique=False
        )
    op.create_table(
        "former_names",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("finding_id", sa.Integer(), nullable=False),
        sa.Column("signature", AnyText(), nullable=False),
        sa.Column("merged_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name=op.f("fk_former_names_finding_id_findings")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_former_names")),
        sa.UniqueConstraint("merged_id", name=op.f("uq_former_names_merged_id")),
    )
    with op.batch_alter_table("former_names", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_former_names_finding_id"), ["finding_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_former_names_signature"), ["signature"], unique=False)
    _choose_what_is_shown()


def _choose_what_is_shown() -> None:
    """Let each finding speak of its best confirmed reproducer, or else of its best run, and rank it."""
    connection = op.get_bind()
    for key, signature, run_id in connection.execute(_OF_FINDINGS).all():
        run = connection.execute(sa.select(_RUNS).where(_RUNS.c.id == run_id)).first()
        rows = connection.execute(sa.select(_REPRODUCERS).where(_REPRODUCERS.c.finding_id == key)).all()
        best = min(rows, key=lambda row: (not row.confirmed, rank(row.report), row.lines, row.id), default=None)
        shown, case_id = run.report if run else None, run.case_id if run else None
        speaks = best is not None and best.confirmed and speaks_for(signature, best.report or {}, shown or {})
        if best is not None and speaks:
            case_id = case_id if run and run.report["verdict"] == best.report["verdict"] else None
            shown = best.report
        own = rate_severity(shown)
        values = {name: (shown or {}).get(name) for name in ("verdict", "confidence", "culprit", "evidence")}
        values["culprit"] = in_short(values["culprit"])
        values |= {"severity": own, "umbrella": find_umbrella(own, signature), "case_id": case_id}
        values["speaks_by_reproducer"] = speaks
        values["best_reproducer_id"] = None if best is None else best.id
        connection.execute(sa.update(_FINDINGS).where(_FINDINGS.c.id == key).values(values))


_FINDINGS = sa.table(
    "findings",
    *map(sa.column, ("id", "signature", "best_run_id", "best_reproducer_id", "case_id", "speaks_by_reproducer")),
    *map(sa.column, ("verdict", "confidence", "severity", "umbrella")),
    *(sa.column(name, sa.JSON(none_as_null=True)) for name in ("culprit", "evidence")),
)
_OF_FINDINGS = sa.select(_FINDINGS.c.id, _FINDINGS.c.signature, _FINDINGS.c.best_run_id)
_RUNS = sa.table("runs", sa.column("id"), sa.column("case_id"), sa.column("report", sa.JSON()))
_REPRODUCERS = sa.table(
    "reproducers", *map(sa.column, ("id", "finding_id", "confirmed", "lines")), sa.column("report", sa.JSON())
)
