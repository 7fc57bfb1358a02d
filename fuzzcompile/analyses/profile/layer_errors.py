"""Measurements of one call of a layer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.sides import exactly
from fuzzcompile.analyses.profile.taps import KeptCall, KeptTensor, leaves
from fuzzcompile.diagnosis.oracle import rounding as value_change
from fuzzcompile.model.thresholds import SEMANTIC_STEP
from fuzzcompile.programs.capture.case_loader import copy_objects
from fuzzcompile.programs.capture.state import RandomState
from fuzzcompile.run import metrics
from fuzzcompile.run.arithmetic_modes import UlpNoise
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.tensors import map_tensors

# How far two results of a layer are apart: all of its floating outputs taken together.


@dataclass(frozen=True)
class Distance:
    """Absolute errors between two results, infinite where only one of them has a number that is not finite.

    ``size`` is the RMS of the second, ``value`` its magnitude at the largest error.
    """

    largest: float
    rms: float
    size: float
    cosine: float | None
    finite: bool
    value: float = 0.0

    @property
    def relative(self) -> float:
        """The RMS error in units of the size; the error itself where the size is 0."""
        return self.rms / self.size if self.size else self.rms


def distance(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> Distance | None:
    """The distance of two lists of tensors; None if their numbers or shapes differ or there are none.

    Integers and booleans count as the numbers that they are.
    """
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


# Layers run alone, again, on other inputs: that tells an error made in a layer from one that it inherited.

Mode = contextlib.AbstractContextManager[object]
_NOISE_SEED = 1


@dataclass(frozen=True)
class Entered:
    """A call of a layer as it begins: its arguments, and the random state in which it runs."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    random: RandomState

    @classmethod
    def now(cls, args: tuple[object, ...], kwargs: dict[str, object]) -> Entered:
        """The call that begins now; what it can change is copied: tensors, and objects such as a key-value cache."""

        def unchanging(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()

        return cls(*copy_objects(map_tensors(unchanging, (args, kwargs))), RandomState.current())

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


def misfit(kept: Sequence[KeptTensor], own: Sequence[torch.Tensor]) -> str | None:
    """Return the reason why kept inputs cannot take the place of a layer's own; None if they can."""
    if len(kept) != len(own):
        return f"it got {len(kept)} tensors, and {len(own)} in the reference"
    for tensor, was in zip(kept, own, strict=True):
        if tensor.shape != tuple(was.shape):
            return f"it got a tensor of shape {tensor.shape}, and of {tuple(was.shape)} in the reference"
        if not tensor.whole:
            return "its inputs were recorded as samples"
    return None


_EXACT_NOISE_SEED = 2
Modes = Callable[[], Sequence[Mode]]


@dataclass(frozen=True)
class Layer:
    """One call of a layer, measured. What could not be measured is None, and ``note`` says why.

    ``own`` is the rounding error of the layer run eagerly on this side's input, in the coarser of both precisions, and
    ``rounding`` the program with every operator moved by an ulp, up to here, against the reference.
    """

    label: str  # its name, and its number from the second call on
    kind: str  # its class
    apart: Distance | None = None  # this side's output against the reference's
    made: Distance | None = None  # this side's output against the reference's layer on this side's own input
    inherited: Distance | None = None  # the reference's layer on this side's input, against the reference's output
    entering: Distance | None = None  # this side's input against the reference's
    noise: Distance | None = None  # what rounding does to this layer alone, on this side's input
    own: Distance | None = None
    rounding: Distance | None = None
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


@dataclass(frozen=True)
class Rerun:
    """A layer that can be run alone, as the reference runs it and in the dtype and on the device of the measured side.

    The modes to enter are made anew for each run; ``native`` is the dtype of the program, ``own_inputs`` what the layer
    got in the reference run. The runs of both sides are ``shared`` where they would be the same.
    """

    reference: Alone
    against: Alone
    reference_modes: Modes
    against_modes: Modes
    native: torch.dtype
    own_inputs: Sequence[torch.Tensor]
    shared: bool

    def local(self, layer: Layer, call: KeptCall, output: Sequence[KeptTensor]) -> Layer:
        """``layer`` with all that reruns on the inputs of ``call`` show; ``output`` is the reference's."""
        inputs = [kept.values for kept in call.inputs]
        again = self.reference.on(self._as_given(inputs), *self.reference_modes())
        base = again if self.shared else self.against.on(inputs, *self.against_modes())
        noisy = self.against.perturbed(inputs, *self.against_modes())
        exact = self.reference.on(inputs, exactly(self.native))
        return replace(
            layer,
            made=apart(call.outputs, viewed(again)),
            inherited=apart(viewed(again), output),
            entering=distance(inputs, [tensor.cpu() for tensor in self.own_inputs]),
            noise=distance(noisy, base),
            own=max(filter(None, (distance(base, exact), distance(again, exact))), key=lambda d: d.rms, default=None),
        )

    def in_float64(self, layer: Layer, call: KeptCall) -> Layer:
        """``layer`` with what the measured side's float64 form makes newly; as it is where that was sampled."""
        if misfit(call.inputs, self.own_inputs) is not None:
            return layer
        inputs = [kept.values for kept in call.inputs]
        step = relative_step(call.outputs, viewed(self.reference.on(inputs, exactly(self.native))))
        if step is None or step <= SEMANTIC_STEP:
            return replace(layer, exact=step)
        # The mode entered last sees a call first: the noise is that of the operators in float64, not of native weights.
        noisy = self.reference.on(inputs, UlpNoise(_EXACT_NOISE_SEED), exactly(self.native))
        again = self.reference.on(inputs, exactly(self.native))
        return replace(layer, exact=step, exact_noise=value_change.largest_change(noisy, again))

    def _as_given(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            tensor.to(own.dtype) if own.is_floating_point() and tensor.is_floating_point() else tensor
            for tensor, own in zip(inputs, self.own_inputs, strict=True)
        ]


def apart(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> Distance | None:
    """The distance of kept tensors, at the elements that both have; None if they do not correspond."""
    pairs = _pairs(first, second)
    return None if pairs is None else distance([a for a, _ in pairs], [b for _, b in pairs])


def relative_step(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> float | None:
    """Return the largest relative change of kept tensors; None as for :func:`apart`."""
    pairs = _pairs(first, second)
    return None if pairs is None else max((value_change.relative_change(a, b) for a, b in pairs), default=0.0)


def _pairs(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    if misshapen(first, second):
        return None
    pairs = [tensor.beside(other) for tensor, other in zip(first, second, strict=True)]
    known = [pair for pair in pairs if pair is not None]
    return known if len(known) == len(pairs) else None


def misshapen(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> bool:
    """Return whether two results differ in the number of their tensors, or in a shape."""
    return [tensor.shape for tensor in first] != [tensor.shape for tensor in second]


def viewed(tensors: Sequence[torch.Tensor]) -> list[KeptTensor]:
    """Tensors that no run changes any more, in the form of kept ones."""
    return [KeptTensor.view(tensor) for tensor in tensors]


# Gradients of a training case, by layer: those of the parameters that a layer holds.

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
    ours, theirs, exactly, perturbed, doubled = (
        _gradients(run) for run in (against, reference, truth, rounding, exact)
    )
    owned: dict[str, list[str]] = {owner: [] for owner in (*reversed(names), _OTHERS)}
    for name in theirs:
        owned[_owner(name, names)].append(name)
    layers = []
    for owner, gradients in owned.items():
        if not gradients:
            continue
        own, wanted, right, moved, double = (
            [run[name] for name in gradients if name in run] for run in (ours, theirs, exactly, perturbed, doubled)
        )
        missing = [name for name in gradients if name not in ours]
        layers.append(
            Layer(
                f"{owner}{SUFFIX}",
                "gradient",
                apart=distance(own, wanted),
                truth=distance(own, right),
                reference_truth=distance(wanted, right),
                rounding=distance(moved, wanted),
                exact=None if exact is None else _step(double, right),
                note=f"no gradient of {', '.join(missing[:3])}" if missing else "",
            )
        )
    return layers


def _gradients(observation: Observation | None) -> dict[str, torch.Tensor]:
    return {
        value.name: value.value
        for value in (observation.values if observation is not None else ())
        if value.kind == "gradient" and isinstance(value.value, torch.Tensor)
    }


def _owner(gradient: str, names: Sequence[str]) -> str:
    path = gradient.rpartition(" ")[2]
    holders = [name for name in names if path.startswith(f"{name}.")]
    return max(holders, key=len, default=_OTHERS)


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
