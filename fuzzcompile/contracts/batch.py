"""The promise that a row has the same bits alone and in a batch."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.kernels.buffer_loops import operators_behind
from fuzzcompile.compiler.kernels.control import UNCHANGED, Control
from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered
from fuzzcompile.contracts.bits import Difference, difference
from fuzzcompile.contracts.covered import open_batch
from fuzzcompile.contracts.execution import SHOWN, Compiles, Execution
from fuzzcompile.contracts.parting import Parting, Promise, in_order
from fuzzcompile.contracts.rows import Batch, batches_of, row_of
from fuzzcompile.contracts.traces import Traced, behind_kernels, first_parting, same_graph, singled_out
from fuzzcompile.execution.building import build
from fuzzcompile.execution.observation import Failure, Observation
from fuzzcompile.execution.promised import RANDOM_STATE
from fuzzcompile.execution.runs import run_float64
from fuzzcompile.oracle.metrics import within_default_tolerance

NAME = "batch"


def judge_batch(compiles: Compiles) -> Promise:
    """Run the rows of the case's inputs alone and in a batch, eagerly and compiled."""
    rows = _eager_rows(compiles)
    if isinstance(rows, str):
        return Promise(NAME, None, f"not looked at: {rows}")
    compiled = _Compiled.made(compiles, rows.batch)
    if compiled.failed:
        return Promise(NAME, None, f"not looked at: compiled, it raises {compiled.failed}", unsure=True)
    return _judged(compiles, compiled, _apart(rows.batch, rows.together, rows.alone))


def rows_differ(compiles: Compiles, control: Control) -> bool:
    """Return whether a row alone differs from the row in its batch, compiled under ``control``."""
    rows = _eager_rows(compiles)
    if isinstance(rows, str):
        return False
    compiled = _Compiled.made(compiles, rows.batch, control)
    return compiled.failed is not None or bool(compiled.outputs)


@dataclass(frozen=True)
class _EagerRows:
    """A batch, and what eager gives for it and for its rows alone."""

    batch: Batch
    together: Observation
    alone: Observation


def _eager_rows(compiles: Compiles) -> _EagerRows | str:
    """The first way to cut the inputs into rows that do not depend on each other; else why there is none."""
    refused = "the first input has no dimension of two or more rows"
    for batch in batches_of(compiles.case, build(compiles.case, compiles.device)):
        together, alone = (compiles.run_eagerly(case=case)[0] for case in (batch.case, batch.alone()))
        why = _refused(batch, together, alone) or _mixed(compiles, batch)
        if why is None:
            return _EagerRows(batch, together, alone)
        refused = why
    return refused


def _judged(compiles: Compiles, compiled: _Compiled, eager: list[Difference]) -> Promise:
    known = {apart.name for apart in eager}
    itself = f"eager itself is not batch invariant ({eager[0].name}: {eager[0]})" if eager else ""
    if not compiled.outputs:
        which = f"rows {', '.join(map(str, compiled.batch.rows))} of {compiled.batch.size}"
        why = f"{which} have the same bits alone and in the batch"
        return Promise(NAME, True, f"{why}, though {itself}" if itself else why)
    outputs, blamed = tuple(compiled.outputs), [apart for apart in compiled.outputs if apart.name not in known]
    partings = compiled.partings()
    if not blamed:
        partings = [replace(parting, unpromised=parting.unpromised or itself) for parting in partings]
        return Promise(NAME, None, f"{itself}, so that compiled cannot be blamed", tuple(partings), outputs)
    if not partings:
        why = "a row alone differs from the row in its batch, and no graph or kernel shows where"
        return Promise(NAME, None, why, (), outputs, unsure=True)
    first = singled_out(partings[0], lambda: _Compiled.made(compiles, compiled.batch, SHOWN).partings())
    partings = [first, *partings[1:]]
    if first.promised:
        why = f"a row alone differs from the row in its batch although promised: {first}: {first.detail}"
        return Promise(NAME, False, why, tuple(partings), outputs)
    why = f"a row alone differs from the row in its batch where nothing is promised: {first}: {first.unpromised}"
    return Promise(NAME, None, why, tuple(partings), outputs)


def _refused(batch: Batch, together: Observation, alone: Observation) -> str | None:
    """Return the reason for which the rows prove nothing; None if they do prove something."""
    failure = together.failure or alone.failure
    if failure:
        return f"eager does not run on a row alone: {failure}" if alone.failure else f"eager raises {failure}"
    written = (value for run in (together, alone) for value in run.values if value.kind == "mutation")
    if any(value.name != RANDOM_STATE for value in written):  # random numbers differ by row, as `_mixed` sees
        return "the program writes to its own state, which the rows would share"
    if not list(_pairs(batch, together, alone)):
        return "no output has a row for each row of the first input"
    return None


def _mixed(compiles: Compiles, batch: Batch) -> str | None:
    """The sentence that an output depends on the other rows, as float64 shows; None where it does not."""
    together, alone = (run_float64(case, compiles.device, keep_casts=False)[0] for case in (batch.case, batch.alone()))
    if together.failure or alone.failure:
        return "the program does not run in float64, which shows whether rows depend on each other"
    for name, part, row in _pairs(batch, together, alone):
        if not within_default_tolerance(row.float(), part.float()):
            return f"the first dimension is no batch: {name} depends on the other rows"
    return None


def _pairs(batch: Batch, together: Observation, alone: Observation) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The rows of each output: its name, its part of the batch's, and the row's own."""
    rows = alone.named()
    for value in together.values:
        if value.kind != "output" or not value.is_tensor:
            continue
        for call, number in enumerate(batch.rows):
            row = rows.get(f"call{call}.{value.name}")
            part = None
            if row is not None and row.is_tensor and value.value.shape != row.value.shape:
                part = row_of(value.value, row.value, batch.size, number)
            if row is not None and part is not None:
                yield value.name, part, row.value


def _apart(batch: Batch, together: Observation, alone: Observation) -> list[Difference]:
    """The outputs of which a row differs, each with its first such row."""
    found: dict[str, Difference] = {}
    for name, part, row in _pairs(batch, together, alone):
        apart = difference(name, part, row)
        if apart is not None and not apart.only_payloads:
            found.setdefault(name, apart)
    return list(found.values())


@dataclass(frozen=True)
class _Compiled:
    """A batch compiled, and its rows compiled alone."""

    batch: Batch
    together: Execution
    alone: Execution

    @classmethod
    def made(cls, compiles: Compiles, batch: Batch, control: Control = UNCHANGED) -> _Compiled:
        """Compile both."""
        return cls(
            batch,
            compiles.execute(case=batch.case, control=control),
            compiles.execute(case=batch.alone(), control=control),
        )

    @property
    def failed(self) -> Failure | None:
        """Failure of the batch, else of its rows; None if both ran."""
        return self.together.first.failure or self.alone.first.failure

    @functools.cached_property
    def outputs(self) -> list[Difference]:
        """The outputs of which a row differs."""
        return _apart(self.batch, self.together.first, self.alone.first)

    def partings(self) -> list[Parting]:
        """The first parting of each graph, over the rows."""
        found = []
        for lowered in self.together.ledger.lowered:
            partner = next((each for each in self.alone.ledger.lowered if same_graph(lowered, each)), None)
            parting = self._first(lowered, partner) if partner is not None else None
            if parting is not None:
                found.append(parting)
        return in_order(found)

    def _first(self, lowered: Lowered, partner: Lowered) -> Parting | None:
        if not lowered.calls:
            return None
        for call, number in zip(partner.calls, self.batch.rows, strict=False):
            project = functools.partial(row_of, size=self.batch.size, number=number)
            pair = Traced(lowered, lowered.calls[0]), Traced(partner, call)
            parting = first_parting(*pair, open_kernel, project) or behind_kernels(*pair, project)
            if parting is not None:
                return replace(parting, detail=f"row {number}: {parting.detail}")
        return None


def open_kernel(kernel: Kernel, buffer: str, compared: Collection[str], apart: Difference) -> str | None:
    """Return the reason for which a kernel may give a row other bits in another batch; None if it may not.

    Args:
        kernel: the kernel.
        buffer: what it wrote.
        compared: the buffers whose own bits were the same.
        apart: how the row's value differs.
    """
    if kernel.extern:
        return "a library computes it, and torch promises nothing of libraries"
    return open_batch(operators_behind(kernel, buffer, compared), apart)
