"""Shrink a generated case by the choices it was drawn from.

Hypothesis shrinks the choices, so every candidate is a program that the generator could have drawn, and runs in eager.
A test costs a compile: each source is tested once, and tests and time are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.core import HypothesisHandle
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
        search = _Search(is_interesting, max_tests, deadline, on_test, original)
        raised: BaseException | None = None
        try:
            with _no_traces():
                _shrink(search, self.profile)
        except _Stop as stop:
            raised = stop.reason
        if raised is not None:
            raise raised
        return search.best


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


class _Interesting(Exception):
    pass


class _Stop(BaseException):
    """Ends the search from within the predicate: a budget is spent, or ``reason`` was raised there.

    Hypothesis would take an ``Exception`` for a finding and shrink it, and a ``SystemExit`` too.
    """

    def __init__(self, reason: BaseException | None = None) -> None:
        self.reason = reason


@dataclass
class _Search:
    is_interesting: Callable[[GeneratedCase], bool]
    max_tests: int
    deadline: float | None
    on_test: Callable[[GeneratedCase], None]
    original: GeneratedCase
    answers: dict[str, bool] = field(default_factory=dict)
    best: GeneratedCase | None = None

    def holds(self, spec: CaseSpec) -> bool:
        """Return whether the case of ``spec`` is interesting; tested once for each source."""
        case = GeneratedCase.of(spec)
        if case.source not in self.answers:
            if len(self.answers) >= self.max_tests or (self.deadline is not None and time.monotonic() >= self.deadline):
                raise _Stop
            try:
                self._test(self.original if case.source == self.original.source else case)
            except BaseException as error:  # of any kind: Hypothesis would take it for a finding
                raise _Stop(error) from error
        return self.answers[case.source]

    def _test(self, case: GeneratedCase) -> None:
        self.answers[case.source] = interesting = self.is_interesting(case)
        if interesting and (self.best is None or readability(case) < readability(self.best)):
            self.best = case
        if self.best is not None:
            self.on_test(self.best)


@contextmanager
def _no_traces() -> Iterator[None]:
    """Keep Hypothesis from leaving a ``.hypothesis`` folder of constants where the user works."""
    with TemporaryDirectory(prefix="fuzzcompile-") as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


def _shrink(search: _Search, profile: Profile) -> None:
    """Run Hypothesis until a whole shrink finds nothing better."""

    @settings(
        database=InMemoryExampleDatabase(),
        phases=[Phase.reuse, Phase.shrink],
        deadline=None,
        derandomize=False,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(case_strategy(profile))
    def probe(spec: CaseSpec) -> None:
        if search.holds(spec):
            raise _Interesting

    handle: HypothesisHandle = vars(probe)["hypothesis"]
    with suppress(_Interesting):
        # Stores the choices in the database, which the runs below start from.
        handle.fuzz_one_input(search.original.choices)
    for _ in range(_MAX_ROUNDS if search.best else 0):
        before = search.best
        with suppress(_Interesting):
            probe()
        if search.best is before:
            return
