"""Python's instructions in a program, as eager mode runs them and as dynamo traces them, and what they leave."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import operator
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError
from fuzzcompile.compiler.watch.unseen import Unseen

Digest = tuple[object, ...] | None
"""What is comparable of a Python value; None, also within it, where nothing is known."""

V = TypeVar("V")

_DEEPEST, _WIDEST = 3, 32
_MOST_STEPS = 100_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ORDERED, _UNORDERED = (list, tuple, torch.Size), (set, frozenset)
_CONTAINERS = (*_ORDERED, *_UNORDERED, dict)
_TENSOR, _OBJECT = ("tensor",), ("object",)
_LIBRARIES = (Path(torch.__file__).parent, Path(sysconfig.get_path("stdlib")))


@dataclass(frozen=True)
class Instruction:
    """One instruction of Python: where it stands, what it does, and with operands of which types.

    ``handler`` is dynamo's class for the operand that decides how the instruction is traced.
    """

    code: CodeType
    offset: int
    line: int | None
    name: str
    does: str
    handler: type | None
    decides: bool  # whether a value comes of it, which is not merely moved
    of_truth: bool  # whether it asks whether its operand, which is no boolean, is true

    @property
    def place(self) -> tuple[CodeType, int]:
        """The code and the offset in it."""
        return self.code, self.offset


@dataclass
class InstructionStep:
    """One instruction as it was taken in a call of its code, and the local names before it (``return``: the result)."""

    offset: int
    number: int = 0  # of all steps
    values: Mapping[str, Digest] = field(default_factory=dict)
    instruction: Instruction | None = None  # of dynamo's steps
    calls: CodeType | None = None  # of eager mode's: the code of the program's own that it has called by itself


Steps = dict[tuple[CodeType, int], list[InstructionStep]]
"""The steps of each call of each code, by the number of the call."""


@dataclass
class InstructionTrace:
    """What dynamo traces while its patch is installed: the latest attempt at each frame.

    At the instructions ``left_out`` dynamo breaks the graph, and eager mode runs them.
    """

    ledger: Ledger = field(default_factory=Ledger)
    left_out: Collection[tuple[CodeType, int]] = ()
    steps: Steps = field(default_factory=dict)
    # results that Python itself does not get from the same constants, as it gets them and as dynamo does
    wrong: list[tuple[Instruction, Digest, Digest]] = field(default_factory=list)
    # calls that give nothing back, and contexts: what they set, dynamo says in its own words
    settings: dict[str, list[Instruction]] = field(default_factory=dict)
    _calls: dict[int, tuple[object, list[InstructionStep]]] = field(default_factory=dict)
    _looked_up: dict[int, tuple[object, str]] = field(default_factory=dict)  # attributes, by what they are to dynamo
    _expected: dict[int, Digest] = field(default_factory=dict)  # of the instruction before, by the translator
    _taken: int = 0

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record that instructions could not be watched."""
        self.ledger.record_unseen(unseen)

    def list_values(self, name: str) -> tuple[Digest, ...]:
        """What a local name has stood for, each value once."""
        taken = (step.values[name] for steps in self.steps.values() for step in steps if name in step.values)
        return tuple(dict.fromkeys(taken))

    def find_steps(self, translator: Any) -> list[InstructionStep]:
        """The steps of the call that a translator of dynamo's traces."""
        known = self._calls.get(id(translator))
        if known is None:
            code = translator.f_code
            if getattr(translator, "parent", None) is None and (code, 0) in self.steps:
                self.steps.clear()  # an attempt that dynamo has given up
                self.wrong.clear()
                self.settings.clear()
                self._calls.clear()
            number = sum(known is code for known, _ in self.steps)
            known = (translator, self.steps.setdefault((code, number), []))
            self._calls[id(translator)] = known
        return known[1]

    def take(self, translator: Any) -> None:
        """Record the instruction that a translator is about to trace."""
        pointer = translator.instruction_pointer
        if pointer is None or self._taken > _MOST_STEPS:
            return
        self._taken += 1
        instruction, stack = translator.instructions[pointer], list(translator.stack)
        offset = instruction.offset
        if offset is None or not is_of_program(translator.f_code):
            return
        if (translator.f_code, offset) in self.left_out:
            breaks = importlib.import_module("torch._dynamo.exc").Unsupported
            raise IntendedError(breaks(f"{instruction.opname} is left to eager mode"))
        steps = self.find_steps(translator)
        line = getattr(getattr(instruction, "positions", None), "lineno", None) or translator.lineno
        if steps and _get(steps[-1]).name.startswith(_LOOKING_UP):
            self._looked_up |= {id(each): (each, _get(steps[-1]).does) for each in stack[-2:]}
        known = _describe(translator.f_code, offset, line, instruction, stack, self._looked_up)
        moved = steps and _get(steps[-1]).name.startswith(_KEEPING)
        values = steps[-1].values if moved else _digest_each(translator.symbolic_locals, _digest_variable)
        if instruction.opname == "RETURN_VALUE" and stack:
            values = {"return": _digest_variable(stack[-1])}
        steps.append(InstructionStep(offset, self._taken, values, known))
        if len(steps) > 1 and stack:
            self._look_at_result(translator, _get(steps[-2]), _digest_variable(stack[-1]))
        if (expected := _compute(translator, instruction, stack)) is not None:
            self._expected[id(translator)] = expected
        if instruction.opname in _ENTERING:
            self.settings.setdefault(known.does, []).append(known)

    def _look_at_result(self, translator: Any, before: Instruction, got: Digest) -> None:
        """Compare what the instruction before has left on the stack with what Python gets."""
        expected = self._expected.pop(id(translator), None)
        if not agree(expected, got):
            self.wrong.append((before, expected, got))
        elif before.name.startswith("CALL") and got == digest(None) and not _holds_items(before.handler):
            self.settings.setdefault(before.does, []).append(before)


def wrap_step(trace: InstructionTrace, original: Function, translator: Any, *rest: object) -> object:
    """Record an instruction before dynamo traces it."""
    trace.take(translator)
    return original(translator, *rest)


def is_of_program(code: CodeType) -> bool:
    """Return whether code is of the program or a library it uses, and neither of torch nor of Python's own."""
    file = code.co_filename
    return not file.startswith("<frozen") and not any(Path(file).is_relative_to(place) for place in _LIBRARIES)


# What is known of values.


def _digest_each(values: Mapping[str, V], digest: Callable[[V], Digest]) -> dict[str, Digest]:
    return {name: digest(value) for name, value in list(values.items())}


def _digest_variable(variable: Any, depth: int = _DEEPEST) -> Digest:
    try:
        if not getattr(variable, "is_realized", lambda: True)():
            return None  # an argument that nothing has been done to
        variable = variable.realize() if hasattr(variable, "realize") else variable
        if type(variable).__name__ == "ConstantVariable":
            return digest(variable.value)
        kind = variable.python_type()
        if issubclass(kind, torch.Tensor):
            return _TENSOR
        if kind in _PLAIN:
            return None  # of a value that only the run gives
        if kind not in _CONTAINERS:
            return _OBJECT
        if depth == 0:
            return (kind, None)
        if kind is dict or kind in _UNORDERED:
            held = [(_digest_variable(getattr(key, "vt", key), 0), item) for key, item in variable.items.items()]
            if kind in _UNORDERED:
                return _digest_set(kind, [key for key, _ in held])
            items = tuple((key, _digest_variable(item, depth - 1)) for key, item in held)
            return (kind, items if len(items) <= _WIDEST else None)
        items = variable.items
        return (kind, tuple(_digest_variable(item, depth - 1) for item in items) if len(items) <= _WIDEST else None)
    except Exception:  # of dynamo, which does not know the value
        return None


def _digest_set(kind: type, keys: list[Digest]) -> Digest:
    return (kind, None if any(key is None or None in key for key in keys) else frozenset(keys))


def digest(value: object, depth: int = _DEEPEST) -> Digest:
    """What is compared of a value: its type and what it holds, in plain values and containers; a tensor as such."""
    kind: type = type(value)
    if isinstance(value, torch.Tensor):
        return _TENSOR
    if kind in _PLAIN:
        return (kind, repr(value))
    if kind not in _CONTAINERS:
        return _OBJECT
    if depth == 0:
        return (kind, None)
    if isinstance(value, (set, frozenset)):
        return _digest_set(kind, [digest(item, 0) for item in value])
    if len(value) > _WIDEST:  # type: ignore[arg-type]
        return (kind, None)
    if isinstance(value, dict):
        return (kind, tuple((digest(key, 0), digest(item, depth - 1)) for key, item in value.items()))
    return (kind, tuple(digest(item, depth - 1) for item in value))  # type: ignore[attr-defined]


def agree(eager: object, traced: object) -> bool:
    """Return whether two digests can be of one value."""
    if eager is None or traced is None or eager == traced:
        return True
    if _OBJECT in (eager, traced) and {type(each) for each in (eager, traced)} == {tuple}:
        # A value of another class may be traced as what it derives from.
        kinds = {each[0] for each in (eager, traced) if isinstance(each, tuple)}
        return not kinds & {_TENSOR[0], *_CONTAINERS}
    if not isinstance(eager, tuple) or not isinstance(traced, tuple) or len(eager) != len(traced):
        return False
    return all(map(agree, eager, traced))


def _holds_items(handler: type | None) -> bool:
    """Return whether a class of dynamo is of a container, whose items are compared."""
    return handler is not None and handler.__module__.rpartition(".")[2] in ("lists", "dicts", "sets")


# What Python itself gets, of constants alone.

_PURE = (abs, all, any, bool, chr, divmod, float, frozenset, int, len, list, max, min, ord, pow, repr, round, set)
_PURE_CALLS = frozenset(map(id, (*_PURE, sorted, str, sum, tuple)))
_UNARY: Mapping[str, Callable[..., object]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_INVERT": operator.invert,
    "UNARY_NOT": operator.not_,
}
_COMPARISONS: Mapping[str, Callable[..., object]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
_BINARY: Mapping[str, Callable[..., object]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip


def _compute(translator: Any, instruction: Any, stack: list[Any]) -> Digest:
    """The result of an instruction on constants; None where it is of another kind, or raises."""
    name, given = instruction.opname, 2
    function: Callable[..., object] | None = None
    if name in _UNARY:
        function, given = _UNARY[name], 1
    elif name == "BINARY_SUBSCR":
        function = operator.getitem
    elif name == "COMPARE_OP":
        function = _COMPARISONS.get(instruction.argval)
    elif name == "BINARY_OP":
        function = _BINARY.get(_name_operator(instruction))
    elif name == "CALL" and not _read(translator, "kw_names"):
        given = instruction.argval
        called = [_read(each, "fn") for each in stack[: len(stack) - given][-2:]]
        function = next((each for each in called if id(each) in _PURE_CALLS), None)
    if function is None or len(stack) < given:
        return None
    with contextlib.suppress(Exception):  # of dynamo, for what is no constant; or of the operation
        return digest(function(*(each.as_python_constant() for each in stack[len(stack) - given :])))
    return None


# Words for an instruction.

_MOVES = (
    *("LOAD_FAST", "LOAD_CONST", "LOAD_CLOSURE", "STORE_", "RETURN_", "COPY", "SWAP", "POP_TOP", "PUSH_NULL", "NOP"),
    *("RESUME", "PRECALL", "KW_NAMES", "CACHE", "EXTENDED_ARG", "MAKE_CELL", "JUMP_", "BUILD_", "LOAD_SMALL_INT"),
)
# What leaves every name as it is.
_KEEPING = ("LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "RESUME", "PRECALL", "PUSH_NULL", "COPY", "SWAP")
_LOOKING_UP = ("LOAD_ATTR", "LOAD_METHOD")
_JUMPS, _ENTERING = ("POP_JUMP", "JUMP_IF"), ("BEFORE_WITH", "SETUP_WITH")


def _describe(
    code: CodeType,
    offset: int,
    line: int | None,
    instruction: Any,
    stack: list[Any],
    looked_up: Mapping[int, tuple[object, str]],
) -> Instruction:
    name, argument = instruction.opname, instruction.argval
    decides, operand, of_truth = not name.startswith(_MOVES), stack[-1] if stack else None, False
    kinds = [_name_type(each) for each in stack[-2:]]
    if name.startswith(_JUMPS):
        of_truth = operand is not None and "NONE" not in name and kinds[-1] != "bool"
        does, decides = f"bool({kinds[-1]})" if kinds else name, of_truth
    elif name in ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_KW", "CALL_FUNCTION_EX"):
        given = argument if isinstance(argument, int) else 1
        arguments = stack[len(stack) - given :] if name != "CALL_FUNCTION_EX" else []
        before = stack[: len(stack) - given]
        operand = next((each for each in reversed(before[-2:]) if _name_callee(each)), operand)
        named = _name_callee(operand)
        if named == "<lambda>":  # as dynamo stands for a method
            named = looked_up.get(id(operand), (None, named))[1]
        does = f"{named}({', '.join(map(_name_type, arguments))})"
        operand = _read(operand, "obj") or operand  # the object of a method
    elif name in ("BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "IS_OP") and len(kinds) == 2:
        does = f"{kinds[0]} {_name_operator(instruction)} {kinds[1]}"
        operand = stack[-2] if name != "CONTAINS_OP" else stack[-1]
    elif name in _ENTERING:
        does = f"with {kinds[-1]}" if kinds else name
    elif name in ("FOR_ITER", "GET_ITER"):
        does = f"iter({kinds[-1]})" if kinds else name
    elif name.endswith("_ATTR") or name == "LOAD_METHOD":
        words = {"DELETE_ATTR": "del ", "STORE_ATTR": "set "}.get(name, "")
        does, decides = f"{words}{kinds[-1] if kinds else '?'}.{argument}", name != "STORE_ATTR"
    elif name.endswith("_SUBSCR") and len(kinds) == 2:
        does = f"{kinds[0]}[{kinds[1]}]"
        operand = stack[-2]
    elif name.startswith("UNARY_") and kinds:
        does = f"{name.removeprefix('UNARY_').lower()} {kinds[-1]}"
    else:
        does = f"{name} {argument}" if isinstance(argument, str) else name
    if operand is not None and getattr(operand, "is_realized", bool)():
        operand = operand.realize()
    handler = None if operand is None else type(operand)
    return Instruction(code, offset, line, name, does, handler, decides, of_truth)


def _name_operator(instruction: Any) -> str:
    if instruction.opname == "BINARY_OP":
        return str(dis._nb_ops[instruction.arg][1])  # type: ignore[attr-defined]
    if instruction.opname == "COMPARE_OP":
        return str(instruction.argval)
    return ("not " if instruction.arg else "") + "in" if instruction.opname == "CONTAINS_OP" else "is"


def _name_callee(variable: Any) -> str:
    """The name of what dynamo calls; empty for none."""
    for attribute in ("fn", "value"):
        name = getattr(_read(variable, attribute), "__name__", None)
        if isinstance(name, str):
            return name
    name = _read(variable, "name")  # of a method that is not looked up yet
    return name if isinstance(name, str) else ""


def _name_type(variable: Any) -> str:
    """The type of a value, or the name of a type that is one."""
    value = _read(variable, "value")
    if isinstance(value, type):
        return value.__name__
    if isinstance(getattr(value, "__name__", None), str) and callable(value):
        return "function"
    kind = None
    with contextlib.suppress(Exception):  # of dynamo, which does not know the type
        kind = variable.python_type()
    kinds = (kind, _read(variable, "fn"), type(value))
    return next((each.__name__ for each in kinds if isinstance(each, type)), "?")


def _read(variable: Any, attribute: str) -> Any:
    with contextlib.suppress(Exception):  # dynamo raises errors of its own for what it does not know
        return getattr(variable, attribute, None)
    return None


# Eager mode.


@contextlib.contextmanager
def record_instructions() -> Iterator[Steps]:
    """The steps of the program's own code in the block, each with what it stored, or returned."""
    steps: Steps = {}
    calls: dict[CodeType, int] = defaultdict(int)
    open_frames: dict[FrameType, list[InstructionStep]] = {}
    taken, before = 0, sys.gettrace()

    def enter(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if event != "call" or taken > _MOST_STEPS or not is_of_program(code) or _is_own(frame):
            return None
        caller = open_frames.get(frame.f_back) if frame.f_back is not None else None
        if caller:
            caller[-1].calls = code
        if frame not in open_frames:  # a generator is entered again
            open_frames[frame] = steps[code, calls[code]] = []
            calls[code] += 1
        frame.f_trace_opcodes = True
        return follow

    def follow(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal taken
        known = open_frames[frame]
        if event == "opcode":
            taken += 1
            keeps = known and _list_names(frame.f_code).get(known[-1].offset, "").startswith(_KEEPING)
            values = known[-1].values if keeps else _digest_each(frame.f_locals, digest)
            known.append(InstructionStep(frame.f_lasti, taken, values))
        elif event == "return" and known and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            known[-1].values = {"return": digest(argument)}
        return follow

    sys.settrace(enter)
    try:
        yield steps
    finally:
        sys.settrace(before)


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == __name__.partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _list_names(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


# Where both part.


@dataclass(frozen=True)
class PartedInstruction:
    """An instruction behind which dynamo goes on otherwise than eager mode, or has another value.

    ``others`` do the same in other places. ``kind`` is ``path``, ``value``, ``error`` (dynamo raises one), ``call``
    (the program's own code that it calls is not traced) or ``setting`` (nothing comes of it that could part).
    """

    instruction: Instruction
    kind: str
    expected: str = ""
    got: str = ""
    others: tuple[Instruction, ...] = ()


def find_partings(eager: Steps, trace: InstructionTrace, raised: str = "") -> list[PartedInstruction]:
    """Where dynamo parts from Python, the strongest evidence first.

    That are wrong results on constants, calls that it does not trace, and the first instruction behind which the path
    or a value is another than in eager mode. Where dynamo's steps end it has broken the graph, unless it ``raised``.
    """
    traced, entered = trace.steps, {code for code, _ in trace.steps}
    wrong = [PartedInstruction(each, "value", _word(ours), _word(theirs)) for each, ours, theirs in trace.wrong]
    special: list[tuple[int, PartedInstruction]] = []
    parted: list[tuple[int, PartedInstruction]] = []
    for (code, number), steps in eager.items():
        if (code, number) not in traced:
            continue
        ours, theirs = _pair(steps, traced[code, number])
        for index, (step, other) in enumerate(zip(ours, theirs, strict=False)):
            if step.calls is not None and step.calls not in entered and step.calls.co_name.startswith("__"):
                called = PartedInstruction(_get(other), "call", step.calls.co_qualname, "not traced")
                special.append((step.number, called))
            name = next((name for name in step.values if not agree(step.values[name], other.values.get(name))), None)
            if step.offset == other.offset and name is None:
                continue
            decided = _find_deciding(theirs[:index])
            if decided is not None and step.offset != other.offset:
                words = _word_line(code, step), _word_line(code, other)
                parted.append((step.number, PartedInstruction(decided, "path", *words)))
            elif decided is not None and name is not None:
                words = _word(step.values[name]), _word(other.values[name])
                parted.append((step.number, PartedInstruction(decided, "value", *words)))
            break
        else:
            if raised and len(theirs) < len(ours) and (decided := _find_deciding(theirs)) is not None:
                parted.append((ours[len(theirs)].number, PartedInstruction(decided, "error", "goes on", raised)))
    first = sorted(parted, key=lambda each: each[0])[:1]
    before = [each for each in special if not first or each[0] <= first[0][0]]
    return [*wrong, *(each for _, each in (*before, *first))]


def list_settings(trace: InstructionTrace) -> list[PartedInstruction]:
    """What sets something outside of Python's values, the latest first: dynamo may not heed it."""
    settings = reversed(trace.settings.values())
    return [PartedInstruction(last, "setting", others=tuple(others)) for *others, last in settings]


def _pair(
    eager: list[InstructionStep], traced: list[InstructionStep]
) -> tuple[list[InstructionStep], list[InstructionStep]]:
    """The steps of both, without instructions that only one of them knows."""
    known, seen = {step.offset for step in traced}, {step.offset for step in eager}
    names = _list_names(_get(traced[0]).code) if traced else {}
    skipped = ("EXTENDED_ARG", "CACHE", "NOP", "RESUME", "PRECALL", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR")

    def keep(steps: list[InstructionStep], others: set[int]) -> list[InstructionStep]:
        steps = [
            step
            for step, before in zip(steps, [None, *steps], strict=False)
            if before is None or step.offset != before.offset
        ]
        return [step for step in steps if step.offset in others or not names.get(step.offset, "").startswith(skipped)]

    return keep(eager, known), keep(traced, seen)


def _get(step: InstructionStep) -> Instruction:
    if step.instruction is None:
        raise LookupError("a step of eager mode has no instruction")
    return step.instruction


def _find_deciding(steps: list[InstructionStep]) -> Instruction | None:
    """The last instruction that a value came of, or that asked for the truth of one."""
    return next((known for step in reversed(steps) if (known := _get(step)).decides), None)


def _word_line(code: CodeType, step: InstructionStep) -> str:
    lines = {each.offset: each.positions.lineno for each in dis.get_instructions(code) if each.positions is not None}
    return f"line {lines.get(step.offset)}"


def _word(stored: Digest) -> str:
    if stored is None or stored[0] in ("tensor", "object"):
        return "?" if stored is None else str(stored[0])
    kind, held = stored[0], stored[-1]
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if isinstance(held, str):
        return held
    words = ", ".join(_word(each) if isinstance(each, tuple) else "?" for each in held) if held else ""  # type: ignore[attr-defined]
    return f"{name}({words})"
