"""One run of a case: eager, float64, perturbed, or through a callable that the compiler made."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.case import Case
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.float64 import Float64Mode
from fuzzcompile.execution.noise import UlpNoise
from fuzzcompile.execution.observation import Failure, Observation, Value
from fuzzcompile.execution.tensors import (
    LOW_FLOATS,
    StorageCopier,
    dense,
    double_module,
    map_tensors,
    overlapping,
    significant_strides,
    tensor_leaves,
)

RUN_SEED = 20240229
_COTANGENT_SEED = 7
# What torch's allocators say in a plain RuntimeError.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "CUDA out of memory")


@dataclass(frozen=True)
class Program:
    """Fresh state of a case on one device: the callable and the inputs of each call.

    ``dtype`` is the widest floating dtype among the tensors that ``make()`` gave (float32 if there are none),
    ``double`` says that they were converted to float64 since.
    """

    model: Any
    calls: tuple[Any, ...]
    dtype: torch.dtype = torch.float32
    double: bool = False


def build(case: Case, device: torch.device, *, double: bool = False) -> Program:
    """Call the case's ``make()`` and copy what it returns to ``device`` (and to float64).

    Modules are copied too: ``make()`` may return one that lives longer than a run.

    Raises:
        CaseError: ``make()`` raises or returns something else than ``(callable, inputs)``.
        MemoryError: there is not enough memory for it, on the host or on the device.
    """
    seed_everything(RUN_SEED)
    with _memory_errors():
        model, calls = _made(case)
        dtype = _widest_float([*_module_tensors(model).values(), *tensor_leaves(calls)])
        names = {id(tensor): name for name, tensor in _module_tensors(model).items()}
        if isinstance(model, nn.Module):
            model = _copied_module(model)
            model = (double_module(model) if double else model).to(device)
        own = _module_tensors(model)
        copier = StorageCopier(double=double, device=device)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            # A parameter that is an input as well stays one tensor.
            return own[names[id(tensor)]] if id(tensor) in names else copier(tensor)

        placed = map_tensors(place, calls)
    return Program(model, tuple(_as_arguments(call) for call in placed), dtype, double)


def _made(case: Case) -> tuple[Any, list[Any]]:
    try:
        made = case.make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_exhausted_memory(error):
            raise
        raise CaseError(
            f"make() of {case.name} raises {type(error).__name__}: {first_line(error)}; mend the case."
        ) from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise CaseError(f"make() of {case.name} must return (module_or_callable, inputs).")
    model, inputs = made
    return model, [inputs, *(case.calls or ())]


def _copied_module(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        if _is_exhausted_memory(error):
            raise
        return module  # one that cannot be copied (non-leaf tensors as attributes, locks) is hardly shared


def _module_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers, by the name under which a user knows them; none for a plain callable."""
    if not isinstance(model, nn.Module):
        return {}
    named = {f"parameter {name}": value for name, value in model.named_parameters()}
    return {**named, **{f"buffer {name}": value for name, value in model.named_buffers()}}


def _widest_float(tensors: list[torch.Tensor]) -> torch.dtype:
    floating = {torch.zeros((), dtype=t.dtype).real.dtype if t.is_complex() else t.dtype for t in tensors}
    known = [dtype for dtype in (torch.float64, *LOW_FLOATS) if dtype in floating]
    return known[0] if known else torch.float32


def run_eager(case: Case, device: torch.device, *, noise_seed: int | None = None) -> Observation:
    """Run the case in eager mode; with ``noise_seed``, every operator's result is moved by up to one ulp."""
    mode = UlpNoise(noise_seed) if noise_seed is not None else contextlib.nullcontext()
    program = build(case, device)
    return observe(case, program, program.model, around=mode)


def run_float64(case: Case, device: torch.device, *, keep_casts: bool = True) -> tuple[Observation, bool]:
    """Run the case in float64 and tell whether it contains casts to narrower floating types."""
    program = build(case, device, double=True)
    mode = Float64Mode(keep_casts=keep_casts, native=program.dtype)
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

    Random state is reseeded first. Exceptions of the program, forward and backward, become the observation's
    ``failure``; interrupts and exhausted memory (always as MemoryError) travel on.
    """
    start = time.perf_counter()
    with _memory_errors():
        try:
            with around or contextlib.nullcontext(), grad_mode(case.grad):
                return _observed(case, program, target, start)
        except _ProgramError as wrapped:
            describe = describe_failure or plain_failure
            return Observation(failure=describe(wrapped.error), seconds=time.perf_counter() - start)


def _observed(case: Case, program: Program, target: Callable[..., Any], start: float) -> Observation:
    seed_everything(RUN_SEED)
    values: list[Value] = []
    structures: list[str] = []
    for number, arguments in enumerate(program.calls):
        prefix = f"call{number}." if len(program.calls) > 1 else ""
        before = _bits(program, arguments)
        with _program_code():
            output = _drive(case, target, arguments)
        structures.append(_structure(output))
        values += _outputs(prefix, output, program, arguments)
        if case.backward:
            with _program_code():
                _backward(output)
        values += _mutations(prefix, before, program, arguments)
        if case.backward:
            values += _gradients(prefix, program, arguments)
    return Observation(tuple(values), None, "; ".join(structures), time.perf_counter() - start)


class _ProgramError(Exception):
    """Carries an exception of the program itself, as opposed to one of ours."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _program_code() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, CaseError):
        raise
    except BaseException as error:
        if _is_exhausted_memory(error):
            raise
        raise _ProgramError(error) from error


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    """Make every exception that stands for exhausted memory a MemoryError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if not _is_exhausted_memory(error):
            raise
        raise MemoryError(first_line(error)) from error


def _is_exhausted_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__
    return False


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


def _as_arguments(call: Any) -> Any:
    return tuple(call) if isinstance(call, list) else call


def _drive(case: Case, target: Callable[..., Any], arguments: Any) -> Any:
    if case.run is not None:
        return case.run(target, arguments)
    if isinstance(arguments, dict):
        return target(**arguments)
    return target(*arguments) if isinstance(arguments, tuple) else target(arguments)


def _structure(output: Any) -> str:
    leaves, structure = pytree.tree_flatten(output)
    classes = [type(leaf).__qualname__ for leaf in leaves if _is_dataclass(leaf)]
    return f"{structure} with {', '.join(classes)}" if classes else str(structure)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | torch.Tensor)


def _named_leaves(name: str, output: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of an output by name: ``out0``, and ``out0.logits`` for a field of a dataclass."""
    for index, leaf in enumerate(pytree.tree_leaves(output)):
        yield from _unwrapped(f"{name}{index}", leaf)


def _unwrapped(name: str, leaf: Any) -> Iterator[tuple[str, Any]]:
    if not _is_dataclass(leaf):
        yield name, leaf
        return
    for entry in dataclasses.fields(leaf):
        value = getattr(leaf, entry.name, None)
        leaves = pytree.tree_leaves(value)
        single = len(leaves) == 1 and leaves[0] is value
        for index, inner in enumerate(leaves):
            yield from _unwrapped(f"{name}.{entry.name}" + ("" if single else str(index)), inner)


def _leaves(program: Program, arguments: Any) -> dict[str, torch.Tensor]:
    """Tensors that exist before the call, by the name under which a user knows them."""
    named = {f"input{i}": tensor for i, tensor in enumerate(tensor_leaves(arguments))}
    return {**named, **_module_tensors(program.model)}


def _bits(program: Program, arguments: Any) -> dict[str, torch.Tensor]:
    return {name: _kept(tensor) for name, tensor in _leaves(program, arguments).items()}


def _outputs(prefix: str, output: Any, program: Program, arguments: Any) -> list[Value]:
    existing = _leaves(program, arguments)
    values: list[Value] = []
    seen: dict[str, torch.Tensor] = {}
    leaves = list(_named_leaves(f"{prefix}out", output))
    precision = torch.float64 if program.double else program.dtype
    for name, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            values.append(_plain_value(name, leaf, precision))
            continue
        aliases = tuple(other for other, tensor in {**existing, **seen}.items() if overlapping(leaf, tensor))
        form = "" if leaf.layout == torch.strided else str(leaf.layout)
        values.append(Value(name, _kept(leaf), "output", significant_strides(leaf), aliases, form))
        seen[name] = leaf
    return values


def _plain_value(name: str, leaf: Any, precision: torch.dtype) -> Value:
    """An output that is no tensor: NumPy's arrays and scalars are compared as tensors."""
    if isinstance(leaf, numpy.ndarray | numpy.generic):
        with contextlib.suppress(TypeError):  # dtypes that torch does not have
            tensor = torch.from_numpy(numpy.array(leaf, order="K"))
            return Value(name, tensor, "output", significant_strides(tensor), form=type(leaf).__name__)
    return Value(name, leaf, "output", precision=precision if isinstance(leaf, float | complex) else None)


def _mutations(prefix: str, before: Mapping[str, torch.Tensor], program: Program, arguments: Any) -> list[Value]:
    changed = []
    for name, tensor in _leaves(program, arguments).items():
        old = before.get(name)
        now = _kept(tensor)
        if old is None or old.shape != now.shape or not _same_bits(old, now):
            changed.append(Value(f"{prefix}{name} after the call", now, "mutation"))
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

    A plain sum proves nothing behind a softmax, whose outputs sum to a constant. The numbers are such that every
    floating dtype has them, so that the native run and the reference differentiate the same loss.
    """
    generator = torch.Generator().manual_seed(_COTANGENT_SEED)
    losses = []
    for _, leaf in _named_leaves("out", output):
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        with _disable_current_modes():  # our own casts are none of the program
            drawn = torch.randn(leaf.shape, generator=generator).to(torch.bfloat16).to(torch.float16)
            cotangent = drawn.to(leaf.device, leaf.dtype)
        if leaf.requires_grad:
            product = leaf * cotangent
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
    """A dense copy that later in-place writes cannot reach."""
    tensor = tensor.detach()
    result = dense(tensor)
    return tensor.clone() if result is tensor else result
