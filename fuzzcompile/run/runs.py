"""One run of a case: eager, float64, perturbed, or through a callable that the compiler made."""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar

import numpy
import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.model.errors import CaseError
from fuzzcompile.run.arithmetic_modes import Float64Mode, UlpNoise
from fuzzcompile.run.attention_backends import interpret_flex_attention
from fuzzcompile.run.call_state import preserve_modes, read_modes
from fuzzcompile.run.case import Arguments, Case
from fuzzcompile.run.case_program import RUN_SEED, CaseProgram, build, name_roots
from fuzzcompile.run.device import (
    convert_memory_errors,
    is_exhausted_memory,
    seed_everything,
    shorten_message,
    trim_memory,
    wait_for_kernels,
)
from fuzzcompile.run.differences import move_leaf
from fuzzcompile.run.observation import (
    Failure,
    Observation,
    Value,
    list_gradient_leaves,
    observe_gradients,
    observe_mutations,
    observe_outputs,
    observe_random_state,
    observe_tangents,
    run_backward,
    save_state,
    weigh_outputs,
)
from fuzzcompile.run.pool.worker import say
from fuzzcompile.run.raise_sites import describe_errors, find_raise_site
from fuzzcompile.run.ranks import check_company, merge_ranks, on_all_ranks
from fuzzcompile.run.reachable_state import ReachedObjects, list_undos
from fuzzcompile.run.tensors import SHORT_FLOATS, describe_structure, is_wrapper, list_tensors, list_wrapped
from fuzzcompile.run.torch_attributes import ReplacedAttribute
from fuzzcompile.run.transforms import enter_function_modes, leave_transforms, put_tangents

T = TypeVar("T")
# Folders of the compiler, whose warnings about itself are left out.
_COMPILER = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/")


@contextlib.contextmanager
def record_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of a block instead of showing them, including those given only once per process."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            yield caught
        finally:
            torch.set_warn_always(always)


def format_warnings(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """Category and text of each warning, once, in order, without the compiler's own and notices of deprecation.

    A text is on one line, without addresses and positions in torch's sources, which change from run to run.
    """
    shown: dict[str, None] = {}
    for warning in caught:
        if issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning | FutureWarning):
            continue
        if any(folder in PurePath(warning.filename).as_posix() for folder in _COMPILER):
            continue
        text = re.sub(r"\(Triggered internally at [^)]*\)", "", str(warning.message))
        text = " ".join(re.sub(r"0x[0-9a-fA-F]+", "ADDR", text).split())[:300]
        shown[f"{warning.category.__name__}: {text}"] = None
    return tuple(shown)


# Rounds of timing: at most, at least, and the seconds after which no further round begins.
_ROUNDS, _FEWEST_ROUNDS, _TIMING = 30, 3, 0.5


# Tells the compiler's exceptions from the program's; None takes all for the program's.
DescribeFailure: TypeAlias = Callable[[BaseException], Failure] | None


def run_eager(case: Case, device: torch.device, *, noise_seed: int | None = None, double: bool = False) -> Observation:
    """Run the case in eager mode; with ``noise_seed``, every operator's result is moved by up to one ulp.

    With ``double`` the program's tensors are converted to float64, while its own casts stay as they are.
    """
    say("running it in eager mode" if noise_seed is None else "running it in eager mode, to measure its rounding")
    program = build(case, device, double=double, streamed=True)
    if noise_seed is None:
        return observe(case, program, program.model)
    with interpret_compiled_operators():
        return observe(case, program, program.model, around=UlpNoise(noise_seed))


def run_float64(
    case: Case, device: torch.device, *, keep_casts: bool = True, part: int | None = None
) -> tuple[Observation, bool]:
    """Run the case in float64; with ``keep_casts``, its own casts to bfloat16 and float16 still round to those types.

    With a ``part``, the gradients are those for a part of the cotangents (`run_backward`).

    Returns:
        The observation, and whether the program contains such casts.
    """
    say("running it in float64")
    program = build(case, device, double=True, streamed=True)
    mode = Float64Mode(keep_casts=keep_casts, native=program.dtype)
    with interpret_compiled_operators():
        return observe(case, program, program.model, around=mode, part=part), mode.saw_cast


def _take_branch(
    holds: bool | torch.Tensor, if_true: Callable[..., T], if_false: Callable[..., T], operands: Sequence[object] = ()
) -> T:
    """Take one branch of ``torch.cond``, which is a plain ``if`` by its documentation."""
    return (if_true if holds else if_false)(*operands)


CONDITION = ReplacedAttribute(
    "torch._higher_order_ops.cond",
    "cond_op",
    optional=True,
    unprobed="A torch without it has no float64 reference of gradients of conditions, which the report says.",
)


@contextlib.contextmanager
def interpret_compiled_operators() -> Iterator[None]:
    """Run what compiles itself in eager mode (flex attention, conditions) operator by operator in the block.

    That is for runs under a dispatch mode, where dynamo captures nothing: of branches that it has not captured, the
    backward pass of a condition raises.
    """
    with interpret_flex_attention(), CONDITION.replace_if_loaded(_take_branch), _leave_uncompiled():
        yield


def _leave_uncompiled() -> contextlib.AbstractContextManager[object]:
    """Have dynamo leave alone what compiles itself: what it skips under a mode once, it skips from then on.

    A later run without the mode would have it compile the functions that are called there, which it cannot.
    """
    loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()


def observe(
    case: Case,
    program: CaseProgram,
    target: Callable[..., object],
    *,
    around: contextlib.AbstractContextManager[object] | None = None,
    describe_failure: DescribeFailure = None,
    seed: int | None = None,
    part: int | None = None,
) -> Observation:
    """Drive ``target``, the program's model or its compiled form, through the calls of the case.

    Exceptions of the program, forward and backward, become the observation's ``failure``, as ``describe_failure`` puts
    them: by default nothing tells the compiler's from the program's. ``around`` is entered around all calls; ``seed``
    takes the place of the case's own, and ``part`` is of the cotangents (`run_backward`).

    Raises:
        MemoryError: memory is exhausted, however torch reports it.
        KeyboardInterrupt: the user interrupts.
        NotOnAllRanks: other processes would have to run it too, and it is compiled.
    """
    if target is not program.model:  # who compiles it tells the others
        return _observe(case, program, target, around, describe_failure, seed, part)
    runner, options = run_eager.__name__, dict[str, object](double=program.double)
    if isinstance(around, Float64Mode):
        runner, options = run_float64.__name__, {"keep_casts": around.keep_casts, "part": part}
    elif isinstance(around, UlpNoise):
        options["noise_seed"] = around.seed
    with on_all_ranks(f"{__name__}:{runner}", case, **options):  # what else a mode does is this process's own affair
        made = _observe(case, program, target, around, describe_failure, seed, part)
    return merge_ranks(made)


def _observe(
    case: Case,
    program: CaseProgram,
    target: Callable[..., object],
    around: contextlib.AbstractContextManager[object] | None,
    describe_failure: DescribeFailure,
    seed: int | None,
    part: int | None,
) -> Observation:
    trim_memory()  # what was made on the way to the program
    start = time.perf_counter()
    left: dict[str, str] = {}
    with convert_memory_errors(), record_warnings() as caught, leave_transforms():
        try:
            own = contextlib.nullcontext() if isinstance(around, Float64Mode) else program.enter_precision()
            inside = around or contextlib.nullcontext()
            with enter_grad_mode(case.grad), case.ambient(), own, inside, _note_modes(left):
                observation = _observe_calls(case, program, target, start, seed, part)
        except _ProgramError as wrapped:
            error = wrapped.error
            chain, site = describe_errors([error]), find_raise_site(error)
            plain = Failure(type(error).__name__, shorten_message(error), chain=chain, site=site)
            failure = plain if describe_failure is None else describe_failure(error)
            observation = Observation(failure=failure, seconds=time.perf_counter() - start)
    return replace(observation, warnings=format_warnings(caught), ends=fingerprint_streams(), modes=left)


@contextlib.contextmanager
def _note_modes(left: dict[str, str]) -> Iterator[None]:
    """Note the switches of the process as the block leaves them, and set them back."""
    with preserve_modes():
        try:
            yield
        finally:
            left |= {name: str(value) for name, value in read_modes().items()}


def _observe_calls(
    case: Case,
    program: CaseProgram,
    target: Callable[..., object],
    start: float,
    seed: int | None = None,
    part: int | None = None,
) -> Observation:
    if seed is None:
        seed_run(case)
    else:
        seed_everything(seed)
    values: list[Value] = []
    structures: list[str] = []
    earlier: dict[str, object] = {}
    for number, arguments in enumerate(program.calls):
        if number and program.state is not None:
            program.state.enter(number)
        call = number if len(program.calls) > 1 else None
        before = save_state(program, arguments)
        with _wrap_program_errors():
            output = drive(case, target, put_tangents(arguments))
            wait_for_kernels((output, arguments))
        structures.append(describe_structure(output))
        values += [*observe_outputs(call, output, program, arguments, earlier), *observe_tangents(call, output)]
        if case.backward:
            with _wrap_program_errors(), _leave_autocast():
                # Compiled outputs that require no gradient are a finding, and a case without one is none.
                run_backward(output, required=case.state is None and target is program.model, part=part)
                wait_for_kernels((output, arguments))
        values += observe_mutations(call, before, program, arguments)
        if case.backward or case.state is not None:
            accumulated = observe_gradients(call, program, arguments)
            values += accumulated if case.backward else [value for value in accumulated if value.is_tensor]
    values += observe_random_state(case)
    return Observation(tuple(values), None, "; ".join(structures), time.perf_counter() - start)


@contextlib.contextmanager
def _leave_autocast() -> Iterator[None]:
    """Run a block outside of ``torch.autocast``, where a program has its backward pass: torch's notes on it say so."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def measure_loss(case: Case, program: CaseProgram) -> float:
    """The loss whose gradients the case asks for (`run_backward`), over all calls, by running them forward.

    Raises:
        Exception: whatever the program raises.
    """
    seed_run(case)
    loss = 0.0
    with record_warnings(), enter_grad_mode(case.grad), case.ambient():
        for arguments in program.calls:
            terms = weigh_outputs(drive(case, program.model, arguments))
            loss += sum(float(term) for term in terms)
    return loss


def measure_moved_loss(case: Case, device: torch.device, changes: Mapping[str, torch.Tensor]) -> float:
    """The loss in float64 of a program of one call, its inputs and parameters moved by ``changes``, by name.

    NaN where the program raises there.
    """
    program = build(case, device, double=True, streamed=True)
    leaves = list_gradient_leaves(None, program, *program.calls)
    for name, change in changes.items():
        move_leaf(leaves[name], change)
    try:
        with Float64Mode(keep_casts=False, native=program.dtype):
            return measure_loss(case, program)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception:  # the program's own: it has no loss here
        return math.nan


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A look at the operators that are called, which has ``found`` what it is for or not."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False


class _ShortFloatWatch(OperatorWatch):  # type: ignore[no-untyped-call]
    """Whether an operator takes or gives bfloat16 or float16."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        held = pytree.tree_leaves((args, kwargs, result))
        self.found |= any(isinstance(each, torch.Tensor) and each.dtype in SHORT_FLOATS for each in held)
        return result


def computes_in_short_floats(case: Case, device: torch.device) -> bool:
    """Return whether an operator of the program takes or gives bfloat16 or float16, by an eager run."""
    program, watch = build(case, device), _ShortFloatWatch()
    with interpret_compiled_operators():
        observe(case, program, program.model, around=watch)
    return watch.found


class _FunctionWatch(TorchFunctionMode):
    """Whether a hook was registered, or a tensor detached."""

    functions = (
        torch.Tensor.register_hook,
        torch.Tensor.detach,
        torch.Tensor.detach_,
        torch.Tensor.data.__get__,  # type: ignore[attr-defined]
        torch.detach,
    )

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found |= func in self.functions
        return func(*args, **(kwargs or {}))


def says_its_derivative(case: Case, program: CaseProgram, watch: Callable[[], OperatorWatch]) -> bool:
    """Return whether a program has a derivative of its own, which need not be that of its values.

    It calls a function of autograd with a ``backward`` in Python, a hook may change a gradient, a tensor is detached,
    or a ``watch`` of its operators finds one.

    Raises:
        Exception: whatever the program raises.
    """
    seed_run(case)
    nodes: list[Any] = []
    with record_warnings(), enter_grad_mode(case.grad), case.ambient():
        for arguments in program.calls:
            with _FunctionWatch() as functions, watch() as operators:
                output = drive(case, program.model, arguments)
            if functions.found or operators.found:
                return True
            nodes += [term.grad_fn for term in weigh_outputs(output)]
    reached = (node for node, _ in iterate_edges(nodes))
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in (*nodes, *reached))


def iterate_edges(functions: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Each function of autograd that is reached from ``functions``, with the number of its result, once."""
    left, seen, edges = list(functions), set[object](), set[object]()
    while left:
        function = left.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        for edge in function.next_functions:
            left.append(edge[0])
            if edge[0] is not None and edge not in edges:
                edges.add(edge)
                yield edge


def time_calls(case: Case, program: CaseProgram, target: Callable[..., object]) -> float | None:
    """Seconds that the calls of the case and their backward take, the least of several rounds without the first.

    None for a script's callable, whose state is not restored between rounds, and None if a call raises.
    """
    if case.state is not None:
        return None
    rounds: list[float] = []
    begun = time.perf_counter()
    with convert_memory_errors(), record_warnings(), enter_grad_mode(case.grad), case.ambient():
        while len(rounds) <= _ROUNDS and (len(rounds) < _FEWEST_ROUNDS or time.perf_counter() - begun < _TIMING):
            start = time.perf_counter()
            try:
                for arguments in program.calls:
                    output = drive(case, target, arguments)
                    if case.backward:
                        run_backward(output, required=False)
            except (KeyboardInterrupt, MemoryError):
                raise
            except Exception:  # the program's own exception: a program that fails has no time
                return None
            rounds.append(time.perf_counter() - start)
    return min(rounds[1:])


def seed_run(case: Case) -> None:
    """Set the random state in which every run of the case begins."""
    if case.reseed is not None:
        case.reseed()
    else:
        seed_everything(RUN_SEED)


class _ProgramError(Exception):
    """Carries an exception of the program itself, as opposed to ours."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _wrap_program_errors() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, CaseError):
        raise
    except BaseException as error:  # the program's own, SystemExit too: what it raises is what is observed
        if is_exhausted_memory(error):
            raise
        raise _ProgramError(error) from error


@contextlib.contextmanager
def enter_grad_mode(name: str) -> Iterator[None]:
    """Enter the grad mode of a case: ``no_grad``, ``inference_mode`` or ``enabled``."""
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(name, torch.enable_grad)
    with context():
        yield


def drive(case: Case, target: Callable[..., object], arguments: object) -> object:
    """Call ``target`` with the inputs of one call, through the case's ``run`` if it has one.

    Raises:
        NotOnAllRanks: other processes would have to make the call too, and do not.
        Exception: whatever the program raises.
    """
    check_company()
    with enter_function_modes(case.modes):
        if case.run is not None:
            return case.run(target, arguments)
        if isinstance(arguments, Arguments):
            return target(*arguments.args, **arguments.kwargs)
        if isinstance(arguments, dict):
            return target(**arguments)
        return target(*arguments) if isinstance(arguments, tuple) else target(arguments)


def fingerprint_streams() -> dict[str, str]:
    """A fingerprint of the current state of each random stream that can be seeded: torch's, Python's, NumPy's."""
    states: dict[str, bytes] = {"torch CPU": torch.get_rng_state().numpy().tobytes()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with contextlib.suppress(RuntimeError):  # a GPU that the program has lost has no state to read
            states["CUDA"] = b"".join(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())
    states["Python"] = repr(random.getstate()).encode()
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    states["NumPy"] = b"".join((str(kind).encode(), numpy.asarray(keys).tobytes(), repr(rest).encode()))
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


class SavedTensors:
    """A copy of a program's tensors, which restores the program between runs of one (compiled) callable.

    Whole storages are copied, since inputs may overlap. What Python objects hold is restored for a case that drives its
    program itself: what that changes outside of them, ``make()`` sets back.
    """

    def __init__(self, case: Case, program: CaseProgram, device: torch.device) -> None:
        self._case, self._program, self._device = case, program, device
        self._tensors = [*program.collect_tensors().values(), *list_tensors(program.calls)]
        changes = case.run is not None and case.state is None
        self._undos = list_undos(ReachedObjects(name_roots(program.model, program.calls)).objects) if changes else []
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        inner = [held for tensor in self._tensors for _, held in list_wrapped("", tensor)]
        for tensor in (*self._tensors, *inner):
            if tensor.layout == torch.strided and not tensor.is_nested and not is_wrapper(tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._storages:
                    copied: torch.UntypedStorage = storage.clone()  # type: ignore[no-untyped-call]
                    self._storages[storage.data_ptr()] = storage, copied

    def restore(self) -> None:
        """Restore the values, and drop the gradients."""
        if self._case.state is not None:
            self._case.state.restore(self._device, double=False)
        if self._undos:
            self._case.make()
        for undo in self._undos:
            undo()
        for storage, saved in self._storages.values():
            if storage.nbytes() != saved.nbytes():
                storage.resize_(saved.nbytes())
            storage.copy_(saved)
        for tensor in self._tensors:
            if tensor.is_leaf and tensor.grad is not None:
                tensor.grad = None

    def observe_seeds(
        self, target: Callable[..., object], seeds: Sequence[int], describe_failure: DescribeFailure = None
    ) -> Iterator[Observation]:
        """Run ``target`` once under each of ``seeds``, each time from the values that were kept."""
        for seed in seeds:
            self.restore()
            yield observe(self._case, self._program, target, describe_failure=describe_failure, seed=seed)
