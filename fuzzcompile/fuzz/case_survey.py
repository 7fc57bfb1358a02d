"""Properties of a case that can be varied, found by running it in eager mode."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.compiler.torch_config import find_unknown_options
from fuzzcompile.fuzz.generation.profile import DTYPES
from fuzzcompile.model.compiler_toggles import TOGGLES
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import runs
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.pool.worker import get_current_device

_MOST_SIZES = 8
InputLeaves = list[object]
InputChange = Callable[[InputLeaves], InputLeaves]


@dataclass(frozen=True)
class SurveyedInput:
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
    inputs: tuple[SurveyedInput, ...]
    resizable: tuple[Resizable, ...]
    dtypes: tuple[str, ...]
    is_module: bool
    has_gradients: bool
    own_calls: bool
    grad: str
    backward: bool
    has_mode: bool
    toggles: tuple[str, ...]


def survey_case(path: str) -> Survey:
    """Run the case file at ``path`` eagerly on this worker's device to see what can be varied, or raise `CaseError`."""
    file, where = read_case_file(Path(path)), torch.device(get_current_device())
    if file.kind != "case":
        raise CaseError(
            f"{path} cannot be varied: it defines no make() that returns (module, inputs); write it as a case."
        )
    case = load_case(file)
    seen = _run_case(case, where, lambda value: value)
    if seen is None:
        observed = runs.run_eager(case, where)
        raise CaseError(f"{path} cannot be varied: it fails in eager mode ({observed.failure}); mend it first.")
    model, leaves = seen
    tensors = {number: leaf for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    inputs = tuple(
        SurveyedInput(number, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."), leaf.is_floating_point())
        for number, leaf in tensors.items()
    )
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    return Survey(
        name=file.path.stem,
        source=file.source,
        inputs=inputs,
        resizable=tuple(_iter_resizable(case, where, tensors)),
        dtypes=tuple(dtype for dtype in (*DTYPES, "float64") if _can_cast(case, where, dtype)),
        is_module=isinstance(model, torch.nn.Module),
        has_gradients=any(value.is_floating_point() for value in (*parameters, *tensors.values())),
        own_calls=case.calls is not None or case.run is not None,
        grad=case.grad,
        backward=case.backward,
        has_mode=case.settings.mode is not None,
        toggles=tuple(each.name for each in TOGGLES if not find_unknown_options(dict(each.options), each.config)),
    )


def _iter_resizable(case: Case, device: torch.device, tensors: dict[int, torch.Tensor]) -> Iterator[Resizable]:
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
            if _run_case(case, device, functools.partial(_resize, places=chosen, size=size + 1)) is not None:
                yield Resizable(size, chosen)


def _resize(leaves: InputLeaves, places: Sequence[tuple[int, int]], size: int) -> InputLeaves:
    for number, dimension in places:
        value = leaves[number]
        assert isinstance(value, torch.Tensor), "only tensors have dimensions"
        index = torch.arange(size, device=value.device) % max(value.shape[dimension], 1)
        leaves[number] = value.detach().index_select(dimension, index).requires_grad_(value.requires_grad)
    return leaves


def _can_cast(case: Case, device: torch.device, name: str) -> bool:
    dtype: torch.dtype = getattr(torch, name)

    def cast(leaf: object) -> object:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return _run_case(case, device, lambda leaves: list(map(cast, leaves)), dtype=dtype) is not None


def _run_case(
    case: Case, device: torch.device, change: InputChange, *, dtype: torch.dtype | None = None
) -> tuple[Callable[..., object], InputLeaves] | None:
    """Model and leaves of the inputs as given, once the first call ran with changed inputs; None where it raises."""
    program = build(case, device)
    model: Callable[..., object] = program.model
    if dtype is not None and isinstance(model, torch.nn.Module):
        model = model.to(dtype)
    seed_everything(0)
    # The user's program may raise anything at all: then this change is none that it takes.
    with contextlib.suppress(Exception), runs.enter_grad_mode(case.grad):
        leaves: InputLeaves = []
        rebuild = _flatten(program.calls[0], leaves)
        runs.drive(case, model, rebuild(iter(change(list(leaves)))))
        return model, leaves
    return None


def _flatten(value: object, leaves: InputLeaves) -> Callable[[Iterator[object]], object]:
    """Append the leaves as the template of variations numbers them; return what builds the same around others."""
    if isinstance(value, dict):
        parts = {key: _flatten(inner, leaves) for key, inner in value.items()}
        return lambda replacing: {key: part(replacing) for key, part in parts.items()}
    if type(value) in (list, tuple):
        assert isinstance(value, (list, tuple))
        rebuild, listed = type(value), [_flatten(inner, leaves) for inner in value]
        return lambda replacing: rebuild(part(replacing) for part in listed)
    leaves.append(value)
    return next
