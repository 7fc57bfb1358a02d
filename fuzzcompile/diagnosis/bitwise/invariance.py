"""Promises of equal bits between compiled runs: for a row alone and in a batch, and from run to run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.kernels.kernel_loops import list_operators_behind
from fuzzcompile.compiler.kernels.lowering_control import UNCHANGED, Control
from fuzzcompile.compiler.watch.ledger import GraphCall, Kernel, LoweredGraph
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.diagnosis.bitwise import bit_difference as bits
from fuzzcompile.diagnosis.bitwise.execution import SHOWN, Execution, StrictCompiler
from fuzzcompile.diagnosis.bitwise.kernel_bits import find_first_parting, single_out
from fuzzcompile.model.evidence import RANDOM_STATE
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.metrics import within_default_tolerance
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.runs import run_float64
from fuzzcompile.run.tensors import map_tensors

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

        return map_tensors(narrow, inputs)


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


def judge_batch(compiles: StrictCompiler) -> bits.PromiseAnswer:
    """Run the rows of the case's inputs alone and in a batch, eagerly and compiled."""
    rows = _run_rows_eagerly(compiles)
    if isinstance(rows, str):
        return bits.PromiseAnswer(BATCH, None, f"not looked at: {rows}")
    compiled = _CompiledRows.compile(compiles, rows.batch)
    if compiled.failure:
        return bits.PromiseAnswer(BATCH, None, f"not looked at: compiled, it raises {compiled.failure}", unsure=True)
    return _answer_rows(compiles, compiled, _compare_rows(rows.batch, rows.together, rows.alone))


def rows_differ(compiles: StrictCompiler, control: Control) -> bool:
    """Return whether a row alone differs from the row in its batch, compiled under ``control``."""
    rows = _run_rows_eagerly(compiles)
    if isinstance(rows, str):
        return False
    compiled = _CompiledRows.compile(compiles, rows.batch, control)
    return compiled.failure is not None or bool(compiled.outputs)


class _EagerRows(NamedTuple):
    batch: Batch
    together: Observation
    alone: Observation


def _run_rows_eagerly(compiles: StrictCompiler) -> _EagerRows | str:
    """The first way to cut the inputs into rows that do not depend on each other; else why there is none."""
    refused = "the first input has no dimension of two or more rows"
    for batch in _find_batches(compiles.case, build(compiles.case, compiles.device)):
        together, alone = (compiles.run_eager(case=case)[0] for case in (batch.case, batch.make_alone()))
        why = _why_refused(batch, together, alone) or _why_mixed(compiles, batch)
        if why is None:
            return _EagerRows(batch, together, alone)
        refused = why
    return refused


def _answer_rows(
    compiles: StrictCompiler, compiled: _CompiledRows, eager: list[bits.BitDifference]
) -> bits.PromiseAnswer:
    known = {apart.name for apart in eager}
    itself = f"eager itself is not batch invariant ({eager[0].name}: {eager[0]})" if eager else ""
    if not compiled.outputs:
        which = f"rows {', '.join(map(str, compiled.batch.rows))} of {compiled.batch.size}"
        why = f"{which} have the same bits alone and in the batch"
        return bits.PromiseAnswer(BATCH, True, f"{why}, though {itself}" if itself else why)
    outputs, blamed = tuple(compiled.outputs), [apart for apart in compiled.outputs if apart.name not in known]
    partings = compiled.find_partings()
    if not blamed:
        partings = [replace(parting, unpromised=parting.unpromised or itself) for parting in partings]
        return bits.PromiseAnswer(BATCH, None, f"{itself}, so that compiled cannot be blamed", tuple(partings), outputs)
    if partings:
        first = single_out(partings[0], lambda: _CompiledRows.compile(compiles, compiled.batch, SHOWN).find_partings())
        partings = [first, *partings[1:]]
    what = "a row alone differs from the row in its batch"
    return bits.answer_partings(BATCH, what, partings, outputs, first_decides=True)


def _why_refused(batch: Batch, together: Observation, alone: Observation) -> str | None:
    failure = together.failure or alone.failure
    if failure:
        return f"eager does not run on a row alone: {failure}" if alone.failure else f"eager raises {failure}"
    written = (value for run in (together, alone) for value in run.values if value.kind == "mutation")
    if any(value.name != RANDOM_STATE for value in written):  # random numbers differ by row, as `_why_mixed` sees
        return "the program writes to its own state, which the rows would share"
    if not list(_pair_rows(batch, together, alone)):
        return "no output has a row for each row of the first input"
    return None


def _why_mixed(compiles: StrictCompiler, batch: Batch) -> str | None:
    """The sentence that an output depends on the other rows, as float64 shows; None where it does not."""
    together, alone = (
        run_float64(case, compiles.device, keep_casts=False)[0] for case in (batch.case, batch.make_alone())
    )
    if together.failure or alone.failure:
        return "the program does not run in float64, which shows whether rows depend on each other"
    for name, part, row in _pair_rows(batch, together, alone):
        if not within_default_tolerance(row.float(), part.float()):
            return f"the first dimension is no batch: {name} depends on the other rows"
    return None


def _pair_rows(
    batch: Batch, together: Observation, alone: Observation
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The rows of each output: its name, its part of the batch's, and the row's own."""
    rows = alone.index_by_name()
    for value in together.values:
        if value.kind != "output" or not value.is_tensor:
            continue
        for call, number in enumerate(batch.rows):
            row = rows.get(f"call{call}.{value.name}")
            part = None
            if row is not None and row.is_tensor and value.value.shape != row.value.shape:
                part = take_row_of_value(value.value, row.value, batch.size, number)
            if row is not None and part is not None:
                yield value.name, part, row.value


def _compare_rows(batch: Batch, together: Observation, alone: Observation) -> list[bits.BitDifference]:
    found: dict[str, bits.BitDifference] = {}
    for name, part, row in _pair_rows(batch, together, alone):
        apart = bits.compare_bits(name, part, row)
        if apart is not None and not apart.only_payloads:
            found.setdefault(name, apart)
    return list(found.values())


@dataclass(frozen=True)
class _CompiledRows:
    batch: Batch
    together: Execution
    alone: Execution

    @classmethod
    def compile(cls, compiles: StrictCompiler, batch: Batch, control: Control = UNCHANGED) -> _CompiledRows:
        return cls(
            batch,
            compiles.execute(case=batch.case, control=control),
            compiles.execute(case=batch.make_alone(), control=control),
        )

    @property
    def failure(self) -> Failure | None:
        return self.together.first.failure or self.alone.first.failure

    @functools.cached_property
    def outputs(self) -> list[bits.BitDifference]:
        return _compare_rows(self.batch, self.together.first, self.alone.first)

    def find_partings(self) -> list[bits.Parting]:
        return bits.sort_partings(
            parting
            for lowered in self.together.ledger.lowered
            for parting in [self._find_first(lowered)]
            if parting is not None
        )

    def _find_first(self, lowered: LoweredGraph) -> bits.Parting | None:
        for place, number in enumerate(self.batch.rows if lowered.calls else ()):
            project = functools.partial(take_row_of_value, size=self.batch.size, number=number)

            def calls(partner: LoweredGraph, place: int = place) -> list[tuple[GraphCall, GraphCall]]:
                return [(lowered.calls[0], call) for call in partner.calls[place : place + 1]]

            parting = find_first_parting(lowered, self.alone.ledger.lowered, calls, _why_open_kernel, project)
            if parting is not None:
                return replace(parting, detail=f"row {number}: {parting.detail}")
        return None


def _why_open_kernel(kernel: Kernel, buffer: str, compared: Collection[str], apart: bits.BitDifference) -> str | None:
    """Return why a kernel may give a row other bits in another batch, where ``compared`` buffers were the same."""
    if kernel.extern:
        return "a library computes it, and torch promises nothing of libraries"
    return bits.why_open_batch(list_operators_behind(kernel, buffer, compared), apart)


# The promise that bits are the same from run to run: one compiled program twice, and two compiles of it.

RUN_TO_RUN = "run_to_run"
_RUNS = "two runs of one compiled program"
_COMPILES = "two compiles of the program"


def judge_run_to_run(compiles: StrictCompiler, execution: Execution) -> bits.PromiseAnswer:
    """Run a compiled program twice, as in ``execution``, and compile it twice."""
    if bits.compare_runs(*compiles.run_eager(runs=2)):
        return bits.PromiseAnswer(RUN_TO_RUN, None, "eager itself gives other bits when the same program runs again")
    outputs = find_significant(execution.runs)
    if outputs:

        def find_in_runs() -> list[bits.Parting]:
            shown = compiles.execute(control=SHOWN, runs=2)
            return _compare_first_runs(shown, shown)

        return _answer_differing(_RUNS, outputs, _compare_first_runs(execution, execution), find_in_runs)
    second = compiles.execute()
    outputs = find_significant((execution.first, second.first))
    if not outputs:
        return bits.PromiseAnswer(RUN_TO_RUN, True, f"{_RUNS} give the same bits, and so do {_COMPILES}")

    def find_shown() -> list[bits.Parting]:
        return _compare_first_runs(compiles.execute(control=SHOWN), compiles.execute(control=SHOWN))

    return _answer_differing(_COMPILES, outputs, _compare_first_runs(execution, second), find_shown)


def repeats_differ(compiles: StrictCompiler, control: Control) -> bool:
    """Return whether a program compiled under ``control`` differs between two runs or two compiles."""
    execution = compiles.execute(control=control, runs=2)
    if any(run.failure for run in execution.runs) or find_significant(execution.runs):
        return True
    return bool(find_significant((execution.first, compiles.execute(control=control).first)))


def find_significant(runs: Sequence[Observation]) -> list[bits.BitDifference]:
    """Compare the values of the first two runs, and drop differences in payloads of NaN alone."""
    return [apart for apart in bits.compare_runs(*runs[:2]) if not apart.only_payloads]


def _answer_differing(
    between: str,
    outputs: list[bits.BitDifference],
    partings: list[bits.Parting],
    finer: Callable[[], list[bits.Parting]],
) -> bits.PromiseAnswer:
    """Answer for runs that differ, which breaks the promise wherever they part: every kernel has to repeat itself."""
    partings = [single_out(partings[0], finer), *partings[1:]] if partings else []
    return replace(bits.answer_partings(RUN_TO_RUN, f"{between} differ", partings, outputs), holds=False)


def _compare_first_runs(first: Execution, second: Execution) -> list[bits.Parting]:
    """The first parting of each graph between its first run and the next, in the same compile or another one."""
    found: list[bits.Parting] = []
    for lowered, made in zip(first.ledger.lowered, first.calls[0], strict=False):

        def pair_calls(
            partner: LoweredGraph, own: list[GraphCall] = lowered.calls[:made], before: int = made
        ) -> Iterable[tuple[GraphCall, GraphCall]]:
            return zip(own, partner.calls[before if second is first else 0 :], strict=False)

        parting = find_first_parting(lowered, second.ledger.lowered, pair_calls, _is_never_open)
        found += [] if parting is None else [parting]
    return bits.sort_partings(found)


def _is_never_open(kernel: Kernel, buffer: str, compared: Collection[str], apart: bits.BitDifference) -> None:
    """Return None: torch promises that every kernel repeats itself."""
