"""Programs that make one rule of the compiler fire, as plain data, and near misses drawn of them. Imports no torch."""

from fuzzcompile.generation.patterned.drawing import PatternCase, draw
from fuzzcompile.generation.patterned.edits import Edit
from fuzzcompile.generation.patterned.program import Operand, PatternProgram
from fuzzcompile.generation.patterned.rendering import render

__all__ = ["Edit", "Operand", "PatternCase", "PatternProgram", "draw", "render"]
