"""Python's instructions in a program, as eager mode runs them and as dynamo traces them, and what they leave."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from fuzzcompile.compiler.instruction_words import (
    ENTERING,
    KEEPING,
    LOOKING_UP,
    Instruction,
    compute_result,
    describe_instruction,
)
from fuzzcompile.compiler.python_values import (
    Digest,
    agree,
    digest,
    digest_each,
    digest_variable,
    holds_items,
    word_digest,
)
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.run.code_files import find_owner

_MOST_STEPS = 100_000


@dataclass
class InstructionStep:
    """One instruction as it was taken in a call of its code, and the local names before it (``return``: the result)."""

    offset: int
    number: int = 0  # of all steps
    values: Mapping[str, Digest] = field(default_factory=dict)
    instruction: Instruction | None = None  # of dynamo's steps
    expected: Digest = None  # what Python itself gets where dynamo works on constants
    calls: CodeType | None = None  # of eager mode's: the code of the program's own that it has called by itself


Steps = dict[tuple[CodeType, int], list[InstructionStep]]
"""The steps of each call of each code, by the number of the call."""


@dataclass
class InstructionTrace:
    """What dynamo traces while its patch is installed: the latest attempt at each frame.

    With instructions ``left_out`` nothing is recorded: at these dynamo breaks the graph, and eager mode runs them.
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
        """Record the instruction that a translator is about to trace, or have dynamo leave it out."""
        pointer = translator.instruction_pointer
        if pointer is None or find_owner(translator.f_code.co_filename) in ("torch", "python"):
            return
        instruction = translator.instructions[pointer]
        if self.left_out:
            if (translator.f_code, instruction.offset) in self.left_out:
                breaks = importlib.import_module("torch._dynamo.exc").Unsupported
                raise IntendedError(breaks(f"{instruction.opname} is left to eager mode"))
        elif instruction.offset is not None and self._taken <= _MOST_STEPS:
            self._taken += 1
            self._record(translator, instruction, list(translator.stack))

    def _record(self, translator: Any, instruction: Any, stack: list[Any]) -> None:
        steps = self.find_steps(translator)
        line = getattr(getattr(instruction, "positions", None), "lineno", None) or translator.lineno
        if steps and _get(steps[-1]).name.startswith(LOOKING_UP):
            self._looked_up |= {id(each): (each, _get(steps[-1]).does) for each in stack[-2:]}
        known = describe_instruction(translator.f_code, line, instruction, stack, self._looked_up)
        moved = steps and _get(steps[-1]).name.startswith(KEEPING)
        values = steps[-1].values if moved else digest_each(translator.symbolic_locals, digest_variable)
        if instruction.opname == "RETURN_VALUE" and stack:
            values = {"return": digest_variable(stack[-1])}
        if steps and stack:
            self._look_at_result(steps[-1], stack[-1])
        expected = compute_result(translator, instruction, stack)
        steps.append(InstructionStep(known.offset, self._taken, values, known, expected))
        if instruction.opname in ENTERING:
            self.settings.setdefault(known.does, []).append(known)

    def _look_at_result(self, before: InstructionStep, result: Any) -> None:
        """Compare what the instruction before has left on the stack with what Python gets."""
        instruction = _get(before)
        calls = instruction.name.startswith("CALL") and not holds_items(instruction.handler)
        if before.expected is None and not calls:
            return
        got = digest_variable(result)
        if not agree(before.expected, got):
            self.wrong.append((instruction, before.expected, got))
        elif calls and got == digest(None):
            self.settings.setdefault(instruction.does, []).append(instruction)


def wrap_step(trace: InstructionTrace, original: Function, translator: Any, *rest: object) -> object:
    """Record an instruction before dynamo traces it."""
    trace.take(translator)
    return original(translator, *rest)


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
        if event != "call" or taken > _MOST_STEPS or find_owner(code.co_filename) not in ("program", "library"):
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
            keeps = known and _get_name(frame.f_code, known[-1].offset).startswith(KEEPING)
            values = known[-1].values if keeps else digest_each(frame.f_locals, digest)
            known.append(InstructionStep(frame.f_lasti, taken, values))
        elif event == "return" and known and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            known[-1].values = {"return": digest(argument)}
        return follow

    sys.settrace(enter)
    try:
        yield steps
    finally:
        sys.settrace(before)


@functools.lru_cache(maxsize=4096)
def _list_instructions(code: CodeType) -> dict[int, dis.Instruction]:
    return {each.offset: each for each in dis.get_instructions(code)}


def _get_name(code: CodeType, offset: int) -> str:
    known = _list_instructions(code).get(offset)
    return "" if known is None else known.opname


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
    wrong = [
        PartedInstruction(each, "value", word_digest(ours), word_digest(theirs)) for each, ours, theirs in trace.wrong
    ]
    special: list[tuple[int, PartedInstruction]] = []
    parted: list[tuple[int, PartedInstruction]] = []
    for (code, number), steps in eager.items():
        if (code, number) not in traced:
            continue
        ours, theirs = _pair(code, steps, traced[code, number])
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
                words = word_digest(step.values[name]), word_digest(other.values[name])
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
    code: CodeType, eager: list[InstructionStep], traced: list[InstructionStep]
) -> tuple[list[InstructionStep], list[InstructionStep]]:
    """The steps of both, without instructions that only one of them knows."""
    known, seen = {step.offset for step in traced}, {step.offset for step in eager}
    skipped = ("EXTENDED_ARG", "CACHE", "NOP", "RESUME", "PRECALL", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR")

    def keep(steps: list[InstructionStep], others: set[int]) -> list[InstructionStep]:
        # Dynamo takes an instruction that does two things at once for two in one place.
        single = (next(alike) for _, alike in itertools.groupby(steps, key=lambda step: step.offset))
        return [
            step for step in single if step.offset in others or not _get_name(code, step.offset).startswith(skipped)
        ]

    return keep(eager, known), keep(traced, seen)


def _get(step: InstructionStep) -> Instruction:
    if step.instruction is None:
        raise LookupError("a step of eager mode has no instruction")
    return step.instruction


def _find_deciding(steps: list[InstructionStep]) -> Instruction | None:
    """The last instruction that a value came of, or that asked for the truth of one."""
    return next((known for step in reversed(steps) if (known := _get(step)).decides), None)


def _word_line(code: CodeType, step: InstructionStep) -> str:
    known = _list_instructions(code).get(step.offset)
    return f"line {known.positions.lineno if known is not None and known.positions is not None else None}"
