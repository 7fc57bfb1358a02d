"""Programs drawn from the patterns that the compiler registers."""
