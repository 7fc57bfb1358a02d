"""Instructions of Python that dynamo traces: their places in a code, words for them, and their results on constants."""

from __future__ import annotations

import contextlib
import dis
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from fuzzcompile.compiler.python_values import PLAIN_TYPES, Digest, digest


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
    decides: bool  # whether a value comes of it that is not merely moved, or its truth is asked for

    @property
    def place(self) -> tuple[CodeType, int]:
        """The code and the offset in it."""
        return self.code, self.offset


_MOVES = (
    *("LOAD_FAST", "LOAD_CONST", "LOAD_CLOSURE", "STORE_", "RETURN_", "COPY", "SWAP", "POP_TOP", "PUSH_NULL", "NOP"),
    *("RESUME", "PRECALL", "KW_NAMES", "CACHE", "EXTENDED_ARG", "MAKE_CELL", "JUMP_", "BUILD_", "LOAD_SMALL_INT"),
)
# What leaves every name as it is.
KEEPING = ("LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "RESUME", "PRECALL", "PUSH_NULL", "COPY", "SWAP")
LOOKING_UP = ("LOAD_ATTR", "LOAD_METHOD")
_JUMPS, ENTERING = ("POP_JUMP", "JUMP_IF"), ("BEFORE_WITH", "SETUP_WITH")


def describe_instruction(
    code: CodeType, line: int | None, instruction: Any, stack: list[Any], looked_up: Mapping[int, tuple[object, str]]
) -> Instruction:
    """An instruction of dynamo's in words, with the values on its ``stack``; ``looked_up`` names attributes of them."""
    name, argument = instruction.opname, instruction.argval
    decides, operand = not name.startswith(_MOVES), stack[-1] if stack else None
    kinds = [_name_type(each) for each in stack[-2:]]
    if name.startswith(_JUMPS):
        decides = operand is not None and "NONE" not in name and kinds[-1] != "bool"
        does = f"bool({kinds[-1]})" if kinds else name
    elif name in ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_KW", "CALL_FUNCTION_EX"):
        given = argument if isinstance(argument, int) else 1
        arguments = stack[len(stack) - given :] if name != "CALL_FUNCTION_EX" else []
        before = stack[: len(stack) - given]
        left = next((context for each in before[-2:] if (context := _read(each, "ctx")) is not None), None)
        known = (each for each in reversed(before[-2:]) if _name_callee(each) or id(each) in looked_up)
        operand = left or next(known, operand)
        named = _name_callee(operand)
        if named in ("", "<lambda>"):  # as dynamo stands for a method
            named = looked_up.get(id(operand), (None, named))[1]
        owner = _read(operand, "obj")  # of a method
        named = f"{_name_type(owner)}.{named}" if owner is not None and "." not in named else named
        does = f"{named}({', '.join(map(_name_type, arguments))})" if left is None else f"end of {_name_type(left)}"
        operand = owner or operand
    elif name in ("BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "IS_OP") and len(kinds) == 2:
        does = f"{kinds[0]} {_name_operator(instruction)} {kinds[1]}"
        operand = stack[-2] if name != "CONTAINS_OP" else stack[-1]
    elif name in ENTERING:
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
    return Instruction(code, instruction.offset, line, name, does, handler, decides)


def _name_operator(instruction: Any) -> str:
    if instruction.opname == "BINARY_OP":
        return str(dis._nb_ops[instruction.arg][1])  # type: ignore[attr-defined]
    if instruction.opname == "COMPARE_OP":
        return str(instruction.argval)
    return ("not " if instruction.arg else "") + "in" if instruction.opname == "CONTAINS_OP" else "is"


def _name_callee(variable: Any) -> str:
    """The name of what dynamo calls; empty for none."""
    return next((name for name in _iterate_names(variable) if isinstance(name, str)), "")


def _iterate_names(variable: Any) -> Iterator[object]:
    for attribute in ("fn", "value", "_fn"):
        called = _read(variable, attribute)
        name = getattr(called, "__name__", None)
        yield f"numpy.{name}" if name and str(getattr(called, "__module__", "")).partition(".")[0] == "numpy" else name
    yield getattr(_call(variable, "peek_value"), "__name__", None)  # of what nothing has been done to
    yield _call(variable, "get_name")  # of a function made while tracing
    yield _read(variable, "name")  # of a method that is not looked up yet


def _name_type(variable: Any) -> str:
    """The type of a value, with the functions that compute it of symbols, or the name of a type that is one."""
    value = _read(variable, "value")
    if isinstance(value, type):
        return value.__name__
    if isinstance(getattr(value, "__name__", None), str) and callable(value):
        return "function"
    kind = None
    with contextlib.suppress(Exception):  # of dynamo, which does not know the type
        kind = variable.python_type()
    kinds = (kind, _read(variable, "fn"), type(value))
    named = next((each.__name__ for each in kinds if isinstance(each, type)), "?")
    find = _read(_read(_read(_read(variable, "sym_num"), "node"), "expr"), "find")
    functions = sorted({type(part).__name__ for part in find(lambda part: part.is_Function)}) if find else []
    return f"{named} of {'/'.join(functions)}" if functions else named


def _read(variable: Any, attribute: str) -> Any:
    with contextlib.suppress(Exception):  # dynamo raises errors of its own for what it does not know
        return getattr(variable, attribute, None)
    return None


def _call(variable: Any, method: str) -> Any:
    with contextlib.suppress(Exception):  # as above, and where there is none
        return getattr(variable, method)()
    return None


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


def _is_inside(item: Any, container: Any) -> bool:
    return item in container


def _is_outside(item: Any, container: Any) -> bool:
    return item not in container


def _find_method(variable: Any) -> Callable[..., object] | None:
    """The method that dynamo's variable stands for, of a copy of the constants; None for what is no such method."""
    held = _call(_read(variable, "obj"), "as_python_constant")
    method = getattr(held, str(_read(variable, "name")), None) if type(held) in PLAIN_TYPES else None
    return method if callable(method) else None


def compute_result(translator: Any, instruction: Any, stack: list[Any]) -> Digest:
    """The result of an instruction on constants; None where it is of another kind, or raises."""
    name, given = instruction.opname, 2
    function: Callable[..., object] | None = None
    if name in _UNARY:
        function, given = _UNARY[name], 1
    elif name == "BINARY_SUBSCR":
        function = operator.getitem
    elif name == "COMPARE_OP":
        function = _COMPARISONS.get(instruction.argval)
    elif name == "CONTAINS_OP":
        function = _is_outside if instruction.arg else _is_inside
    elif name == "BINARY_OP":
        function = _BINARY.get(_name_operator(instruction))
    elif name == "CALL" and not _read(translator, "kw_names"):
        given = instruction.argval
        called = stack[: len(stack) - given][-2:]
        plain = (function for each in called if id(function := _read(each, "fn")) in _PURE_CALLS)
        function = next(plain, None) or next(filter(None, map(_find_method, called)), None)
    if function is None or len(stack) < given:
        return None
    with contextlib.suppress(Exception):  # of dynamo, for what is no constant; or of the operation
        return digest(function(*(each.as_python_constant() for each in stack[len(stack) - given :])))
    return None


@functools.lru_cache(maxsize=4096)
def list_instructions(code: CodeType) -> dict[int, dis.Instruction]:
    """The instructions of a code by their offsets."""
    return {each.offset: each for each in dis.get_instructions(code)}


def get_name(code: CodeType, offset: int) -> str:
    """The name of the instruction at an offset; empty where none is."""
    known = list_instructions(code).get(offset)
    return "" if known is None else known.opname


@functools.lru_cache(maxsize=4096)
def find_store(code: CodeType, offset: int) -> tuple[str, ...]:
    """The names by which the value is found that the instruction at an offset stores; empty if it stores none."""
    if get_name(code, offset) not in ("STORE_ATTR", "STORE_GLOBAL"):
        return ()
    known = [each for each in list_instructions(code).values() if each.opname not in ("CACHE", "EXTENDED_ARG")]
    store, *before = reversed([each for each in known if each.offset <= offset])
    names = [store.argval]
    if store.opname == "STORE_ATTR":
        for owner in before:
            if not owner.opname.startswith(("LOAD_ATTR", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")):
                return ()
            names.append(owner.argval[-1] if isinstance(owner.argval, tuple) else owner.argval)
            if not owner.opname.startswith("LOAD_ATTR"):
                break
    return tuple(reversed(names))


def word_store(names: Sequence[str]) -> str:
    """One name for the names that lead to a value."""
    return ".".join(names)


def word_truths(offsets: Sequence[int], decided: Instruction, eager: int, traced: int) -> tuple[str, str] | None:
    """The truths of a condition in eager mode and as dynamo has it, by where either goes on; None of what is none.

    ``offsets`` are of the instructions before, of which the last is the jump. What ``decided`` gives is the condition
    only if that is the jump itself or the one before.
    """
    jump = list_instructions(decided.code).get(offsets[-1])
    if jump is None or "JUMP" not in jump.opname or decided.offset not in offsets[-2:]:
        return None
    # Between a jump and what it leads to, no instruction needs to be left that both know.
    ahead = jump.argval > jump.offset
    jumps = [offset >= jump.argval if ahead else offset <= jump.offset for offset in (eager, traced)]
    holds = ("TRUE" in jump.opname or "NONE" in jump.opname) is not ("NOT_NONE" in jump.opname)
    eager_holds, traced_holds = (str(jumped is holds).lower() for jumped in jumps)
    return None if eager_holds == traced_holds else (eager_holds, traced_holds)


def word_line(code: CodeType, offset: int) -> str:
    """The line of an instruction in words."""
    known = list_instructions(code).get(offset)
    return f"line {known.positions.lineno if known is not None and known.positions is not None else None}"
