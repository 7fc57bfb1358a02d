"""Which properties of a case can be varied, found by running it in eager mode."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.case import Case, load_case
from fuzzcompile.casefiles import read_case_file
from fuzzcompile.compiler.options import unknown_options
from fuzzcompile.errors import CaseError
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.generation.profile import DTYPES
from fuzzcompile.generation.toggles import TOGGLES

_MOST_SIZES = 8
Leaves = list[object]
Change = Callable[[Leaves], Leaves]


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
    """A case file and the properties of it that can be varied.

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
    """Load the case file at ``path``, run it in eager mode, and find out which of its properties can be varied.

    Raises:
        CaseError: it is no case file, or it fails in eager mode.
    """
    file, where = read_case_file(Path(path)), torch.device(device)
    if file.kind != "case":
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
        name=file.path.stem,
        source=file.source,
        inputs=inputs,
        resizable=tuple(_resizable(case, where, dict(tensors))),
        dtypes=tuple(dtype for dtype in (*DTYPES, "float64") if _casts(case, where, dtype)),
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


def _resizing(places: tuple[tuple[int, int], ...], size: int) -> Change:
    def change(leaves: Leaves) -> Leaves:
        for number, dimension in places:
            leaf = leaves[number]
            assert isinstance(leaf, torch.Tensor), "only tensors have dimensions"
            leaves[number] = resized(leaf, dimension, size)
        return leaves

    return change


def _casts(case: Case, device: torch.device, name: str) -> bool:
    dtype: torch.dtype = getattr(torch, name)

    def change(leaves: Leaves) -> Leaves:
        return [
            leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf for leaf in leaves
        ]

    return _run(case, device, change, dtype=dtype) is not None


def _run(
    case: Case, device: torch.device, change: Change, *, dtype: torch.dtype | None = None
) -> tuple[Callable[..., object], Leaves] | None:
    """Model and leaves of the inputs as given, once the first call ran with changed inputs; None where it raises."""
    program = build(case, device)
    model: Callable[..., object] = program.model
    if dtype is not None and isinstance(model, torch.nn.Module):
        model = model.to(dtype)
    leaves: Leaves = []
    seed_everything(0)
    # The user's program may raise anything at all: then this change is none that it takes.
    with contextlib.suppress(Exception), runs.grad_mode(case.grad):
        rebuild = _flattened(program.calls[0], leaves)
        inputs = rebuild(iter(change(list(leaves))))
        runs.drive(case, model, inputs)
        return model, leaves
    return None


def _flattened(value: object, leaves: Leaves) -> Callable[[Iterator[object]], object]:
    """Append the leaves of nested lists, tuples and dictionaries; return what builds the same around other leaves."""
    if isinstance(value, dict):
        parts = {key: _flattened(inner, leaves) for key, inner in value.items()}
        return lambda replacing: {key: part(replacing) for key, part in parts.items()}
    if type(value) in (list, tuple):
        assert isinstance(value, (list, tuple))
        rebuild, listed = type(value), [_flattened(inner, leaves) for inner in value]
        return lambda replacing: rebuild(part(replacing) for part in listed)
    leaves.append(value)
    return next
