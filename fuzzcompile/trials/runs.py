"""The runs of a case that need no compiler, each made at most once."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from fuzzcompile.case import Case
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.execution.observation import Failure, Observation
from fuzzcompile.execution.promised import asks_for_eager_numbers, keeps_promise_of
from fuzzcompile.execution.seeds import Kept, moved, observe_seeds, streams_at_start
from fuzzcompile.oracle import streams
from fuzzcompile.trials.trial import Run

NOISE_RUNS = 3
# A screen makes do with fewer runs: what looks suspicious in it is compiled and judged again in full.
QUICK_NOISE_RUNS = 1
_EAGER_SEEDS = range(1, streams.SEEDS + 1)
# A difference of distributions counts only if other seeds show it too.
_EAGER_SEEDS_AGAIN = range(2001, streams.SEEDS + 2001)


class Runs:
    """The eager, reference and perturbed runs of one case on one device.

    A run is made when it is first asked for. No result changes afterwards, so every compile of the case shares them.

    Attributes:
        uninterpreted: kernels of a target that could not be run here, and why. From the first on, nothing but graphs
            is looked at.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self._perturbed: dict[int, Run] = {}
        self.uninterpreted: dict[str, str] = {}

    @property
    def eager(self) -> Observation:
        """The eager run."""
        return self._eager.observation

    @functools.cached_property
    def again(self) -> Observation:
        """A second eager run: the same bits, if eager is deterministic."""
        return runs.run_eager(self.case, self.device)

    @property
    def reference(self) -> Observation:
        """The float64 run with the program's own low-precision casts kept."""
        return self._reference[0].observation

    @property
    def has_low_precision_casts(self) -> bool:
        """Return whether the program itself casts floating values to bfloat16 or float16."""
        return self._reference[1]

    @functools.cached_property
    def exact(self) -> Observation:
        """The float64 run with the program's own low-precision casts dropped."""
        return runs.run_float64(self.case, self.device, keep_casts=False)[0]

    def noisy(self, count: int) -> tuple[Observation, ...]:
        """Of ``count`` eager runs perturbed by one ulp per operator, those that draw the same numbers as eager."""
        perturbed = [self._noisy(seed) for seed in range(1, count + 1)]
        return tuple(run.observation for run in perturbed if self.draws_alike(run))

    @functools.cached_property
    def noisy_in_float64(self) -> tuple[Observation, ...]:
        """Perturbed runs on float64 inputs: the program's own casts still round to their dtype there."""
        seeds = range(1, NOISE_RUNS + 1)
        return tuple(runs.run_eager(self.case, self.device, noise_seed=seed, double=True) for seed in seeds)

    @functools.cached_property
    def backward_failure(self) -> Failure | None:
        """Failure of eager in the backward that the case leaves out.

        None if it raises nothing, and None if the case runs that backward itself or cannot run one.
        """
        if self.case.backward or self.case.grad != "enabled" or self.case.state is not None:
            return None
        return runs.run_eager(replace(self.case, backward=True), self.device).failure

    # -- kernels of a target --------------------------------------------------------------------

    def refuses_kernels(self, ledger: Ledger) -> bool:
        """Return whether a compile had kernels that could not be run, so that its run shows nothing."""
        self.uninterpreted.update(ledger.interpreted.refused)
        return bool(ledger.interpreted.refused)

    def as_far_as_interpreted(self, how: Compilation) -> Compilation:
        """Restrict a compile to a screen if some kernels cannot be run."""
        return replace(how, screen=True) if self.uninterpreted and not how.screen else how

    # -- random numbers ---------------------------------------------------------------------------

    @functools.cached_property
    def draws(self) -> tuple[str, ...]:
        """The random streams that the eager run draws from."""
        if self.eager.failure:
            return ()
        return moved(streams_at_start(self.case), self._eager.ends)

    @functools.cached_property
    def promised_numbers(self) -> bool:
        """Return whether the case asks for eager's own random numbers, and draws only those that torch promises."""
        return asks_for_eager_numbers(self.case) and keeps_promise_of(self.draws)

    def draws_alike(self, run: Run) -> bool:
        """Return whether ``run`` left the random streams that eager draws from where eager left them."""
        return not any(self._eager.ends.get(name) != run.ends.get(name) for name in self.draws)

    @functools.cached_property
    def reference_draws_alike(self) -> bool:
        """Return whether the float64 run drew eager's numbers: fused operators may draw in their own dtype."""
        return self.draws_alike(self._reference[0])

    @functools.cached_property
    def depends_on_seeds(self) -> bool:
        """Return whether the seed changes what eager shows: a program that seeds itself draws the same every time."""
        return bool(self.draws) and bool(streams.varying(self.eager_samples))

    @functools.cached_property
    def eager_samples(self) -> list[streams.Run]:
        """Eager runs under :data:`streams.SEEDS` seeds, without those that raise."""
        return self._eager_under(_EAGER_SEEDS)

    @functools.cached_property
    def more_eager_samples(self) -> list[streams.Run]:
        """Eager runs under as many other seeds."""
        return self._eager_under(_EAGER_SEEDS_AGAIN)

    def _eager_under(self, seeds: range) -> list[streams.Run]:
        program = build(self.case, self.device)
        kept = Kept(self.case, program, self.device)
        observations = observe_seeds(self.case, program, program.model, kept, seeds)
        return [self.sampled(observation) for observation in observations if not observation.failure]

    def sampled(self, observation: Observation) -> streams.Run:
        """A run summarised for comparisons by distribution; what may be rounding alone counts as zero."""
        return streams.sampled(observation, self._floors)

    @functools.cached_property
    def _floors(self) -> dict[str, float]:
        return streams.floors_of(self.eager, self.noisy(NOISE_RUNS))

    # -- each run, made once ----------------------------------------------------------------------

    def _noisy(self, seed: int) -> Run:
        if seed not in self._perturbed:
            self._perturbed[seed] = Run.ended(runs.run_eager(self.case, self.device, noise_seed=seed))
        return self._perturbed[seed]

    @functools.cached_property
    def _eager(self) -> Run:
        return Run.ended(runs.run_eager(self.case, self.device))

    @functools.cached_property
    def _reference(self) -> tuple[Run, bool]:
        observation, has_casts = runs.run_float64(self.case, self.device, keep_casts=True)
        return Run.ended(observation), has_casts
