"""The straight-line form of a program, and its way to and from source."""
