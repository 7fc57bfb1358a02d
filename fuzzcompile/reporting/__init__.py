"""Issue drafts and summaries."""
