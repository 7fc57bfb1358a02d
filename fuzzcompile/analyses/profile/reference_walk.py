"""The reference run, and at each layer the errors of the other side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

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
from fuzzcompile.analyses.profile.side_runs import WHOLE, Calls, Look, SideRun, refuse_failed, returned
from fuzzcompile.analyses.profile.sides import Side
from fuzzcompile.analyses.profile.taps import KeptCall, KeptTensor, LayerCall, find_layers, leaves, watched
from fuzzcompile.run.case import Case
from fuzzcompile.run.device import shorten_message
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe


@dataclass
class Walk:
    """Runs the reference and measures each layer of the other side as it ends.

    The layers of a compiled or recorded reference, whose results are ``given``, are run alone in eager mode.
    """

    case: Case  # the case
    device: torch.device  # where sides run that name no device of their own
    reference: Side  # what the other side is compared with
    against: Side  # the side that is measured
    measured: SideRun  # its run
    truth: Calls  # the program in float64, run eagerly, layer by layer
    rounding: Calls  # the program with every operator moved by an ulp
    given: Calls | None = None
    layers: list[Layer] = field(default_factory=list)  # in the order in which they ended
    _native: torch.dtype = torch.float32
    _others: Mapping[str, nn.Module] = field(default_factory=dict)

    def run(self, look: Look) -> Observation:
        """Run the reference and fill ``layers``.

        Raises:
            CannotRun: the reference raises.
        """
        self._others = {} if look.operators else self._other_modules(look.depth)
        program = self.reference.built(self.case, self.device)
        self._native = program.dtype
        with (
            watched(program, look.depth, self, operators=look.operators) as called,
            self.reference.attention(),
            self.reference.numerics(program.dtype),
        ):
            observation = observe(self.case, program, called)
        refuse_failed(self.case, self.reference, observation)
        self._measure((WHOLE, 0), "program", returned(observation), None)
        return observation

    def entered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Entered:
        """Take the arguments of a layer that begins."""
        return Entered.now(args, kwargs)

    def left(self, call: LayerCall, entered: Entered, result: object) -> None:
        """Measure a layer that has ended; an operator's parameters are arguments, so that it serves both sides."""
        other = self._others.get(call.name, call.function)
        reference = Alone(call.function, entered, self.reference.device(self.device))
        rerun = Rerun(
            reference,
            reference if other is call.function and self._alike else Alone(other, entered, self._place),
            _modes(self.reference, self._native),
            _modes(self.against, self._native),
            self._native,
            entered.tensors,
            shared=self._alike and not {"sdpa", "float64"} & {self.reference.kind, self.against.kind},
        )
        self._measure((call.name, call.number), call.kind, viewed(leaves(result)), rerun)

    def _other_modules(self, depth: int | None) -> Mapping[str, nn.Module]:
        """The layers in the dtype and on the device of the measured side, if the reference's own are not that.

        They are copied: a script has one set of modules, which the next run converts.
        """
        if self._alike:
            return {}
        side = self.reference if self.against.kind == "recording" else self.against
        layers = find_layers(side.built(self.case, self.device), depth)
        return {name: copy.deepcopy(module) for name, module in layers.items()}

    @property
    def _alike(self) -> bool:
        same = len({(side.dtype, side.is_exact) for side in (self.reference, self.against)}) == 1
        return same and self._place == self.reference.device(self.device)

    @property
    def _place(self) -> torch.device:
        """The device on which layers run again: the reference's, if the measured one was recorded elsewhere."""
        return (self.reference if self.against.kind == "recording" else self.against).device(self.device)

    def _measure(self, key: tuple[str, int], kind: str, output: Sequence[KeptTensor], rerun: Rerun | None) -> None:
        call = self.measured.calls.get(key)
        if self.given is not None and key in self.given:
            output = self.given[key].outputs
        label = KeptCall(*key, kind, [], []).label
        if call is None:
            self.layers.append(Layer(label, kind, note=f"{self.against} does not call it"))
            return
        layer = Layer(
            label,
            kind,
            apart=apart(call.outputs, output),
            misshapen=misshapen(call.outputs, output),
            truth=None if (truth := self.truth.get(key)) is None else apart(call.outputs, truth.outputs),
            reference_truth=_apart(truth, output),
            rounding=_apart(self.rounding.get(key), output),
        )
        self.layers.append(layer if rerun is None else self._run_again(layer, key, call, output, rerun))

    def _run_again(
        self, layer: Layer, key: tuple[str, int], call: KeptCall, output: Sequence[KeptTensor], rerun: Rerun
    ) -> Layer:
        why = misfit(call.inputs, rerun.own_inputs)
        if why is not None:
            return replace(layer, note=why)
        try:
            layer = rerun.local(layer, call, output)
            exact = None if self.measured.exact is None else self.measured.exact.calls.get(key)
            return layer if exact is None else rerun.in_float64(layer, exact)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the layer, which may raise anything when it is run out of its place
            return replace(layer, note=f"it cannot be run alone ({type(error).__name__}: {shorten_message(error)})")


def _apart(call: KeptCall | None, output: Sequence[KeptTensor]) -> Distance | None:
    """The distance of a run from the reference's ``output``; distances are symmetric but for the size."""
    return None if call is None else apart(call.outputs, output)


def _modes(side: Side, native: torch.dtype) -> Callable[[], Sequence[Mode]]:
    return lambda: (side.attention(), side.numerics(native))
