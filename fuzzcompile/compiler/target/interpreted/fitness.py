"""Checks that kernels can be interpreted here: Triton is there, goes with the torch installed, and computes right."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util

from fuzzcompile.compiler.target.interpreted.places import PLACES
from fuzzcompile.compiler.target.places import missing_of
from fuzzcompile.facts.loading import Minor, minor_of

# What the metadata of torch's CUDA builds requires (`triton==3.6.0`, `==3.7.0`, `==3.7.1`, `~=3.8.0`, `~=3.9.0`).
_GOES_WITH: dict[Minor, Minor] = {(2, 11): (3, 6), (2, 12): (3, 7), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}


@functools.cache
def unfit() -> str | None:
    """Return why kernels cannot be interpreted here, a sentence without its full stop; None if they can be."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: run `pip install 'fuzzcompile[triton]'`"
    return _mismatch() or _lacking() or _wrong()


def _mismatch() -> str | None:
    torch_version, triton_version = (importlib.metadata.version(name) for name in ("torch", "triton"))
    wanted = _GOES_WITH.get(minor_of(torch_version))
    if wanted is None:
        return f"Which Triton goes with torch {torch_version} is not known to this version of fuzzcompile"
    if minor_of(triton_version) == wanted:
        return None
    version = ".".join(map(str, wanted))
    return f"Triton {triton_version} does not go with torch {torch_version}: run `pip install 'triton=={version}.*'`"


def _lacking() -> str | None:
    missing = missing_of(PLACES)
    place = next(iter(missing), None)
    return None if place is None else f"This torch or Triton has no {place}: {missing[place]}"


def _wrong() -> str | None:
    from fuzzcompile.compiler.target.interpreted import checks

    failure = checks.failed()
    return None if failure is None else f"Triton's interpreter fails a check of its values ({failure})"
