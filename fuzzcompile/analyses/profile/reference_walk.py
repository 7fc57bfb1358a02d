"""The reference run, and at each layer the errors of the other side, also in the layer run again on other inputs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.layer_errors import Distance, Layer, apart, distance, misshapen, relative_step
from fuzzcompile.analyses.profile.side_runs import WHOLE, Calls, Look, SideRun, refuse_failed, returned
from fuzzcompile.analyses.profile.sides import Side, exactly
from fuzzcompile.analyses.profile.taps import KeptCall, KeptTensor, LayerCall, find_layers, leaves, watched
from fuzzcompile.diagnosis.oracle import rounding as value_change
from fuzzcompile.model.thresholds import SEMANTIC_STEP
from fuzzcompile.programs.capture.case_loader import copy_objects
from fuzzcompile.programs.capture.state import RandomState
from fuzzcompile.run.arithmetic_modes import UlpNoise
from fuzzcompile.run.case import Case
from fuzzcompile.run.device import shorten_message
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe
from fuzzcompile.run.tensors import map_tensors

# Layers run alone, again, on other inputs: that tells an error made in a layer from one that it inherited.

Mode = contextlib.AbstractContextManager[object]
_NOISE_SEED, _EXACT_NOISE_SEED = 1, 2


@dataclass(frozen=True)
class Entered:
    """A call of a layer as it begins: its arguments, and the random state in which it runs."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    random: RandomState

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments."""
        return leaves((self.args, self.kwargs))


class Alone:
    """Runs one module or operator on the device of its parameters; leaves its buffers and the random streams alone."""

    def __init__(self, function: Callable[..., object], entered: Entered, device: torch.device) -> None:
        self._function, self._entered, self._device = function, entered, device
        self._buffers = {name: buffer.detach().clone() for name, buffer in self._own_buffers()}

    def on(self, inputs: Sequence[torch.Tensor], *modes: Mode) -> list[torch.Tensor]:
        """Return the layer's result for ``inputs``, which take the place of the tensors it was called with."""
        entered = self._entered
        placed = {
            id(own): tensor.to(self._device, copy=True) for own, tensor in zip(entered.tensors, inputs, strict=True)
        }
        given = map_tensors(lambda tensor: placed.get(id(tensor), tensor), (entered.args, entered.kwargs))
        args, kwargs = copy_objects(given)
        with contextlib.ExitStack() as stack:
            stack.callback(RandomState.current().restore)
            entered.random.restore()
            stack.enter_context(_disable_current_modes())
            stack.callback(self._restore)
            for mode in modes:
                stack.enter_context(mode)
            return [result.detach() for result in leaves(self._function(*args, **kwargs))]

    def perturbed(self, inputs: Sequence[torch.Tensor], *modes: Mode) -> list[torch.Tensor]:
        """Return the layer's result with every input, and every operator's result, moved by up to one ulp."""
        generator = torch.Generator().manual_seed(_NOISE_SEED)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            draw = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device)
            narrow = (tensor.double() * (1 + torch.finfo(tensor.dtype).eps * draw)).to(tensor.dtype)
            return torch.where(torch.isfinite(narrow), narrow, tensor)

        return self.on([moved(tensor) for tensor in inputs], *modes, UlpNoise(_NOISE_SEED))

    def _own_buffers(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._function.named_buffers() if isinstance(self._function, nn.Module) else ()

    def _restore(self) -> None:
        with torch.no_grad():
            for name, buffer in self._own_buffers():
                before = self._buffers.get(name)
                if before is not None and not torch.equal(buffer, before):
                    buffer.copy_(before)


def _misfit(kept: Sequence[KeptTensor], own: Sequence[torch.Tensor]) -> str | None:
    """Return the reason why kept inputs cannot take the place of a layer's own; None if they can."""
    if len(kept) != len(own):
        return f"it got {len(kept)} tensors, and {len(own)} in the reference"
    for tensor, was in zip(kept, own, strict=True):
        if tensor.shape != tuple(was.shape):
            return f"it got a tensor of shape {tensor.shape}, and of {tuple(was.shape)} in the reference"
        if not tensor.whole:
            return "its inputs were recorded as samples"
    return None


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
        """Run the reference, which may raise `CannotRun`, and fill ``layers``."""
        if not look.operators and not self._alike:
            # The layers in the dtype and on the device of the measured side. They are copied: a script has one set of
            # modules, which the next run converts.
            side = self.reference if self.against.kind == "recording" else self.against
            layers = find_layers(side.built(self.case, self.device), look.depth)
            self._others = {name: copy.deepcopy(module) for name, module in layers.items()}
        program = self.reference.built(self.case, self.device)
        self._native = program.dtype
        with (
            watched(program, look.depth, self, operators=look.operators) as called,
            self.reference.attention(),
            self.reference.numerics(program.dtype),
        ):
            observation = observe(self.case, program, called)
        refuse_failed(self.case, self.reference, observation)
        self._measure((WHOLE, 0), "program", returned(observation))
        return observation

    def entered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Entered:
        """Take the arguments of a layer that begins; what it can change is copied: tensors, a key-value cache."""

        def unchanging(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()

        return Entered(*copy_objects(map_tensors(unchanging, (args, kwargs))), RandomState.current())

    def left(self, call: LayerCall, entered: Entered, result: object) -> None:
        """Measure a layer that has ended."""
        self._measure((call.name, call.number), call.kind, _viewed(leaves(result)), (call, entered))

    @property
    def _alike(self) -> bool:
        same = len({(side.dtype, side.is_exact) for side in (self.reference, self.against)}) == 1
        return same and self._place == self.reference.device(self.device)

    @property
    def _place(self) -> torch.device:
        """The device on which layers run again: the reference's, if the measured one was recorded elsewhere."""
        return (self.reference if self.against.kind == "recording" else self.against).device(self.device)

    def _measure(
        self,
        key: tuple[str, int],
        kind: str,
        output: Sequence[KeptTensor],
        ran: tuple[LayerCall, Entered] | None = None,
    ) -> None:
        measured = self.measured.calls.get(key)
        if self.given is not None and key in self.given:
            output = self.given[key].outputs
        label = KeptCall(*key, kind, [], []).label
        if measured is None:
            self.layers.append(Layer(label, kind, note=f"{self.against} does not call it"))
            return
        truth, rounding = self.truth.get(key), self.rounding.get(key)
        layer = Layer(
            label,
            kind,
            apart=apart(measured.outputs, output),
            misshapen=misshapen(measured.outputs, output),
            truth=None if truth is None else apart(measured.outputs, truth.outputs),
            reference_truth=_apart(truth, output),
            rounding=_apart(rounding, output),
        )
        if ran is not None:
            why = _misfit(measured.inputs, ran[1].tensors)
            try:
                layer = replace(layer, note=why) if why is not None else self._run_again(layer, measured, output, *ran)
            except (KeyboardInterrupt, MemoryError):
                raise
            except Exception as error:  # of the layer, which may raise anything when it is run out of its place
                said = f"{type(error).__name__}: {shorten_message(error)}"
                layer = replace(layer, note=f"it cannot be run alone ({said})")
        self.layers.append(layer)

    def _run_again(
        self, layer: Layer, measured: KeptCall, output: Sequence[KeptTensor], call: LayerCall, entered: Entered
    ) -> Layer:
        """``layer`` with all that reruns on the inputs of the measured side show; ``output`` is the reference's."""
        sides, own_inputs, native = (self.reference, self.against), entered.tensors, self._native
        # An operator's parameters are arguments, so that it serves both sides.
        other = self._others.get(call.name, call.function)
        reference = Alone(call.function, entered, self.reference.device(self.device))
        against = reference if other is call.function and self._alike else Alone(other, entered, self._place)
        inputs = [kept.values for kept in measured.inputs]
        as_given = [
            tensor.to(own.dtype) if own.is_floating_point() and tensor.is_floating_point() else tensor
            for tensor, own in zip(inputs, own_inputs, strict=True)
        ]
        again = reference.on(as_given, *_modes(self.reference, native))
        shared = self._alike and not {"sdpa", "float64"} & {side.kind for side in sides}
        base = again if shared else against.on(inputs, *_modes(self.against, native))
        noisy = against.perturbed(inputs, *_modes(self.against, native))
        exact = reference.on(inputs, exactly(native))
        layer = replace(
            layer,
            made=apart(measured.outputs, _viewed(again)),
            inherited=apart(_viewed(again), output),
            entering=distance(inputs, [tensor.cpu() for tensor in own_inputs]),
            noise=distance(noisy, base),
            own=max(filter(None, (distance(base, exact), distance(again, exact))), key=lambda d: d.rms, default=None),
        )
        doubled = None if self.measured.exact is None else self.measured.exact.calls.get((call.name, call.number))
        # Where the float64 form of the measured side was sampled, nothing can be run again on its inputs.
        if doubled is None or _misfit(doubled.inputs, own_inputs) is not None:
            return layer
        return _in_float64(layer, doubled, reference, native)


def _in_float64(layer: Layer, call: KeptCall, reference: Alone, native: torch.dtype) -> Layer:
    """``layer`` with what the measured side's float64 form makes newly."""
    inputs = [kept.values for kept in call.inputs]
    step = relative_step(call.outputs, _viewed(reference.on(inputs, exactly(native))))
    if step is None or step <= SEMANTIC_STEP:
        return replace(layer, exact=step)
    # The mode entered last sees a call first: the noise is that of the operators in float64, not of native weights.
    noisy = reference.on(inputs, UlpNoise(_EXACT_NOISE_SEED), exactly(native))
    again = reference.on(inputs, exactly(native))
    return replace(layer, exact=step, exact_noise=value_change.largest_change(noisy, again))


def _apart(call: KeptCall | None, output: Sequence[KeptTensor]) -> Distance | None:
    """The distance of a run from the reference's ``output``; distances are symmetric but for the size."""
    return None if call is None else apart(call.outputs, output)


def _viewed(tensors: Sequence[torch.Tensor]) -> list[KeptTensor]:
    """Tensors that no run changes any more, in the form of kept ones."""
    return [KeptTensor.view(tensor) for tensor in tensors]


def _modes(side: Side, native: torch.dtype) -> tuple[Mode, Mode]:
    return side.attention(), side.numerics(native)
