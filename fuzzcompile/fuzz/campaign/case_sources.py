"""Sources of a campaign's cases: the generator, variations, torch's operator tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.fuzz.campaign.budget import BudgetClock, format_duration
from fuzzcompile.fuzz.generation.cases import KINDS, GeneratedCase, draw_case_at, from_choices, list_kinds
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.fuzz.opinfo_cells import (
    CellSource,
    OpInfoCell,
    OpInfoOperator,
    iter_cells,
    iter_eager_cells,
    order_cells,
)
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.model.focus_plan import FocusPlan, FocusQuestion
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.run.pool.worker import WorkerFailed, WorkerStartFailed
from fuzzcompile.run.pool.worker_pool import WorkerPool

if TYPE_CHECKING:
    from fuzzcompile.fuzz.case_survey import Survey
    from fuzzcompile.programs.edits.pattern_program import PatternProgram

# What a worker runs for these sources, by name: this process needs no torch.

LIST_OPERATORS: Callable[[tuple[str, ...]], tuple[OpInfoOperator, ...]] = NamedFunction(
    "fuzzcompile.fuzz.opinfo_cases:list_operators"
)
"""The operators of torch's own tables: those named, or all."""

WRITE_CELLS: Callable[[Sequence[OpInfoCell]], list[CellSource]] = NamedFunction(
    "fuzzcompile.fuzz.opinfo_cases:write_cells"
)
"""The case files of cells of a sweep over these operators."""

SURVEY: Callable[[str], Survey] = NamedFunction("fuzzcompile.fuzz.case_survey:survey_case")
"""The properties of a case file that can be varied, found on the worker's device."""

PATTERNS: Callable[[tuple[str, str]], tuple[PatternProgram, ...]] = NamedFunction(
    "fuzzcompile.fuzz.focus.focus_worker:make_programs"
)
"""Programs that make a rule of the compiler fire, given its stage and name, made on the worker's device."""

FOCUS: Callable[[FocusQuestion], FocusPlan] = NamedFunction("fuzzcompile.fuzz.focus.focus_worker:find_focus_plan")
"""The aims of a focus in the installed torch, on the worker's device."""

T = TypeVar("T")

# How many cases are drawn for a candidate, until one is of the right kind.
_TRIES = 3
# Beyond any index, so that further candidates for an index never coincide with another index.
_CANDIDATES_APART = 10**12


@dataclass(frozen=True)
class DrawnCase:
    """A case to be judged.

    ``origin`` is ``generated``, ``mutated``, ``varied``, ``opinfo``, ``user`` or ``reduction``. ``features`` are names
    that steering can prefer: idioms, operators, choices. ``choices`` are the recipe of a generated case, empty for one
    that cannot be drawn again; ``spec`` says how the case was made, as the corpus keeps it. ``near_misses`` are a
    generated case's, or the operators of a variation.
    """

    source: str
    origin: str
    features: tuple[str, ...] = ()
    choices: bytes = b""
    spec: Mapping[str, object] | None = None
    idioms: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """The hash that identifies the source."""
        return hash_source(self.source)

    @property
    def needs_code(self) -> bool:
        """Return whether it asks what generated code does with values, or is one kernel: screens show little of it."""
        return not {"extreme", "shared"}.isdisjoint(self.features)

    @property
    def kind(self) -> str:
        """Its kind; only cases of one kind compete for a place in the stream."""
        return classify_features(self.features)


# Kinds of case that no generator draws, and the features that name them.
OPINFO, RULE = "opinfo", "rule"
_NAMED_KINDS = (*KINDS[1:], OPINFO, RULE)
Item = tuple[str, str, str]
"""Stage, name and outcome of something that a case reached."""


def classify_features(features: Collection[str]) -> str:
    """Return the kind of case that has these features: one of those that name themselves, or ``block``."""
    return next((kind for kind in _NAMED_KINDS if kind in features), KINDS[0])


class CaseSource:
    """A source of cases; equal arguments give equal cases. By default its stream is endless, and it has no recipes."""

    @property
    def name(self) -> str:
        """The name that distinguishes its stream from those of other sources; empty for the plain generator."""
        return ""

    @property
    def profile(self) -> Mapping[str, object] | None:
        """The settings under which its recipes can be read; None where there are no recipes."""
        return None

    @property
    def size(self) -> int | None:
        """The number of places in its stream; None for an endless stream."""
        return None

    @property
    def account(self) -> Mapping[str, object]:
        """The entries of the summary about the source itself."""
        return {}

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Return the ``candidate``-th case for a place in the stream; None for a place that has none."""
        raise NotImplementedError

    def of_kind(self, kind: str, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Return the ``candidate``-th case of a kind for a place; by default, if one of a few cases is of that kind."""
        drawn = (self.at(seed, index, candidate * _TRIES + number) for number in range(_TRIES))
        return next((case for case in drawn if case is not None and case.kind == kind), None)

    def of(self, choices: bytes) -> DrawnCase | None:
        """Return the case of a recipe, which may have been mutated; None for bytes that are no recipe."""
        return None

    def share_reached(self, reached: Set[Item]) -> None:
        """Take a view of the items that a campaign has reached, for sources that choose by it."""


@dataclass(frozen=True)
class GeneratorSource(CaseSource):
    """Cases of the generator under a profile."""

    settings: Profile = field(default_factory=Profile)

    @property
    def name(self) -> str:
        """Empty, unless near misses are left out or several processes run its cases."""
        apart = [] if self.settings.nproc is None else [f"nproc={self.settings.nproc}"]
        return " ".join([*apart, *([] if self.settings.near_misses else ["no-near-misses"])])

    @property
    def profile(self) -> Mapping[str, object]:
        """The profile as plain data."""
        return self.settings.to_json()

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        """Draw a case."""
        return self.wrap_case(draw_case_at(seed, index + candidate * _CANDIDATES_APART, self.settings), "generated")

    def of_kind(self, kind: str, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Draw a case of a kind; None if the profile has none."""
        known = next((each for each in list_kinds(self.settings) if each == kind), None)
        if known is None:
            return None
        drawn = draw_case_at(seed, index + candidate * _CANDIDATES_APART, self.settings, known)
        return self.wrap_case(drawn, "generated")

    def of(self, choices: bytes) -> DrawnCase | None:
        """Return the case of a recipe; None if it is none."""
        try:
            return self.wrap_case(from_choices(choices, self.settings), "mutated")
        except ValueError:
            return None

    def wrap_case(self, case: GeneratedCase, origin: str) -> DrawnCase:
        """Wrap a generated case; see `DrawnCase` for ``origin``."""
        spec, made = {"profile": self.profile, "case": case.spec.to_json()}, case.spec
        recipe = (case.choices, spec, tuple(made.idioms), tuple(made.near_misses))
        return DrawnCase(case.source, origin, case.features, *recipe)


@dataclass(frozen=True)
class VariationSource(CaseSource):
    """The user's own case and variations of it. They have no recipes, because the source itself is varied."""

    survey: Survey

    @property
    def name(self) -> str:
        """``from=`` and a hash of the varied source."""
        return f"from={hash_source(self.survey.source)[:12]}"

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        """Return the ``candidate``-th variation for a place in the stream; index 0 is the case itself."""
        from fuzzcompile.fuzz.variation import draw_variation

        if index == 0:
            return DrawnCase(self.survey.source, "user", ("as_given",))
        varied = draw_variation(self.survey, random.Random(f"fuzzcompile {seed} {index} {candidate}"))
        spec = {"from": self.survey.name, "operators": list(varied.operators)}
        return DrawnCase(varied.source, "varied", varied.operators, spec=spec, near_misses=varied.operators)


def fit_profile(profile: Profile, lacks: Sequence[str], target: str | None = None) -> Profile:
    """Return the profile without the settings that the installed torch ``lacks``; for a GPU if there is a target."""
    return replace(profile, without=tuple(sorted({*profile.without, *lacks})), gpu=target is not None)


def fit_installed_torch(profile: Profile, target: str | None = None) -> Profile:
    """Return the profile for the torch of this process."""
    from fuzzcompile.fuzz.worker_description import list_lacking

    return fit_profile(profile, list_lacking(target), target)


def await_answer(
    asked: Future[T], budget: BudgetClock, late: str, lost: str, kind: type[FuzzcompileError] = EnvironmentUnfit
) -> T:
    """Return a worker's answer within the budget.

    Raises:
        EnvironmentUnfit: the budget ends first (``late``, which may name the ``{elapsed}`` time), or no worker starts.
        FuzzcompileError: of that ``kind``, if the worker is ``lost`` over it, in words that name the ``{error}``.
    """
    try:
        return asked.result(timeout=budget.timeout)
    except NotInTime as error:
        raise EnvironmentUnfit(late.replace("{elapsed}", format_duration(budget.elapsed))) from error
    except WorkerStartFailed as error:
        raise make_start_error(error) from error
    except WorkerFailed as error:
        raise kind(lost.replace("{error}", str(error))) from error


# Cases from torch's own tables of operators, which a separate process writes one batch ahead.

_BATCH = 8
# Writing a case takes some 10 ms; an operator that hangs in eager mode must not hold up the campaign.
_SECONDS = 30.0
_LISTING_SECONDS = 180.0

_LOST = CellSource(left_out={"groups of samples over which a worker is lost in eager mode": 1})
# Percentage of the cases of any operator that have extreme values.
_EXTREME = 40
# Percentage of them that have the first of its dtypes, which is float32 where it takes that: most programs have it.
_USUAL = 50
# Elementwise operators that share a case with another.
_OTHERS = 5
# An operator is the one of so many that was drawn least: hundreds have their turn before one comes again.
_CHOICE = 8
Write = Callable[[Sequence[OpInfoCell]], Future[list[CellSource]]]


@dataclass
class OperatorSweep(CaseSource):
    """A sweep over ``operators`` in the order of a seed; ``write`` submits cells to a worker that makes case files.

    ``only`` are the operators' names if the sweep was narrowed to some; empty for all of them. With ``eager`` its cases
    ask whether eager mode itself is right.
    """

    operators: Sequence[OpInfoOperator]
    seed: int
    write: Write
    only: tuple[str, ...] = ()
    eager: bool = False
    _batches: dict[int, Future[list[CellSource]]] = field(default_factory=dict)
    _drawn: Counter[OpInfoOperator] = field(default_factory=Counter)
    _joined: Counter[OpInfoOperator] = field(default_factory=Counter)  # how often each was added to another's case
    _samples: int = 0
    _empty: int = 0
    _left_out: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """``opinfo``, and the names that the sweep was narrowed to."""
        kind = "opinfo eager" if self.eager else "opinfo"
        return f"{kind}={','.join(self.only)}" if self.only else kind

    def narrow(self, label: str) -> OperatorSweep:
        """Return the sweep over an ATen operator such as ``aten.add.Tensor``; the tables know no overloads."""
        bare = label.split(".")[1] if label.count(".") else label
        own = [operator for operator in self.operators if operator.name.rpartition(".")[2] == bare]
        return OperatorSweep(own, self.seed, self.write, (bare,))

    @cached_property
    def cells(self) -> Sequence[OpInfoCell]:
        """The cells of the stream, in order."""
        return order_cells(self.operators, self.seed, eager=self.eager)

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.cells)

    @property
    def account(self) -> Mapping[str, object]:
        """The numbers of operators and places, and of samples left out of the cases written so far, by reason."""
        return {
            "operators": len(self.operators),
            "places": self.size,
            "samples": self._samples,
            "empty_places": self._empty,
            "left_out": dict(self._left_out.most_common()),
        }

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Return the case of a cell of the tables; None where no sample of it can be spelled and run."""
        if index >= self.size:
            return None
        return self._make_case(self.cells[index], self._write_cell(index))

    def draw(self, rng: random.Random) -> DrawnCase | None:
        """Return a case of an operator that was drawn least, by and large; None if no sample of its cell can be used.

        Extreme values and the usual dtype are more frequent than in the sweep's order, where others outnumber them.
        """
        if not self.operators:
            return None
        some = rng.sample(self.operators, min(_CHOICE, len(self.operators)))
        operator = min(some, key=self._drawn.__getitem__)
        self._drawn[operator] += 1
        cells = list((iter_eager_cells if self.eager else iter_cells)(operator))
        wanted = "extreme" if rng.randrange(100) < _EXTREME else "given"
        cells = [cell for cell in cells if cell.values == wanted] or cells
        if rng.randrange(100) < _USUAL:
            cells = [cell for cell in cells if cell.dtype == operator.dtypes[0]] or cells
        cell = rng.choice(cells)
        if operator.elementwise and cell.form == "function" and not self.eager:
            cell = replace(cell, others=self._draw_others(operator, cell, rng))
        return self._make_case(cell, _await_cell(self.write([cell]), 0) or _LOST)

    def _draw_others(
        self, operator: OpInfoOperator, cell: OpInfoCell, rng: random.Random
    ) -> tuple[tuple[str, str], ...]:
        """Further elementwise operators that take the cell's dtype, which become one kernel with it."""
        fitting = [
            each
            for each in self.operators
            if each.elementwise
            and each is not operator
            and cell.dtype in (each.differentiable if cell.backward else each.dtypes)
        ]
        shuffled = rng.sample(fitting, len(fitting))
        chosen = sorted(shuffled, key=self._joined.__getitem__)[:_OTHERS]
        self._joined.update(chosen)
        return tuple((each.name, each.variant) for each in chosen)

    def _make_case(self, cell: OpInfoCell, written: CellSource) -> DrawnCase | None:
        self._left_out.update(written.left_out)
        if written.source is None:
            self._empty += 1
            return None
        self._samples += written.samples
        spec: dict[str, object] = {"operator": cell.label, "form": cell.form, "dtype": cell.dtype}
        spec |= {"layout": cell.layout, "chunk": cell.chunk, "backward": cell.backward}
        if cell.values != "given":
            spec["values"] = cell.values
        if cell.eager:
            spec |= {"eager": True, "cotangent": cell.cotangent, "size": cell.size}
        return DrawnCase(written.source, "opinfo", cell.features, spec=spec)

    def _write_cell(self, index: int) -> CellSource:
        batch, place = divmod(index, _BATCH)
        for past in [number for number in self._batches if number < batch]:
            del self._batches[past]
        for number in (batch, batch + 1):
            if number not in self._batches:
                self._batches[number] = self.write(self.cells[number * _BATCH : (number + 1) * _BATCH])
        cell = _await_cell(self._batches[batch], place) or _await_cell(self.write([self.cells[index]]), 0)
        return cell or _LOST


def _await_cell(written: Future[list[CellSource]], place: int) -> CellSource | None:
    try:
        return written.result()[place]
    except WorkerStartFailed as error:
        raise make_start_error(error) from error
    except WorkerFailed:
        return None


@contextmanager
def open_tables(
    only: Sequence[str] = (), *, eager: bool = False
) -> Iterator[Callable[[int, BudgetClock], OperatorSweep]]:
    """Start a process that reads torch's tables; importing them changes torch, so nothing may be judged there.

    Returns:
        A function of seed and budget that returns the sweep over the operators of these names, or over all. It raises
        EnvironmentUnfit if the tables cannot be imported or the budget ends first, and UsageError for an unknown name.
    """
    with WorkerPool(1, time_limit=_SECONDS, environment={"OMP_NUM_THREADS": "1"}) as pool:
        listed = pool.schedule(
            LIST_OPERATORS, (tuple(only),), label="list torch's operators", time_limit=_LISTING_SECONDS
        )

        def sweep(seed: int, budget: BudgetClock) -> OperatorSweep:
            late = "Torch's operators were not listed when the budget was over. Give more."
            operators = await_answer(listed, budget, late, "The process that lists torch's operators {error}.")
            return OperatorSweep(operators, seed, lambda cells: pool.submit(WRITE_CELLS, cells), tuple(only), eager)

        try:
            yield sweep
        finally:
            pool.kill_workers()
