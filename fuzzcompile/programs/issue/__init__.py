"""Scripts for an issue: plain programs that show a bug with torch alone."""
