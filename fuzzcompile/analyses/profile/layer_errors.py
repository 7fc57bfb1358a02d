"""How far two runs are apart in each layer: the reference run measures every layer of the other side as it ends."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.sides import WHOLE, Calls, Look, Side, SideRun, exactly, refuse_failed, returned
from fuzzcompile.analyses.profile.taps import KeptCall, KeptTensor, LayerCall, find_layers, leaves, watched
from fuzzcompile.diagnosis.oracle import rounding as value_change
from fuzzcompile.model.thresholds import SEMANTIC_STEP
from fuzzcompile.programs.capture.case_loader import copy_objects
from fuzzcompile.programs.capture.state import RandomState
from fuzzcompile.run import metrics
from fuzzcompile.run.arithmetic_modes import UlpNoise
from fuzzcompile.run.case import Case
from fuzzcompile.run.device import describe_run_error
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe
from fuzzcompile.run.sharded_tensors import holds_on_any_rank, lay_out, read_own, read_part
from fuzzcompile.run.tensors import map_tree


@dataclass(frozen=True)
class Distance:
    """Absolute errors between two results, infinite where only one of them has a number that is not finite."""

    largest: float
    rms: float
    size: float  # RMS of the second
    cosine: float | None
    finite: bool
    value: float = 0.0  # magnitude of the second at the largest error

    @property
    def relative(self) -> float:
        """The RMS error in units of the size; the error itself where the size is 0."""
        return self.rms / self.size if self.size else self.rms


def distance(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> Distance | None:
    """The distance of two lists of tensors; None if their numbers or shapes differ or there are none."""
    if len(first) != len(second) or any(a.shape != b.shape for a, b in zip(first, second, strict=True)):
        return None
    count, largest, squares, size, product, own = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    finite, value = True, 0.0
    for left, right in zip(first, second, strict=True):
        for _, (a, b) in metrics.iter_pieces(left, right):
            apart = (a - b).abs()
            apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, apart).nan_to_num(math.inf, math.inf)
            count += a.numel()
            worst = int(apart.argmax())
            if float(apart[worst]) > largest:
                largest, value = float(apart[worst]), float(b[worst].abs())
            squares += float(apart.square().sum())
            own += float(a.abs().square().nansum())
            size += float(b.abs().square().nansum())
            product += float((a * b.conj()).real.nansum()) if a.is_complex() else float((a * b).nansum())
            finite = finite and bool(b.isfinite().all()) and bool(a.isfinite().all())
    if not count:
        return None
    norm = math.sqrt(own) * math.sqrt(size)
    cosine = product / norm if finite and norm and math.isfinite(norm) else None
    return Distance(largest, math.sqrt(squares / count), math.sqrt(size / count), cosine, finite, value)


@dataclass(frozen=True)
class Layer:
    """One call of a layer, measured. What could not be measured is None, and ``note`` says why."""

    label: str  # its name, and its number from the second call on
    kind: str  # its class
    apart: Distance | None = None  # this side's output against the reference's
    made: Distance | None = None  # this side's output against the reference's layer on this side's own input
    inherited: Distance | None = None  # the reference's layer on this side's input, against the reference's output
    entering: Distance | None = None  # this side's input against the reference's
    noise: Distance | None = None  # what rounding does to this layer alone, on this side's input
    own: Distance | None = None  # rounding of the layer run eagerly on this side's input, in the coarser precision
    rounding: Distance | None = None  # the program with every operator moved by an ulp, up to here
    truth: Distance | None = None  # this side's output against float64
    reference_truth: Distance | None = None  # the reference's output against float64
    exact: float | None = None  # what this side, computed in float64, makes newly; relative to the size of the output
    exact_noise: float = 0.0  # what one ulp of float64 per operator makes of it, in the same units
    misshapen: bool = False  # whether the results of both sides differ in number or shape
    note: str = ""

    @property
    def changes_meaning(self) -> bool:
        """Return whether float64 shows an error made here that rounding does not explain."""
        return self.exact is not None and value_change.changes_meaning(self.exact, self.exact_noise)

    @property
    def amplification(self) -> float | None:
        """Relative inherited error over the relative error of the input; None if nothing was inherited."""
        if self.inherited is None or self.entering is None or not self.entering.relative:
            return None
        factor = self.inherited.relative / self.entering.relative
        return factor if math.isfinite(factor) else None


Kept = Sequence[KeptTensor]


def apart(first: Kept | None, second: Kept) -> Distance | None:
    """The distance of kept tensors, at the elements that both have; None without a first, or if none correspond."""
    pairs = _pairs(first, second)
    return None if pairs is None else distance([a for a, _ in pairs], [b for _, b in pairs])


def relative_step(first: Kept | None, second: Kept) -> float | None:
    """Return the largest relative change of kept tensors; None as for :func:`apart`."""
    pairs = _pairs(first, second)
    return None if pairs is None else max((value_change.relative_change(a, b) for a, b in pairs), default=0.0)


def _pairs(first: Kept | None, second: Kept) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    if first is None or _misshapen(first, second):
        return None
    pairs = [pair for one, other in zip(first, second, strict=True) if (pair := one.beside(other)) is not None]
    return pairs if len(pairs) == len(first) else None


def _misshapen(first: Kept, second: Kept) -> bool:
    return [tensor.shape for tensor in first] != [tensor.shape for tensor in second]


SUFFIX = " (gradient)"
_OTHERS = "(others)"


def gradient_layers(
    names: Sequence[str],
    against: Observation,
    reference: Observation,
    *,
    truth: Observation,
    rounding: Observation,
    exact: Observation | None,
) -> list[Layer]:
    """The gradients of each layer's parameters, compared; empty for a case without a backward pass.

    The layers are ``names`` in the order in which they ended; the backward pass goes the other way, and so do the rows.
    Gradients of parameters that no layer holds, and of inputs, come last, under a name of their own. The runs are the
    program in float64 (``truth``), with every operator moved by an ulp (``rounding``), and the measured side in float64
    (``exact``, None if it has no such form).
    """
    runs = [_gradients(run) for run in (against, reference, truth, rounding, exact)]
    owned: dict[str, list[str]] = {owner: [] for owner in (*reversed(names), _OTHERS)}
    for name in runs[1]:
        path = name.rpartition(" ")[2]
        holders = [holder for holder in names if path.startswith(f"{holder}.")]
        owned[max(holders, key=len, default=_OTHERS)].append(name)
    layers = []
    for owner, gradients in owned.items():
        if not gradients:
            continue
        own, wanted, right, moved, double = ([run[name] for name in gradients if name in run] for run in runs)
        missing = [name for name in gradients if name not in runs[0]]
        layer = Layer(
            f"{owner}{SUFFIX}",
            "gradient",
            apart=distance(own, wanted),
            truth=distance(own, right),
            reference_truth=distance(wanted, right),
            rounding=distance(moved, wanted),
            exact=None if exact is None else _step(double, right),
            note=f"no gradient of {', '.join(missing[:3])}" if missing else "",
        )
        layers.append(layer)
    return layers


def _gradients(observation: Observation | None) -> dict[str, torch.Tensor]:
    values = () if observation is None else observation.values
    kept = ((value.name, value.value) for value in values if value.kind == "gradient")
    return {name: value for name, value in kept if isinstance(value, torch.Tensor)}


def _step(doubled: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float | None:
    """The relative change of gradients in float64, less what is lost in them where autograd rounds them.

    Autograd casts a gradient to the dtype of its parameter, in which both sides are therefore compared.
    """
    sizes = distance(truth, truth)
    if len(doubled) != len(truth) or sizes is None:
        return None
    # A gradient that is zero by symmetry, as that of a bias under a softmax, has no size of its own.
    units = [sizes.size] * len(truth)
    narrowest = max((torch.finfo(tensor.dtype).eps for tensor in doubled if tensor.is_floating_point()), default=0.0)
    return max(0.0, value_change.largest_change(doubled, truth, units) - 4 * narrowest)


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
            id(own): lay_out(tensor.to(self._device, copy=True), own)
            for own, tensor in zip(entered.tensors, inputs, strict=True)
        }
        given = map_tree(lambda tensor: placed.get(id(tensor), tensor), (entered.args, entered.kwargs))
        args, kwargs = copy_objects(given)
        with contextlib.ExitStack() as stack:
            stack.callback(RandomState.current().restore)
            entered.random.restore()
            stack.enter_context(_disable_current_modes())
            stack.callback(self._restore)
            for mode in modes:
                stack.enter_context(mode)
            return [read_own(result) for result in leaves(self._function(*args, **kwargs))]

    def perturbed(self, inputs: Sequence[torch.Tensor], *modes: Mode) -> list[torch.Tensor]:
        """Return the layer's result with every input, and every operator's result, moved by up to one ulp."""
        noise = UlpNoise(_NOISE_SEED)
        moved = [noise.add_noise(tensor) if tensor.is_floating_point() else tensor for tensor in inputs]
        return self.on(moved, *modes, UlpNoise(_NOISE_SEED))

    def _own_buffers(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._function.named_buffers() if isinstance(self._function, nn.Module) else ()

    def _restore(self) -> None:
        with torch.no_grad():
            for name, buffer in self._own_buffers():
                before = self._buffers.get(name)
                if before is not None and not torch.equal(buffer, before):
                    buffer.copy_(before)


def _misfit(kept: Kept, own: Sequence[torch.Tensor]) -> str | None:
    """Return the reason why kept inputs cannot take the place of a layer's own; None if they can."""
    if len(kept) != len(own):
        return f"it got {len(kept)} tensors, and {len(own)} in the reference"
    for tensor, was in zip(kept, own, strict=True):
        shape = tuple(read_part(was).shape)
        if tensor.shape != shape:
            return f"it got a tensor of shape {tensor.shape}, and of {shape} in the reference"
        if not tensor.whole:
            return "its inputs were recorded as samples"
    return None


@dataclass
class Walk:
    """Runs the reference, or its layers eagerly where its results are ``given``, and measures each layer as it ends."""

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
            layers = find_layers(self._rerun.built(self.case, self.device), look.depth)
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
            return tensor if isinstance(tensor, nn.Parameter) else lay_out(read_own(tensor).clone(), tensor)

        return Entered(*copy_objects(map_tree(unchanging, (args, kwargs))), RandomState.current())

    def left(self, call: LayerCall, entered: Entered, result: object) -> None:
        """Measure a layer that has ended."""
        self._measure((call.name, call.number), call.kind, _viewed(leaves(result)), (call, entered))

    @property
    def _rerun(self) -> Side:
        """The side as which layers run again: the reference, if the measured one was recorded elsewhere."""
        return self.reference if self.against.kind == "recording" else self.against

    @property
    def _alike(self) -> bool:
        same = len({(side.dtype, side.is_exact) for side in (self.reference, self.against)}) == 1
        return same and self._rerun.device(self.device) == self.reference.device(self.device)

    def _measure(
        self, key: tuple[str, int], kind: str, output: Kept, ran: tuple[LayerCall, Entered] | None = None
    ) -> None:
        measured = self.measured.calls.get(key)
        if self.given is not None and key in self.given:
            output = self.given[key].outputs
        label = KeptCall(*key, kind, [], []).label
        if measured is None:
            self.layers.append(Layer(label, kind, note=f"{self.against} does not call it"))
            return
        truth, rounding = (calls[key].outputs if key in calls else None for calls in (self.truth, self.rounding))
        layer = Layer(
            label,
            kind,
            apart=apart(measured.outputs, output),
            misshapen=_misshapen(measured.outputs, output),
            truth=None if truth is None else apart(measured.outputs, truth),
            reference_truth=apart(truth, output),
            rounding=apart(rounding, output),
        )
        if ran is not None:
            why = _misfit(measured.inputs, ran[1].tensors)
            if holds_on_any_rank(why is not None):
                self.layers.append(replace(layer, note=why or "another rank cannot run it alone"))
                return
            try:
                layer = self._run_again(layer, measured, output, *ran)
            except (KeyboardInterrupt, MemoryError):
                raise
            except Exception as error:  # of the layer, which may raise anything when it is run out of its place
                layer = replace(layer, note=f"it cannot be run alone ({describe_run_error(error)})")
        self.layers.append(layer)

    def _run_again(self, layer: Layer, measured: KeptCall, output: Kept, call: LayerCall, entered: Entered) -> Layer:
        """``layer`` with all that reruns on the inputs of the measured side show; ``output`` is the reference's."""
        sides, own_inputs, native = (self.reference, self.against), entered.tensors, self._native
        # An operator's parameters are arguments, so that it serves both sides.
        other = self._others.get(call.name, call.function)
        reference = Alone(call.function, entered, self.reference.device(self.device))
        place = self._rerun.device(self.device)
        against = reference if other is call.function and self._alike else Alone(other, entered, place)
        inputs = [kept.values for kept in measured.inputs]
        as_given = [
            tensor.to(own.dtype) if own.is_floating_point() and tensor.is_floating_point() else tensor
            for tensor, own in zip(inputs, own_inputs, strict=True)
        ]
        again = reference.on(as_given, self.reference.attention(), self.reference.numerics(native))
        shared = self._alike and not {"sdpa", "float64"} & {side.kind for side in sides}
        base = again if shared else against.on(inputs, self.against.attention(), self.against.numerics(native))
        noisy = against.perturbed(inputs, self.against.attention(), self.against.numerics(native))
        exact = reference.on(inputs, exactly(native))
        layer = replace(
            layer,
            made=apart(measured.outputs, _viewed(again)),
            inherited=apart(_viewed(again), output),
            entering=distance(inputs, [read_own(tensor).cpu() for tensor in own_inputs]),
            noise=distance(noisy, base),
            own=max(filter(None, (distance(base, exact), distance(again, exact))), key=lambda d: d.rms, default=None),
        )
        doubled = None if self.measured.exact is None else self.measured.exact.calls.get((call.name, call.number))
        # Where the float64 form of the measured side was sampled, nothing can be run again on its inputs. All ranks run
        # a layer again, or none does: it may wait for the others.
        if holds_on_any_rank(doubled is None or _misfit(doubled.inputs, own_inputs) is not None) or doubled is None:
            return layer
        inputs = [kept.values for kept in doubled.inputs]
        step = relative_step(doubled.outputs, _viewed(reference.on(inputs, exactly(native))))
        if not holds_on_any_rank(step is not None and step > SEMANTIC_STEP):
            return replace(layer, exact=step)
        # The mode entered last sees a call first: the noise is that of the operators in float64, not of native weights.
        noisy = reference.on(inputs, UlpNoise(_EXACT_NOISE_SEED), exactly(native))
        again = reference.on(inputs, exactly(native))
        return replace(layer, exact=step, exact_noise=value_change.largest_change(noisy, again))


def _viewed(tensors: Sequence[torch.Tensor]) -> list[KeptTensor]:
    return [KeptTensor.view(tensor) for tensor in tensors]
