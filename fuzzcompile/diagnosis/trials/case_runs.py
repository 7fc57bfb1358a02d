"""Runs of a case that need no compiler, each made at most once, and the plain data that a run or a compile yields."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.operators.operator_gradients import WithheldGradients
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.diagnosis.oracle import random_streams
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.run import runs
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.observation import (
    NO_CODE,
    PROMISED_STREAMS,
    Failure,
    Observation,
    asks_for_eager_numbers,
    list_gradient_leaves,
)
from fuzzcompile.run.ranks import is_led
from fuzzcompile.run.runs import SavedTensors, fingerprint_streams
from fuzzcompile.run.tensors import describe_structure


@dataclass(frozen=True)
class Trial:
    """One compile of a case: how it was compiled, what the compiled program showed, and the judgement on it."""

    how: Compilation
    observation: Observation
    judgement: Judgement
    ledger: Ledger
    seconds: float  # to build, compile and run the program
    # Values judged by their distribution over many seeds, as their random numbers could not be aligned with eager's.
    sampled: tuple[str, ...] | None = None
    runtime: float | None = None  # seconds that a call of the compiled program takes; None unless ``how.timed``
    draws_others: bool = False  # draws other random numbers than eager, though promised eager's; right otherwise
    parted: str | None = None  # where the graphs of several ranks call other collectives, in a sentence


@dataclass
class CompileCounts:
    """Full compiles and compiles without code generation (screens) made for a case so far."""

    compiles: int = 0
    screens: int = 0
    runtime: float | None = None  # seconds that a call takes when compiled as for the verdict; None until timed

    def add(self, how: Compilation) -> None:
        """Count one compile."""
        if how.screen or how.backend in NO_CODE:
            self.screens += 1
        else:
            self.compiles += 1


NOISE_RUNS = 3
"""Eager runs perturbed by one ulp per operator that a case is judged by."""
MANY_NOISE_RUNS = 16
"""As many before values are called wrong: where rounding decides between two results, three decide alike too often."""
# Autograd's refusal to differentiate through a tensor that was written to.
_WRITTEN = "has been modified by an inplace operation"
_OTHER_SEEDS = (5001, 5002, 5003)
# A function that returns as many values is often as many programs, each of which compiles in a part of the time.
_FEWEST_VALUES = 3


class CaseRuns:
    """The eager, reference and perturbed runs of one case on one device.

    A run is made when it is first asked for. No result changes afterwards, so every compile of the case shares them.
    ``uninterpreted`` are kernels of a target that could not be run here, and why: from the first on, nothing but graphs
    is looked at. ``baselines`` are the runs that compiled was compared with, by what they are called.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self._perturbed: list[Observation] = []
        self.uninterpreted: dict[str, str] = {}
        self.baselines: dict[str, Observation] = {}

    @functools.cached_property
    def eager(self) -> Observation:
        """The eager run."""
        return runs.run_eager(self.case, self.device)

    @functools.cached_property
    def eager_with_saved(self) -> Observation | None:
        """The eager run whose backward pass reads what its forward pass saved, although it is written to in between.

        None if that is not what eager mode refuses.
        """
        failure = self.eager.failure
        if failure is None or _WRITTEN not in failure.message:
            return None
        program = build(self.case, self.device)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            made = runs.observe(self.case, program, program.model)
        return None if made.failure else made

    @functools.cached_property
    def says_its_derivative(self) -> bool:
        """Return whether the program has a derivative of its own, of which differences of its values say nothing."""
        try:
            return runs.says_its_derivative(self.case, build(self.case, self.device), WithheldGradients)
        except Exception:  # the program's own
            return False

    @functools.cached_property
    def again(self) -> Observation:
        """A second eager run: the same bits, if eager is deterministic."""
        return runs.run_eager(self.case, self.device)

    @property
    def reference(self) -> Observation:
        """The float64 run with the program's own low-precision casts kept."""
        return self._reference[0]

    @property
    def has_low_precision_casts(self) -> bool:
        """Return whether the program itself casts floating values to bfloat16 or float16."""
        return self._reference[1]

    @functools.cached_property
    def exact(self) -> Observation:
        """The float64 run with the program's own low-precision casts dropped."""
        return runs.run_float64(self.case, self.device, keep_casts=False)[0]

    def select_noisy(self, count: int, *, alike: bool = True) -> tuple[Observation, ...]:
        """Of ``count`` eager runs perturbed by one ulp per operator, those that draw the same numbers as eager.

        All of them, unless they are to be ``alike``.
        """
        for seed in range(len(self._perturbed) + 1, count + 1):
            self._perturbed.append(runs.run_eager(self.case, self.device, noise_seed=seed))
        return tuple(run for run in self._perturbed[:count] if not alike or self.draws_alike(run))

    @functools.cached_property
    def unmoved(self) -> frozenset[str]:
        """Names of the values that are the same bits under other seeds: random numbers are not in them."""
        kept = set(self.eager.index_by_name())
        for seed in _OTHER_SEEDS:
            program = build(self.case, self.device)
            other = runs.observe(self.case, program, program.model, seed=seed).index_by_name()
            for name, value in self.eager.index_by_name().items():
                theirs = other.get(name)
                pair = value.value, None if theirs is None else theirs.value
                tensors = [each for each in pair if isinstance(each, torch.Tensor)]
                if len(tensors) < len(pair) or not have_same_values(*tensors):
                    kept.discard(name)
        return frozenset(kept)

    @functools.cached_property
    def noisy_in_float64(self) -> tuple[Observation, ...]:
        """Perturbed runs on float64 inputs: the program's own casts still round to their dtype there."""
        seeds = range(1, NOISE_RUNS + 1)
        return tuple(runs.run_eager(self.case, self.device, noise_seed=seed, double=True) for seed in seeds)

    @functools.cached_property
    def backward_failure(self) -> Failure | None:
        """Failure of eager in the backward that the case leaves out; None if it raises nothing or cannot be run."""
        if self.case.backward or self.case.grad != "enabled" or self.case.state is not None:
            return None
        return runs.run_eager(replace(self.case, backward=True), self.device).failure

    def refuses_kernels(self, ledger: Ledger) -> bool:
        """Return whether a compile had kernels that could not be run, so that its run shows nothing."""
        self.uninterpreted.update(ledger.interpreted.refused)
        return bool(ledger.interpreted.refused)

    def limit_to_interpreted(self, how: Compilation) -> Compilation:
        """Restrict a compile to a screen if some kernels cannot be run."""
        return replace(how, screen=True) if self.uninterpreted and not how.screen else how

    @functools.cached_property
    def draws(self) -> tuple[str, ...]:
        """The random streams that the eager run draws from."""
        if self.eager.failure:
            return ()
        runs.seed_run(self.case)
        before = fingerprint_streams()
        return tuple(name for name, state in self.eager.ends.items() if before.get(name, state) != state)

    @functools.cached_property
    def promises_eager_numbers(self) -> bool:
        """Return whether the case asks for eager's own random numbers, and draws only those that torch promises."""
        return asks_for_eager_numbers(self.case) and bool(self.draws) and PROMISED_STREAMS.issuperset(self.draws)

    def draws_alike(self, run: Observation) -> bool:
        """Return whether ``run`` left the random streams that eager draws from where eager left them."""
        return not any(self.eager.ends.get(name) != run.ends.get(name) for name in self.draws)

    @functools.cached_property
    def reference_draws_alike(self) -> bool:
        """Return whether the float64 run drew eager's numbers: fused operators may draw in their own dtype."""
        return self.draws_alike(self._reference[0])

    @functools.cached_property
    def eager_samples(self) -> list[random_streams.SampledRun]:
        """Eager runs under :data:`random_streams.SEEDS` seeds, without those that raise."""
        return self._sample_eager(1)

    @functools.cached_property
    def more_eager_samples(self) -> list[random_streams.SampledRun]:
        """Eager runs under as many other seeds: a difference of distributions counts only if these show it too."""
        return self._sample_eager(2001)

    def _sample_eager(self, first: int) -> list[random_streams.SampledRun]:
        program = build(self.case, self.device)
        kept = SavedTensors(self.case, program, self.device)
        seeds = range(first, first + random_streams.SEEDS)
        observed = kept.observe_seeds(program.model, seeds)
        return [self.sample(observation) for observation in observed if not observation.failure]

    def sample(self, observation: Observation) -> random_streams.SampledRun:
        """A run summarised for comparisons by distribution; what may be rounding alone counts as zero."""
        return random_streams.sample_run(observation, self._floors)

    @functools.cached_property
    def _floors(self) -> dict[str, float]:
        return random_streams.measure_floors(self.eager, self.select_noisy(NOISE_RUNS))

    @functools.cached_property
    def _reference(self) -> tuple[Observation, bool]:
        return runs.run_float64(self.case, self.device, keep_casts=True)

    # One of several returned values.

    def find_value(self, wrong: Sequence[str]) -> int | None:
        """The place of the one returned value that is wrong, or alone has the first gradient that is; None without one.

        ``wrong`` are names of observables of the case. It has to be a plain function of one call that returns many
        values in a tuple, in one process, without random numbers.
        """
        case, values = self.case, [value for value in self.eager.values if value.kind == "output"]
        plain = case.calls is None and case.run is None and case.state is None and not is_led()
        several = self.eager.structure == describe_structure((None,) * len(values)) and len(values) >= _FEWEST_VALUES
        if not plain or not several or self.draws or isinstance(build(case, self.device).model, torch.nn.Module):
            return None
        names = [ObservableName.parse(name) for name in wrong]
        leaves = [name.leaf for name in names if name == ObservableName(name.what)]
        place = next((leaf.index for leaf in leaves if leaf is not None and leaf.kind == "out"), None)
        gradients = [str(name) for name in names if name.derivative == "gradient"]
        return place if place is not None or not gradients else self._find_differentiated(gradients[0])

    def _find_differentiated(self, gradient: str) -> int | None:
        program = build(self.case, self.device)
        runs.seed_run(self.case)
        with self.case.ambient(), torch.enable_grad():
            values = runs.drive(self.case, program.model, program.calls[0])
        leaf = list_gradient_leaves(None, program, program.calls[0]).get(gradient)
        if leaf is None or not isinstance(values, tuple):
            return None
        reaching = [
            place
            for place, value in enumerate(values)
            if value.requires_grad
            and torch.autograd.grad(value, leaf, torch.ones_like(value), retain_graph=True, allow_unused=True)[0]
            is not None
        ]
        return reaching[0] if len(reaching) == 1 else None
