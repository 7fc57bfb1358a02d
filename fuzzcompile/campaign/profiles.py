"""Profiles of the generator for the torch that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.generation import Profile


def fitted(profile: Profile, lacks: Sequence[str], target: str | None = None) -> Profile:
    """Return the profile without the settings that the installed torch ``lacks``; for a GPU if there is a target."""
    return replace(profile, without=tuple(sorted({*profile.without, *lacks})), gpu=target is not None)


def for_this_torch(profile: Profile, target: str | None = None) -> Profile:
    """Return the profile for the torch of this process."""
    from fuzzcompile.worker.surroundings import lacking

    return fitted(profile, lacking(target), target)
