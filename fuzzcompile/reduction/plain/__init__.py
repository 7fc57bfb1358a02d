"""The script that an issue shows: straight code of a few lines, and what it says under each backend."""
