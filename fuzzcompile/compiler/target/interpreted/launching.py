"""Inductor's launches of Triton kernels, and a user's own, as runs of the interpreter."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzcompile.compiler.target.interpreted import execution
from fuzzcompile.compiler.target.interpreted.execution import Manner
from fuzzcompile.compiler.target.interpreted.log import Grid, KernelLog, Launch, Limits, NotInterpreted, Order
from fuzzcompile.targets import Target

# Programs of such kernels wait for each other; run one after another, the earlier ones must come first.
_WAITING = ("exclusive_scan_decoupled_lookback", "atomic_xchg", "atomic_cas")
_MEETING = "x_grid_barrier"


@dataclass(frozen=True)
class Session:
    """One block of :func:`~fuzzcompile.compiler.target.interpreted.interpreting`.

    Attributes:
        target: the device that kernels are made for.
        log: where launches are written down.
        order: in which programs run.
        limits: what a kernel may cost.
        templates: whether a matrix template is taken where a GPU would time it against a library.
    """

    target: Target
    log: KernelLog
    order: Order
    limits: Limits
    templates: bool


def launch_inductor(session: Session, tuner: Any, *args: Any, stream: object = None, **kwargs: Any) -> None:
    """In place of ``CachingAutotuner.run``: the first configuration, as nothing can be timed.

    Raises:
        NotInterpreted: see :func:`~fuzzcompile.compiler.target.interpreted.execution.run`.
    """
    kwargs.pop("benchmark_run", None)
    config = tuner.configs[0]
    if len(tuner.configs) > 1:
        session.log.not_decided("block sizes")
    positional, grid = tuner._interpret_args_grid(args, config)
    signature: Mapping[str, str] = tuner.triton_meta["signature"]
    constants = _constants(tuner)
    passed = [name for name in tuner.fn.arg_names if name not in config.kwargs and name not in constants]
    arguments = {**dict(zip(passed, positional, strict=False)), **constants, **kwargs, **config.kwargs}
    _launch(session, tuner.fn, arguments, signature, _three(grid), config.kwargs, len(tuner.configs))


def _constants(tuner: Any) -> dict[str, object]:
    """Values that the kernel is specialised on and that its wrapper does not pass."""
    names = tuner.fn.arg_names
    signature = tuner.triton_meta["signature"]
    constants = tuner.triton_meta.get("constants", {})
    named = {(names[key[0]] if isinstance(key, tuple) else key): value for key, value in constants.items()}
    return {name: value for name, value in named.items() if signature.get(name) == "constexpr"}


def launch_directly(session: Session, function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In place of ``JITFunction.run``: a kernel that a program launches itself.

    Raises:
        NotInterpreted: see :func:`~fuzzcompile.compiler.target.interpreted.execution.run`.
    """
    if warmup:
        return
    known = {key: value for key, value in kwargs.items() if key in function.arg_names}
    bound = inspect.signature(function.fn).bind(*args, **known)
    bound.apply_defaults()
    sizes = grid(bound.arguments) if callable(grid) else grid
    _launch(session, function, bound.arguments, {}, _three(sizes), {}, 1)


def launch_autotuned(session: Session, tuner: Any, *args: Any, **kwargs: Any) -> None:
    """In place of ``Autotuner.run``: a kernel of the program with the first of its configurations."""
    session.log.not_decided("block sizes")
    tuner.fn.run(*args, **{**kwargs, **tuner.configs[0].kwargs})


def _three(grid: Sequence[int]) -> Grid:
    x, y, z = (*map(int, grid), 1, 1)[:3]
    return x, y, z


def _launch(
    session: Session,
    function: Any,
    arguments: Mapping[str, object],
    signature: Mapping[str, str],
    grid: Grid,
    config: Mapping[str, object],
    configs: int,
) -> None:
    name, source = function.__name__, getattr(function, "src", None) or inspect.getsource(function.fn)
    notes: tuple[str, ...] = ()
    order = session.order
    start = time.monotonic()
    try:
        manner = _manner(source)
        if order is Order.BACKWARD and manner is Manner.ALONE:
            order, notes = Order.FORWARD, ("its programs wait for earlier ones and run forward only",)
        kinds = {**dict.fromkeys(_constexprs(function), "constexpr"), **_typed(signature)}
        notes += execution.run(name, function.fn, arguments, kinds, grid, order, session.limits, manner=manner)
    except NotInterpreted as refusal:
        session.log.refused.setdefault(name, refusal.why)
        raise
    seconds = time.monotonic() - start
    session.log.launches.append(Launch(name, grid, dict(config), configs, seconds, notes))


def _manner(source: str) -> Manner:
    if _MEETING in source:
        return Manner.MEETING
    return Manner.ALONE if any(word in source for word in _WAITING) else Manner.TOGETHER


def _constexprs(function: Any) -> list[str]:
    annotations = inspect.get_annotations(function.fn)
    return [name for name, kind in annotations.items() if "constexpr" in str(kind)]


def _typed(signature: Mapping[str, str]) -> dict[str, str]:
    return {name: kind for name, kind in signature.items() if kind}


def keep_source(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """``AsyncCompile.triton`` that writes down what it is given."""

    def triton(compiler: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        session.log.sources[kernel_name] = source_code
        return original(compiler, kernel_name, source_code, *args, **kwargs)

    return triton
