"""One application of an operator, computed in several ways on copies of its real arguments, or on fake tensors."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.operators.decompositions import (
    ChosenOperators,
    find_functional_form,
    find_operator,
    leaves_unwritten,
)
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError
from fuzzcompile.model.facts import facts
from fuzzcompile.model.thresholds import DERIVATIVE_TOLERANCE, DIFFERENCE_STEP
from fuzzcompile.run import metrics
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import Operator, copy_tree, list_significant_strides, map_tree

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


_EPS = torch.finfo(torch.float64).eps
_DRAW_SEED = 11
# Arguments that switch off what a fused random operator draws, where they are 0 or False.
_SWITCHES = ("dropout_p", "dropout", "training")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of a call."""


@dataclass(frozen=True)
class OperatorOutcome:
    """Leaves of an operator's result, of its arguments afterwards, which of these share memory; or an error.

    ``state`` is that of the generator afterwards, for an operator that draws random numbers.
    """

    results: tuple[Any, ...] = ()
    arguments: tuple[Any, ...] = ()
    aliases: frozenset[tuple[int, int]] = frozenset()
    error: Exception | None = None
    state: torch.Tensor | None = None

    @classmethod
    def from_call(cls, call: Callable[[], object], given: object) -> OperatorOutcome:
        """The outcome of a call; ``given`` are its arguments, which it may write to."""
        try:
            result = call()
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the call: it is the answer
            return cls(error=error)
        results = tuple(pytree.tree_leaves(result)) if result is not NotImplemented else (NotImplemented,)
        arguments = tuple(pytree.tree_leaves(given))
        return cls(results, arguments, find_aliases(results, arguments))


Outcomes = tuple[OperatorOutcome, OperatorOutcome]


class OperatorPlace(NamedTuple):
    """Place of an operator in dynamo's graph: the node (of the forward pass, for gradients too) and its source line.

    ``site`` is ``file.py:line #n`` of the user's program, ``inside`` are the decompositions around it.
    """

    nodes: tuple[str, ...] = ()
    location: str | None = None
    site: str | None = None
    backward: bool = False
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Application:
    """One operator on its real arguments, computed by its own kernel and in another way.

    ``way`` is ``decomposition``, ``dispatcher``, ``fake`` or :data:`CONTIGUOUS`; ``initial_arguments`` are as they were
    before any way ran.
    """

    operator: OpOverload
    way: str
    function: Callable[..., object] | None
    place: OperatorPlace
    kernel: OperatorOutcome
    other: OperatorOutcome
    draws: bool = False
    initial_arguments: Arguments = field(default=((), {}), repr=False)

    @property
    def name(self) -> str:
        """Name and overload: ``aten.gelu.default``."""
        return str(self.operator)

    def refuses_always(self) -> bool:
        """Return whether the kernel raises the same on other values, so that no values are needed to see the fault."""
        for fill in (0, 1):
            given = map_tree(functools.partial(torch.full_like, fill_value=fill), copy_tree(self.initial_arguments))
            again = run_operator(self.operator, *given)
            if again.error is None or str(again.error) != str(self.kernel.error):
                return False
        return True

    def compute_in_float64(self, *, noise: int | None = None) -> Outcomes | None:
        """Both ways in float64; with ``noise``, on arguments moved by one ulp of float64. None if it cannot be run."""
        if self.function is None or self.draws:
            return None
        given = copy_tree(self.initial_arguments, double=True)
        if noise is not None:
            generator = torch.Generator().manual_seed(noise)
            given = map_tree(lambda tensor: _add_noise(tensor, generator), given)
        one = run_operator(self.operator, *given, double=True)
        other = run_operator(self.function, *given, double=True, dispatcher=True)
        return None if one.error is not None or other.error is not None else (one, other)


def run_operator(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    double: bool = False,
    dispatcher: bool = False,
    inside: contextlib.AbstractContextManager[object] | None = None,
    copied: bool = True,
) -> OperatorOutcome:
    """Run ``function`` on its arguments, copied by default, natively or in float64, ``inside`` a further context."""
    args, named = copy_tree((args, dict(kwargs)), double=double) if copied else (args, dict(kwargs))

    def call() -> object:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(use_python_dispatcher(dispatcher))
            if inside is not None:
                stack.enter_context(inside)
            if double:
                stack.enter_context(Float64Mode(keep_casts=False))
            return function(*args, **named)

    return OperatorOutcome.from_call(call, (args, named))


def run_drawing(run: Callable[[], OperatorOutcome], draws: bool) -> OperatorOutcome:
    """The outcome of a run of an operator, with the state that it leaves the generator in, if it draws."""
    outcome = run()
    return replace(outcome, state=torch.get_rng_state()) if draws else outcome


def find_aliases(results: Sequence[object], arguments: Sequence[object]) -> frozenset[tuple[int, int]]:
    """Pairs of a result and an argument, by position, that lie in one storage."""
    held = [(position, _find_storage(value)) for position, value in enumerate(arguments)]
    found = [(position, _find_storage(value)) for position, value in enumerate(results)]
    return frozenset((i, j) for i, one in found for j, other in held if one is not None and one == other)


def use_python_dispatcher(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """Python's dispatcher in force or not; as it is, where this torch has no such switch."""
    switch = getattr(torch._C, "_EnablePythonDispatcher" if enabled else "_DisablePythonDispatcher", None)
    return switch() if switch is not None else contextlib.nullcontext()


def _add_noise(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.layout != torch.strided or not tensor.numel():
        return tensor
    draw = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
    moved = tensor.detach() * (1 + _EPS * draw)
    if 0 in tensor.stride():  # one element for many: each is moved on its own
        return moved
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(moved)


def _find_storage(value: object) -> int | None:
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            return value.untyped_storage()._cdata if value.numel() else None
    return None


@contextlib.contextmanager
def replay_random_stream(operator: OpOverload) -> Iterator[bool]:
    """Have an operator draw the same random numbers again, and leave the stream as it was; yields if it draws."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        yield False
        return
    with torch.random.fork_rng():
        seed_everything(_DRAW_SEED)
        yield True


# Kernels on contiguous copies of their operands: beside the same on the operands as they are, and in their place.

CONTIGUOUS = "contiguous"


def compare_contiguous(
    operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: OperatorPlace
) -> Application | None:
    """A kernel on its operands as they are, and on contiguous copies; None where layouts cannot matter, or may.

    They cannot where all operands are contiguous. They may in views, in operators that write, draw or leave unwritten,
    and in those that take a place in a storage to read from.
    """
    schema = operator._schema
    told = any(argument.name == "storage_offset" for argument in schema.arguments)
    aliased = any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))
    may_matter = is_drawing(operator, args, kwargs) or leaves_unwritten(operator) or told or aliased
    if may_matter or all(map(is_contiguous, pytree.tree_leaves((args, kwargs)))):
        return None

    def call(*args: object, **kwargs: object) -> object:
        args, kwargs = make_contiguous((args, kwargs))
        return operator(*args, **kwargs)

    outcomes = run_operator(operator, args, kwargs), run_operator(call, args, kwargs)
    return Application(operator, CONTIGUOUS, call, place, *outcomes, initial_arguments=copy_tree((args, dict(kwargs))))


def name_arguments(operator: Operator, arguments: Arguments, *, defaults: bool = False) -> dict[str, Any]:
    """The arguments of a call by their names in the operator's schema; ``defaults`` adds those that were not given."""
    schema = operator._schema.arguments
    given = {each.name: each.default_value for each in schema if each.has_default_value()} if defaults else {}
    return given | dict(zip((each.name for each in schema), arguments[0], strict=False)) | arguments[1]


def is_drawing(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers: dropout at 0 within a fused attention draws none."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    named = name_arguments(operator, (tuple(args), dict(kwargs)), defaults=True)
    return not any(named[switch] in (0, False) for switch in _SWITCHES if switch in named)


def is_contiguous(value: object) -> bool:
    """Return whether a value is no strided tensor whose elements lie in another order than row by row."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested or value.numel() < 2:
        return True
    return list_significant_strides(value) == list_significant_strides(torch.empty(value.shape, device="meta"))


def make_contiguous(tree: Any) -> Any:
    """The tree with contiguous copies of the tensors that are not contiguous."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if is_contiguous(tensor) else tensor.clone(memory_format=torch.contiguous_format)

    return pytree.tree_map_only(torch.Tensor, copy, tree)


@contextlib.contextmanager
def use_contiguous_operands(names: Sequence[str]) -> Iterator[None]:
    """In the block, the kernels of operators get contiguous copies of their operands, in eager and compiled code.

    Their results have the layout that the kernels give them on the operands as they are, which compilers rely on. With
    an operator goes its overload that writes to ``out``, which Inductor calls in its place. Names (``aten.add.Tensor``)
    that this torch does not know are passed over.
    """
    operators = [operator for operator in map(find_operator, names) if operator is not None]
    overloads = [(str(each).rpartition(".")[0], each._schema.overload_name) for each in operators]
    outs = [f"{name}.{overload}_out" if overload else f"{name}.out" for name, overload in overloads]
    operators += [operator for operator in map(find_operator, outs) if operator is not None]
    with contextlib.ExitStack() as stack:
        for operator, key in itertools.product(operators, ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",)):
            stack.enter_context(_replace_kernel(operator, key))
        yield


@contextlib.contextmanager
def _replace_kernel(operator: OpOverload, key: str) -> Iterator[None]:
    kernel = torch.library.get_kernel(operator, key)
    namespace, _, name = operator._schema.name.partition("::")
    written = {argument.name for argument in operator._schema.arguments if argument.is_out}

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        read = {name: value for name, value in kwargs.items() if name not in written}
        outs = {name: value for name, value in kwargs.items() if name in written}
        if all(map(is_contiguous, pytree.tree_leaves((args, read)))):
            return kernel.call_boxed(keys, *args, **kwargs)
        plain_args, plain_kwargs = make_contiguous((args, read))
        plain = kernel.call_boxed(keys, *plain_args, **plain_kwargs, **outs)
        if outs:
            return plain
        try:
            given = kernel.call_boxed(keys, *args, **kwargs)
        except Exception:  # the kernel refuses such operands, which is what it is doubted for
            return plain
        return pytree.tree_map(_copy_layout, given, plain)

    make: Callable[..., Any] = torch.library.Library
    library = make(namespace, "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is replaced: it is meant to be
            library.impl(f"{name}.{operator._schema.overload_name}".rstrip("."), run, key, with_keyset=True)
        yield
    finally:
        library._destroy()


def _copy_layout(given: object, plain: object) -> object:
    if isinstance(given, torch.Tensor) and isinstance(plain, torch.Tensor) and given.shape == plain.shape:
        return given.copy_(plain)
    return plain


# Results of operators on fake tensors (dtype, shape, strides, memory), and compiles that ask the kernels instead.


FAKE_TENSOR_MODULE = "torch._subclasses.fake_tensor"
_FACTS = facts().fake_tensors


def run_fake(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> OperatorOutcome | None:
    """An operator on fake tensors made of its arguments; None where these do not say what it gives."""
    if any(tag.name in _FACTS.unknowable_tags for tag in operator.tags) or operator._schema.name in _FACTS.lifts:
        return None
    mode = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False  # an answer may have been remembered from before it was patched
    with torch.no_grad(), use_python_dispatcher(True):
        try:
            fake_args, fake_kwargs = pytree.tree_map_only(
                torch.Tensor, lambda tensor: mode.from_tensor(tensor.detach(), static_shapes=True), (args, kwargs)
            )
        except Exception:  # a kind of tensor that has no fake form
            return None
        outcome = run_operator(operator, fake_args, fake_kwargs, dispatcher=True, inside=mode, copied=False)
    kinds = [] if outcome.error is None else type(outcome.error).__mro__
    return None if any(kind.__name__ in _FACTS.silent_errors for kind in kinds) else outcome


def find_fake_function(operator: OpOverload) -> Function | None:
    """The Python function that says what an operator gives on fake tensors; None where C++ does."""
    with contextlib.suppress(ImportError, AttributeError):
        own = importlib.import_module("torch._subclasses.fake_impls").op_implementations_dict.get(operator)
        if own is not None:
            return cast(Function, own)
    kernel = getattr(operator, "py_kernels", {}).get(torch._C.DispatchKey.Meta)
    decompositions = importlib.import_module("torch._decomp")
    tables = [getattr(decompositions, name, {}) for name in ("meta_table", "decomposition_table")]
    return kernel or next((table[operator] for table in tables if operator in table), None)


def wrap_dispatch(
    chosen: ChosenOperators, original: Function, mode: FakeTensorMode, func: OpOverload, *rest: object
) -> object:
    """Answer with the metadata of an operator's results as its kernel gives them.

    It is run on zeros of the shapes and strides that the compiler knows. Where these are symbolic, or the result's hang
    on values, it is run at their hints, and says in which dtype and in which order of dimensions the sizes of the
    compiler's own answer lie. Where the operator gives a view or takes something else than tensors, the compiler's own
    answer stands. A kernel that raises whatever the values are raises there too.
    """
    form = find_functional_form(func) if isinstance(func, torch._ops.OpOverload) else None
    if str(func) not in chosen.names and str(form) not in chosen.names:
        return original(mode, func, *rest)
    args, kwargs = cast("tuple[tuple[object, ...], dict[str, object]]", rest[-2:])
    given, symbolic = _run_on_filled(func, args, kwargs or {})
    if given is None:
        return original(mode, func, *rest)
    if not symbolic and torch.Tag.dynamic_output_shape not in func.tags:
        convert = mode.fake_tensor_converter.from_real_tensor
        return pytree.tree_map_only(torch.Tensor, lambda tensor: convert(mode, tensor), given)
    answer = original(mode, func, *rest)
    values, spec = pytree.tree_flatten(answer)
    kernel = pytree.tree_leaves(given)
    if len(values) != len(kernel):
        return answer
    with mode:
        pairs = zip(values, kernel, strict=True)
        return pytree.tree_unflatten([_lay_out_alike(said, value) for said, value in pairs], spec)


@contextlib.contextmanager
def forget_metadata() -> Iterator[None]:
    """Forget what fake tensors said before the block, and what they said in it."""
    forget: Function = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensorMode.cache_clear
    forget()
    try:
        yield
    finally:
        forget()


def _run_on_filled(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object | None, bool]:
    """What a kernel gives on zeros in place of fake tensors, None if that cannot be run; whether sizes are symbolic.

    Raises:
        IntendedError: the kernel raises whatever the values are.
    """
    if any(returned.alias_info is not None for returned in func._schema.returns):
        return None, False
    no_dispatch = importlib.import_module("torch.utils._mode_utils").no_dispatch
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    sizes = [size for tensor in tensors for size in (*tensor.size(), *tensor.stride())]
    symbolic = any(isinstance(value, torch.SymInt) for value in (*flat, *sizes))
    if not tensors or any(get_hint(value) is None for value in (*flat, *sizes) if isinstance(value, torch.SymInt)):
        return None, symbolic
    fake = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensor

    def fill_in(value: object, fill: int) -> object:
        if not isinstance(value, fake):
            return get_hint(value) if isinstance(value, torch.SymInt) else value
        tensor = cast("FakeTensor", value)
        size, stride = (list(map(get_hint, numbers)) for numbers in (tensor.size(), tensor.stride()))
        made = torch.empty_strided(
            cast("Any", size), cast("Any", stride), dtype=tensor.dtype, device=tensor.fake_device
        )
        return made.fill_(fill)

    def run(fill: int) -> tuple[object, Exception | None]:
        args, kwargs = pytree.tree_unflatten([fill_in(value, fill) for value in flat], spec)
        try:
            return func(*args, **kwargs), None
        except Exception as error:  # of the kernel: it is the answer
            return None, error

    with no_dispatch():
        result, error = run(0)
        if error is not None and str(run(1)[1]) == str(error):
            raise IntendedError(error)
        if isinstance(result, torch.Tensor) and not result.numel():  # its size hangs on the values
            result = run(1)[0]
    return result, symbolic


def get_hint(size: object) -> int | None:
    """A size as it was when the program ran; None where nothing is known of it."""
    return size if isinstance(size, int) else getattr(getattr(size, "node", None), "hint", None)


def may_be(recorded: object, size: int) -> bool:
    """Return whether a recorded size can have been ``size``, as far as it is known."""
    return get_hint(recorded) in (size, None)


def _lay_out_alike(said: object, kernel: object) -> object:
    """A fake tensor of the sizes that were ``said``, in the dtype and order of dimensions of the kernel's result."""
    if not isinstance(said, torch.Tensor) or not isinstance(kernel, torch.Tensor):
        return said
    if said.device != kernel.device or said.dim() != kernel.dim():
        return said
    if not all(map(may_be, said.shape, kernel.shape)):
        return said
    strides: list[Any] = [1] * said.dim()
    step: Any = 1
    for dim in sorted(range(said.dim()), key=lambda dim: (kernel.stride(dim), -dim)):
        strides[dim] = step
        step = step * said.shape[dim]
    made = torch.empty_strided(said.shape, strides, dtype=kernel.dtype, device=said.device)
    pairs = zip(kernel.shape, made.stride(), kernel.stride(), strict=True)
    return made if all(size == 1 or may_be(ours, theirs) for size, ours, theirs in pairs) else said


def fit_derivatives(functions: Sequence[Callable[..., object]], arguments: Arguments) -> list[bool] | None:
    """Return which functions have the derivative that autograd has for the first, an operator.

    Autograd's formula for an operator calls other operators. Along a direction v of the arguments and a weight c of the
    results, ⟨c, f(x + hv) − f(x − hv)⟩ / 2h is compared with ⟨∂⟨c, f⟩/∂x, v⟩. None where there is no derivative.
    """
    generator = torch.Generator().manual_seed(0)
    leaves, spec = pytree.tree_flatten(arguments)
    moved = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    directions = {index: torch.randn(leaves[index].shape, generator=generator).to(leaves[index]) for index in moved}

    def call(
        function: Callable[..., object], step: float, *, grad: bool = False
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        given = list(leaves)
        for index in moved:
            given[index] = (leaves[index] + step * directions[index]).detach().requires_grad_(grad)
        args, kwargs = pytree.tree_unflatten(given, spec)
        results = [r for r in pytree.tree_leaves(function(*args, **kwargs)) if isinstance(r, torch.Tensor)]
        return [given[index] for index in moved], [r for r in results if r.is_floating_point()]

    with torch.enable_grad():
        inputs, results = call(functions[0], 0.0, grad=True)
        weights = [torch.randn(result.shape, generator=generator).to(result) for result in results]
        pairs = [(result, weight) for result, weight in zip(results, weights, strict=True) if result.requires_grad]
        if not pairs:
            return None
        loss = torch.stack([(result * weight).sum() for result, weight in pairs]).sum()
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    counted = [result.requires_grad for result in results]
    terms = [g * directions[index] for g, index in zip(gradients, moved, strict=True) if g is not None]
    along, size = (sum(float(value.sum()) for value in values) for values in (terms, [term.abs() for term in terms]))

    def measure(function: Callable[..., object], step: float) -> float:
        sides = [call(function, sign * step)[1] for sign in (1, -1)]
        pairs = zip(*sides, weights, counted, strict=True)
        return sum(float(((up - down) * weight).sum()) for up, down, weight, wanted in pairs if wanted) / (2 * step)

    scale = DIFFERENCE_STEP * (max((metrics.rms(leaves[index]) for index in moved), default=1.0) or 1.0)
    fits = []
    for function in functions:
        near, nearer = measure(function, scale), measure(function, scale / 2)
        if abs(near - nearer) > DERIVATIVE_TOLERANCE * max(size, abs(near)):
            return None  # a kink or a step: differences have no limit here
        fits.append(abs(nearer - along) <= DERIVATIVE_TOLERANCE * max(size, abs(along)))
    return fits
