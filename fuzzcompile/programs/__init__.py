"""Programs: read, hold, edit, shrink and write the source of a case."""
