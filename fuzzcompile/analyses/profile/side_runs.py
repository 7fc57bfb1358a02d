"""Running one side of a profile, with taps at the layers."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.sides import Side
from fuzzcompile.analyses.profile.taps import (
    Event,
    Keep,
    Keeping,
    KeptCall,
    KeptTensor,
    calls_in,
    find_layers,
    find_roots,
    leaves,
    streamed,
    tapped,
)
from fuzzcompile.compiler.session import open_plain_session, open_session
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import SavedTensors, observe

# ``--ops``: every operator that a program calls, in the place of its layers.

Operator = Callable[..., object]


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator as it begins: ``name`` says where, and ``number`` which of that name it is."""

    name: str
    number: int
    function: Operator
    args: tuple[object, ...]
    kwargs: dict[str, object]

    @property
    def kind(self) -> str:
        """The operator, without its place."""
        return self.name.rpartition(": ")[2]


class OperatorWatcher(Protocol):
    """Observer of every operator call: of its beginning and of its result."""

    def entered(self, call: OperatorCall) -> object:
        """Take what is needed of the arguments before they are written to."""

    def left(self, call: OperatorCall, entered: Any, result: object) -> None:
        """Take the result; ``entered`` is what :meth:`entered` returned."""


@dataclass(frozen=True)
class Collector:
    """Hands each call of an operator to ``add`` as it ends; nothing but what ``keep`` keeps outlives it."""

    keep: Keep
    add: Callable[[KeptCall], None]

    def entered(self, call: OperatorCall) -> list[KeptTensor]:
        """Keep the tensors among the arguments."""
        return [self.keep(tensor) for tensor in leaves((call.args, call.kwargs))]

    def left(self, call: OperatorCall, entered: list[KeptTensor], result: object) -> None:
        """Hand over the call with what it returned."""
        self.add(KeptCall(call.name, call.number, call.kind, entered, [self.keep(tensor) for tensor in leaves(result)]))


@contextlib.contextmanager
def operators_watched(program: CaseProgram, watcher: OperatorWatcher) -> Iterator[Callable[..., object]]:
    """Tell ``watcher`` of every operator that the program calls in the block and that takes and returns tensors.

    The modules of the program give the operators their places.

    Yields:
        What to call in the place of the program's callable.
    """
    places: list[str] = []
    handles = []
    for root_name, root in find_roots(program).items():
        for name, module in root.named_modules(prefix=root_name):
            handles += [
                module.register_forward_pre_hook(functools.partial(_enter, places, name)),
                module.register_forward_hook(functools.partial(_leave, places), always_call=True),
            ]

    def called(*args: object, **kwargs: object) -> object:
        places.append("")
        try:
            return program.model(*args, **kwargs)
        finally:
            places.pop()

    try:
        with _Operators(places, watcher):
            yield called
    finally:
        for handle in handles:
            handle.remove()


def _enter(places: list[str], name: str, module: nn.Module, args: object) -> None:
    places.append(name)


def _leave(places: list[str], module: nn.Module, args: object, result: object) -> None:
    places.pop()


class _Operators(TorchFunctionMode):
    """Sees calls from Python; inside torch's own Python functions it is off, so that one call is one operator."""

    def __init__(self, places: Sequence[str], watcher: OperatorWatcher) -> None:
        super().__init__()
        self._places, self._watcher = places, watcher
        self._count: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Operator,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run ``func``, and tell of it if the program calls it."""
        given = dict(kwargs or {})
        label = _label(func)
        if label is None or not self._places or not leaves((args, given)):
            return func(*args, **given)
        place = self._places[-1]
        name = f"{place}: {label}" if place else label
        call = OperatorCall(name, self._count[name], func, args, given)
        with _disable_current_modes():
            entered = self._watcher.entered(call)
        result = func(*args, **given)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves(result)):
            self._count[name] += 1
            with _disable_current_modes():
                self._watcher.left(call, entered, result)
        return result


def _label(function: Operator) -> str | None:
    """The operator's name; None for access to an attribute of a tensor, which computes nothing."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        return None
    full = resolve_name(function) or name
    return full.removeprefix("torch.").removeprefix("nn.functional.") or None


# The row of what the program returns; no module has a name with a blank.
WHOLE = "(whole program)"
Calls = Mapping[tuple[str, int], KeptCall]


class CannotRun(FuzzcompileError):
    """The program raises in one of the ways that are to be compared (exit status 3)."""


@dataclass(frozen=True)
class Look:
    """Choice of what a run observes.

    Attributes:
        depth: which modules are layers (:func:`~fuzzcompile.analyses.profile.taps.find_layers`).
        budget: bytes of activations to keep; beyond that they are sampled.
        vetoes: rewrites to refuse in a compile.
        operators: look at every operator instead of at layers; not in compiled runs, which fuse them.
    """

    depth: int | None = None
    budget: int = 2**30
    vetoes: tuple[str, ...] = ()
    operators: bool = False


BLOCKS = Look()


@dataclass(frozen=True)
class SideRun:
    """Observations of one side.

    Attributes:
        calls: of the layers, by name and number, in the order in which they ended; what the program returned is last.
        observation: the run, with gradients.
        exact: the calls in float64; empty if this side has no float64 form.
        exact_observation: that run; None if there is none.
        ledger: what the compiler did, if one ran.
        notes: what could not be looked at.
    """

    calls: Calls
    observation: Observation
    exact: Calls = field(default_factory=dict)
    exact_observation: Observation | None = None
    ledger: Ledger | None = None
    notes: tuple[str, ...] = ()


def run_side(case: Case, device: torch.device, side: Side, look: Look) -> SideRun:
    """Run ``case`` as ``side`` says.

    Args:
        case: the case.
        device: where sides run that name no device of their own.
        side: anything but a recording.
        look: what to look at.

    Raises:
        CannotRun: the program raises.
    """
    if side.is_compiled:
        return _compiled(case, device, side, look)
    native = _eager(case, device, side, look, double=False)
    if side.kind in ("eager", "float64", "dtype"):
        return native
    try:
        return _with_exact(native, _eager(case, device, side, look, double=True))
    except CannotRun as error:
        return _without_exact(native, f"{side} has no float64 form here ({error})")


def _with_exact(native: SideRun, double: SideRun) -> SideRun:
    return replace(native, exact=double.calls, exact_observation=double.observation)


def _without_exact(native: SideRun, why: str) -> SideRun:
    return replace(native, notes=(*native.notes, why))


def _eager(case: Case, device: torch.device, side: Side, look: Look, *, double: bool) -> SideRun:
    program = side.built(case, device, double=double)
    return run_eagerly(case, program, side, look, side.numerics(program.dtype))


@contextlib.contextmanager
def collecting(
    program: CaseProgram, look: Look, keep: Keep, add: Callable[[KeptCall], None]
) -> Iterator[Callable[..., object]]:
    """Hand each call of a layer (or operator) to ``add`` as it ends, in an eager run.

    Yields:
        What to call in the place of the program's callable.
    """
    if look.operators:
        with operators_watched(program, Collector(keep, add)) as called:
            yield called
    else:
        with streamed(find_layers(program, look.depth), keep, add):
            yield program.model


def run_eagerly(
    case: Case, program: CaseProgram, side: Side, look: Look, numerics: AbstractContextManager[object]
) -> SideRun:
    """Run the program in eager mode, with taps, under ``numerics``.

    Raises:
        CannotRun: the program raises.
    """
    calls: dict[tuple[str, int], KeptCall] = {}

    def add(call: KeptCall) -> None:
        calls[call.name, call.number] = call

    with side.attention(), collecting(program, look, Keeping(look.budget), add) as called, numerics:
        observation = observe(case, program, called)
    refuse_failed(case, side, observation)
    return SideRun({**calls, (WHOLE, 0): whole(observation)}, observation)


def _compiled(case: Case, device: torch.device, side: Side, look: Look) -> SideRun:
    how = side.compilation(look.vetoes)
    with open_session(case.settings, how) as session:
        program = side.built(case, device)
        layers, events = find_layers(program, look.depth), list[Event]()
        kept = SavedTensors(case, program, side.device(device)) if how.record else None
        with tapped(layers, events):
            target = session.compile(program.model)
            observation = observe(case, program, target, describe_failure=session.describe_failure)
            refuse_failed(case, side, observation)
            native = SideRun(_collected(events, layers, look, observation), observation, ledger=session.ledger)
            if kept is None:
                return _without_exact(native, f"{side} was not run in float64")
            session.stop_capturing()
            kept.restore()
            with session.interpret_in_float64():
                double = observe(case, program, target, describe_failure=session.describe_failure)
    if double.failure is not None:
        return _without_exact(native, f"the compiled graphs do not run in float64 ({double.failure})")
    return _with_exact(native, SideRun(_collected(events, layers, look, double), double))


def untapped(case: Case, device: torch.device, side: Side, look: Look) -> Observation:
    """Run the side without taps, as a user runs it."""
    how = side.compilation(look.vetoes)
    watched = (
        open_session(case.settings, replace(how, record=False))
        if look.vetoes
        else open_plain_session(case.settings, how)
    )
    with watched as session:
        program = side.built(case, device)
        return observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)


def _collected(events: list[Event], layers: Mapping[str, nn.Module], look: Look, observation: Observation) -> Calls:
    """The calls that the taps saw, and what the program returned behind them."""
    kinds = {name: type(module).__name__ for name, module in layers.items()}
    calls = {(call.name, call.number): call for call in calls_in(events, kinds, Keeping(look.budget))}
    return {**calls, (WHOLE, 0): whole(observation)}


def whole(observation: Observation) -> KeptCall:
    """The program's result, as a call of a layer."""
    return KeptCall(WHOLE, 0, "program", [], returned(observation))


def returned(observation: Observation) -> Sequence[KeptTensor]:
    """The tensors among the outputs of a run."""
    tensors = [value.value for value in observation.values if value.kind == "output"]
    return [KeptTensor.of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]


def refuse_failed(case: Case, side: Side, observation: Observation) -> None:
    """Refuse a run that raised.

    Raises:
        CannotRun: naming the error.
    """
    if observation.failure is not None:
        raise CannotRun(f"{case.name} raises as {side}: {observation.failure}; triage judges that.")
