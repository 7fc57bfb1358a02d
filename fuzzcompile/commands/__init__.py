"""Commands without their terminal: each does the work of one command and returns its result."""
