"""One run of a case: eager, float64, perturbed, or through a callable that the compiler made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.case import Case
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.float64 import Float64Mode
from fuzzcompile.execution.noise import UlpNoise
from fuzzcompile.execution.observation import Failure, Observation, Value
from fuzzcompile.execution.tensors import (
    copy_tree,
    double_module,
    map_tensors,
    overlapping,
    significant_strides,
    tensor_leaves,
)

RUN_SEED = 20240229
_COTANGENT_SEED = 7


@dataclass(frozen=True)
class Program:
    """Fresh state of a case on one device: the callable and the inputs of each call."""

    model: Any
    calls: tuple[Any, ...]


def build(case: Case, device: torch.device, *, double: bool = False) -> Program:
    """Call the case's ``make()`` and move what it returns to ``device`` (and to float64).

    Raises:
        CaseError: ``make()`` raises or returns something else than ``(callable, inputs)``.
    """
    seed_everything(RUN_SEED)
    try:
        made = case.make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise CaseError(
            f"make() of {case.name} raises {type(error).__name__}: {first_line(error)}; mend the case."
        ) from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise CaseError(f"make() of {case.name} must return (module_or_callable, inputs).")
    model, inputs = made
    calls = [inputs, *(case.calls or ())]
    if double and isinstance(model, nn.Module):
        model = double_module(model)
    if isinstance(model, nn.Module):
        model = model.to(device)
    copied = copy_tree(calls, double=double)
    placed = map_tensors(lambda tensor: _placed(tensor, device), copied)
    return Program(model, tuple(_as_arguments(call) for call in placed))


def run_eager(case: Case, device: torch.device, *, noise_seed: int | None = None) -> Observation:
    """Run the case in eager mode; with ``noise_seed``, every operator's result is moved by up to one ulp."""
    mode = UlpNoise(noise_seed) if noise_seed is not None else contextlib.nullcontext()
    program = build(case, device)
    return observe(case, program, program.model, around=mode)


def run_float64(case: Case, device: torch.device, *, keep_casts: bool = True) -> tuple[Observation, bool]:
    """Run the case in float64 and tell whether it contains casts to narrower floating types."""
    mode = Float64Mode(keep_casts=keep_casts)
    program = build(case, device, double=True)
    return observe(case, program, program.model, around=mode), mode.saw_cast


def observe(
    case: Case,
    program: Program,
    target: Callable[..., Any],
    *,
    around: contextlib.AbstractContextManager[Any] | None = None,
    describe_failure: Callable[[BaseException], Failure] | None = None,
) -> Observation:
    """Drive ``target`` (the program's model, or its compiled form) through the case's calls.

    Random state is reseeded first. Exceptions become the observation's ``failure``; interrupts and
    exhausted memory travel on.
    """
    seed_everything(RUN_SEED)
    values: list[Value] = []
    structures: list[str] = []
    start = time.perf_counter()
    try:
        with around or contextlib.nullcontext(), grad_mode(case.grad):
            for number, arguments in enumerate(program.calls):
                prefix = f"call{number}." if len(program.calls) > 1 else ""
                before = _bits(program, arguments)
                output = _drive(case, target, arguments)
                structures.append(_structure(output))
                outputs = _outputs(prefix, output, program, arguments)
                if case.backward:
                    _backward(output)
                values += outputs
                values += _mutations(prefix, before, program, arguments)
                if case.backward:
                    values += _gradients(prefix, program, arguments)
    except (KeyboardInterrupt, MemoryError, CaseError):
        raise
    except BaseException as error:
        describe = describe_failure or plain_failure
        return Observation(failure=describe(error), seconds=time.perf_counter() - start)
    return Observation(tuple(values), None, "; ".join(structures), time.perf_counter() - start)


def plain_failure(error: BaseException) -> Failure:
    """Describe an exception of the program itself."""
    return Failure(type(error).__name__, first_line(error))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 300 characters."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


@contextlib.contextmanager
def grad_mode(name: str) -> Iterator[None]:
    """Enter the grad mode of a case: ``no_grad``, ``inference_mode`` or ``enabled``."""
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(name, torch.enable_grad)
    with context():
        yield


def _placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device == device:
        return tensor
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _as_arguments(call: Any) -> Any:
    return tuple(call) if isinstance(call, list) else call


def _drive(case: Case, target: Callable[..., Any], arguments: Any) -> Any:
    if case.run is not None:
        return case.run(target, arguments)
    if isinstance(arguments, dict):
        return target(**arguments)
    return target(*arguments) if isinstance(arguments, tuple) else target(arguments)


def _structure(output: Any) -> str:
    return str(pytree.tree_structure(output))


def _leaves(program: Program, arguments: Any) -> dict[str, torch.Tensor]:
    """Tensors that exist before the call, by the name under which a user knows them."""
    named = {f"input{i}": tensor for i, tensor in enumerate(tensor_leaves(arguments))}
    if isinstance(program.model, nn.Module):
        named.update({f"parameter {name}": value for name, value in program.model.named_parameters()})
        named.update({f"buffer {name}": value for name, value in program.model.named_buffers()})
    return named


def _bits(program: Program, arguments: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in _leaves(program, arguments).items()}


def _outputs(prefix: str, output: Any, program: Program, arguments: Any) -> list[Value]:
    existing = _leaves(program, arguments)
    values: list[Value] = []
    seen: dict[str, torch.Tensor] = {}
    for index, leaf in enumerate(pytree.tree_leaves(output)):
        name = f"{prefix}out{index}"
        if not isinstance(leaf, torch.Tensor):
            values.append(Value(name, leaf, "output"))
            continue
        aliases = tuple(other for other, tensor in {**existing, **seen}.items() if overlapping(leaf, tensor))
        values.append(Value(name, _kept(leaf), "output", significant_strides(leaf), aliases))
        seen[name] = leaf
    return values


def _mutations(prefix: str, before: Mapping[str, torch.Tensor], program: Program, arguments: Any) -> list[Value]:
    changed = []
    for name, tensor in _leaves(program, arguments).items():
        old = before.get(name)
        if old is None or old.shape != tensor.shape or not _same_bits(old, tensor.detach()):
            changed.append(Value(f"{prefix}{name} after the call", _kept(tensor), "mutation"))
    return changed


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.dtype != second.dtype:
        return False
    equal = first == second
    if first.is_floating_point() or first.is_complex():
        equal = equal | ((first != first) & (second != second))
    return bool(equal.all())


def _backward(output: Any) -> None:
    """Loss = Σ out · c over the floating outputs, c a fixed standard normal tensor per output.

    A plain sum proves nothing behind a softmax, whose outputs sum to a constant.
    """
    generator = torch.Generator().manual_seed(_COTANGENT_SEED)
    losses = []
    for leaf in tensor_leaves(output):
        if not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        cotangent = torch.randn(leaf.shape, generator=generator).to(leaf.device)
        if leaf.requires_grad:
            product = leaf * cotangent.to(leaf.dtype)
            losses.append((product.real if product.is_complex() else product).sum())
    if not losses:
        raise RuntimeError("BACKWARD is set, but no output requires a gradient")
    torch.autograd.backward(losses)


def _gradients(prefix: str, program: Program, arguments: Any) -> list[Value]:
    gradients = []
    for name, tensor in _leaves(program, arguments).items():
        if tensor.requires_grad and tensor.is_leaf:
            value = None if tensor.grad is None else _kept(tensor.grad)
            gradients.append(Value(f"{prefix}gradient of {name}", value, "gradient"))
    return gradients


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that later in-place writes cannot reach."""
    return tensor.detach().clone()
