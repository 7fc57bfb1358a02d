"""Runs know whether they were screened, cases what they are made of."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what was stored before was judged in full."""
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("screened", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("cases") as cases:
        cases.add_column(sa.Column("features", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Drop the columns."""
    with op.batch_alter_table("cases") as cases:
        cases.drop_column("features")
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("screened")
