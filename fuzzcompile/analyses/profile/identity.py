"""The identity of a run: program, weights and inputs by their hashes, and the machine it ran on.

Two runs are comparable layer by layer only if all three are the same. Another torch or device is what a comparison is
for, and no obstacle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.model.errors import CaseError
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram
from fuzzcompile.run.device import describe_environment
from fuzzcompile.run.tensors import name_leaves

_SHOWN = 4  # names of what differs, in a message
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Leaf:
    """A tensor's dtype, shape and the SHA-256 of its elements in row-major order; or a plain value's.

    ``sha256`` is empty where the bytes cannot be read: an object, a sparse or quantised tensor.
    """

    sha256: str
    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """The identity of a run."""

    case: str  # its name
    source: str  # SHA-256 of the case's text
    modules: Mapping[str, str]  # the class of each module, by its qualified name
    weights: Mapping[str, Leaf]  # parameters, buffers and other tensors that exist before the call
    inputs: Mapping[str, Leaf]  # the leaves of the inputs of all calls
    side: str  # which way of running it was: ``eager``, ``inductor``, ...
    device: str  # where it ran
    dtype: str  # the widest floating dtype of the program
    environment: Mapping[str, object]  # torch, device, driver (:func:`fuzzcompile.run.device.describe_environment`)


def collect_facts(case: Case, program: CaseProgram, side: str, device: torch.device) -> RunFacts:
    """The facts of a run on ``device`` that is about to begin with a fresh ``program``, in its own dtypes.

    Weights are hashed on the CPU, one after the other, and their hashes do not depend on the device.
    """
    return RunFacts(
        case.name,
        case.sha256,
        _modules(program.model),
        {name: _leaf(tensor) for name, tensor in program.collect_tensors().items()},
        {name: _leaf(leaf) for name, leaf in name_leaves("in", list(program.calls))},
        side,
        str(device),
        str(program.dtype).removeprefix("torch."),
        describe_environment(device),
    )


def check_same(recorded: RunFacts, present: RunFacts) -> list[str]:
    """Check that two runs can be compared: `CaseError` says whether program, weights or inputs differ.

    Returns:
        Notes on what else differs, such as torch or the device, and on what could not be compared.
    """
    differing = [
        *_program_differences(recorded, present),
        *_leaf_differences("weights", recorded.weights, present.weights),
        *_leaf_differences("inputs", recorded.inputs, present.inputs),
    ]
    if differing:
        raise CaseError(
            f"The recording of {recorded.case} cannot be compared with this run: {'; '.join(differing)}. Use one case "
            "file on both machines, with fixed seeds or one checkpoint."
        )
    return list(_notes(recorded, present))


def read_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor in row-major order; a view of them if the tensor is on the CPU and contiguous.

    RuntimeError or TypeError for a tensor without plain elements: it is sparse, quantised, or has no storage.
    """
    with torch.no_grad(), _disable_current_modes():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        elements: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
    return elements


def _modules(model: object) -> dict[str, str]:
    if not isinstance(model, nn.Module):
        return {"": getattr(model, "__qualname__", type(model).__qualname__)}
    return {name: type(module).__qualname__ for name, module in model.named_modules()}


def _leaf(value: object) -> Leaf:
    if not isinstance(value, torch.Tensor):
        text = repr(value).encode() if isinstance(value, _PLAIN) else None
        return Leaf("" if text is None else hashlib.sha256(text).hexdigest(), type(value).__qualname__)
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    try:
        return Leaf(hashlib.sha256(read_bytes(value)).hexdigest(), dtype, shape)
    except (RuntimeError, TypeError):
        # torch's answers for sparse, quantised and meta tensors, and for subclasses without elements of their own
        return Leaf("", dtype, shape)


def _program_differences(recorded: RunFacts, present: RunFacts) -> Iterator[str]:
    if recorded.source != present.source:
        yield f"the source differs (SHA-256 {recorded.source[:12]} recorded, {present.source[:12]} here)"
    names = {**recorded.modules, **present.modules}
    pairs = ((name, recorded.modules.get(name), present.modules.get(name)) for name in names)
    changes = [f"{name or 'the model'} ({_beside(then, now)})" for name, then, now in pairs if then != now]
    if changes:
        yield f"{len(changes)} of {len(names)} modules differ: {_first(changes)}"


def _leaf_differences(what: str, recorded: Mapping[str, Leaf], present: Mapping[str, Leaf]) -> Iterator[str]:
    names = {**recorded, **present}
    changes = ((name, _change(recorded.get(name), present.get(name))) for name in names)
    differing = [f"{name} ({change})" for name, change in changes if change]
    if differing:
        yield f"{len(differing)} of {len(names)} {what} differ: {_first(differing)}"


def _change(recorded: Leaf | None, present: Leaf | None) -> str:
    if recorded is None or present is None:
        return "only recorded" if present is None else "only here"
    if recorded.dtype != present.dtype:
        return f"{recorded.dtype} recorded, {present.dtype} here"
    if recorded.shape != present.shape:
        return f"shape {list(recorded.shape)} recorded, {list(present.shape)} here"
    return "values" if recorded.sha256 != present.sha256 else ""


def _notes(recorded: RunFacts, present: RunFacts) -> Iterator[str]:
    then, now = recorded.environment, present.environment
    for key in {**then, **now}:
        implied = key == "torch_git" and then.get("torch") != now.get("torch")
        if then.get(key) != now.get(key) and not implied:
            yield f"{key.replace('_', ' ')}: {_beside(then.get(key), now.get(key))}"
    for what, leaves in (("weight", present.weights), ("input", present.inputs)):
        unread = [f"{name} ({leaf.dtype})" for name, leaf in leaves.items() if not leaf.sha256]
        if unread:
            yield f"not compared, because the values of such {what}s cannot be hashed: {_first(unread)}"


def _beside(recorded: object, present: object) -> str:
    then, now = ("absent" if value is None else value for value in (recorded, present))
    return f"{then} recorded, {now} here"


def _first(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
