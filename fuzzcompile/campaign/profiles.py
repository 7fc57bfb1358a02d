"""Profiles of the generator for the torch that is installed."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.compiler.options import unknown_options
from fuzzcompile.generation import Profile
from fuzzcompile.generation.toggles import TOGGLES


def for_this_torch(profile: Profile) -> Profile:
    """The profile without the settings that the installed torch does not have."""
    lacking = tuple(toggle.name for toggle in TOGGLES if unknown_options(dict(toggle.options)))
    return replace(profile, without=tuple(sorted({*profile.without, *lacking})))
