"""Case files of a sweep over torch's operators, each run in eager mode before it is handed out."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.compiler.operators.decompositions import leaves_unwritten
from fuzzcompile.fuzz.opinfo_cells import (
    DTYPES,
    LONGER,
    SAMPLES,
    SHARED_SAMPLES,
    CellSource,
    OpInfoCell,
    OpInfoOperator,
    SizeClass,
)
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.package_files import get_template
from fuzzcompile.programs.ir.case_source import format_literal
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import is_inexact, is_plain
from fuzzcompile.run.transforms import leave_transforms


def list_operators(only: Sequence[str] = ()) -> tuple[OpInfoOperator, ...]:
    """The entries of the tables that run on the CPU, in their order; of those in ``only``, with or without a variant.

    Raises:
        EnvironmentUnfit: the tables cannot be imported.
        UsageError: there is no operator of a name.
    """
    names = {(name, variant): {name, f"{name}.{variant}"} for name, variant in _load_database()}
    # Jiterated functions are CUDA's own.
    entries = {key: e for key, e in _load_database().items() if _list_dtypes(e) and not e.name.startswith("jiterator")}
    for name in only:
        if not any(name in names[key] for key in entries):
            raise UsageError(f"Torch's tables have no operator {name}; names are such as add and nn.functional.gelu.")
    with warnings.catch_warnings(action="ignore"):  # that making samples of deprecated or beta functions gives
        return tuple(_make_operator(e) for key, e in entries.items() if not only or names[key].intersection(only))


def find_entry(name: str, variant: str) -> Any:
    """The OpInfo of an operator."""
    return _load_database()[name, variant]


def list_errors(entry: Any) -> Sequence[Any]:
    """The table's calls that eager refuses; none where the table has none for the CPU, or cannot make them here."""
    if entry.error_inputs_func is None:
        return ()
    torch.manual_seed(0)
    try:
        return tuple(entry.error_inputs("cpu"))
    except (RuntimeError, NotImplementedError):  # some need a device that is not there
        return ()


@cache
def _load_database() -> dict[tuple[str, str], Any]:
    try:
        with warnings.catch_warnings(action="ignore"):
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise EnvironmentUnfit(
            f"Torch's tables of operators cannot be imported ({error}): pip install {error.name or 'torch'}."
        ) from error
    return {(entry.name, entry.variant_test_name): entry for entry in op_db}


def _list_dtypes(entry: Any) -> tuple[str, ...]:
    supported = entry.supported_dtypes("cpu")
    return tuple(name for name in DTYPES if getattr(torch, name) in supported)


def _make_operator(entry: Any) -> OpInfoOperator:
    dtypes = _list_dtypes(entry)
    backward = entry.supported_backward_dtypes("cpu") if entry.supports_autograd else ()
    differentiable = tuple(name for name in dtypes if getattr(torch, name) in backward)
    samples = sum(1 for _ in itertools.islice(_iter_table(entry, dtypes[0]), 10_000))
    variant, in_place = entry.variant_test_name, entry.inplace_variant is not None
    errors, elementwise = len(list_errors(entry)), _is_elementwise(entry)
    return OpInfoOperator(entry.name, variant, dtypes, differentiable, in_place, samples, errors, elementwise)


def _is_elementwise(entry: Any) -> bool:
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    return isinstance(entry, BinaryUfuncInfo | UnaryUfuncInfo)


def _iter_table(entry: Any, dtype: str, *, gradients: bool = False) -> Iterator[Any]:
    torch.manual_seed(0)  # the same samples each time
    yield from entry.sample_inputs("cpu", getattr(torch, dtype), requires_grad=gradients)


# How an operator of the tables is called in a program: as a function of torch, a method, an operator, a property.


def iter_forms(entry: Any, form: str, first: str, rest: Sequence[str]) -> Iterator[str]:
    """Ways to call it on these arguments, likely ones first, as text.

    The tables often have a function of the test suite in the operator's place. Which of these is the same function is
    found by calling them.
    """
    more, whole, method = ", ".join(rest), ", ".join([first, *rest]), entry.name.rpartition(".")[2]
    if form == "in_place":
        for name in (getattr(entry.inplace_variant, "__name__", ""), f"{method}_"):
            if hasattr(torch.Tensor, name):
                yield f"{first}.{name}({more})"
        yield f"torch.{entry.name}({whole}, inplace=True)"
        return
    for path in (entry.name.removeprefix("torch."), _find_native_path(entry)):
        if path is not None and callable(_resolve_path(path)):
            yield f"torch.{path}({whole})"
    if (attribute := getattr(torch.Tensor, method, None)) is not None:
        yield f"{first}.{method}({more})" if callable(attribute) else f"{first}.{method}"
    if callable(_resolve_path(f"ops.aten.{method}")):
        yield f"torch.ops.aten.{method}({whole})"


def _find_native_path(entry: Any) -> str | None:
    """The path below ``torch`` of a function that says where it is from."""
    module, name = getattr(entry.op, "__module__", None), getattr(entry.op, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not module.startswith("torch"):
        return None
    path = f"{module}.{name}".removeprefix("torch.").removeprefix("_ops.aten").lstrip(".")
    return path if "testing" not in path and _resolve_path(path) is entry.op else None


def _resolve_path(path: str) -> object:
    root: object = torch
    return functools.reduce(lambda value, part: getattr(value, part, None), path.split("."), root)


# Sample inputs in other places of memory: transposed, expanded, behind an offset, with gaps, channels last.


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return ``tensor`` in a layout of `LAYOUTS`, as a leaf; itself where that changes nothing."""
    plain = tensor.detach()
    if not plain.numel() or plain.layout != torch.strided or plain.is_conj():
        return tensor
    moved = _move(plain, layout)
    if (moved.stride(), moved.storage_offset()) == (plain.stride(), plain.storage_offset()):
        return tensor
    return moved.requires_grad_(tensor.requires_grad)


def resize(tensors: Sequence[torch.Tensor], to: SizeClass) -> list[torch.Tensor]:
    """The tensors with the last size of the first that has one in another class, wherever it stands.

    Floating values of longer ones are drawn anew in the old range: equal rows make singular matrices.
    """
    size = next((tensor.shape[-1] for tensor in tensors if tensor.dim() and tensor.shape[-1] > 1), None)
    if size is None:
        return list(tensors)
    return [_shorten(tensor, size) if to == "single" else _lengthen(tensor, size) for tensor in tensors]


def _shorten(tensor: torch.Tensor, size: int) -> torch.Tensor:
    if size not in tensor.shape or tensor.layout != torch.strided:
        return tensor
    first = tensor.detach()[tuple(slice(1) if length == size else slice(None) for length in tensor.shape)]
    return first.clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)


def _lengthen(tensor: torch.Tensor, size: int) -> torch.Tensor:
    if size not in tensor.shape or tensor.layout != torch.strided or tensor.numel() * LONGER > _MOST_ELEMENTS:
        return tensor
    longer = tensor.detach().repeat([LONGER if length == size else 1 for length in tensor.shape])
    if longer.is_floating_point():
        finite = longer[longer.isfinite()].double()
        low, high = (finite.min(), finite.max()) if finite.numel() else (0.0, 1.0)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand(longer.shape, generator=generator, dtype=torch.float64) * (high - low) + low
        longer = drawn.to(longer.dtype)
    return longer.requires_grad_(tensor.requires_grad)


def make_extreme(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return ``tensor`` with about half of its elements, chosen by ``seed``, at the limits of its dtype.

    Floating numbers also become infinite, NaN and a negative zero; integers also -1, zero and the number of their bits,
    at which a shift ends. It is ``tensor`` itself where the dtype has no such values, or no text would hold them.
    """
    plain = tensor.detach()
    if not 0 < plain.numel() <= _VERBATIM or plain.layout != torch.strided or plain.dtype == torch.bool:
        return tensor
    if is_inexact(plain):
        limits = torch.finfo(plain.dtype)
        # Half of the largest number: three digits of that itself may round to infinity.
        values = [math.inf, -math.inf, math.nan, -0.0, limits.max / 2, limits.min / 2, limits.smallest_normal]
    else:
        bits = torch.iinfo(plain.dtype)
        values = [bits.min, bits.max, 0, bits.bits - 1, bits.bits, *([-1] if bits.min else [])]
    rng = random.Random(f"extreme {seed}")
    changed = [rng.choice(values) if rng.random() < 0.5 else value for value in plain.flatten().tolist()]
    return torch.tensor(changed, dtype=plain.dtype).view(plain.shape).requires_grad_(tensor.requires_grad)


def lay_out_cotangent(name: str, result: object, layout: str) -> Iterator[str]:
    """Expressions of the floating tensors of ``result``, called ``name``, whose gradients reach it in a layout."""
    if isinstance(result, tuple | list):
        for number, part in enumerate(result):
            yield from lay_out_cotangent(f"{name}[{number}]", part, layout)
    elif isinstance(result, torch.Tensor) and result.dim() and is_inexact(result):
        last = tuple(range(1, result.dim()))
        long = [dimension for dimension, size in enumerate(result.shape) if size > 1]
        yield {
            "transposed": f"{name}.transpose({long[-2]}, {long[-1]})" if len(long) > 1 else name,
            "expanded": f"{name}.sum()",
            "offset": f"torch.cat([{name}.detach().flatten()[:1], {name}.flatten()])",
            "gaps": f"torch.stack([{name}, {name}.detach()], -1)",
            "channels_last": f"{name}.permute{(0, *last[1:], 1)}" if result.dim() in (4, 5) else name,
        }.get(layout, name)
    elif isinstance(result, torch.Tensor):
        yield name


def _move(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "expanded" and max(x.shape, default=1) > 1:  # all along the first dimension that is long become equal
        return x.narrow(next(dimension for dimension, size in enumerate(x.shape) if size > 1), 0, 1).expand(x.shape)
    if layout == "offset":
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    if layout == "gaps" and x.dim():
        return torch.stack([x, torch.zeros_like(x)], -1)[..., 0]
    if layout == "channels_last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return x


# Sample inputs as Python text that needs torch alone.

# Samples are made no longer than this many elements.
_MOST_ELEMENTS = 2**12
# Beyond this many stored elements, values are drawn by a seeded generator in the range of the sample's.
_VERBATIM = 512
# Floating numbers are rounded to this many digits before they are spelled.
_DIGITS = 3
_COLLECTIONS = (list, tuple, torch.Size, dict, slice)
_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class UnusableSample(Exception):
    """A sample that makes no case, or an argument that has no short text; the message says why."""


@dataclass
class Speller:
    """Spells arguments. Tensors become variables ``x0``, ``x1`` … in order; one that comes twice is one variable.

    With ``gradients`` those that require one do so in the text. ``start`` is the number of the first variable,
    ``tensors`` are their expressions.
    """

    gradients: bool = False
    start: int = 0
    tensors: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _kept: list[torch.Tensor] = field(default_factory=list)

    def value(self, value: object) -> str:
        """The text of any argument; `UnusableSample` if it has none."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        return format_literal(value, self.value) if type(value) in _COLLECTIONS else _write_plain(value)

    def _tensor(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self._names:
            number = self.start + len(self.tensors)
            text, name = write_tensor(tensor, seed=number), f"x{number}"
            wants = self.gradients and tensor.requires_grad
            self.tensors[name] = text + (".requires_grad_()" if wants else "")
            self._names[id(tensor)] = name
            self._kept.append(tensor)  # or the next tensor may get its id
        return self._names[id(tensor)]


def write_tensor(tensor: torch.Tensor, *, seed: int = 0) -> str:
    """An expression for a tensor of the same dtype, shape, strides, offset and, if small, values; or `UnusableSample`.

    It uses ``strided`` and ``drawn``, functions of the case's template. Floating values are rounded to three digits.
    """
    if not is_plain(tensor):
        raise UnusableSample(f"a tensor of class {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UnusableSample(f"a {kind} tensor")
    if tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
        raise UnusableSample("a tensor with a lazy conjugate or sign, or without values")
    plain = tensor.detach()
    size, stride, offset, dtype = tuple(plain.shape), plain.stride(), plain.storage_offset(), str(plain.dtype)
    dense = plain.is_contiguous() and not offset
    if not plain.numel():
        return f"torch.empty{f'({size}' if dense else f'_strided({size}, {stride}'}, dtype={dtype})"
    # The elements from the first to the last that it reaches.
    stored = 1 + offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if stored > _VERBATIM:
        low, high = _find_range(plain)
        return f"drawn({size}, {stride}, {offset}, {dtype}, seed={seed}, low={low}, high={high})"
    values = _write_plain((plain if dense else plain.as_strided((stored,), (1,), 0)).tolist())
    text = f"torch.tensor({values}, dtype={dtype})"
    return text if dense else f"strided({size}, {stride}, {offset}, {text})"


def _find_range(tensor: torch.Tensor) -> tuple[str, str]:
    values = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()
    finite = values[values.isfinite()]
    return (_write_plain(finite.min().item()), _write_plain(finite.max().item())) if finite.numel() else ("0", "1")


def _write_plain(value: object) -> str:
    if isinstance(value, list):
        return format_literal(value, _write_plain)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, complex):
        return f"complex({_write_plain(value.real)}, {_write_plain(value.imag)})"
    if type(value) is float:
        return repr(float(f"{value:.{_DIGITS}g}"))
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, _PLAIN):
        return f"torch.device({str(value)!r})" if isinstance(value, torch.device) else str(value)
    if value is ...:
        return "..."
    raise UnusableSample(f"an argument of type {type(value).__name__}")


# The tables seed random functions themselves, with this number (`wrapper_set_seed`).
_SEED = 42


@dataclass(frozen=True)
class SampleCall:
    """One sample as text: the expressions of the tensors that it needs, by name, and the call."""

    tensors: Mapping[str, str]
    expression: str
    result: object = None  # what the table's function gives


def write_cells(cells: Sequence[OpInfoCell]) -> list[CellSource]:
    """The cases of cells: up to `SAMPLES` samples of the table that can be spelled, or one call that eager refuses."""
    return list(map(_write_cell, cells))


def _write_cell(cell: OpInfoCell) -> CellSource:
    left_out = Counter[str]()
    with warnings.catch_warnings(action="ignore"):
        calls = list[SampleCall]()
        for part in cell.parts:
            start = sum(len(call.tensors) for call in calls)
            calls += iter_calls(part, left_out, start, SHARED_SAMPLES if cell.others else SAMPLES)
    gradients = "with gradients" if cell.backward else ""
    cotangent = f"cotangent {cell.cotangent}" if cell.backward and cell.eager else ""
    given = [word for word in (cell.size, f"{cell.values} values") if not word.startswith("given")]
    words = (cell.form.replace("_", " "), cell.dtype, cell.layout, gradients, cotangent, *given)
    what = ", ".join(word for word in words if word)
    named = ", ".join(f"`{part.label}`" for part in cell.parts)
    title = f"Samples of {named} from torch's tables of operators: {what}."
    return CellSource(_render_case(title, cell, calls) if calls else None, len(calls), dict(left_out))


def iter_calls(cell: OpInfoCell, left_out: Counter[str], start: int = 0, most: int = SAMPLES) -> Iterator[SampleCall]:
    """The samples of a cell that can be spelled and do in eager mode what the table does; the others are counted.

    ``start`` is the number of the first tensor's variable; of one cell ``most`` samples are looked at.
    """
    entry, number = find_entry(cell.name, cell.variant), start
    for sample in itertools.islice(_iter_samples(entry, cell), most):
        try:
            call = _spell_sample(entry, cell, sample, number)
        except UnusableSample as error:
            left_out[str(error)] += 1
            continue
        if call is not None:
            number += len(call.tensors)
            yield call


def _iter_samples(entry: Any, cell: OpInfoCell) -> Iterator[Any]:
    if cell.form == "error":
        yield from (error.sample_input for error in list_errors(entry)[cell.chunk : cell.chunk + 1])
    else:
        samples = list(_iter_table(entry, cell.dtype, gradients=cell.backward))
        random.Random(f"fuzzcompile samples {entry.name}").shuffle(samples)  # neighbours in a table differ in little
        yield from samples[cell.chunk * SAMPLES : (cell.chunk + 1) * SAMPLES]


def _spell_sample(entry: Any, cell: OpInfoCell, sample: Any, start: int) -> SampleCall | None:
    """A sample as text; None where the cell's layout is that of the sample itself."""
    if cell.backward and not _is_identity(sample.output_process_fn_grad):
        raise UnusableSample("gradients that the table compares only after a function of the test suite")
    leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    if cell.size != "given" or cell.values != "given":
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        changed = tensors if cell.size == "given" else resize(tensors, cell.size)
        if cell.values == "extreme":
            # What torch calls unsafe checks no index: one out of range reads memory beside the tensor.
            kept = "unsafe" in entry.name
            extreme = enumerate(changed, start)
            changed = [x if kept and not is_inexact(x) else make_extreme(x, number) for number, x in extreme]
        if all(new is old for new, old in zip(changed, tensors, strict=True)):
            return None
        unused = iter(changed)
        leaves = [next(unused) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    moved = [lay_out(leaf, cell.layout) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if cell.layout != "contiguous" and all(new is old for new, old in zip(moved, leaves, strict=True)):
        return None
    arguments, keywords = pytree.tree_unflatten(moved, structure)
    speller = Speller(cell.backward, start)
    first, *rest = [speller.value(argument) for argument in arguments]
    rest += [f"{name}={speller.value(value)}" for name, value in keywords.items()]
    if cell.form == "in_place" and first not in speller.tensors:
        raise UnusableSample("a first operand that is no tensor")
    ways = list(iter_forms(entry, cell.form, first, rest))
    if cell.form != "error":
        return SampleCall(speller.tensors, *_find_equal(entry, cell, speller.tensors, ways, [first, *rest]))
    for way in ways:
        if isinstance(_run_expression(speller.tensors, way, cell), (RuntimeError, ValueError, IndexError, TypeError)):
            return SampleCall(speller.tensors, way)
    raise UnusableSample("error inputs that eager mode accepts once they are spelled")


def _find_equal(
    entry: Any, cell: OpInfoCell, tensors: Mapping[str, str], ways: list[str], arguments: list[str]
) -> tuple[str, object]:
    """The first way to call the operator that gives what the table's function gives, and that.

    The table's function runs with memory that nobody wrote filled with NaN, the largest integer and True, as
    `torch.use_deterministic_algorithms` does it, a way to call it with such memory zero: what is never written differs.
    """
    function = entry.inplace_variant if cell.form == "in_place" else entry.op
    wanted = _run_expression(tensors, f"_function({', '.join(arguments)})", cell, _function=function, filled=True)
    if isinstance(wanted, Exception):
        raise UnusableSample("calls that eager mode refuses in this dtype and layout")
    for way in ways:
        with _ZeroedMemory():  # type: ignore[no-untyped-call]
            result = _run_expression(tensors, way, cell)
        # Equal up to what the order of additions makes; one of the two may be of any type.
        with contextlib.suppress(AssertionError, TypeError):
            if not isinstance(result, Exception):
                torch.testing.assert_close(wanted, result, equal_nan=True, check_stride=False)
                return way, wanted[0] if cell.backward and isinstance(wanted, tuple) else wanted
    raise UnusableSample("functions of the test suite, and values that are not determined")


class _ZeroedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Memory that an operator returns unwritten is zero."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if leaves_unwritten(func):
            result.zero_()
        return result


def _run_expression(
    tensors: Mapping[str, str], expression: str, cell: OpInfoCell, *, filled: bool = False, **names: object
) -> object:
    space: dict[str, Any] = {**_load_functions(), **names}
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        given = [space.setdefault(name, eval(text, space)) for name, text in tensors.items()]
        seed_everything(_SEED)
        torch.use_deterministic_algorithms(filled, warn_only=True)  # which fills uninitialised memory
        with torch.set_grad_enabled(cell.backward), leave_transforms():
            shapes = [tensor.shape for tensor in given]
            result = eval(expression, space)
            _refuse_writes(given, shapes)
            return (result, _compute_gradients(result, given)) if cell.backward else result
    except UnusableSample:
        raise
    except Exception as error:  # whatever the operator raises is its answer
        return error
    finally:
        torch.use_deterministic_algorithms(deterministic)


def _refuse_writes(tensors: list[torch.Tensor], shapes: list[torch.Size]) -> None:
    """Of writes, refuse those that are undefined, although some operators let them pass, or are not captured."""
    for tensor, shape in zip(tensors, shapes, strict=True):
        if tensor.shape != shape:
            raise UnusableSample("calls that change the shape of an input, which dynamo does not capture")
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        if tensor._version and any(size > 1 and not step for size, step in steps):
            raise UnusableSample("writes to elements that share memory")


def _compute_gradients(result: object, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs or not inputs:
        raise RuntimeError("no gradient flows")
    return list(torch.autograd.grad(outputs, inputs, list(map(torch.ones_like, outputs)), allow_unused=True))


def _is_identity(function: Callable[[object], object]) -> bool:
    token = object()
    try:
        return function(token) is token
    except Exception:  # a function of tensors may raise anything on what is none
        return False


@cache
def _load_functions() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch}
    source = _render_case("", OpInfoCell("", "", "function"), [SampleCall({"x0": "strided drawn inf"}, "")])
    exec(source.partition("def program")[0], names)
    return names


def _is_shaped_by_values(name: str) -> bool:
    """Whether the shape of a result depends on values: dynamo captures such an operator only where it is told to."""
    packet = getattr(torch.ops.aten, name.rpartition("nn.functional.")[2].replace(".", "_"), None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    return any(torch.Tag.dynamic_output_shape in overload.tags for overload in overloads)


def _render_case(title: str, cell: OpInfoCell, calls: Sequence[SampleCall]) -> str:
    tensors = {name: text for call in calls for name, text in call.tensors.items()}
    names = [f"r{number}" for number in range(len(calls))]
    pairs = zip(names, calls, strict=True)
    if cell.backward and cell.cotangent != "contiguous":
        results = [part for name, call in pairs for part in lay_out_cotangent(name, call.result, cell.cotangent)]
    else:
        results = names
    text = " ".join([*tensors.values(), *(call.expression for call in calls)])
    return get_template("opinfo/case.py.j2").render(
        title=title,
        backward=cell.backward,
        shaped_by_values=_is_shaped_by_values(cell.name),
        tensors=tensors,
        statements=[f"r{number} = {call.expression}" for number, call in enumerate(calls)],
        results=results,
        eager=cell.eager,
        uses_strided="strided" in text,
        uses_drawn="drawn" in text,
        uses_numbers="inf" in text or "nan" in text,
    )
