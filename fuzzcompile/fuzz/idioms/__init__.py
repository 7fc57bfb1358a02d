"""The idioms: one unit a role, each registering its own, the simplest first."""

from fuzzcompile.fuzz.idioms import transformer  # noqa: F401 - it registers its idioms
