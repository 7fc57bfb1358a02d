"""Case files of a sweep over torch's operators, each run in eager mode before it is handed out."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.execution.device import seed_everything
from fuzzcompile.opinfo.calls import called, forms
from fuzzcompile.opinfo.cells import SAMPLES, Cell, Written
from fuzzcompile.opinfo.layouts import laid_out
from fuzzcompile.opinfo.spelling import Speller, Unspellable
from fuzzcompile.opinfo.tables import entry_of, errors_of, quietly, samples_of
from fuzzcompile.templating import template

# The tables seed random functions themselves, with this number (`wrapper_set_seed`).
_SEED = 42


class LeftOut(Exception):
    """A sample that makes no case; the message says why."""


@dataclass(frozen=True)
class Call:
    """One sample as text: the expressions of the tensors that it needs, by name, and the call."""

    tensors: Mapping[str, str]
    expression: str


def write_cell(cell: Cell) -> Written:
    """The case of a cell: up to `SAMPLES` samples of the table that can be spelled, or one call that eager refuses.

    Raises:
        EnvironmentUnfit: torch's tables cannot be imported.
    """
    entry, left_out = entry_of(cell.name, cell.variant), Counter[str]()
    calls: list[Call] = []
    with quietly():
        for sample in _samples(entry, cell):
            try:
                call = _spelled(entry, cell, sample, sum(len(call.tensors) for call in calls))
                calls += [] if call is None else [call]
            except (Unspellable, LeftOut) as error:
                left_out[str(error)] += 1
    return Written(_source(cell, calls) if calls else None, len(calls), dict(left_out))


def write_cells(cells: Sequence[Cell]) -> list[Written]:
    """The cases of several cells."""
    return [write_cell(cell) for cell in cells]


def calls_of(entry: Any, cell: Cell) -> Iterator[Call]:
    """The samples of a cell that can be spelled and do in eager mode what the table does; names begin anew for each."""
    for sample in _samples(entry, cell):
        try:
            call = _spelled(entry, cell, sample, 0)
        except (Unspellable, LeftOut):
            continue
        if call is not None:
            yield call


def _samples(entry: Any, cell: Cell) -> Iterator[Any]:
    if cell.form == "error":
        yield from (error.sample_input for error in errors_of(entry)[cell.chunk : cell.chunk + 1])
        return
    chosen = samples_of(entry, cell.dtype, gradients=cell.backward)
    yield from itertools.islice(chosen, cell.chunk * SAMPLES, (cell.chunk + 1) * SAMPLES)


def _spelled(entry: Any, cell: Cell, sample: Any, start: int) -> Call | None:
    """A sample as text; None where the cell's layout is that of the sample itself.

    Raises:
        Unspellable: an argument has no text.
        LeftOut: the text does not do in eager mode what the table does.
    """
    if cell.backward and not _is_identity(sample.output_process_fn_grad):
        raise LeftOut("gradients that the table compares only after a function of the test suite")
    arguments, keywords = _moved(sample, cell.layout)
    if cell.layout != "contiguous" and arguments is None:
        return None
    speller = Speller(cell.backward, start)
    first, *rest = [speller.value(argument) for argument in arguments or (sample.input, *sample.args)]
    rest += [f"{name}={speller.value(value)}" for name, value in keywords.items()]
    ways = [called(way, first, rest) for way in forms(entry, cell.form)]
    if cell.form == "in_place" and first not in speller.tensors:
        raise LeftOut("a first operand that is no tensor")
    check = _check_refused if cell.form == "error" else _check_equal
    return Call(speller.tensors, check(entry, cell, speller.tensors, ways, [first, *rest]))


def _moved(sample: Any, layout: str) -> tuple[tuple[object, ...] | None, Mapping[str, object]]:
    """Arguments and keywords with their tensors in a layout; no arguments if that changes none of them."""
    leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    moved = [laid_out(leaf, layout) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if layout != "contiguous" and all(new is old for new, old in zip(moved, leaves, strict=True)):
        return None, sample.kwargs
    arguments, keywords = pytree.tree_unflatten(moved, structure)
    return arguments, keywords


def _check_equal(entry: Any, cell: Cell, tensors: Mapping[str, str], ways: list[str], arguments: list[str]) -> str:
    """The first way to call the operator that gives what the table's function gives.

    The table's function runs with memory filled before use, so that what is never written differs.
    """
    function = entry.inplace_variant if cell.form == "in_place" else entry.op
    wanted = _run(tensors, f"_function({', '.join(arguments)})", cell, _function=function, filled=True)
    if isinstance(wanted, Exception):
        raise LeftOut("calls that eager mode refuses in this dtype and layout")
    for way in ways:
        _spoil(wanted)
        result = _run(tensors, way, cell)
        if not isinstance(result, Exception) and _alike(wanted, result):
            return way
    raise LeftOut("functions of the test suite, and values that are not determined")


def _spoil(result: object) -> None:
    """Leave other values in free memory of the result's sizes, which the next run may be given."""
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            torch.full((leaf.numel() * leaf.element_size(),), 0x5A, dtype=torch.uint8)


def _check_refused(entry: Any, cell: Cell, tensors: Mapping[str, str], ways: list[str], arguments: list[str]) -> str:
    for way in ways:
        if isinstance(_run(tensors, way, cell), (RuntimeError, ValueError, IndexError, TypeError)):
            return way
    raise LeftOut("error inputs that eager mode accepts once they are spelled")


def _run(tensors: Mapping[str, str], expression: str, cell: Cell, *, filled: bool = False, **names: object) -> object:
    """What an expression gives in eager mode, with the gradients of its tensors if the cell has them; or its error."""
    space: dict[str, Any] = {**_functions(), **names}
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        for name, text in tensors.items():
            space[name] = eval(text, space)
        seed_everything(_SEED)
        torch.use_deterministic_algorithms(filled, warn_only=True)  # which fills uninitialised memory
        with torch.set_grad_enabled(cell.backward):
            forms = [space[name].shape for name in tensors]
            result = eval(expression, space)
            _refuse_writes([space[name] for name in tensors], forms)
            return (result, _gradients(result, [space[name] for name in tensors])) if cell.backward else result
    except LeftOut:
        raise
    except Exception as error:  # whatever the operator raises is its answer
        return error
    finally:
        torch.use_deterministic_algorithms(deterministic)


def _refuse_writes(tensors: list[torch.Tensor], shapes: list[torch.Size]) -> None:
    """Of writes, refuse those that are undefined, although some operators let them pass, or are not captured.

    Raises:
        LeftOut: one of these tensors was written to and its elements share memory, or it has another shape than before.
    """
    for tensor, shape in zip(tensors, shapes, strict=True):
        if tensor.shape != shape:
            raise LeftOut("calls that change the shape of an input, which dynamo does not capture")
        if tensor._version and any(
            size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise LeftOut("writes to elements that share memory")


def _gradients(result: object, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs or not inputs:
        raise RuntimeError("no gradient flows")
    weights = [torch.ones_like(output) for output in outputs]
    return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def _alike(left: object, right: object) -> bool:
    """Whether two results are equal up to what the order of additions makes."""
    try:
        torch.testing.assert_close(left, right, equal_nan=True, check_stride=False)
    except (AssertionError, TypeError):  # one of them may be of any type
        return False
    return True


def _is_identity(function: Callable[[object], object]) -> bool:
    token = object()
    try:
        return function(token) is token
    except Exception:  # a function of tensors may raise anything on what is none
        return False


@functools.cache
def _functions() -> dict[str, Any]:
    """The names that the texts use, as the template defines them."""
    names: dict[str, Any] = {"torch": torch}
    exec(
        _rendered("", Cell("", "", "function"), (Call({"x0": "strided drawn inf"}, ""),)).split("def program")[0],
        names,
    )
    return names


def _is_shaped_by_values(name: str) -> bool:
    """Whether the shape of a result depends on values: dynamo captures such an operator only where it is told to."""
    packet = getattr(torch.ops.aten, name.rpartition("nn.functional.")[2].replace(".", "_"), None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    return any(torch.Tag.dynamic_output_shape in overload.tags for overload in overloads)


def _source(cell: Cell, calls: Iterable[Call]) -> str:
    words = (cell.form.replace("_", " "), cell.dtype, cell.layout, "with gradients" if cell.backward else "")
    what = ", ".join(word for word in words if word)
    return _rendered(f"Samples of `{cell.label}` from torch's tables of operators: {what}.", cell, tuple(calls))


def _rendered(title: str, cell: Cell, calls: tuple[Call, ...]) -> str:
    tensors = {name: text for call in calls for name, text in call.tensors.items()}
    text = " ".join([*tensors.values(), *(call.expression for call in calls)])
    return template("opinfo/case.py.j2").render(
        title=title,
        backward=cell.backward,
        shaped_by_values=_is_shaped_by_values(cell.name),
        tensors=tensors,
        statements=[f"r{number} = {call.expression}" for number, call in enumerate(calls)],
        results=[f"r{number}" for number in range(len(calls))],
        uses_strided="strided" in text,
        uses_drawn="drawn" in text,
        uses_numbers="inf" in text or "nan" in text,
    )
