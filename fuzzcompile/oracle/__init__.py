"""What was observed, how far apart it is, and the verdict."""
