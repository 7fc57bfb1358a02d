"""Promises of equal bits between compiled runs: for a row alone and in a batch, and from run to run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.kernels.kernel_loops import list_operators_behind
from fuzzcompile.compiler.kernels.lowering_control import UNCHANGED, Control
from fuzzcompile.compiler.watch.ledger import GraphCall, Kernel, LoweredGraph
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.diagnosis.bitwise import bit_difference as bits
from fuzzcompile.diagnosis.bitwise.execution import SHOWN, Execution, StrictCompiler, StrictRuns
from fuzzcompile.model.evidence import RANDOM_STATE
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.metrics import within_default_tolerance
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import run_float64
from fuzzcompile.run.tensors import map_tree

# The rows of a batch: inputs that hold one sample each, and the part of a value that belongs to a sample.


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


Run = TypeVar("Run")


@dataclass(frozen=True)
class _Rows(Generic[Run]):
    batch: Batch
    together: Run
    alone: Run

    @classmethod
    def make(cls, batch: Batch, run: Callable[[Case], Run]) -> _Rows[Run]:
        return cls(batch, run(batch.case), run(batch.make_alone()))


BATCH = "batch"


def judge_batch(runs: StrictRuns) -> bits.PromiseAnswer:
    """Run the rows of the case's inputs alone and in a batch, eagerly and compiled."""
    compiler, eager = runs.compiler, _run_rows_eagerly(runs.compiler)
    if isinstance(eager, str):
        return bits.PromiseAnswer(BATCH, None, f"not looked at: {eager}")
    compiled = _compile_rows(compiler, eager.batch)
    observed = _observe_rows(compiled)
    failure = observed.together.failure or observed.alone.failure
    if failure:
        return bits.PromiseAnswer(BATCH, None, f"not looked at: compiled, it raises {failure}", unsure=True)
    differing, outputs = _compare_rows(eager), tuple(_compare_rows(observed))
    itself = f"eager itself is not batch invariant ({differing[0].name}: {differing[0]})" if differing else ""
    if not outputs:
        which = f"rows {', '.join(map(str, eager.batch.rows))} of {eager.batch.size}"
        why = f"{which} have the same bits alone and in the batch"
        return bits.PromiseAnswer(BATCH, True, f"{why}, though {itself}" if itself else why)
    partings = _find_row_partings(compiled)
    if {apart.name for apart in outputs} <= {apart.name for apart in differing}:
        partings = [replace(parting, unpromised=parting.unpromised or itself) for parting in partings]
        return bits.PromiseAnswer(BATCH, None, f"{itself}, so that compiled cannot be blamed", tuple(partings), outputs)
    if partings:
        partings[0] = bits.single_out(
            partings[0], lambda: _find_row_partings(_compile_rows(compiler, eager.batch, SHOWN))
        )
    what = "a row alone differs from the row in its batch"
    return bits.answer_partings(BATCH, what, partings, outputs, first_decides=True)


def rows_differ(runs: StrictRuns, control: Control) -> bool:
    """Return whether a row alone differs from the row in its batch, compiled under ``control``."""
    rows = _run_rows_eagerly(runs.compiler)
    if isinstance(rows, str):
        return False
    observed = _observe_rows(_compile_rows(runs.compiler, rows.batch, control))
    return bool(observed.together.failure or observed.alone.failure or _compare_rows(observed))


def _compile_rows(compiler: StrictCompiler, batch: Batch, control: Control = UNCHANGED) -> _Rows[Execution]:
    return _Rows.make(batch, lambda case: compiler.execute(case=case, control=control))


def _observe_rows(rows: _Rows[Execution]) -> _Rows[Observation]:
    return _Rows(rows.batch, rows.together.first, rows.alone.first)


def _run_rows_eagerly(compiler: StrictCompiler) -> _Rows[Observation] | str:
    refused = "the first input has no dimension of two or more rows"
    for batch in _find_batches(compiler.case, build(compiler.case, compiler.device)):
        rows = _Rows.make(batch, lambda case: compiler.run_eager(case=case)[0])
        why = _why_refused(rows) or _why_mixed(compiler, batch)
        if why is None:
            return rows
        refused = why
    return refused


def _why_refused(rows: _Rows[Observation]) -> str | None:
    if rows.alone.failure:
        return f"eager does not run on a row alone: {rows.together.failure or rows.alone.failure}"
    if rows.together.failure:
        return f"eager raises {rows.together.failure}"
    written = (value for run in (rows.together, rows.alone) for value in run.values if value.kind == "mutation")
    if any(value.name != RANDOM_STATE for value in written):  # random numbers differ by row, as `_why_mixed` sees
        return "the program writes to its own state, which the rows would share"
    return None if any(True for _ in _pair_rows(rows)) else "no output has a row for each row of the first input"


def _why_mixed(compiler: StrictCompiler, batch: Batch) -> str | None:
    """The sentence that an output depends on the other rows, as float64 shows; None where it does not."""
    rows = _Rows.make(batch, lambda case: run_float64(case, compiler.device, keep_casts=False)[0])
    if rows.together.failure or rows.alone.failure:
        return "the program does not run in float64, which shows whether rows depend on each other"
    for name, part, row in _pair_rows(rows):
        if not within_default_tolerance(row.float(), part.float()):
            return f"the first dimension is no batch: {name} depends on the other rows"
    return None


def _pair_rows(runs: _Rows[Observation]) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    alone = runs.alone.index_by_name()
    for value in runs.together.values:
        for call, number in enumerate(runs.batch.rows if value.kind == "output" and value.is_tensor else ()):
            row = alone.get(f"call{call}.{value.name}")
            if row is not None and row.is_tensor and value.value.shape != row.value.shape:
                part = take_row_of_value(value.value, row.value, runs.batch.size, number)
                if part is not None:
                    yield value.name, part, row.value


def _compare_rows(runs: _Rows[Observation]) -> list[bits.BitDifference]:
    found: dict[str, bits.BitDifference] = {}
    for name, part, row in _pair_rows(runs):
        apart = bits.compare_bits(name, part, row)
        if apart is not None and not apart.only_payloads:
            found.setdefault(name, apart)
    return list(found.values())


def _find_row_partings(compiled: _Rows[Execution]) -> list[bits.Parting]:
    batch, others, found = compiled.batch, compiled.alone.ledger.lowered, list[bits.Parting]()
    for lowered in compiled.together.ledger.lowered:
        for place, number in enumerate(batch.rows if lowered.calls else ()):

            def calls(
                partner: LoweredGraph, whole: GraphCall = lowered.calls[0], place: int = place
            ) -> list[tuple[GraphCall, GraphCall]]:
                return [(whole, call) for call in partner.calls[place : place + 1]]

            project = functools.partial(take_row_of_value, size=batch.size, number=number)
            parting = bits.find_first_parting(lowered, others, calls, _why_open_kernel, project)
            if parting is not None:
                found.append(replace(parting, detail=f"row {number}: {parting.detail}"))
                break
    return bits.sort_partings(found)


def _why_open_kernel(kernel: Kernel, buffer: str, compared: Collection[str], apart: bits.BitDifference) -> str | None:
    if kernel.extern:
        return "a library computes it, and torch promises nothing of libraries"
    return bits.why_open_batch(list_operators_behind(kernel, buffer, compared), apart)


# The promise that bits are the same from run to run: one compiled program twice, and two compiles of it.

RUN_TO_RUN = "run_to_run"
_RUNS = "two runs of one compiled program"
_COMPILES = "two compiles of the program"


def judge_run_to_run(runs: StrictRuns) -> bits.PromiseAnswer:
    """Run a compiled program twice, and compile it twice: every kernel has to repeat itself."""
    compiler, once = runs.compiler, runs.compiled
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


def repeats_differ(runs: StrictRuns, control: Control) -> bool:
    """Return whether a program compiled under ``control`` differs between two runs or two compiles."""
    execution = runs.compiler.execute(control=control, runs=2)
    if any(run.failure for run in execution.runs) or _find_significant(*execution.runs):
        return True
    return bool(_find_significant(execution.first, runs.compiler.execute(control=control).first))


def _find_significant(first: Observation, second: Observation) -> list[bits.BitDifference]:
    return [apart for apart in bits.compare_runs(first, second) if not apart.only_payloads]


def _compare_first_runs(first: Execution, second: Execution) -> list[bits.Parting]:
    found: list[bits.Parting] = []
    for lowered, made in zip(first.ledger.lowered, first.calls[0], strict=False):

        def pair_calls(
            partner: LoweredGraph, own: list[GraphCall] = lowered.calls[:made], before: int = made
        ) -> Iterable[tuple[GraphCall, GraphCall]]:
            return zip(own, partner.calls[before if second is first else 0 :], strict=False)

        parting = bits.find_first_parting(lowered, second.ledger.lowered, pair_calls, lambda *_: None)
        found += [] if parting is None else [parting]
    return bits.sort_partings(found)
