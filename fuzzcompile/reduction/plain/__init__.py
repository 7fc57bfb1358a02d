"""The script that an issue shows: straight code of a few lines, and its result under each backend."""
