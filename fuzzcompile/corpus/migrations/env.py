"""Run by Alembic for every command, on the connection that ``corpus.schema`` hands it.

A new revision, after a change to ``models.py`` (then read it and correct it by hand)::

    from alembic import command
    from sqlalchemy import make_url
    from fuzzcompile.corpus.connection import connect
    from fuzzcompile.corpus.schema import configuration, upgrade
    url = make_url("sqlite:////tmp/scratch.db")
    upgrade(url)
    with connect(url).connect() as connection:
        command.revision(configuration(connection), "what changes", autogenerate=True, rev_id="0002")
"""

from alembic import context

from fuzzcompile.corpus.models import Base
from fuzzcompile.corpus.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    # SQLite cannot alter most things in place: the table is copied.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
