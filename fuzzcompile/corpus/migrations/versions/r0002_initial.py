"""The schema of the first release; revision 0001 was never released, so that nothing is upgraded to this one."""

from __future__ import annotations

revision = "0002"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: `fuzzcompile.corpus.maintenance.bring_up_to_date` makes a new corpus from the models."""
