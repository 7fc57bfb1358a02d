"""The reference run, and at each layer the errors of the other side."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.layer_errors import (
    Alone,
    Distance,
    Entered,
    Layer,
    Mode,
    Rerun,
    apart,
    misfit,
    misshapen,
    viewed,
)
from fuzzcompile.analyses.profile.side_runs import (
    WHOLE,
    Calls,
    Look,
    OperatorCall,
    operators_watched,
    refuse_failed,
    returned,
)
from fuzzcompile.analyses.profile.sides import Side
from fuzzcompile.analyses.profile.taps import KeptCall, KeptTensor, find_layers, leaves
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram
from fuzzcompile.run.device import shorten_message
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe


@dataclass(frozen=True)
class Known:
    """Results of other runs, layer by layer.

    Attributes:
        calls: the side that is measured.
        exact: that side in float64; empty if it has no such form.
        truth: the program in float64, run eagerly.
        rounding: the program with every operator moved by an ulp.
        reference: outputs of a compiled or recorded reference, whose layers are run alone in eager mode; None for one
            that is run here in eager mode.
    """

    calls: Calls
    exact: Calls
    truth: Calls
    rounding: Calls
    reference: Calls | None = None


@dataclass
class Walk:
    """Runs the reference and measures each layer of the other side as it ends.

    Args:
        case: the case.
        device: where sides run that name no device of their own.
        reference: what the other side is compared with.
        against: the side that is measured.
        known: what other runs showed.
    """

    case: Case
    device: torch.device
    reference: Side
    against: Side
    known: Known
    layers: list[Layer] = field(default_factory=list)
    _entered: dict[str, list[Entered]] = field(default_factory=dict)
    _count: Counter[str] = field(default_factory=Counter)
    _busy: bool = False
    _native: torch.dtype = torch.float32

    def run(self, look: Look) -> Observation:
        """Run the reference; ``layers`` are then in the order in which they ended.

        Raises:
            CannotRun: the reference raises.
        """
        others = {} if look.operators else self._other_modules(look.depth)
        program = self.reference.built(self.case, self.device)
        self._native = program.dtype
        with (
            self._watching(program, look, others) as called,
            self.reference.attention(),
            self.reference.numerics(program.dtype),
        ):
            observation = observe(self.case, program, called)
        refuse_failed(self.case, self.reference, observation)
        self._measure((WHOLE, 0), "program", returned(observation), None)
        return observation

    @contextlib.contextmanager
    def _watching(
        self, program: CaseProgram, look: Look, others: Mapping[str, nn.Module]
    ) -> Iterator[Callable[..., object]]:
        if look.operators:
            with operators_watched(program, self) as called:
                yield called
            return
        with contextlib.ExitStack() as stack:
            for name, module in find_layers(program, look.depth).items():
                stack.enter_context(self._watched(name, module, others.get(name, module)))
            yield program.model

    def _other_modules(self, depth: int | None) -> Mapping[str, nn.Module]:
        """The layers in the dtype and on the device of the measured side, if the reference's own are not that.

        They are copied: a script has one set of modules, which the next run converts.
        """
        if self._alike:
            return {}
        side = self.reference if self.against.kind == "recording" else self.against
        return {
            name: copy.deepcopy(module)
            for name, module in find_layers(side.built(self.case, self.device), depth).items()
        }

    @property
    def _alike(self) -> bool:
        """Return whether both sides run in the same dtype and on the same device."""
        place, sides = self._place(), (self.reference, self.against)
        same = len({(side.dtype, side.is_exact) for side in sides}) == 1
        return same and place == self.reference.device(self.device)

    def _place(self) -> torch.device:
        """Return the side in which layers run again: the reference's, if the measured one was recorded elsewhere."""
        side = self.reference if self.against.kind == "recording" else self.against
        return side.device(self.device)

    def entered(self, call: OperatorCall) -> Entered:
        """Take the arguments of an operator that begins."""
        return Entered.now(call.args, call.kwargs)

    def left(self, call: OperatorCall, entered: Entered, result: object) -> None:
        """Measure an operator that has ended; its parameters are arguments, so that it serves both sides."""
        self._ended((call.name, call.number), call.kind, call.function, call.function, entered, result)

    @contextlib.contextmanager
    def _watched(self, name: str, module: nn.Module, other: nn.Module) -> Iterator[None]:
        def enter(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if not self._busy:
                with _disable_current_modes():
                    self._entered.setdefault(name, []).append(Entered.now(args, kwargs))

        def leave(_module: nn.Module, _args: tuple[object, ...], result: object) -> None:
            if self._busy or not self._entered.get(name):
                return
            key, entered = (name, self._count[name]), self._entered[name].pop()
            self._count[name] += 1
            self._busy = True
            try:
                with _disable_current_modes():
                    self._ended(key, type(module).__name__, module, other, entered, result)
            finally:
                self._busy = False

        before = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        after = module.register_forward_hook(leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _ended(
        self,
        key: tuple[str, int],
        kind: str,
        function: Callable[..., object],
        other: Callable[..., object],
        entered: Entered,
        result: object,
    ) -> None:
        reference = Alone(function, entered, self.reference.device(self.device))
        rerun = Rerun(
            reference,
            reference if other is function and self._alike else Alone(other, entered, self._place()),
            _modes(self.reference, self._native),
            _modes(self.against, self._native),
            self._native,
            entered.tensors,
            shared=self._alike and not {"sdpa", "float64"} & {self.reference.kind, self.against.kind},
        )
        self._measure(key, kind, viewed(leaves(result)), rerun)

    def _measure(self, key: tuple[str, int], kind: str, output: Sequence[KeptTensor], rerun: Rerun | None) -> None:
        call, given = self.known.calls.get(key), self.known.reference
        if given is not None and key in given:
            output = given[key].outputs
        label = KeptCall(*key, kind, [], []).label
        if call is None:
            self.layers.append(Layer(label, kind, note=f"{self.against} does not call it"))
            return
        layer = Layer(
            label,
            kind,
            apart=apart(call.outputs, output),
            misshapen=misshapen(call.outputs, output),
            truth=self._against_truth(key, call),
            reference_truth=_apart(self.known.truth.get(key), output),
            rounding=_apart(self.known.rounding.get(key), output),
        )
        if rerun is not None:
            layer = self._run_again(layer, key, call, output, rerun)
        self.layers.append(layer)

    def _run_again(
        self, layer: Layer, key: tuple[str, int], call: KeptCall, output: Sequence[KeptTensor], rerun: Rerun
    ) -> Layer:
        why = misfit(call.inputs, rerun.own_inputs)
        if why is not None:
            return replace(layer, note=why)
        try:
            layer = rerun.local(layer, call, output)
            exact = self.known.exact.get(key)
            return layer if exact is None else rerun.in_float64(layer, exact)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the layer, which may raise anything when it is run out of its place
            return replace(layer, note=f"it cannot be run alone ({type(error).__name__}: {shorten_message(error)})")

    def _against_truth(self, key: tuple[str, int], call: KeptCall) -> Distance | None:
        truth = self.known.truth.get(key)
        return None if truth is None else apart(call.outputs, truth.outputs)


def _apart(call: KeptCall | None, output: Sequence[KeptTensor]) -> Distance | None:
    """Return the distance of a run from the reference's ``output``; distances are symmetric but for the size."""
    return None if call is None else apart(call.outputs, output)


def _modes(side: Side, native: torch.dtype) -> Callable[[], Sequence[Mode]]:
    return lambda: (side.attention(), side.numerics(native))
