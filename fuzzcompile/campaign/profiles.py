"""Profiles of the generator for the torch that is installed."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.compiler.options import unknown_options
from fuzzcompile.generation import Profile
from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES


def for_this_torch(profile: Profile, target: str | None = None) -> Profile:
    """The profile without the settings that the installed torch does not have, and for a GPU if the target is one."""
    toggles = TOGGLES if target is None else (*TOGGLES, *FOR_GPU)
    lacking = tuple(toggle.name for toggle in toggles if unknown_options(dict(toggle.options)))
    return replace(profile, without=tuple(sorted({*profile.without, *lacking})), gpu=target is not None)
