"""Eager runs of a case, which decide how short its reproducer can be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.case import Case, load_case
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import RUN_SEED, Program, build
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.memory import aliases
from fuzzcompile.execution.observation import Observation, Value
from fuzzcompile.execution.tensors import tensor_leaves
from fuzzcompile.execution.trees import is_wrapped
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.judgement import same_bits

# A plain float64 run farther than this share from eager is no reference for it.
_SAME_PROGRAM = 0.1


@dataclass(frozen=True)
class Observable:
    """One observable value of an eager run. ``largest`` is its largest finite absolute value."""

    name: str
    kind: str
    is_tensor: bool
    dtype: torch.dtype | None = None
    largest: float = 0.0

    @property
    def floating(self) -> bool:
        """Return whether rounding can touch it."""
        return self.dtype is not None and (self.dtype.is_floating_point or self.dtype.is_complex)


@dataclass(frozen=True)
class Probe:
    """The eager run of a case.

    ``inputs`` and ``outputs`` are the real objects, one for each call: expressions follow their structure.
    ``repeatable``: a second forward run on the same model and inputs gives the same. ``float64``: the program runs
    unchanged on float64 parameters and inputs, and is the same program there. ``nonfinite``: its result holds NaN or
    infinity.
    """

    case: Case
    model: Callable[..., object]
    inputs: Sequence[object]
    outputs: Sequence[object]
    observables: Mapping[str, Observable]
    repeatable: bool
    random: bool
    float64: bool
    nonfinite: bool

    @property
    def is_module(self) -> bool:
        """Return whether the program is a module, which holds parameters that can be converted."""
        return isinstance(self.model, nn.Module)

    @property
    def tensor_inputs(self) -> list[torch.Tensor]:
        """The tensors among the inputs of all calls."""
        return list(tensor_leaves(list(self.inputs)))

    @property
    def floating_dtype(self) -> torch.dtype:
        """The dtype of the first floating input; float32 without one."""
        return next((x.dtype for x in self.tensor_inputs if x.is_floating_point()), torch.float32)


def probe(source: str, device: torch.device) -> Probe:
    """Run the case eagerly, twice on the same state and once in float64.

    The probe of a case that raises in eager covers the part that ran. The global random state is left as it was.

    Raises:
        CaseError: the source is no case.
    """
    with torch.random.fork_rng(), tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "case.py")
        path.write_text(source, encoding="utf-8")
        return _probe(load_case(path), device)


def _probe(case: Case, device: torch.device) -> Probe:
    outputs: list[object] = []
    recorded = _recording(case, outputs)
    program = build(recorded, device)
    first = runs.observe(recorded, program, program.model)
    random = _random_was_drawn(first)
    seen = tuple(outputs)
    changed = any(value.kind == "mutation" for value in first.values)
    again = None if first.failure or changed else _again(case, program)
    exact = None if first.failure else _in_float64(case, device)
    return Probe(
        case=case,
        model=program.model,
        inputs=program.calls,
        outputs=seen,
        observables={value.name: _observable(value) for value in first.values},
        repeatable=again is not None and not random and same_bits(_forward(first), again),
        random=random,
        float64=exact is not None and _same_program(first, exact),
        nonfinite=any(_has_nonfinite(run) for run in (first, exact) if run is not None),
    )


def _recording(case: Case, outputs: list[object]) -> Case:
    def run(model: Callable[..., object], arguments: object) -> object:
        outputs.append(runs.drive(case, model, arguments))
        return outputs[-1]

    return replace(case, run=run)


def _again(case: Case, program: Program) -> Observation:
    return _forward(runs.observe(replace(case, backward=False), program, program.model))


def _forward(observation: Observation) -> Observation:
    """The observation without its gradients, which add up from run to run."""
    values = tuple(value for value in observation.values if value.kind != "gradient")
    return replace(observation, values=values)


def _random_was_drawn(observation: Observation) -> bool:
    """Return whether the run that just ended moved a generator from where the run's seed had put it."""
    states = _generator_states()
    seed_everything(RUN_SEED)
    fresh = _generator_states()
    moved = any(not torch.equal(state, seeded) for state, seeded in zip(states, fresh, strict=True))
    return moved and observation.failure is None


def _generator_states() -> list[torch.Tensor]:
    gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *gpu]


def _in_float64(case: Case, device: torch.device) -> Observation | None:
    program = build(case, device, double=True)
    if any(is_wrapped(leaf) for leaf in pytree.tree_leaves(list(program.calls))):
        return None  # a script would need more than a line to convert these
    if any(aliases({str(n): x for n, x in enumerate(tensor_leaves([call]))}) for call in program.calls):
        return None  # tensors converted one by one no longer share memory
    if any(tensor.is_complex() for tensor in tensor_leaves(list(program.calls))):
        return None
    observation = runs.observe(case, program, program.model)
    return None if observation.failure else observation


def _same_program(eager: Observation, exact: Observation) -> bool:
    named = exact.named()
    return all(_near(value, named.get(value.name)) for value in eager.values if value.kind != "gradient")


def _near(eager: Value, exact: Value | None) -> bool:
    if exact is None or not eager.is_tensor or not exact.is_tensor:
        return exact is not None and eager.is_tensor == exact.is_tensor
    if eager.value.shape != exact.value.shape or exact.value.is_complex():
        return False
    if not eager.value.is_floating_point():
        return True
    apart = metrics.rms(metrics.distance(eager.value, exact.value))
    return apart <= _SAME_PROGRAM * max(metrics.rms(metrics.widened(exact.value)), 1e-300)


def _observable(value: Value) -> Observable:
    if not value.is_tensor:
        return Observable(value.name, value.kind, False)
    wide = metrics.widened(value.value).abs()
    return Observable(value.name, value.kind, True, value.value.dtype, metrics.largest(wide[torch.isfinite(wide)]))


def _has_nonfinite(observation: Observation) -> bool:
    return any(
        not bool(torch.isfinite(leaf).all())
        for leaf in pytree.tree_leaves([value.value for value in observation.values])
        if isinstance(leaf, torch.Tensor)
    )
