"""HTML pages: one file that holds all that it shows."""
