"""Run by Alembic for every command, on the connection that ``corpus.schema`` hands it.

A new revision, after a change to ``models.py``, is the difference to a corpus that the last release made (then read it
and correct it by hand)::

    from alembic import command
    from sqlalchemy import make_url
    from fuzzcompile.corpus.connection import connect
    from fuzzcompile.corpus.maintenance import configuration
    url = make_url("sqlite:////tmp/copy_of_a_corpus.db")
    with connect(url).connect() as connection:
        command.revision(configuration(connection), "what changes", autogenerate=True, rev_id="0003")
"""

from __future__ import annotations

from alembic import context

from fuzzcompile.corpus.maintenance import VERSION_TABLE
from fuzzcompile.corpus.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    # SQLite cannot alter most things in place: the table is copied.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
