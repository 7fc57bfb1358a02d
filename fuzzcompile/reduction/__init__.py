"""From a failing case to one that reads in a minute."""
