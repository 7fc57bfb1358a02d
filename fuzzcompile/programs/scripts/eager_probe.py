"""Eager runs of a case, which decide how short its reproducer can be."""

from __future__ import annotations

import inspect
import re
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.model.evidence import RANDOM_STATE, LeafName, ObservableName
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import metrics, runs
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import RUN_SEED, build
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.tensors import find_aliases, is_wrapped, list_tensors

# A plain float64 run farther than this share from eager is no reference for it.
_SAME_PROGRAM = 0.1


@dataclass(frozen=True)
class Observable:
    """One observable value of an eager run. ``largest`` is its largest finite absolute value."""

    name: str
    kind: str
    is_tensor: bool
    dtype: torch.dtype | None = None
    largest: float = 0.0

    @property
    def floating(self) -> bool:
        """Return whether rounding can touch it."""
        return self.dtype is not None and (self.dtype.is_floating_point or self.dtype.is_complex)


@dataclass(frozen=True)
class EagerProbe:
    """The eager run of a case.

    ``inputs`` and ``outputs`` are the real objects, one for each call: expressions follow their structure.
    ``repeatable``: a second forward run on the same model and inputs gives the same. ``float64``: the program runs
    unchanged on float64 parameters and inputs, and is the same program there. ``nonfinite``: its result holds NaN or
    infinity.
    """

    case: Case
    model: Callable[..., object]
    inputs: Sequence[object]
    outputs: Sequence[object]
    observables: Mapping[str, Observable]
    repeatable: bool
    random: bool
    float64: bool
    nonfinite: bool

    @property
    def is_module(self) -> bool:
        """Return whether the program is a module, which holds parameters that can be converted."""
        return isinstance(self.model, nn.Module)

    @property
    def star(self) -> str:
        """The stars before the inputs in a call of the program."""
        return "**" if isinstance(self.inputs[0], dict) else "*" if isinstance(self.inputs[0], tuple) else ""

    @property
    def tensor_inputs(self) -> list[torch.Tensor]:
        """The tensors among the inputs of all calls."""
        return list(list_tensors(list(self.inputs)))

    @property
    def floating_dtype(self) -> torch.dtype:
        """The dtype of the first floating input; float32 without one."""
        return next((x.dtype for x in self.tensor_inputs if x.is_floating_point()), torch.float32)


def probe_case(source: str, device: torch.device) -> EagerProbe:
    """Run the case eagerly, twice on the same state and once in float64.

    The probe of a case that raises in eager covers the part that ran. The global random state is left as it was.

    Raises:
        CaseError: the source is no case.
    """
    with torch.random.fork_rng(), tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "case.py")
        path.write_text(source, encoding="utf-8")
        return _probe(load_case(path), device)


def _probe(case: Case, device: torch.device) -> EagerProbe:
    outputs: list[object] = []

    def run(model: Callable[..., object], arguments: object) -> object:
        outputs.append(runs.drive(case, model, arguments))
        return outputs[-1]

    recorded = replace(case, run=run)
    program = build(recorded, device)
    first = runs.observe(recorded, program, program.model)
    seen, states = tuple(outputs), _read_generators()
    seed_everything(RUN_SEED)
    moved = any(not torch.equal(*pair) for pair in zip(states, _read_generators(), strict=True))
    random = moved and first.failure is None
    repeatable = first.failure is None and not random and not any(value.kind == "mutation" for value in first.values)
    if repeatable:
        repeatable = _has_repeated(first, runs.observe(replace(recorded, backward=False), program, program.model))
    exact = None if first.failure else _in_float64(case, device)
    wide = exact.index_by_name() if exact is not None else {}
    compared = [value for value in first.values if value.kind != "gradient"]
    held = pytree.tree_leaves([value.value for value in (*first.values, *(exact.values if exact is not None else ()))])
    return EagerProbe(
        case=case,
        model=program.model,
        inputs=program.calls,
        outputs=seen,
        observables={value.name: _observable(value) for value in first.values},
        repeatable=repeatable,
        random=random,
        float64=exact is not None and all(_near(value, wide.get(value.name)) for value in compared),
        nonfinite=any(isinstance(leaf, torch.Tensor) and not bool(torch.isfinite(leaf).all()) for leaf in held),
    )


def _has_repeated(first: Observation, again: Observation) -> bool:
    """Return whether a second run without backward gave tensors of the same values."""
    values = [value for value in first.values if value.kind != "gradient"]  # gradients add up from run to run
    if again.failure or len(values) != len(again.values):
        return False
    pairs = [(a.value, b.value) for a, b in zip(values, again.values, strict=True) if a.is_tensor]
    return all(
        isinstance(b, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype) and metrics.have_same_values(a, b)
        for a, b in pairs
    )


def _read_generators() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _in_float64(case: Case, device: torch.device) -> Observation | None:
    program = build(case, device, double=True)
    if any(is_wrapped(leaf) for leaf in pytree.tree_leaves(list(program.calls))):
        return None  # a script would need more than a line to convert these
    if any(find_aliases({str(n): x for n, x in enumerate(list_tensors([call]))}) for call in program.calls):
        return None  # tensors converted one by one no longer share memory
    if any(tensor.is_complex() for tensor in list_tensors(program.calls)):
        return None
    observation = runs.observe(case, program, program.model)
    return None if observation.failure else observation


def _near(eager: Value, exact: Value | None) -> bool:
    if exact is None or not eager.is_tensor or not exact.is_tensor:
        return exact is not None and eager.is_tensor == exact.is_tensor
    if eager.value.shape != exact.value.shape or exact.value.is_complex():
        return False
    if not eager.value.is_floating_point():
        return True
    apart = metrics.rms(metrics.distance(eager.value, exact.value))
    return apart <= _SAME_PROGRAM * max(metrics.rms(metrics.widen(exact.value)), 1e-300)


def _observable(value: Value) -> Observable:
    if not value.is_tensor:
        return Observable(value.name, value.kind, False)
    wide = metrics.widen(value.value).abs()
    return Observable(value.name, value.kind, True, value.value.dtype, metrics.largest(wide[torch.isfinite(wide)]))


# Python expressions for the observables of a run: outputs, inputs, gradients, mutated state.


def find_expression(name: str, probe: EagerProbe) -> str | None:
    """The expression by which a script reaches the observable ``name`` after its calls; None if it cannot.

    With one call the script has ``model``, ``inputs`` and ``out``; with several ``calls`` and ``outs``.
    """
    if name == RANDOM_STATE:
        return "torch.get_rng_state()"
    observable = ObservableName.parse(name)
    leaf = observable.leaf
    if leaf is not None:
        reached = _of_call(leaf, observable.call or 0, probe)
    else:
        reached = _state(*observable.what.split(" ", 1), model=probe.model) if " " in observable.what else None
    return f"{reached}.grad" if reached and observable.gradient else reached


def is_tensor(name: str, probe: EagerProbe) -> bool:
    """Return whether the observable ``name`` is a tensor in the program too, not a NumPy array compared as one."""
    observable = ObservableName.parse(name)
    leaf = observable.leaf
    if leaf is None or leaf.kind != "out":
        return True
    leaves = pytree.tree_leaves(probe.outputs[observable.call or 0])
    return not leaf.path and isinstance(leaves[leaf.index], torch.Tensor)


def _of_call(leaf: LeafName, call: int, probe: EagerProbe) -> str | None:
    """An output or an input of a call; the leaf's ``path`` leads into a dataclass or the like."""
    several, index = len(probe.inputs) > 1, leaf.index
    of_output = leaf.kind == "out"
    trees = probe.outputs if of_output else probe.inputs
    if call >= len(trees):
        return None
    name = ("outs" if of_output else "calls") if several else ("out" if of_output else "inputs")
    base = f"{name}[{call}]" if several else name
    leaves = pytree.tree_leaves(trees[call])
    if leaf.kind == "input":  # counts tensors only
        tensors = [n for n, value in enumerate(leaves) if isinstance(value, torch.Tensor)]
        return _find_leaf(base, trees[call], tensors[index]) if index < len(tensors) else None
    if index >= len(leaves):
        return None
    inner = _within(leaves[index], leaf.path)
    return None if inner is None else _find_leaf(base, trees[call], index) + inner


def _within(value: object, path: Sequence[str]) -> str | None:
    """The attributes and indices that lead along ``path`` into a value; None if it has no such part."""
    written = ""
    for part in path:
        listed = re.fullmatch(r"([A-Za-z_]\w*?)(\d+)", part)  # a field that holds a list: its name and a number
        if part.isidentifier() and hasattr(value, part):
            value, step = getattr(value, part), f".{part}"
        elif isinstance(value, Mapping) and part in value:
            value, step = value[part], f'["{part}"]'
        elif isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value, step = value[int(part)], f"[{part}]"
        elif listed and isinstance(getattr(value, listed[1], None), list | tuple):
            value, step = getattr(value, listed[1])[int(listed[2])], f".{listed[1]}[{listed[2]}]"
        else:
            return None
        written += step
    return written


def _find_leaf(base: str, tree: object, index: int) -> str:
    if pytree.tree_structure(tree) == pytree.tree_structure(0):
        return base
    flat = is_flat(tree)
    if flat and isinstance(tree, dict):
        return f"{base}[{list(tree)[index]!r}]".replace("'", '"')
    return f"{base}[{index}]" if flat else f"tree_leaves({base})[{index}]"


def is_flat(tree: object) -> bool:
    """Return whether the tree is a tuple, a list or a dictionary by name with no further containers in it."""
    if type(tree) is dict:
        values: Iterable[object] = tree.values() if all(isinstance(key, str) for key in tree) else [tree]
    else:
        values = tree if isinstance(tree, tuple | list) and type(tree) in (tuple, list) else [[tree]]
    return all(pytree.tree_structure(value) == pytree.tree_structure(0) for value in values)


def _state(kind: str, path: str, *, model: object) -> str | None:
    if kind not in ("parameter", "buffer", "tensor"):
        return None
    parts = path.split(".")
    if isinstance(model, nn.Module):
        if kind != "tensor" and not all(part.isidentifier() for part in parts):
            return f'model.get_{kind}("{path}")'
        inner = _within(model, parts)
        if inner is not None:
            return f"model{inner}"
    function = getattr(type(model), "forward", None) if isinstance(model, nn.Module) else model
    if not isinstance(function, types.FunctionType):
        return None
    variables = inspect.getclosurevars(function)
    for names, where in ((variables.nonlocals, "inspect.getclosurevars(model).nonlocals"), (variables.globals, "")):
        inner = _within(names.get(parts[0]), parts[1:])
        if parts[0] in names and inner is not None and not (where and function is not model):
            return (f'{where}["{parts[0]}"]' if where else parts[0]) + inner
    return None
