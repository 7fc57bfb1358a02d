"""Small operator programs: straight lines of a few statements, typed by symbolic shape, dtype and memory.

A production (`production.PRODUCTIONS`) picks operands that fit among all values so far, inner ones and inputs alike,
and says what comes out; so every program runs in eager mode, whatever it is made of, and values get several uses.
"""

from fuzzcompile.generation.programs import (  # noqa: F401  (each registers its productions)
    creations,
    indexing,
    numbers,
    pointwise,
    products,
    reductions,
    views,
)
from fuzzcompile.generation.programs.production import PRODUCTIONS, Production, production, register_production

__all__ = ["PRODUCTIONS", "Production", "production", "register_production"]
