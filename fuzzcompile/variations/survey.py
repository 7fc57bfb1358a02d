"""What of a case can be varied, found by running it in eager mode."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.capture.loading import defines_make
from fuzzcompile.case import Case, load_case, read_source
from fuzzcompile.compiler.options import unknown_options
from fuzzcompile.errors import CaseError
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import Program, build
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.generation.toggles import TOGGLES

DTYPES = ("float32", "bfloat16", "float16", "float64")
_MOST_SIZES = 8


@dataclass(frozen=True)
class Input:
    """One tensor among the inputs: its place among the leaves, in order."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    floating: bool


@dataclass(frozen=True)
class Resizable:
    """Dimensions of inputs, as (input, dimension), that can be given another size together; all have ``size`` now."""

    size: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Survey:
    """A case file and what can be varied of it.

    ``dtypes`` are those that model and floating inputs can be cast to and still run. ``own_calls`` is set where it
    defines its calls or how it is driven, ``has_mode`` where it asks for a mode of torch.compile. ``toggles`` are the
    settings of the compiler that the installed torch has.
    """

    name: str
    source: str
    inputs: tuple[Input, ...]
    resizable: tuple[Resizable, ...]
    dtypes: tuple[str, ...]
    is_module: bool
    has_gradients: bool
    own_calls: bool
    grad: str
    backward: bool
    has_mode: bool
    toggles: tuple[str, ...]


def survey(path: str, device: str = "cpu") -> Survey:
    """Load the case file at ``path``, run it in eager mode, and find out what of it can be varied.

    Raises:
        CaseError: it is no case file, or it fails in eager mode.
    """
    file, where = Path(path), torch.device(device)
    source = read_source(file)
    if not defines_make(source):
        raise CaseError(
            f"{path} cannot be varied: it defines no make() that returns (module, inputs); write it as a case."
        )
    case = load_case(file)
    seen = _run(case, where, lambda value: value)
    if seen is None:
        observed = runs.run_eager(case, where)
        raise CaseError(f"{path} cannot be varied: it fails in eager mode ({observed.failure}); mend it first.")
    model, leaves = seen
    tensors = [(number, leaf) for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs = tuple(_input(number, leaf) for number, leaf in tensors)
    floating = [leaf for _, leaf in tensors if leaf.is_floating_point()]
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    return Survey(
        name=file.stem,
        source=source,
        inputs=inputs,
        resizable=tuple(_resizable(case, where, dict(tensors))),
        dtypes=tuple(dtype for dtype in DTYPES if _casts(case, where, dtype)),
        is_module=isinstance(model, torch.nn.Module),
        has_gradients=any(p.is_floating_point() for p in parameters) or bool(floating),
        own_calls=case.calls is not None or case.run is not None,
        grad=case.grad,
        backward=case.backward,
        has_mode=case.settings.mode is not None,
        toggles=tuple(toggle.name for toggle in TOGGLES if not unknown_options(dict(toggle.options))),
    )


def resized(value: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """``value`` with its elements along ``dimension`` repeated, or cut off, to ``size``."""
    index = torch.arange(size, device=value.device) % max(value.shape[dimension], 1)
    return value.detach().index_select(dimension, index).requires_grad_(value.requires_grad)


def _input(number: int, leaf: torch.Tensor) -> Input:
    return Input(number, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."), leaf.is_floating_point())


def _resizable(case: Case, device: torch.device, tensors: dict[int, torch.Tensor]) -> Iterator[Resizable]:
    """Groups of dimensions of one size that can grow together by one, the larger groups first."""
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, leaf in tensors.items():
        for dimension, size in enumerate(leaf.shape):
            groups[size].append((number, dimension))
    tried = set[tuple[tuple[int, int], ...]]()
    for size, places in list(groups.items())[:_MOST_SIZES]:
        for chosen in (tuple(places), *(tuple(p for p in places if p[1] == d) for d in sorted({d for _, d in places}))):
            if size == 0 or chosen in tried:
                continue
            tried.add(chosen)
            if _run(case, device, _resizing(chosen, size + 1)) is not None:
                yield Resizable(size, chosen)


def _resizing(places: tuple[tuple[int, int], ...], size: int) -> Callable[[list[Any]], list[Any]]:
    def change(leaves: list[Any]) -> list[Any]:
        for number, dimension in places:
            leaves[number] = resized(leaves[number], dimension, size)
        return leaves

    return change


def _casts(case: Case, device: torch.device, dtype: str) -> bool:
    wanted = getattr(torch, dtype)

    def change(leaves: list[Any]) -> list[Any]:
        return [
            leaf.to(wanted) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf for leaf in leaves
        ]

    return _run(case, device, change, dtype=wanted) is not None


def _run(
    case: Case, device: torch.device, change: Callable[[list[Any]], list[Any]], *, dtype: torch.dtype | None = None
) -> tuple[Any, list[Any]] | None:
    """Model and leaves of the inputs as given, once the first call ran with changed inputs; None where it raises."""
    program = build(case, device)
    model, arguments = program.model, _first(program)
    if dtype is not None and isinstance(model, torch.nn.Module):
        model = model.to(dtype)
    leaves: list[Any] = []
    seed_everything(0)
    with contextlib.suppress(Exception), runs.grad_mode(case.grad):
        rebuild = _flattened(arguments, leaves)
        given = rebuild(iter(change(list(leaves))))
        if case.run is not None:
            case.run(model, given)
        elif isinstance(given, dict):
            model(**given)
        else:
            _ = model(*given) if isinstance(given, tuple) else model(given)
        return model, leaves
    return None


def _first(program: Program) -> Any:
    return program.calls[0]


def _flattened(value: Any, leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    """Append the leaves of nested lists, tuples and dictionaries; return what puts others in their places."""
    if isinstance(value, dict):
        parts = {key: _flattened(inner, leaves) for key, inner in value.items()}
        return lambda given: {key: part(given) for key, part in parts.items()}
    if type(value) in (list, tuple):
        listed = [_flattened(inner, leaves) for inner in value]
        return lambda given: type(value)(part(given) for part in listed)
    leaves.append(value)
    return lambda given: next(given)
