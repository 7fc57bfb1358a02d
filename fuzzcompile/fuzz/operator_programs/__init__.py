"""Small operator programs: straight lines of a few statements, typed by symbolic shape, dtype and memory.

A production (`production.PRODUCTIONS`) picks operands that fit among all values so far, inner ones and inputs alike,
and says what comes out; so every program runs in eager mode, whatever it is made of, and values get several uses.
"""

from fuzzcompile.fuzz.operator_programs import elements, numerics  # noqa: F401 - they register their productions
