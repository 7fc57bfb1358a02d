"""Alembic revisions of the corpus schema, shipped with the package."""
