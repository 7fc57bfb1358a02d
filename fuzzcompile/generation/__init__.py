"""Hypothesis strategies over transformer idioms, rendered to Python source through Jinja."""

from fuzzcompile.generation.cases import GeneratedCase, case_at, from_choices
from fuzzcompile.generation.profile import Profile
from fuzzcompile.generation.rendering import render
from fuzzcompile.generation.spec import CaseSpec
from fuzzcompile.generation.strategy import case_strategy

__all__ = ["CaseSpec", "GeneratedCase", "Profile", "case_at", "case_strategy", "from_choices", "render"]
