"""Watched executions of a case under the strict settings, and promises of equal bits between two of them.

Rows of a batch give what they give alone, and a program gives the same from run to run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.compile_changes import InductorSettings, Lowered, Veto
from fuzzcompile.compiler.kernels.lowering_control import EVERYTHING, UNCHANGED, Control
from fuzzcompile.compiler.session import Compilation, CompileSession, open_session
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.ledger import Ledger, LoweredGraph
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.diagnosis.attribution.culprit import OutOfTime
from fuzzcompile.diagnosis.bitwise import bit_difference as bits
from fuzzcompile.model.evidence import RANDOM_STATE
from fuzzcompile.model.facts import facts
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.metrics import within_default_tolerance
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import SavedTensors, observe, run_float64
from fuzzcompile.run.tensors import map_tree

_HOW = Compilation(kernels=True)
SHOWN = Control(realised=(EVERYTHING,), stored=True)
"""Every operator has a buffer of its own, so that a kernel shows what each of its operators gave."""
# No kernel writes into a buffer that it reads, or what was there could not be seen afterwards.
_APART = {"inplace_buffers": False, "allow_buffer_reuse": False}


@dataclass(frozen=True)
class Execution:
    """One compile of a case, and what it showed in each run of the same compiled program.

    ``calls`` is how often each graph had been called after the first run, in the order of ``ledger.lowered``.
    """

    ledger: Ledger
    runs: tuple[Observation, ...]
    calls: tuple[int, ...]

    @property
    def first(self) -> Observation:
        """The first run."""
        return self.runs[0]


@dataclass
class StrictCompiler:
    """Makes the executions of a case under the strict settings, and counts compiles.

    ``vetoes`` are rewrites that are refused throughout; ``deadline`` is a value of ``time.monotonic()``.
    """

    case: Case
    device: torch.device
    vetoes: tuple[str, ...] = ()
    deadline: float | None = None
    compiles: int = 0

    @functools.cached_property
    def eager(self) -> tuple[Observation, Observation]:
        """The program in eager mode, built and run twice."""
        return self.run_eager()[0], self.run_eager()[0]

    @functools.cached_property
    def compiled(self) -> Execution:
        """One compile, run twice, by which every promise is judged; OutOfTime once the deadline has passed."""
        return self.execute(runs=2)

    @property
    def is_late(self) -> bool:
        """Return whether no further compile may be begun."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def execute(self, *, case: Case | None = None, control: Control = UNCHANGED, runs: int = 1) -> Execution:
        """Compile the case, or another form of it, and run it ``runs`` times, each time from the same state.

        OutOfTime is raised once the deadline has passed.
        """
        if self.is_late:
            raise OutOfTime
        case = case or self.case
        self.compiles += 1
        apart = [InductorSettings(_APART)] if control.stored else []
        how = _HOW.under(Veto(tuple(self.vetoes)), Lowered(control), *apart)
        observations, calls = list[Observation](), list[tuple[int, ...]]()
        with open_session(case.settings, how) as session:
            for observation in self._run(case, runs, session):
                observations.append(observation)
                calls.append(tuple(len(lowered.calls) for lowered in session.ledger.lowered))
        return Execution(session.ledger, tuple(observations), calls[0])

    def run_eager(self, *, case: Case | None = None, runs: int = 1) -> list[Observation]:
        """Run the same built program ``runs`` times in eager mode, each time from the same state."""
        return list(self._run(case or self.case, runs))

    def _run(self, case: Case, runs: int, session: CompileSession | None = None) -> Iterator[Observation]:
        program = build(case, self.device)
        target = program.model if session is None else session.compile(program.model)
        kept = SavedTensors(case, program, self.device)
        for number in range(runs):
            if number:
                kept.restore()
            describe = None if session is None else session.describe_failure
            yield observe(case, program, target, describe_failure=describe)


def strict_settings() -> dict[str, object]:
    """Entries of ``torch._inductor.config`` and their values, those that the installed torch has."""
    wanted = facts().bitwise.settings
    named = {entry: text for entry, text in wanted.items() if get_setting(entry) is not MISSING}
    return {entry: text == "True" if text in ("True", "False") else text for entry, text in named.items()}


def apply_contract(case: Case) -> Case:
    """The case compiled under the strict settings, which replace its own values of the same entries."""
    strict = strict_settings()
    own: Mapping[str, object] = case.settings.options
    options = {entry: value for entry, value in own.items() if entry not in strict}
    inductor = {**case.settings.inductor, **strict}
    return replace(case, settings=replace(case.settings, options=options, inductor=inductor))


def list_replaced_settings(case: Case) -> tuple[str, ...]:
    """Entries that the case itself sets to other values than the contract does."""
    own = {**case.settings.inductor, **case.settings.options}
    return tuple(entry for entry, value in strict_settings().items() if own.get(entry, value) != value)


@dataclass(frozen=True)
class Batch:
    """Samples along the first dimension of a case's inputs.

    ``case`` is its first call, without its backward, whose loss would mix the samples. ``rows`` are the samples that
    are looked at alone: the first, the last, and some between. ``first_alone``: only the first input holds samples.
    """

    case: Case
    size: int
    rows: tuple[int, ...]
    first_alone: bool = False

    def make_alone(self) -> Case:
        """The case whose calls are the rows, one by one."""
        make = self.case.make

        def first() -> tuple[object, object]:
            model, inputs = make()
            return model, self.take_row(inputs, self.rows[0])

        _, inputs = make()
        rest = [self.take_row(inputs, number) for number in self.rows[1:]]
        return replace(self.case, make=first, calls=rest)  # type: ignore[arg-type]

    def take_row(self, inputs: object, number: int) -> object:
        """The inputs of one sample; tensors without the batch's dimension stay as they are."""
        taken = 0

        def narrow(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal taken
            if not tensor.dim() or tensor.shape[0] != self.size or isinstance(tensor, torch.nn.Parameter):
                return tensor
            taken += 1
            return tensor if self.first_alone and taken > 1 else tensor.narrow(0, number, 1).detach().clone()

        return map_tree(narrow, inputs)


def _find_batches(case: Case, program: CaseProgram) -> list[Batch]:
    """The batches that a case's first call may take, the likelier first.

    All inputs whose first dimension has the size of the first input's hold rows, or the first input alone does; weights
    among the inputs may have that size too.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(program.calls[0]) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    size = tensors[0].shape[0] if tensors else 0
    if size < 2:
        return []
    count = min(size, CAPTURED_CALLS)
    rows = tuple(sorted({round(place * (size - 1) / (count - 1)) for place in range(count)}))
    plain = replace(case, calls=None, backward=False)
    shared = sum(tensor.shape[0] == size for tensor in tensors) > 1
    return [Batch(plain, size, rows, first_alone) for first_alone in ((False, True) if shared else (False,))]


def take_row_of_value(value: torch.Tensor, alone: torch.Tensor, size: int, number: int) -> torch.Tensor | None:
    """The part of the value of a whole batch of ``size`` that belongs to sample ``number``.

    ``alone`` is the same value of a sample alone, whose shape says where the samples are; None if it does not.
    """
    if value.dtype != alone.dtype:
        return None
    if value.dim() != alone.dim():  # a compiler drops the dimension of a sample that is alone
        if value.numel() != size * alone.numel() or not value.dim() or value.shape[0] != size:
            return None
        kept = [[length for length in each.shape if length != 1] for each in (value[number], alone)]
        return value[number].reshape(alone.shape) if kept[0] == kept[1] else None
    apart = [dim for dim, sizes in enumerate(zip(value.shape, alone.shape, strict=True)) if sizes[0] != sizes[1]]
    if not apart:
        return value  # no sample enters it, as in a table of positions
    dim = apart[0]
    if len(apart) > 1 or value.shape[dim] != size * alone.shape[dim]:
        return None
    return value.narrow(dim, number * alone.shape[dim], alone.shape[dim])


BATCH = "batch"
# What was run on the batch, and on its rows one by one.
Rows = tuple[Batch, Observation, Observation]


def judge_batch(compiler: StrictCompiler) -> bits.PromiseAnswer:
    """Run the rows of the case's inputs alone and in a batch, eagerly and compiled."""
    eager = _run_rows_eagerly(compiler)
    if isinstance(eager, str):
        return bits.PromiseAnswer(BATCH, None, f"not looked at: {eager}")
    batch = eager[0]
    together, alone = _compile_rows(compiler, batch)
    failure = together.first.failure or alone.first.failure
    if failure:
        return bits.PromiseAnswer(BATCH, None, f"not looked at: compiled, it raises {failure}", unsure=True)
    differing, outputs = _compare_rows(eager), tuple(_compare_rows((batch, together.first, alone.first)))
    itself = f"eager itself is not batch invariant ({differing[0].name}: {differing[0]})" if differing else ""
    if not outputs:
        which = f"rows {', '.join(map(str, batch.rows))} of {batch.size}"
        why = f"{which} have the same bits alone and in the batch"
        return bits.PromiseAnswer(BATCH, True, f"{why}, though {itself}" if itself else why)
    partings = _find_row_partings(batch, together, alone)
    if {apart.name for apart in outputs} <= {apart.name for apart in differing}:
        partings = [replace(parting, unpromised=parting.unpromised or itself) for parting in partings]
        return bits.PromiseAnswer(BATCH, None, f"{itself}, so that compiled cannot be blamed", tuple(partings), outputs)
    if partings:
        finer = partial(_find_row_partings, batch)
        partings[0] = bits.single_out(partings[0], lambda: finer(*_compile_rows(compiler, batch, SHOWN)))
    what = "a row alone differs from the row in its batch"
    return bits.answer_partings(BATCH, what, partings, outputs, first_decides=True)


def rows_differ(compiler: StrictCompiler, control: Control) -> bool:
    """Return whether a row alone differs from the row in its batch, compiled under ``control``."""
    rows = _run_rows_eagerly(compiler)
    if isinstance(rows, str):
        return False
    together, alone = (execution.first for execution in _compile_rows(compiler, rows[0], control))
    return bool(together.failure or alone.failure or _compare_rows((rows[0], together, alone)))


def _compile_rows(compiler: StrictCompiler, batch: Batch, control: Control = UNCHANGED) -> tuple[Execution, Execution]:
    together, alone = (compiler.execute(case=case, control=control) for case in (batch.case, batch.make_alone()))
    return together, alone


def _run_rows_eagerly(compiler: StrictCompiler) -> Rows | str:
    refused = "the first input has no dimension of two or more rows"
    for batch in _find_batches(compiler.case, build(compiler.case, compiler.device)):
        together, alone = (compiler.run_eager(case=case)[0] for case in (batch.case, batch.make_alone()))
        why = _why_refused((batch, together, alone)) or _why_mixed(compiler, batch)
        if why is None:
            return batch, together, alone
        refused = why
    return refused


def _why_refused(rows: Rows) -> str | None:
    _, together, alone = rows
    if alone.failure:
        return f"eager does not run on a row alone: {together.failure or alone.failure}"
    if together.failure:
        return f"eager raises {together.failure}"
    written = (value for run in (together, alone) for value in run.values if value.kind == "mutation")
    if any(value.name != RANDOM_STATE for value in written):  # random numbers differ by row, as `_why_mixed` sees
        return "the program writes to its own state, which the rows would share"
    return None if any(True for _ in _pair_rows(rows)) else "no output has a row for each row of the first input"


def _why_mixed(compiler: StrictCompiler, batch: Batch) -> str | None:
    """The sentence that an output depends on the other rows, as float64 shows; None where it does not."""
    cases = (batch.case, batch.make_alone())
    together, alone = (run_float64(case, compiler.device, keep_casts=False)[0] for case in cases)
    if together.failure or alone.failure:
        return "the program does not run in float64, which shows whether rows depend on each other"
    for name, part, row in _pair_rows((batch, together, alone)):
        if not within_default_tolerance(row.float(), part.float()):
            return f"the first dimension is no batch: {name} depends on the other rows"
    return None


def _pair_rows(rows: Rows) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    batch, together, alone = rows
    by_name = alone.index_by_name()
    for value in together.values:
        for call, number in enumerate(batch.rows if value.kind == "output" and value.is_tensor else ()):
            row = by_name.get(f"call{call}.{value.name}")
            if row is not None and row.is_tensor and value.value.shape != row.value.shape:
                part = take_row_of_value(value.value, row.value, batch.size, number)
                if part is not None:
                    yield value.name, part, row.value


def _compare_rows(rows: Rows) -> list[bits.BitDifference]:
    """The first difference of each output."""
    found: dict[str, bits.BitDifference] = {}
    for name, part, row in _pair_rows(rows):
        apart = bits.find_significant(name, part, row)
        if apart is not None:
            found.setdefault(name, apart)
    return list(found.values())


def _find_row_partings(batch: Batch, together: Execution, alone: Execution) -> list[bits.Parting]:
    found: list[bits.Parting] = []
    for lowered, other, _ in _pair_graphs(together, alone):
        for place, number in enumerate(batch.rows):
            project = partial(take_row_of_value, size=batch.size, number=number)
            calls = zip(lowered.calls[:1], other.calls[place : place + 1], strict=False)
            parting = bits.find_first_parting(lowered, other, calls, bits.why_open_batch, project)
            if parting is not None:
                found.append(replace(parting, detail=f"row {number}: {parting.detail}"))
                break
    return bits.sort_partings(found)


def _pair_graphs(first: Execution, second: Execution) -> Iterator[tuple[LoweredGraph, LoweredGraph, int]]:
    """The graphs of the first run of an execution, each with the same graph of another, and how often it was called."""
    for lowered, made in zip(first.ledger.lowered, first.calls, strict=False):
        for other in second.ledger.lowered:
            if (other.frame, other.direction) == (lowered.frame, lowered.direction):
                yield lowered, other, made
                break


# The promise that bits are the same from run to run: one compiled program twice, and two compiles of it.

RUN_TO_RUN = "run_to_run"
_RUNS = "two runs of one compiled program"
_COMPILES = "two compiles of the program"


def judge_run_to_run(compiler: StrictCompiler) -> bits.PromiseAnswer:
    """Run a compiled program twice, and compile it twice: every kernel has to repeat itself."""
    once = compiler.compiled
    if bits.compare_runs(*compiler.run_eager(runs=2)):
        return bits.PromiseAnswer(RUN_TO_RUN, None, "eager itself gives other bits when the same program runs again")
    between, outputs, again = _RUNS, _find_significant(*once.runs), once
    if not outputs:
        between, again = _COMPILES, compiler.execute()
        outputs = _find_significant(once.first, again.first)
    if not outputs:
        return bits.PromiseAnswer(RUN_TO_RUN, True, f"{_RUNS} give the same bits, and so do {_COMPILES}")

    def find_shown() -> list[bits.Parting]:
        shown = compiler.execute(control=SHOWN, runs=2 if again is once else 1)
        return _compare_first_runs(shown, shown if again is once else compiler.execute(control=SHOWN))

    partings = _compare_first_runs(once, again)
    partings = [bits.single_out(partings[0], find_shown), *partings[1:]] if partings else []
    return replace(bits.answer_partings(RUN_TO_RUN, f"{between} differ", partings, outputs), holds=False)


def repeats_differ(compiler: StrictCompiler, control: Control) -> bool:
    """Return whether a program compiled under ``control`` differs between two runs or two compiles."""
    execution = compiler.execute(control=control, runs=2)
    if any(run.failure for run in execution.runs) or _find_significant(*execution.runs):
        return True
    return bool(_find_significant(execution.first, compiler.execute(control=control).first))


def _find_significant(first: Observation, second: Observation) -> list[bits.BitDifference]:
    return [apart for apart in bits.compare_runs(first, second) if not apart.only_payloads]


def _compare_first_runs(first: Execution, second: Execution) -> list[bits.Parting]:
    """What parts between the first run of a compile and that of another, or the second run of the same."""
    found = (
        bits.find_first_parting(
            lowered,
            other,
            zip(lowered.calls[:made], other.calls[made if second is first else 0 :], strict=False),
            lambda *_: None,
        )
        for lowered, other, made in _pair_graphs(first, second)
    )
    return bits.sort_partings(parting for parting in found if parting is not None)
