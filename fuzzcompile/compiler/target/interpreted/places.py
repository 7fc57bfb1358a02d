"""Every attribute of torch and Triton that is replaced while kernels are interpreted: the one table."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fuzzcompile.compiler.unseen import reason

Replace = Callable[[Any, Any], Any]
_MISSING = object()


@dataclass(frozen=True)
class Place:
    """An attribute that is replaced.

    Attributes:
        name: what doctor calls it.
        module: name of the module.
        attribute: path of the attribute in it.
        replace: gives the replacement, from the session and the original (None if there is none).
        optional: whether some builds of torch lack the attribute, so that the replacement adds it.
    """

    name: str
    module: str
    attribute: str
    replace: Replace
    optional: bool = False

    def owner(self) -> Any:
        """What holds the attribute.

        Raises:
            ImportError, AttributeError: this torch or Triton has no such place.
        """
        owner: Any = importlib.import_module(self.module)
        for part in self.attribute.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    @property
    def leaf(self) -> str:
        """Name of the attribute in its owner."""
        return self.attribute.rsplit(".", 1)[-1]

    def missing(self) -> str | None:
        """Why there is no such place; None if there is one."""
        try:
            if not self.optional:
                getattr(self.owner(), self.leaf)
        except (ImportError, AttributeError) as error:
            return reason(error)
        return None

    @contextlib.contextmanager
    def replaced(self, session: Any) -> Iterator[None]:
        """Replace the attribute for the time of the block."""
        owner = self.owner()
        present = vars(owner).get(self.leaf, _MISSING)
        original = getattr(owner, self.leaf, None)
        setattr(owner, self.leaf, self.replace(session, original))
        try:
            yield
        finally:
            if present is _MISSING and (isinstance(owner, type) or original is None):
                delattr(owner, self.leaf)
            else:
                setattr(owner, self.leaf, original if present is _MISSING else present)


def _part(module: str, build: Callable[[Any, Any, Any], Any]) -> Replace:
    """A replacement from a module of this package, imported only when it is made: the module imports Triton."""

    def replace(session: Any, original: Any) -> Any:
        return build(importlib.import_module(f"{__package__}.{module}"), session, original)

    return replace


def _constant(value: Any) -> Replace:
    return lambda session, original: lambda *args, **kwargs: value


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
    Place("driver", "triton.runtime.driver", "driver._active", _driver),
    Place("driver's choice", "torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", _constant(None)),
    Place("launch", _HEURISTICS, "CachingAutotuner.run", _launch_inductor),
    Place("launch under profiling", _HEURISTICS, "DebugAutotuner.run", _launch_inductor),
    Place("device code", _HEURISTICS, "CachingAutotuner.precompile", _constant(None)),
    Place("kernel source", "torch._inductor.async_compile", "AsyncCompile.triton", _sources),
    Place("compile workers", "torch._inductor.async_compile", "get_compile_threads", _constant(1)),
    Place("choice by timing", "torch._inductor.select_algorithm", "AlgorithmSelectorCache.__call__", _choice),
    Place("buffers", "torch._C._dynamo.guards", "_empty_strided_cuda", _buffer, optional=True),
    Place("layouts", "torch._C._dynamo.guards", "assert_size_stride", _layout),
    Place("operators", "torch._inductor.output_code", "CompiledFxGraph.__call__", _graph_call),
    Place("dynamo's support of Triton", "torch.utils._triton", "has_triton", _constant(True)),
    Place("user's launch", "triton.runtime.jit", "JITFunction.run", _launch_directly),
    Place("user's autotuning", "triton.runtime.autotuner", "Autotuner.run", _launch_autotuned),
    Place("device function", "triton.runtime.jit", "JITFunction.__call__", _call),
    Place("user's launch, declared interpreted", "triton.runtime.interpreter", "InterpretedFunction.run",
          _launch_directly),
    Place("device function, declared interpreted", "triton.runtime.interpreter", "InterpretedFunction.__call__", _call),
)
# fmt: on

#: What calls of Triton functions inside of a kernel need.
DEVICE_FUNCTIONS = tuple(place for place in PLACES if place.replace is _call)


def missing_places() -> dict[str, str]:
    """The places that this torch and Triton lack, by name, with the reason."""
    reasons = {place.name: place.missing() for place in PLACES}
    return {name: why for name, why in reasons.items() if why is not None}


@contextlib.contextmanager
def installed(session: Any, places: Iterable[Place] = PLACES) -> Iterator[None]:
    """Replace the places for the time of the block."""
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(place.replaced(session))
        yield
