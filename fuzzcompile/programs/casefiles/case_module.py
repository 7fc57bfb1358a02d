"""Case files: Python files that define a module, its inputs, and the way in which it is compiled.

The file defines ``make()``, which seeds itself and returns ``(module_or_callable, inputs)``, and may
define ``GRAD``, ``BACKWARD``, ``OPTIONS``, ``CONFIG``, ``MODE``, ``DYNAMIC``, ``FULLGRAPH``, ``BACKEND``, ``PATH``,
``CALLS`` and ``run(model, inputs)`` (see docs/cases.md).
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.model.contract import AOTI, CACHED, COMPILE, PATHS
from fuzzcompile.model.errors import CaseError, format_message
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.programs.casefiles.case_file import CaseFile, read_source
from fuzzcompile.run.case import Case, CompileSettings, GradMode

_GRAD_MODES: tuple[GradMode, ...] = ("no_grad", "inference_mode", "enabled")


def load_case(path: str | Path | CaseFile, rewrite: Callable[[ast.Module], ast.Module] = lambda tree: tree) -> Case:
    """Execute the case file at ``path`` and return the case that it defines.

    The file becomes a module in ``sys.modules``, where dynamo resolves the globals of the code that it traces.
    ``rewrite`` changes its syntax tree before it is executed; lines must stay. CaseError if it cannot be read, is not
    Python, raises while it is loaded, or has no ``make()``.
    """
    path, source = (path.path, path.source) if isinstance(path, CaseFile) else (Path(path), read_source(Path(path)))
    namespace = _execute(path, source, rewrite)
    make = namespace.get("make")
    if not callable(make):
        raise CaseError(
            f"{path} is no case: it defines no make() that returns (module, inputs); see 'Case files' in the README."
        )
    backward = bool(namespace.get("BACKWARD", False))
    grad = namespace.get("GRAD", "enabled" if backward else "no_grad")
    if grad not in _GRAD_MODES:
        raise CaseError(f"{path}: GRAD is {grad!r}; use one of {', '.join(_GRAD_MODES)}.")
    return Case(
        name=path.stem,
        path=path,
        source=source,
        make=make,
        grad=grad,
        backward=backward,
        settings=_settings(path, namespace, backward=backward),
        calls=namespace.get("CALLS"),
        run=namespace.get("run"),
    )


def _execute(path: Path, source: str, rewrite: Callable[[ast.Module], ast.Module]) -> dict[str, Any]:
    try:
        tree = rewrite(ast.parse(source))
        code = compile(tree, str(path.resolve()), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise CaseError(f"{path} is no case: it is not valid Python ({_one_line(error)}).") from error
    module = types.ModuleType(f"fuzzcompile_case_{hash_source(source)[:16]}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module
    torch.manual_seed(0)  # CALLS may be made of random numbers at module level
    try:
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is None:  # a library's own words for something that it cannot import
            raise CaseError(f"{path} cannot be loaded: {_one_line(error)}") from error
        raise CaseError(f"{path} needs the module {error.name!r}, which is not installed; install it.") from error
    except BaseException as error:  # user code: whatever it raises, SystemExit too, is an error of the case
        raise CaseError(
            f"{path} cannot be loaded: it raises {type(error).__name__} ({_one_line(error)}); fix the file."
        ) from error
    return module.__dict__


def _settings(path: Path, namespace: Mapping[str, Any], *, backward: bool) -> CompileSettings:
    config = namespace.get("CONFIG") or {}
    options = namespace.get("OPTIONS") or {}
    if not isinstance(config, Mapping) or not isinstance(options, Mapping):
        raise CaseError(f"{path}: OPTIONS and CONFIG must be dictionaries.")
    unknown = set(config) - {"dynamo", "functorch", "inductor"}
    if unknown:
        raise CaseError(f"{path}: CONFIG knows 'dynamo', 'functorch' and 'inductor', not {', '.join(sorted(unknown))}.")
    backend = namespace.get("BACKEND", "inductor")
    if not (isinstance(backend, str) or callable(backend)):
        raise CaseError(f"{path}: BACKEND is a {type(backend).__name__}; make it a registered name or a function.")
    wanted = namespace.get("PATH", COMPILE)
    if wanted not in PATHS:
        raise CaseError(f"{path}: PATH is {wanted!r}; use one of {', '.join(PATHS)}.")
    if wanted not in (COMPILE, CACHED) and any(namespace.get(name) for name in ("BACKEND", "MODE", "FULLGRAPH")):
        raise CaseError(f"{path}: BACKEND, MODE, FULLGRAPH are torch.compile's; remove them, or PATH = {wanted!r}.")
    if wanted == AOTI and backward:
        raise CaseError(f"{path}: AOTInductor computes no gradients; remove BACKWARD, or use PATH = 'export'.")
    return CompileSettings(
        backend=backend,
        options=dict(options),
        inductor=dict(config.get("inductor", {})),
        dynamo=dict(config.get("dynamo", {})),
        functorch=dict(config.get("functorch", {})),
        mode=namespace.get("MODE"),
        dynamic=namespace.get("DYNAMIC"),
        fullgraph=bool(namespace.get("FULLGRAPH", False)),
        path=str(wanted),
    )


def _one_line(error: BaseException) -> str:
    return format_message(error, 200) or type(error).__name__
