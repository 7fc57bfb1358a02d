"""The observables of one run of a program."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.model.evidence import EFFECT, RANDOM_STATE, ObservableName
from fuzzcompile.run.call_state import CallState, list_effects
from fuzzcompile.run.case import Case, Reachable
from fuzzcompile.run.case_program import CaseProgram
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.raise_sites import RaisedError, RaiseSite
from fuzzcompile.run.reachable_state import name_arguments, name_held_tensors, name_holders
from fuzzcompile.run.sharded_tensors import (
    describe_placements,
    divide_like,
    find_rank,
    is_pending,
    is_sharded,
    read_part,
    read_values,
)
from fuzzcompile.run.tensors import (
    NUMPY,
    densify,
    find_aliases,
    has_own_class,
    is_inexact,
    is_wrapped,
    is_wrapper,
    list_significant_strides,
    list_wrapped,
    name_leaves,
    strip_class,
    unwrap,
)
from fuzzcompile.run.transforms import is_level_entered, read_tangent

Phase = Literal["run", "compile"]

# How names of values begin where a case makes several calls.
_CALL = re.compile(r"call\d+\.")


@dataclass(frozen=True)
class GeneratedPlace:
    """A line of a generated program: the program's text, and the number of the line, from 1."""

    source: str
    line: int


@dataclass(frozen=True)
class GuardedPlace:
    """A function of the compiler that runs only where a boolean setting is on: an entry of one of torch's configs."""

    config: str  # ``inductor``, ``dynamo`` or ``functorch``
    key: str
    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Failure:
    """An exception that a run raised.

    ``phase`` says whether the compiler or the program raised it, ``stage`` which of the compiler's stages, if known.
    ``unsupported``: dynamo cannot capture a part of the program. ``machine`` is what of the machine made it fail, if
    that was it. ``raised`` are file, line and function of the innermost frames of the compiler, innermost first, and
    ``given`` the arguments of the first of them, as text; ``generated`` is the place in the program that the compiler
    wrote, if that raised by itself; ``origin`` is the type of the error that the compiler raised this one for, where it
    said that, and ``worded`` whether that has a message.
    ``chain`` is the error and those that it was raised for, in turn, and ``site`` is where the last of them was raised.
    ``guarded`` are the places that it came through behind a setting that is on.
    """

    type_name: str
    message: str
    phase: Phase = "run"
    stage: str | None = None
    unsupported: bool = False
    machine: str = ""
    raised: tuple[tuple[str, int, str], ...] = field(default=(), compare=False)
    given: tuple[str, ...] = field(default=(), compare=False, repr=False)
    generated: GeneratedPlace | None = field(default=None, compare=False, repr=False)
    origin: str = field(default="", compare=False)
    worded: bool = field(default=False, compare=False)
    chain: tuple[RaisedError, ...] = field(default=(), compare=False, repr=False)
    site: RaiseSite | None = field(default=None, compare=False, repr=False)
    guarded: tuple[GuardedPlace, ...] = field(default=(), compare=False, repr=False)

    def is_like(self, other: Failure) -> bool:
        """Return whether both are of one type, with the same message up to a colon."""
        heads = [failure.message.partition(":")[0] for failure in (self, other)]
        return self.type_name == other.type_name and heads[0] == heads[1]

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


@dataclass(frozen=True)
class Value:
    """One observable leaf: a tensor (detached copy) or a plain Python object.

    ``aliases`` are the inputs, parameters, buffers and earlier outputs that share memory with it: a write into one
    changes the other. (Whether an output *is* an input object is not kept: all that adds are autograd's metadata, which
    gradients and ``requires_grad`` show.) ``form`` is what a tensor stands for if the program returned something else:
    a sparse layout, a NumPy array, a class of its own. ``precision`` is, for a Python ``float`` or ``complex``, the
    dtype of the tensors it was computed from. ``before`` is the tensor before the call, if its values alone changed.
    """

    name: str
    value: Any
    kind: Literal["output", "mutation", "gradient"]
    stride: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    form: str = ""
    requires_grad: bool = False
    precision: torch.dtype | None = None
    before: torch.Tensor | None = None

    @property
    def is_tensor(self) -> bool:
        """Return whether there is a tensor to compare."""
        return isinstance(self.value, torch.Tensor)

    @property
    def is_rounded_number(self) -> bool:
        """Return whether it is a Python number subject to rounding, as ``.item()`` returns it."""
        return isinstance(self.value, float | complex)

    def as_tensor(self) -> Value:
        """The value with a Python ``float`` or ``complex`` as a tensor without dimensions."""
        if not self.is_rounded_number:
            return self
        wide = torch.tensor(self.value, dtype=torch.complex128 if isinstance(self.value, complex) else torch.float64)
        dtype = self.precision or torch.float64
        if wide.is_complex():
            dtype = torch.complex128 if dtype is torch.float64 else torch.complex64
        narrow = wide.to(dtype)
        overflows = bool(torch.isfinite(wide)) and not bool(torch.isfinite(narrow))
        return replace(self, value=wide if overflows else narrow)


@dataclass(frozen=True)
class Observation:
    """Everything observable of one run, or the exception that ended it.

    ``warnings`` are those that the run gave, the compiler's own left out; ``ends`` are fingerprints of the random
    streams after it, by stream; ``modes`` are the switches of the process as it leaves them, also where it raises.
    """

    values: Sequence[Value] = ()
    failure: Failure | None = None
    structure: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    ends: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    modes: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def index_by_name(self) -> dict[str, Value]:
        """The values by name; names are unique within a run."""
        return {value.name: value for value in self.values}

    def adjust(self, other: Observation, change: Callable[[Value, Value], Value]) -> Observation:
        """The run with each value changed by that of ``other`` with the same name; what that lacks stays."""
        theirs = other.index_by_name()
        changed = (change(value, theirs[value.name]) if value.name in theirs else value for value in self.values)
        return replace(self, values=tuple(changed))

    def drop_reused_memory(self, eager: Observation) -> Observation:
        """The run without the memory that a call shares with outputs of other calls in this run and not in ``eager``.

        A CUDA graph writes its outputs to the same memory in each of its runs, as torch documents.
        """

        def drop(value: Value, own: Value) -> Value:
            call = f"{value.name.partition('.')[0]}."
            kept = (a for a in value.aliases if a in own.aliases or not _CALL.match(a) or a.startswith(call))
            return replace(value, aliases=tuple(kept))

        return self.adjust(eager, drop)

    def copy_aliases(self, eager: Observation, state: Collection[str]) -> Observation:
        """The run with eager's aliases of the tensors called ``state``, of which its outputs have copies."""

        def copy(value: Value, own: Value) -> Value:
            if not set(own.aliases) & set(state):
                return value
            return replace(value, aliases=tuple(a for a in own.aliases if a in state or a in value.aliases))

        return self.adjust(eager, copy)


# Seeds the cotangents of the backward pass, in our runs and in the reproducers that we write.
COTANGENT_SEED = 7


@dataclass(frozen=True)
class _Absent:
    """What stands for an attribute that is gone."""

    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


@dataclass(frozen=True)
class StateBefore:
    """The tensors that exist before a call: copies of them, and which of them share memory, by name.

    ``attributes`` are those of objects that are whole numbers, flags, strings or None (a cache's length); ``held`` is
    what else objects, functions, classes and containers hold.
    """

    bits: Mapping[str, torch.Tensor]
    aliases: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, object]
    held: CallState


def _collect_tensors(
    program: CaseProgram, arguments: object, reached: Reachable | None = None
) -> dict[str, torch.Tensor]:
    """Tensors that exist before the call, by the name that a user knows them by.

    Inputs are numbered in pytree's order; inputs in a dataclass (or another container that pytree does not know) are
    named after that argument and the field.
    """
    named: dict[str, torch.Tensor] = {}
    count = 0
    for name, leaf in name_arguments(arguments):
        if isinstance(leaf, torch.Tensor):
            named[f"input{count}"] = leaf
            count += 1
        elif is_wrapped(leaf) and program.state is None:  # else it is part of the state
            inner = unwrap(name, leaf)
            named.update((name, value) for name, value in inner if isinstance(value, torch.Tensor))
    return {**named, **(reached or program.find_state()).tensors}


def save_state(program: CaseProgram, arguments: object) -> StateBefore:
    """The state before a call, which :func:`observe_mutations` compares with the state after it."""
    reached = program.find_state()
    existing = _collect_tensors(program, arguments, reached)
    kept = {name: _copy_dense(tensor) for name, tensor in existing.items()}
    return StateBefore(kept, find_aliases(existing), reached.plain_attributes(), CallState(reached, attributes=False))


def observe_outputs(
    call: int | None, output: object, program: CaseProgram, arguments: object, earlier: dict[str, object] | None = None
) -> list[Value]:
    """The leaves of what a call returned, and the tensors that objects among them hold (a new key-value cache).

    ``call`` is the number of the call, None where there is only one. An object that is an argument of the call has that
    argument among its aliases. Outputs are added to those of ``earlier`` calls: two calls may return the same memory.
    """
    returned = list(name_leaves(str(ObservableName("out", call)), output))
    given = {id(leaf): (name,) for name, leaf in name_holders(arguments).items()}
    # What an argument holds is compared as such.
    held = [pair for name, leaf in returned if id(leaf) not in given for pair in name_held_tensors(name, leaf).items()]
    whole = (pair for pair in returned if not is_sharded(pair[1]) and not is_pending(pair[1]))
    held += [pair for name, leaf in whole for pair in list_wrapped(name, leaf)]
    leaves: list[tuple[str, object]] = [*returned, *held]
    earlier = {} if earlier is None else earlier
    parts = {name: read_part(leaf) for name, leaf in leaves}
    shared = find_aliases({**_collect_tensors(program, arguments), **earlier, **parts})
    earlier.update((name, leaf) for name, leaf in parts.items() if isinstance(leaf, torch.Tensor | numpy.ndarray))
    precision = torch.float64 if program.double else program.dtype
    values = [
        _observe_output(name, leaf, given.get(id(leaf), shared.get(name, ())), precision) for name, leaf in leaves
    ]
    # The layout of what an object keeps for itself is no more observable than that of an attribute.
    return [*values[: len(returned)], *(replace(value, stride=()) for value in values[len(returned) :])]


def _observe_output(name: str, leaf: object, aliases: tuple[str, ...], precision: torch.dtype) -> Value:
    if not isinstance(leaf, torch.Tensor):
        return replace(_observe_plain(name, leaf, precision), aliases=aliases)
    form = _name_class(leaf) if leaf.layout == torch.strided else str(leaf.layout)
    strides, dense = list_significant_strides(read_part(leaf)), _copy_dense(leaf)
    return Value(name, dense, "output", strides, aliases, form, requires_grad=leaf.requires_grad)


def _name_class(tensor: torch.Tensor) -> str:
    """The class of a tensor that may have methods of its own, and its placements; empty for torch's plain ones."""
    own = (has_own_class(tensor) or is_wrapper(tensor)) and not is_pending(tensor)
    return describe_placements(tensor) or (type(tensor).__name__ if own else "")


def _observe_plain(name: str, leaf: object, precision: torch.dtype) -> Value:
    """An output that is not a tensor: NumPy's arrays and scalars are compared as tensors."""
    if isinstance(leaf, numpy.ndarray | numpy.generic):
        with contextlib.suppress(TypeError):  # dtypes that torch does not have
            tensor = torch.from_numpy(numpy.array(leaf, order="K"))
            return Value(name, tensor, "output", list_significant_strides(tensor), form=NUMPY)
    return Value(name, leaf, "output", precision=precision if isinstance(leaf, float | complex) else None)


def observe_tangents(call: int | None, output: object) -> list[Value]:
    """The tangents of the floating outputs of a call that is made within a level; None for one that is missing."""
    if not is_level_entered():
        return []
    tangents = []
    for name, leaf in name_leaves(str(ObservableName("out", call, "tangent")), output):
        if isinstance(leaf, torch.Tensor) and is_inexact(leaf):
            tangent = read_tangent(leaf)
            tangents.append(Value(name, None if tangent is None else _copy_dense(tangent), "gradient"))
    return tangents


def observe_mutations(call: int | None, before: StateBefore, program: CaseProgram, arguments: object) -> list[Value]:
    """Return all that the call changed: bits of tensors, memory that they share, plain attributes."""
    changed = []
    reached = program.find_state()
    existing = _collect_tensors(program, arguments, reached)
    now_shared = find_aliases(existing)
    for name, tensor in existing.items():
        old = before.bits.get(name)
        now = _copy_dense(tensor)
        shared = now_shared.get(name, ())
        same = old is not None and have_same_values(old, now)
        moved = shared != before.aliases.get(name, ())
        if not same or moved:
            left = ObservableName(name, call, after=True)
            changed.append(Value(str(left), now, "mutation", aliases=shared, before=None if moved else old))
    attributes = reached.plain_attributes()
    gone = [name for name in before.attributes if name not in attributes]
    if gone:  # where something else is now, that says it
        held_now = {path for path, _ in reached.list_named()} | {name.partition(" ")[2] for name in existing}
        gone = [name for name in gone if name not in held_now]
    for name in (*attributes, *gone):
        was, attribute = (held.get(name, _ABSENT) for held in (before.attributes, attributes))
        if (type(attribute), attribute) != (type(was), was):
            observable = ObservableName(f"attribute {name}", call, after=True)
            changed.append(Value(str(observable), attribute, "mutation"))
    for name, effect in list_effects(before.held, CallState(reached, attributes=False), attributes).items():
        observable = ObservableName(f"{EFFECT}{name}", call, after=True)
        changed.append(Value(str(observable), effect, "mutation", precision=program.dtype))
    return changed


def drop_effects(observations: Sequence[Observation], first: Observation, again: Observation) -> list[Observation]:
    """The runs without effects on what no run restores (a cache that the first run fills), as a second run tells them.

    ``first`` and ``again`` are two eager runs; if they are one, it is not known which effects last.
    """
    left, right = ({value.name: value for value in run.values if value.kind == "mutation"} for run in (first, again))
    lasting = left.keys() ^ right.keys()
    lasting |= {
        name
        for name in left.keys() & right.keys()
        if ObservableName.parse(name).is_effect and _differ(left[name], right[name])
    }

    def keeps(value: Value) -> bool:
        told = first is not again or not ObservableName.parse(value.name).is_effect
        return told and (value.kind != "mutation" or value.name not in lasting)

    return [replace(run, values=tuple(filter(keeps, run.values))) for run in observations]


def _differ(left: Value, right: Value) -> bool:
    return bool(left.value != right.value)


def run_backward(output: object, *, required: bool = True, part: int | None = None) -> None:
    """Run the backward of the loss Σ out · c over the floating outputs, c a fixed standard normal tensor per output.

    A plain sum proves nothing behind a softmax, whose outputs sum to a constant. Every floating dtype can represent the
    values of c, so that the native run and the reference differentiate the same loss. Each process of a group has them
    in another order: what mixes up equal gradients changes nothing. With a ``part``, 0 or 1, each element of c is
    multiplied by u or by 1 − u, which is -1/2, 1/2 or 3/2: parts of which c is the sum.

    Raises:
        RuntimeError: no output requires a gradient, though one is ``required``.
    """
    losses = weigh_outputs(output, part)
    if not losses:
        if required:
            raise RuntimeError("BACKWARD is set, but no output requires a gradient")
        return
    torch.autograd.backward(losses)


def weigh_outputs(output: object, part: int | None = None) -> list[torch.Tensor]:
    """The loss of `run_backward`, one term for each output that requires a gradient."""
    generator, parting = torch.Generator().manual_seed(COTANGENT_SEED), torch.Generator().manual_seed(COTANGENT_SEED)
    losses, rank = [], find_rank()
    for _, leaf in name_leaves("out", output):
        if not isinstance(leaf, torch.Tensor) or not is_inexact(leaf):
            continue
        with _disable_current_modes():  # these casts are ours, not the program's
            drawn = torch.randn(leaf.shape, generator=generator).to(torch.bfloat16).to(torch.float16)
            if part is not None:
                share = torch.randint(3, leaf.shape, generator=parting) - 0.5
                drawn *= 1 - share if part else share
            # The parts of a tensor are weighed as one; what each process has for itself is weighed otherwise in each.
            drawn = divide_like(drawn, leaf) if is_sharded(leaf) else drawn.roll(rank) if rank else drawn
            cotangent = drawn.to(leaf.device, leaf.dtype)
        if leaf.requires_grad:
            product = (leaf.to_local() if is_sharded(leaf) else leaf) * cotangent
            losses.append((product.real if product.is_complex() else product).sum())
    return losses


def observe_gradients(call: int | None, program: CaseProgram, arguments: object) -> list[Value]:
    """The gradients of parameters and inputs that require one; a value of None for a gradient that is missing."""
    gradients = []
    for name, tensor in list_gradient_leaves(call, program, arguments).items():
        value = None if tensor.grad is None else _copy_dense(tensor.grad)
        gradients.append(Value(name, value, "gradient"))
    return gradients


def list_gradient_leaves(call: int | None, program: CaseProgram, arguments: object) -> dict[str, torch.Tensor]:
    """The parameters and inputs that get a gradient, by the name of their gradient."""
    return {
        str(ObservableName(name, call, "gradient")): tensor
        for name, tensor in _collect_tensors(program, arguments).items()
        if tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)
    }


def _copy_dense(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy that later in-place writes do not change."""
    with _disable_current_modes():  # a reference converts what the program's operators read, and this is none of them
        tensor = strip_class(read_values(tensor)).detach()
        result = densify(tensor)
        return tensor.clone() if result is tensor else result


# ``fallback_random`` promises eager's own numbers from these, which operators of torch draw from; the generators of
# NumPy and Python are dynamo's to follow.
PROMISED_STREAMS = frozenset(("torch CPU", "CUDA"))


NO_CODE = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Backends of torch's that generate no code, and call ATen's operators."""


def asks_for_eager_numbers(case: Case) -> bool:
    """Return whether the case itself sets ``fallback_random``.

    Every compile sets it, so that values compare, but nothing was promised to a program that does not ask.
    """
    return case.settings.own_config.get("fallback_random") is True and case.settings.backend in ("inductor", *NO_CODE)


def observe_random_state(case: Case) -> list[Value]:
    """The state of torch's CPU generator (bytes) as an observable, for a case that asks for eager's numbers.

    What is drawn next depends on it: a backward pass that draws once more than eager's changes the next step alone.
    """
    return [Value(RANDOM_STATE, torch.get_rng_state(), "mutation")] if asks_for_eager_numbers(case) else []
