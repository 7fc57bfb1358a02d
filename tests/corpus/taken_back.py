"""Takes a corpus back to the schema of an earlier release: no command does, as nobody needs one."""

from __future__ import annotations

from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection

from fuzzcompile.corpus.maintenance import restamp


def take_back(connection: Connection) -> None:
    """Undo every revision after the first release's."""
    with Operations.context(MigrationContext.configure(connection)):
        undo_0004()
        undo_0003()
    restamp(connection, "0002")


def undo_0004() -> None:
    for table in ("cases", "reproducers"):
        op.drop_column(table, "imported")
    op.drop_column("campaigns", "part")
    for table in ("runs", "campaigns"):
        op.drop_index(op.f(f"ix_{table}_token"), table_name=table)
        op.drop_column(table, "token")


def undo_0003() -> None:
    op.drop_table("former_names")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_runs_finding_id_environment_id"))
        batch_op.create_index(batch_op.f("ix_runs_finding_id"), ["finding_id"], unique=False)

    with op.batch_alter_table("reproducers", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_reproducers_environment_id_environments"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_reproducers_case_id_cases"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_reproducers_case_id"))
        batch_op.drop_column("environment_id")
        batch_op.drop_column("case_id")
        batch_op.drop_index(batch_op.f("ix_reproducers_program"))
        batch_op.drop_column("shown")
        batch_op.drop_column("program")

    with op.batch_alter_table("findings", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_findings_duplicate_of_id_findings"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_findings_case_id_cases"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_findings_best_reproducer_id_reproducers"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_findings_umbrella"))
        batch_op.drop_index(batch_op.f("ix_findings_severity"))
        batch_op.drop_column("case_id")
        batch_op.drop_column("speaks_by_reproducer")
        batch_op.drop_column("best_reproducer_id")
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
