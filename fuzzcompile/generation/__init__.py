"""Hypothesis strategies over transformer idioms, rendered to Python source through Jinja."""

from fuzzcompile.generation.cases import GeneratedCase, case_at, from_choices
from fuzzcompile.generation.names import Name, names
from fuzzcompile.generation.profile import Profile, StaleRecipe, generator_version
from fuzzcompile.generation.rendering import render
from fuzzcompile.generation.spec import CaseSpec
from fuzzcompile.generation.strategy import case_strategy
from fuzzcompile.generation.writing import write_cases

__all__ = [
    "CaseSpec",
    "GeneratedCase",
    "Name",
    "Profile",
    "StaleRecipe",
    "case_at",
    "case_strategy",
    "from_choices",
    "generator_version",
    "names",
    "render",
    "write_cases",
]
