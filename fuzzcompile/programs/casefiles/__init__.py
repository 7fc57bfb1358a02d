"""Case files: their text, read and checked before anything runs."""
