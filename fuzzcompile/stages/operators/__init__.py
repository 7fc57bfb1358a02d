"""Operators on their way into the graphs: each beside what the compiler takes in its place, on the program's values."""
