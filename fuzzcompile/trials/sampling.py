"""Judging a compiled program by its distribution over many seeds, where its random numbers differ from eager's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.execution.observation import Observation
from fuzzcompile.oracle import streams
from fuzzcompile.oracle.judgement import Judgement
from fuzzcompile.oracle.substitution import with_values_of
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.judged import Judge
from fuzzcompile.trials.trial import Run

# No seed of the eager samples (trials/runs.py) is among these.
COMPILED_SEEDS = range(1001, streams.SEEDS + 1001)
COMPILED_SEEDS_AGAIN = range(3001, streams.SEEDS + 3001)


def needs_seeds(judge: Judge, judgement: Judgement, run: Run, how: Compilation) -> bool:
    """Return whether values differ and the program neither drew eager's random numbers nor promised to."""
    if run.observation.failure or judge.runs.eager.failure:
        return False
    if not (judgement.verdict.is_bug or judgement.verdict is Verdict.UNSTABLE or judgement.suspicious):
        return False
    if not (how.fallback_random and judge.baseline.draws_on_this_device):
        return True
    return not (judge.runs.draws_alike(run) or judge.runs.promised_numbers)


def judge_samples(
    judge: Judge,
    compiled: Observation,
    seeded: Iterable[Observation],
    seeded_again: Callable[[], Iterable[Observation]],
) -> tuple[Judgement, tuple[str, ...]]:
    """Judge values that vary with the seed by their distribution, and all others value by value.

    Args:
        judge: the runs that the compiled program is held against.
        compiled: the compiled run under the seed of the case.
        seeded: compiled runs under :data:`COMPILED_SEEDS`; no further one is made after a failure that settles it.
        seeded_again: makes compiled runs under :data:`COMPILED_SEEDS_AGAIN`, which have to confirm a difference.

    Returns:
        The judgement, and the names of the values judged by their distribution.
    """
    eager, samples = judge.runs.eager_samples, []
    for observation in seeded:
        if observation.failure and len(eager) == streams.SEEDS:
            return judge.judge(observation), ()
        if not observation.failure:
            samples.append(judge.runs.sampled(observation))
    names = streams.varying(eager)
    if min(len(eager), len(samples)) < streams.FEWEST:
        return Judgement(Verdict.UNSTABLE, detail="random, and fails under most seeds", confidence="low"), names
    differences = streams.differences(eager, samples)
    if differences:
        differences = _confirmed(differences, judge, seeded_again())
    by_value = judge.judge(with_values_of(judge.baseline.observation, compiled, names))
    return _combined(by_value, names, differences), names


def _confirmed(
    differences: list[streams.Difference], judge: Judge, seeded_again: Iterable[Observation]
) -> list[streams.Difference]:
    """The differences in values that other seeds show to differ as well."""
    again = [judge.runs.sampled(observation) for observation in seeded_again if not observation.failure]
    names = {difference.name for difference in streams.differences(judge.runs.more_eager_samples, again)}
    return [difference for difference in differences if difference.name in names]


def _combined(by_value: Judgement, names: tuple[str, ...], differences: list[streams.Difference]) -> Judgement:
    """The judgement on values compared one by one, with the evidence on those that vary with the seed."""
    comparisons = tuple(streams.by_distribution(each, names, differences) for each in by_value.comparisons)
    if not differences:
        verdict = Verdict.ROUNDING if by_value.verdict is Verdict.EQUAL else by_value.verdict
        return replace(by_value, verdict=verdict, comparisons=comparisons, confidence="low")
    gradients = all(difference.kind == "gradient" for difference in differences) and not by_value.verdict.is_bug
    verdict = Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE
    return Judgement(verdict, comparisons, f"{differences[0].name}: {differences[0]}", confidence="low")
