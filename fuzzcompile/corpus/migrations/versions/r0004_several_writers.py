"""What several writers need: tokens, so that nothing is stored twice, parts of a stream, and marks of what is imported.

Only columns and indices are added: nothing is rewritten, so that a corpus of a million cases is upgraded at once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the schema."""
    for table in ("runs", "campaigns"):
        op.add_column(table, sa.Column("token", sa.String(length=64), nullable=True))
        op.create_index(op.f(f"ix_{table}_token"), table, ["token"], unique=True)
    op.add_column("campaigns", sa.Column("part", sa.Integer(), server_default="0", nullable=False))
    for table in ("cases", "reproducers"):
        op.add_column(table, sa.Column("imported", sa.Boolean(), server_default=sa.false(), nullable=False))
