"""Tables of the installed torch: operators and Inductor's settings."""
