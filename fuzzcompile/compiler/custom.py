"""A user's own passes and backend in this process: put into the compiler's settings, and named in reports.

What is installed here acts in every compile of this process.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fuzzcompile.case import CompileSettings
from fuzzcompile.compiler import labels
from fuzzcompile.compiler.configs import config_of
from fuzzcompile.compiler.custom_examples import noting_examples
from fuzzcompile.compiler.custom_loading import digest_of, imported
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.custom import Custom, Loaded, Target
from fuzzcompile.errors import UsageError

if TYPE_CHECKING:
    from fuzzcompile.compiler.custom_passes import InstalledPass


@dataclass
class _InForce:
    passes: tuple[InstalledPass, ...] = ()
    backend: str | Callable[..., object] | None = None
    target: Target | None = None  # of the backend


_in_force = _InForce()


def install(custom: Custom) -> None:
    """Import what the user named and have every compile of this process use it, in place of what was installed before.

    Raises:
        UsageError: something cannot be imported, is no pass or backend, or leaves open which stage is to run it.
    """
    for each in _in_force.passes:
        setattr(config_of("inductor"), each.setting, None)
    _in_force.passes, _in_force.backend, _in_force.target = (), None, None
    if custom.passes:
        from fuzzcompile.compiler.custom_passes import load_pass  # imports the pattern matcher

        with noting_examples():
            _in_force.passes = tuple(load_pass(each) for each in custom.passes)
    for setting in dict.fromkeys(each.setting for each in _in_force.passes):
        held = _value([each for each in _in_force.passes if each.setting == setting])
        setattr(config_of("inductor"), setting, held)
    if custom.backend is not None:
        _in_force.backend = _backend(custom.backend)
        _in_force.target = custom.backend if isinstance(custom.backend, Target) else None


def installed_pass(function: object) -> InstalledPass | None:
    """The user's own pass that Inductor calls as ``function``; None if it is another."""
    plain = function.func if isinstance(function, functools.partial) else function
    return next((each for each in _in_force.passes if each.is_run_as(plain)), None)


def passes_in_force() -> tuple[InstalledPass, ...]:
    """The user's own passes in this process."""
    return _in_force.passes


def backend_in_force() -> Target | str | None:
    """The backend of this process: where the user's own stands, or its registered name; None without one."""
    return _in_force.backend if isinstance(_in_force.backend, str) else _in_force.target


def in_force() -> bool:
    """Return whether this process compiles with custom passes or a custom backend of the user."""
    return bool(_in_force.passes) or _in_force.backend is not None


def loaded() -> tuple[Loaded, ...]:
    """Return the custom passes and backend that this process compiles with, in plain data."""
    passes = tuple(each.loaded() for each in _in_force.passes)
    if _in_force.backend is None:
        return passes
    if _in_force.target is None:
        return (*passes, Loaded(str(_in_force.backend), "backend"))
    return (*passes, Loaded(_in_force.target.name, "backend", digest=digest_of(_in_force.target)))


def with_backend(settings: CompileSettings) -> CompileSettings:
    """The settings of a case under the backend in force.

    A backend that does not take options or a mode gets neither; as entries of Inductor's config they act where it calls
    Inductor.
    """
    backend = _in_force.backend
    if backend is None:
        return settings
    if backend == "inductor" or _takes_options(backend):
        return replace(settings, backend=backend)
    meant = {**torch._inductor.list_mode_options(settings.mode), **settings.options} if settings.mode else {}
    given = {**settings.inductor, **meant, **settings.options}
    return replace(settings, backend=backend, options={}, mode=None, inductor=given)


def backend_label(backend: str | Callable[..., object]) -> Label:
    """The label of a backend; that of the user's own says as what it was named."""
    label = labels.backend_label(backend)
    own = _in_force.target if backend is _in_force.backend else None
    return label if own is None else replace(label, pass_name=own.name, rewrite=own.name)


def without(name: str | None) -> dict[str, object]:
    """The entry of Inductor's config that leaves out the pass called ``name``; empty if there is none such."""
    left_out = next((each for each in _in_force.passes if each.name == name), None)
    if left_out is None:
        return {}
    rest = [each for each in _in_force.passes if each.setting == left_out.setting and each is not left_out]
    return {left_out.setting: _value(rest)}


def _value(passes: list[InstalledPass]) -> object:
    """Return the value that an entry of the config holds for these passes: torch 2.11 takes one alone."""
    return passes if len(passes) > 1 else passes[0] if passes else None


def _backend(named: Target | str) -> str | Callable[..., object]:
    if isinstance(named, Target):
        given = imported(named, "--backend")
        if not callable(given):
            raise UsageError(
                f"--backend {named} is a {type(given).__name__}; name a function of a graph and its inputs."
            )
        return given
    known = torch._dynamo.list_backends(None)
    if named not in known:
        near = difflib.get_close_matches(named, known, 3, 0.5) or known
        raise UsageError(f"--backend {named}: torch has no backend of that name; it has {', '.join(near)}.")
    return named


def _takes_options(backend: Any) -> bool:
    """Return whether a backend can be given options and a mode."""
    if isinstance(backend, str):
        backend = torch._dynamo.lookup_backend(backend)
    try:
        parameters = inspect.signature(backend).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) or {"options", "mode"} <= {
        parameter.name for parameter in parameters
    }
