"""Every attribute of torch and Triton that is replaced while kernels are interpreted: the one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fuzzcompile.compiler.target.places import Place, Replace, always


def _part(module: str, build: Callable[[Any, Any, Any], Any]) -> Replace:
    """A replacement from a module of this package, imported only when it is made: the module imports Triton."""

    def replace(session: Any, original: Any) -> Any:
        return build(importlib.import_module(f"{__package__}.{module}"), session, original)

    return replace


def _launcher(name: str) -> Replace:
    """A function of :mod:`~fuzzcompile.compiler.target.interpreted.launching` that takes the session first."""

    def build(launching: Any, session: Any, original: Any) -> Any:
        launch = getattr(launching, name)
        return lambda *args, **kwargs: launch(session, *args, **kwargs)

    return _part("launching", build)


_launch_inductor = _launcher("launch_inductor")
_launch_directly = _launcher("launch_directly")
_launch_autotuned = _launcher("launch_autotuned")
_call = _part("execution", lambda part, session, _: lambda function, *args, **kw: part.call(function.fn, *args, **kw))
_sources = _part("launching", lambda part, session, original: part.keep_source(session, original))
_choice = _part("choosing", lambda part, session, original: part.choose_first(session, original))
_driver = _part("driver", lambda part, session, _: part.Driver(session.target))
_buffer = _part("buffers", lambda part, session, _: part.empty_strided)
_graph_call = _part("buffers", lambda part, session, original: part.called(original))
_layout = _part("buffers", lambda part, session, original: part.relaid(original))

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"

# fmt: off
PLACES: tuple[Place, ...] = (
    Place("triton.runtime.driver", "driver._active", _driver),
    Place("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", always(lambda *_, **__: None)),
    Place(_HEURISTICS, "CachingAutotuner.run", _launch_inductor),
    Place(_HEURISTICS, "DebugAutotuner.run", _launch_inductor),
    Place(_HEURISTICS, "CachingAutotuner.precompile", always(lambda *_, **__: None)),
    Place("torch._inductor.async_compile", "AsyncCompile.triton", _sources),
    Place("torch._inductor.async_compile", "get_compile_threads", always(lambda: 1)),
    Place("torch._inductor.select_algorithm", "AlgorithmSelectorCache.__call__", _choice),
    Place("torch._C._dynamo.guards", "_empty_strided_cuda", _buffer, optional=True),
    Place("torch._C._dynamo.guards", "assert_size_stride", _layout),
    Place("torch._inductor.output_code", "CompiledFxGraph.__call__", _graph_call),
    Place("torch.utils._triton", "has_triton", always(lambda *_, **__: True)),
    Place("triton.runtime.jit", "JITFunction.run", _launch_directly),
    Place("triton.runtime.autotuner", "Autotuner.run", _launch_autotuned),
    Place("triton.runtime.jit", "JITFunction.__call__", _call),
    Place("triton.runtime.interpreter", "InterpretedFunction.run",
          _launch_directly),
    Place("triton.runtime.interpreter", "InterpretedFunction.__call__", _call),
)
# fmt: on

#: What calls of Triton functions inside of a kernel need.
DEVICE_FUNCTIONS = tuple(place for place in PLACES if place.replace is _call)
