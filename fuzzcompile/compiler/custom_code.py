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

from fuzzcompile.compiler.custom_imports import hash_modules, import_target, record_examples
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.model.custom import Custom, LoadedCustom, ObjectPath
from fuzzcompile.model.errors import UsageError
from fuzzcompile.run.case import CompileSettings

if TYPE_CHECKING:
    from fuzzcompile.compiler.custom_passes import InstalledPass


@dataclass
class _CustomCode:
    passes: tuple[InstalledPass, ...] = ()
    backend: str | Callable[..., object] | None = None
    target: ObjectPath | None = None  # of the backend


_custom_code = _CustomCode()


def install_custom(custom: Custom) -> None:
    """Import what the user named and have every compile of this process use it, in place of what was installed before.

    Raises:
        UsageError: something cannot be imported, is no pass or backend, or leaves open which stage is to run it.
    """
    for each in _custom_code.passes:
        setattr(load_config("inductor"), each.setting, None)
    _custom_code.passes, _custom_code.backend, _custom_code.target = (), None, None
    if custom.passes:
        from fuzzcompile.compiler.custom_passes import load_pass  # imports the pattern matcher

        with record_examples():
            _custom_code.passes = tuple(load_pass(each) for each in custom.passes)
    for setting in dict.fromkeys(each.setting for each in _custom_code.passes):
        held = _make_config_value([each for each in _custom_code.passes if each.setting == setting])
        setattr(load_config("inductor"), setting, held)
    if custom.backend is not None:
        _custom_code.backend = _resolve_backend(custom.backend)
        _custom_code.target = custom.backend if isinstance(custom.backend, ObjectPath) else None


def find_installed_pass(function: object) -> InstalledPass | None:
    """The user's own pass that Inductor calls as ``function``; None if it is another."""
    plain = function.func if isinstance(function, functools.partial) else function
    return next((each for each in _custom_code.passes if each.is_run_as(plain)), None)


def list_passes() -> tuple[InstalledPass, ...]:
    """The user's own passes in this process."""
    return _custom_code.passes


def describe_backend() -> ObjectPath | str | None:
    """The backend of this process: where the user's own stands, or its registered name; None without one."""
    return _custom_code.backend if isinstance(_custom_code.backend, str) else _custom_code.target


def has_custom_code() -> bool:
    """Return whether this process compiles with custom passes or a custom backend of the user."""
    return bool(_custom_code.passes) or _custom_code.backend is not None


def list_loaded() -> tuple[LoadedCustom, ...]:
    """Return the custom passes and backend that this process compiles with, in plain data."""
    passes = tuple(each.describe() for each in _custom_code.passes)
    if _custom_code.backend is None:
        return passes
    if _custom_code.target is None:
        return (*passes, LoadedCustom(str(_custom_code.backend), "backend"))
    return (*passes, LoadedCustom(_custom_code.target.name, "backend", digest=hash_modules(_custom_code.target)))


def apply_backend(settings: CompileSettings) -> CompileSettings:
    """The settings of a case under the backend in force.

    A backend that does not take options or a mode gets neither; as entries of Inductor's config they act where it calls
    Inductor.
    """
    backend = _custom_code.backend
    if backend is None:
        return settings
    if backend == "inductor" or _takes_options(backend):
        return replace(settings, backend=backend)
    meant = {**torch._inductor.list_mode_options(settings.mode), **settings.options} if settings.mode else {}
    given = {**settings.inductor, **meant, **settings.options}
    return replace(settings, backend=backend, options={}, mode=None, inductor=given)


def make_backend_label(backend: str | Callable[..., object]) -> Label:
    """The label of a backend; that of the user's own says as what it was named."""
    label = rule_labels.label_backend(backend)
    own = _custom_code.target if backend is _custom_code.backend else None
    return label if own is None else replace(label, pass_name=own.name, rewrite=own.name)


def make_config_without(name: str | None) -> dict[str, object]:
    """The entry of Inductor's config that leaves out the pass called ``name``; empty if there is none such."""
    left_out = next((each for each in _custom_code.passes if each.name == name), None)
    if left_out is None:
        return {}
    rest = [each for each in _custom_code.passes if each.setting == left_out.setting and each is not left_out]
    return {left_out.setting: _make_config_value(rest)}


def _make_config_value(passes: list[InstalledPass]) -> object:
    """Return the value that an entry of the config holds for these passes: torch 2.11 takes one alone."""
    return passes if len(passes) > 1 else passes[0] if passes else None


def _resolve_backend(named: ObjectPath | str) -> str | Callable[..., object]:
    if isinstance(named, ObjectPath):
        given = import_target(named, "--backend")
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
