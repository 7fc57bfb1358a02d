"""Shrinks a case by the choices it was drawn from.

Hypothesis shrinks the choices, so every candidate is a program that the generator could have drawn, and runs in eager.
A test costs a compile, so tests and time are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import InMemoryExampleDatabase

from fuzzcompile.fuzz.generation.cases import GeneratedCase, case_strategy, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, StaleRecipe
from fuzzcompile.fuzz.generation.spec import Attention, CaseSpec

# Hypothesis stops a shrink after five minutes; the next one resumes it.
_MAX_ROUNDS = 8


@dataclass(frozen=True)
class GeneratedRecipe:
    """The choices that the generator drew a case from, and the profile without which they mean nothing."""

    choices: bytes
    profile: Profile = field(default_factory=Profile)

    def shrink(
        self,
        is_interesting: Callable[[GeneratedCase], bool],
        *,
        max_tests: int,
        deadline: float | None,
        on_test: Callable[[GeneratedCase], None],
    ) -> GeneratedCase | None:
        """Shrink as :class:`~fuzzcompile.programs.shrink.outcome.Recipe` says, to the most readable case."""
        original = from_choices(self.choices, self.profile)
        answers, best = dict[str, bool](), list[GeneratedCase]()  # the best is the last

        def test(case: GeneratedCase) -> None:
            answers[case.source] = interesting = is_interesting(case)
            if interesting and (not best or readability(case) < readability(best[-1])):
                best.append(case)
            if best:
                on_test(best[-1])

        def probe(spec: CaseSpec) -> None:
            case = GeneratedCase.of(spec)
            if case.source not in answers:  # each source is tested once
                if len(answers) >= max_tests or (deadline is not None and time.monotonic() >= deadline):
                    raise _Stop
                try:
                    test(original if case.source == original.source else case)
                except BaseException as error:  # of any kind: Hypothesis would take it for a finding
                    raise _Stop from error
            if answers[case.source]:
                raise _Interesting

        try:
            # Or Hypothesis leaves a ``.hypothesis`` folder of constants where the user works.
            with TemporaryDirectory(prefix="fuzzcompile-") as folder:
                set_hypothesis_home_dir(folder)
                _run_hypothesis(given(case_strategy(self.profile))(probe), original.choices, best)
        except _Stop as stop:
            if stop.__cause__ is not None:
                raise stop.__cause__ from None
        finally:
            set_hypothesis_home_dir(None)
        return best[-1] if best else None


class _Interesting(Exception):
    pass


class _Stop(BaseException):
    """Ends the search from within the predicate: a budget is spent, or the cause was raised there.

    Hypothesis would take an ``Exception`` for a finding and shrink it, and a ``SystemExit`` too.
    """


def _run_hypothesis(probe: Any, choices: bytes, found: Sequence[GeneratedCase]) -> None:
    search = settings(
        database=InMemoryExampleDatabase(),
        phases=[Phase.reuse, Phase.shrink],
        deadline=None,
        derandomize=False,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )(probe)
    with suppress(_Interesting):
        # Stores the choices in the database, which the runs below start from.
        search.hypothesis.fuzz_one_input(choices)
    for _ in range(_MAX_ROUNDS if found else 0):
        before = len(found)
        with suppress(_Interesting):
            search()
        if len(found) == before:
            return


def read_recipe(choices: bytes | None, spec: Mapping[str, object] | None) -> GeneratedRecipe | None:
    """Return the recipe of a stored case; None where it has none, or another version of the generator wrote it."""
    profile = (spec or {}).get("profile")
    try:
        read = Profile.from_json(profile) if isinstance(profile, dict) else Profile()
    except StaleRecipe:
        return None
    return GeneratedRecipe(choices, read) if choices else None


def readability(case: GeneratedCase) -> tuple[int, ...]:
    """A sort key: fewer modules, fewer lines, plainer attention and smaller sizes come first."""
    spec, dims = case.spec, case.spec.dims
    plainest = Attention(spec.attention.idiom)
    return (
        case.source.count("(nn.Module)"),
        sum(1 for line in case.source.splitlines() if line),
        sum(getattr(spec.attention, part.name) != getattr(plainest, part.name) for part in fields(Attention)),
        dims.batch + dims.sequence + dims.heads + dims.head_dim,
        int(spec.dtype != "float32"),
        len(case.source),
        spec.seed,
    )
