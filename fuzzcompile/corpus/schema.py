"""Brings a database to the schema of this version, or says why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, column, inspect, select, table, update

from fuzzcompile.corpus.connection import connect, writing
from fuzzcompile.corpus.failures import CorpusError
from fuzzcompile.corpus.location import describe
from fuzzcompile.corpus.models import fresh_tables
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.versions import __version__

if TYPE_CHECKING:
    from alembic.config import Config


# Alembic takes as long to import as a list of findings takes to print: only what changes a schema imports it.

# The newest revision in migrations/versions.
HEAD = "0004"
# Not Alembic's default name, to distinguish a corpus from another program's database.
VERSION_TABLE = "fuzzcompile_schema"


# In place of the revision, with a word on the source: a copy that is not complete (`fuzzcompile.corpus.transfer`).
COPYING = "copying:"


def bring_up_to_date(engine: Engine, *, create: bool) -> None:
    """Create or upgrade the schema where needed; a current one is only read.

    Raises:
        CorpusError: it is not a corpus, or one that this version can neither read nor upgrade.
    """
    with engine.connect() as connection:
        tables = set(inspect(connection).get_table_names())
        revision = revision_of(connection)
    if revision == HEAD:
        return
    _refuse_unusable(engine.url, revision, bool(tables - {VERSION_TABLE}), create)
    upgrade(engine.url)


def upgrade(url: URL) -> None:
    """Make the tables of a new corpus, or migrate an older one, in one transaction under the write lock.

    Two processes may get here together: the second waits, then finds nothing left to do.
    """
    from alembic import command

    engine = connect(url, migrating=True)
    try:
        with writing(engine).begin() as connection:
            config = configuration(connection)
            if revision_of(connection) is None:
                fresh_tables().create_all(connection)
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")
    finally:
        engine.dispose()


def state_of(bind: Engine | Connection) -> str | None:
    """What the schema's table says, a revision or that it is being copied into; None for an empty database.

    Raises:
        CorpusError: it is another program's.
    """
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            return state_of(connection)
    revision = revision_of(bind)
    if revision is None and set(inspect(bind).get_table_names()) - {VERSION_TABLE}:
        raise _foreign(describe(bind.engine.url))
    return revision


def make_anew(url: URL, state: str) -> None:
    """Make the tables of a corpus, without what may be in them, with ``state`` in place of a revision."""
    from alembic import command

    engine = connect(url, migrating=True)
    try:
        with writing(engine).begin() as connection:
            fresh_tables().drop_all(connection)
            fresh_tables().create_all(connection)
            command.stamp(configuration(connection), "head", purge=True)
            restamp(connection, state)
    finally:
        engine.dispose()


def restamp(connection: Connection, state: str) -> None:
    """Let the schema's table say this."""
    connection.execute(update(table(VERSION_TABLE, column("version_num"))).values(version_num=state))


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file: the migrations are found inside the package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "fuzzcompile.corpus:migrations")
    config.set_main_option("file_template", "r%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def revision_of(connection: Connection) -> str | None:
    """The schema's revision, or None where there is none yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    stamped: str | None = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
    return stamped


def _refuse_unusable(url: URL, revision: str | None, has_tables: bool, create: bool) -> None:
    from alembic.script import ScriptDirectory

    corpus, scripts = describe(url), ScriptDirectory.from_config(configuration())
    if revision is None and has_tables:
        raise _foreign(corpus)
    if revision is not None and revision.startswith(COPYING):
        finish = format_command("corpus", "copy", "FROM", corpus)
        raise CorpusError(f"{corpus} is being copied into: finish it with `{finish}`, or name another with --corpus.")
    if revision is None and not create:
        fill = format_command("run", corpus=corpus)
        raise CorpusError(f"{corpus} holds no corpus yet: fill it with `{fill}`, or name yours with --corpus.")
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is not None and revision not in known:
        age = "an older" if revision < min(known) else "a newer"
        remedy = "start a new one, with another name for --corpus"
        if age == "a newer":
            remedy = "update fuzzcompile, or name another with --corpus"
        raise CorpusError(
            f"The corpus {corpus} was written by {age} fuzzcompile (schema {revision}, this is {__version__}): "
            f"{remedy}."
        )


def _foreign(corpus: str) -> CorpusError:
    return CorpusError(f"{corpus} is another program's database: name another with --corpus.")
