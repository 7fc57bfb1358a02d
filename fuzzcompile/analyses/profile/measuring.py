"""What is measured of one call of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.analyses.profile.distance import Distance, distance
from fuzzcompile.analyses.profile.kept import KeptCall, KeptTensor
from fuzzcompile.analyses.profile.local import Alone, Mode, misfit
from fuzzcompile.analyses.profile.sides import exactly
from fuzzcompile.run.noise import UlpNoise
from fuzzcompile.triage.oracle import value_change

_EXACT_NOISE_SEED = 2
Modes = Callable[[], Sequence[Mode]]


@dataclass(frozen=True)
class Layer:
    """One call of a layer, measured. What could not be measured is None, and ``note`` says why.

    Attributes:
        label: its name, and its number from the second call on.
        kind: its class.
        apart: this side's output against the reference's.
        made: this side's output against the reference's layer on this side's own input.
        inherited: the reference's layer on this side's input, against the reference's output.
        entering: this side's input against the reference's.
        noise: what rounding does to this layer alone, on this side's input.
        own: the rounding error of the layer run eagerly on this side's input, in the coarser of both precisions.
        rounding: the program with every operator moved by an ulp, up to here, against the reference.
        truth: this side's output against float64.
        reference_truth: the reference's output against float64.
        exact: what this side, computed in float64, makes newly; relative to the size of the output.
        exact_noise: what one ulp of float64 per operator makes of it, in the same units.
        misshapen: whether the results of both sides differ in number or shape.
    """

    label: str
    kind: str
    apart: Distance | None = None
    made: Distance | None = None
    inherited: Distance | None = None
    entering: Distance | None = None
    noise: Distance | None = None
    own: Distance | None = None
    rounding: Distance | None = None
    truth: Distance | None = None
    reference_truth: Distance | None = None
    exact: float | None = None
    exact_noise: float = 0.0
    misshapen: bool = False
    note: str = ""

    @property
    def changes_meaning(self) -> bool:
        """Whether float64 shows an error made here that rounding does not explain."""
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
    """A layer that can be run alone, on the reference's conditions and on those of the side that is measured.

    Attributes:
        reference: the reference's layer.
        against: the same layer in the dtype and on the device of the measured side.
        reference_modes, against_modes: what to enter around a run, made anew for each.
        native: the dtype of the program.
        own_inputs: what the layer got in the reference run.
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
        if step is None or step <= value_change.SEMANTIC_STEP:
            return replace(layer, exact=step)
        # The mode entered last sees a call first: the noise is that of the operators in float64, not of native weights.
        noisy = self.reference.on(inputs, UlpNoise(_EXACT_NOISE_SEED), exactly(self.native))
        again = self.reference.on(inputs, exactly(self.native))
        return replace(layer, exact=step, exact_noise=value_change.largest_change(noisy, again))

    def _as_given(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The other side's inputs in the dtypes that the reference's layer gets."""
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
    """The elements that both results have, tensor by tensor; None if they do not correspond."""
    if misshapen(first, second):
        return None
    pairs = [tensor.beside(other) for tensor, other in zip(first, second, strict=True)]
    known = [pair for pair in pairs if pair is not None]
    return known if len(known) == len(pairs) else None


def misshapen(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> bool:
    """Whether two results differ in the number of their tensors, or in a shape."""
    return [tensor.shape for tensor in first] != [tensor.shape for tensor in second]


def viewed(tensors: Sequence[torch.Tensor]) -> list[KeptTensor]:
    """Tensors that no run changes any more, in the form of kept ones."""
    return [KeptTensor.view(tensor) for tensor in tensors]
