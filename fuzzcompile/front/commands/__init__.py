"""One library function for each command of the command line."""
