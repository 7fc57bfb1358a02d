"""Every attribute of torch and Triton that is replaced while kernels are interpreted: the one table."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from fuzzcompile.compiler.target.kernel_log import KernelLog, LaunchLimits, ProgramOrder
from fuzzcompile.compiler.target.target_patches import (
    Replace,
    ReplacedAttribute,
    find_missing,
    replace_attributes,
    replace_with,
)
from fuzzcompile.model.facts import Minor, parse_minor
from fuzzcompile.model.targets import Target

__all__ = ["INTERPRETER_PLACES", "TEMPLATES", "explain_unfit_interpreter", "interpret_triton"]


def _replace_from(module: str, build: Callable[[Any, Any, Any], Any]) -> Replace:
    """A replacement from a module of this package, imported only when it is made: the module imports Triton."""

    def replace(session: Any, original: Any) -> Any:
        return build(importlib.import_module(f"{__package__}.{module}"), session, original)

    return replace


def _replace_launch(name: str) -> Replace:
    """A function of :mod:`~fuzzcompile.compiler.target.kernel_launch` that takes the session first."""

    def build(launching: Any, session: Any, original: Any) -> Any:
        launch = getattr(launching, name)
        return lambda *args, **kwargs: launch(session, *args, **kwargs)

    return _replace_from("kernel_launch", build)


_launch_inductor = _replace_launch("launch_inductor")
_launch_directly = _replace_launch("launch_directly")
_launch_autotuned = _replace_launch("launch_autotuned")
_call_function = _replace_from(
    "kernel_execution", lambda part, session, _: lambda function, *args, **kw: part.call(function.fn, *args, **kw)
)
_keep_sources = _replace_from("kernel_launch", lambda part, session, original: part.keep_source(session, original))
_choose = _replace_from("kernel_launch", lambda part, session, original: part.choose_first(session, original))
_make_driver = _replace_from("kernel_launch", lambda part, session, _: part.TargetDriver(session.target))
_allocate_buffer = _replace_from("kernel_launch", lambda part, session, _: part.empty_strided)
_call_graph = _replace_from("kernel_launch", lambda part, session, original: part.call_on_cpu_tensors(original))
_check_layout = _replace_from("kernel_launch", lambda part, session, original: part.check_and_relay(original))

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"

# fmt: off
INTERPRETER_PLACES: tuple[ReplacedAttribute, ...] = (
    ReplacedAttribute("triton.runtime.driver", "driver._active", _make_driver),
    ReplacedAttribute(
        "torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", replace_with(lambda *_, **__: None)
    ),
    ReplacedAttribute(_HEURISTICS, "CachingAutotuner.run", _launch_inductor),
    ReplacedAttribute(_HEURISTICS, "DebugAutotuner.run", _launch_inductor),
    ReplacedAttribute(_HEURISTICS, "CachingAutotuner.precompile", replace_with(lambda *_, **__: None)),
    ReplacedAttribute("torch._inductor.async_compile", "AsyncCompile.triton", _keep_sources),
    ReplacedAttribute("torch._inductor.async_compile", "get_compile_threads", replace_with(lambda: 1)),
    ReplacedAttribute("torch._inductor.select_algorithm", "AlgorithmSelectorCache.__call__", _choose),
    ReplacedAttribute("torch._C._dynamo.guards", "_empty_strided_cuda", _allocate_buffer, optional=True),
    ReplacedAttribute("torch._C._dynamo.guards", "assert_size_stride", _check_layout),
    ReplacedAttribute("torch._inductor.output_code", "CompiledFxGraph.__call__", _call_graph),
    ReplacedAttribute("torch.utils._triton", "has_triton", replace_with(lambda *_, **__: True)),
    ReplacedAttribute("triton.runtime.jit", "JITFunction.run", _launch_directly),
    ReplacedAttribute("triton.runtime.autotuner", "Autotuner.run", _launch_autotuned),
    ReplacedAttribute("triton.runtime.jit", "JITFunction.__call__", _call_function),
    ReplacedAttribute("triton.runtime.interpreter", "InterpretedFunction.run", _launch_directly),
    ReplacedAttribute("triton.runtime.interpreter", "InterpretedFunction.__call__", _call_function),
)
# fmt: on

#: What calls of Triton functions inside of a kernel need.
DEVICE_FUNCTIONS = tuple(place for place in INTERPRETER_PLACES if place.replace is _call_function)


# Checks that kernels can be interpreted here: Triton is there, goes with the torch installed, and computes right.

# What the metadata of torch's CUDA builds requires (`triton==3.6.0`, `==3.7.0`, `==3.7.1`, `~=3.8.0`, `~=3.9.0`).
_GOES_WITH: dict[Minor, Minor] = {(2, 11): (3, 6), (2, 12): (3, 7), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}


@functools.cache
def explain_unfit_interpreter() -> str | None:
    """Return why kernels cannot be interpreted here, a sentence without its full stop; None if they can be."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: run `pip install 'fuzzcompile[triton]'`"
    return _explain_mismatch() or _explain_missing() or _explain_failure()


def _explain_mismatch() -> str | None:
    torch_version, triton_version = (importlib.metadata.version(name) for name in ("torch", "triton"))
    wanted = _GOES_WITH.get(parse_minor(torch_version))
    if wanted is None:
        return f"Which Triton goes with torch {torch_version} is not known to this version of fuzzcompile"
    if parse_minor(triton_version) == wanted:
        return None
    version = ".".join(map(str, wanted))
    return f"Triton {triton_version} does not go with torch {torch_version}: run `pip install 'triton=={version}.*'`"


def _explain_missing() -> str | None:
    missing = find_missing(INTERPRETER_PLACES)
    place = next(iter(missing), None)
    return None if place is None else f"This torch or Triton has no {place}: {missing[place]}"


def _explain_failure() -> str | None:
    from fuzzcompile.compiler.target import interpreter_checks

    failure = interpreter_checks.find_failed_check(DEVICE_FUNCTIONS)
    return None if failure is None else f"Triton's interpreter fails a check of its values ({failure})"


# Inductor's Triton kernels, run by Triton's interpreter on tensors of the CPU.

#: How the question begins whether a matrix template or a library call is taken.
TEMPLATES = "the kernel of"


@contextlib.contextmanager
def interpret_triton(
    target: Target,
    log: KernelLog,
    *,
    order: ProgramOrder = ProgramOrder.FORWARD,
    templates: bool = False,
    limits: LaunchLimits | None = None,
) -> Iterator[None]:
    """Interpret the Triton kernels that are compiled or launched in the block, which covers both.

    Args:
        target: the device that the kernels are made for.
        log: sources, launches and refusals are written here.
        order: the order in which the programs of each grid run.
        templates: take the first Triton template where a GPU would time it against a library call.
        limits: what one launch may cost; without it, the default.

    Raises:
        NotInterpreted: (in the block) a kernel that cannot be interpreted was launched.
    """
    from fuzzcompile.compiler.target.kernel_launch import InterpreterSession

    with replace_attributes(
        InterpreterSession(target, log, order, limits or LaunchLimits(), templates), INTERPRETER_PLACES
    ):
        yield
