"""Programs made from the compiler's own rules: what a rule looks for, written out as a case that makes it fire."""

from fuzzcompile.compiler.programs.making import programs_of

__all__ = ["programs_of"]
