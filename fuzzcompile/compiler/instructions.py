"""Python's instructions in a program, as eager mode runs them and as dynamo traces them, and what they leave."""

from __future__ import annotations

import contextlib
import difflib
import dis
import functools
import importlib
import inspect
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.instruction_words import (
    ENTERING,
    KEEPING,
    LOOKING_UP,
    Instruction,
    compute_result,
    describe_instruction,
    find_store,
    get_name,
    word_line,
    word_store,
    word_truths,
)
from fuzzcompile.compiler.python_values import (
    TENSOR,
    Digest,
    RunTensors,
    TracedTensors,
    agree,
    digest,
    digest_each,
    digest_variable,
    hold_alike,
    holds_items,
    is_number,
    list_summaries,
    word_digest,
)
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.run.code_files import find_owner
from fuzzcompile.run.torch_attributes import replace_attribute

_MOST_STEPS = 100_000
_MOST_NUMBERS = 2


# Torch's own modes by what they are called, as dynamo sets them while it traces too.
_MODES: Mapping[str, Callable[[], object]] = {
    "grad mode": torch.is_grad_enabled,
    "autocast on the CPU": lambda: str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else "off",
}


def _read_modes() -> dict[str, Digest]:
    return {name: digest(read()) for name, read in _MODES.items()}


@dataclass
class InstructionStep:
    """One instruction as it was taken in a call of its code, and the values before it, by name.

    These are the local names, what the instruction before has stored elsewhere, and the result (``return``).
    """

    offset: int
    number: int = 0  # of all steps
    values: Mapping[str, Digest] = field(default_factory=dict)
    instruction: Instruction | None = None  # of dynamo's steps
    expected: Digest = None  # what Python itself gets where dynamo works on constants
    gives_number: bool = False  # of dynamo's: whether it left a number or a string behind
    stores: Any = None  # of dynamo's: the variable that it stores in an attribute or a global name
    calls: CodeType | None = None  # of eager mode's: the code of the program's own that it has called by itself
    raises: str = ""  # of eager mode's: the type of the exception that it raised


Steps = dict[tuple[CodeType, int], list[InstructionStep]]
"""The steps of each call of each code, by the number of the call."""


@dataclass(eq=False)
class _FrameAttempt:
    """What dynamo's latest attempt at a frame has done, with the code that was inlined into it."""

    graph: int  # by its identity
    steps: Steps = field(default_factory=dict)
    # results that Python itself does not get from the same constants, as it gets them and as dynamo does
    wrong: list[tuple[Instruction, Digest, Digest]] = field(default_factory=list)
    # calls that give nothing back, and contexts: what they set, dynamo says in its own words
    settings: dict[str, list[Instruction]] = field(default_factory=dict)
    # number of the program's call in which each code was traced
    made_in: dict[tuple[CodeType, int], int] = field(default_factory=dict)


@dataclass
class InstructionTrace:
    """Trace of dynamo while its patch is installed: the latest attempt at each frame.

    With instructions ``left_out`` nothing is recorded: at these dynamo breaks the graph, and eager mode runs them, or
    the ``whole`` frame.
    """

    ledger: Ledger = field(default_factory=Ledger)
    left_out: Collection[tuple[CodeType, int]] = ()
    whole: bool = False
    tensors: TracedTensors = field(default_factory=TracedTensors)
    program_calls: Sequence[object] = ()  # so far
    _attempts: dict[CodeType, _FrameAttempt] = field(default_factory=dict)  # by the code of the frame
    _calls: dict[int, tuple[object, _FrameAttempt, list[InstructionStep]]] = field(default_factory=dict)
    _looked_up: dict[int, tuple[object, str]] = field(default_factory=dict)  # attributes, by what they are to dynamo
    _offsets: dict[CodeType, dict[int, int]] = field(default_factory=dict)  # in the program's code, by dynamo's
    _refused: list[tuple[object, tuple[CodeType, int | None]]] = field(default_factory=list)
    _taken: int = 0

    @property
    def breaks_at_operators(self) -> bool:
        """Whether the graph is to be broken at instructions."""
        return bool(self.left_out) and not self.whole

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record that instructions could not be watched."""
        self.ledger.record_unseen(unseen)

    @property
    def steps(self) -> Steps:
        """The steps of all frames."""
        return {call: steps for attempt in self._attempts.values() for call, steps in attempt.steps.items()}

    @property
    def wrong(self) -> list[tuple[Instruction, Digest, Digest]]:
        """Instructions on constants whose result is not Python's: what Python gets, and what dynamo gets."""
        return [each for attempt in self._attempts.values() for each in attempt.wrong]

    @property
    def settings(self) -> dict[str, list[Instruction]]:
        """Instructions that set something, by what they do, as dynamo says it."""
        found = defaultdict[str, list[Instruction]](list)
        for attempt in self._attempts.values():
            for does, instructions in attempt.settings.items():
                found[does] += instructions
        return found

    def find_call(self, code: CodeType, number: int) -> int | None:
        """The number of the program's call, from 1, in which dynamo has traced a call of a code; None of no other."""
        made = (attempt.made_in.get((code, number)) for attempt in self._attempts.values())
        return next((call for call in made if call is not None), None)

    def list_values(self, name: str) -> tuple[Digest, ...]:
        """List the values that a local name has stood for, each once."""
        taken = (step.values[name] for steps in self.steps.values() for step in steps if name in step.values)
        return tuple(dict.fromkeys(taken))

    def _find_attempt(self, translator: Any) -> tuple[_FrameAttempt, list[InstructionStep]]:
        """The attempt that a translator of dynamo's is of, and the steps of the call that it traces."""
        known = self._calls.get(id(translator))
        if known is None:
            code, parent = translator.f_code, getattr(translator, "parent", None)
            if parent is None:
                earlier = self._attempts.pop(code, None)
                if earlier is not None:  # it has been given up, or the frame is compiled again
                    self._calls = {at: call for at, call in self._calls.items() if call[1] is not earlier}
                    self.tensors.forget(earlier.graph)
                attempt = self._attempts[code] = _FrameAttempt(id(translator.output.graph))
            else:
                attempt = self._find_attempt(parent)[0]
            number = next(number for number in itertools.count() if self.find_call(code, number) is None)
            steps = attempt.steps[code, number] = []
            attempt.made_in[code, number] = max(1, len(self.program_calls))
            known = self._calls[id(translator)] = translator, attempt, steps
        return known[1:]

    def take(self, translator: Any) -> Exception | None:
        """Record the instruction that a translator is about to trace; the error by which it is to be left out, if so.

        Where dynamo has been told already, in this compile of its frame, it leaves it out by itself.
        """
        pointer = translator.instruction_pointer
        if pointer is None or find_owner(translator.f_code.co_filename) in ("torch", "python"):
            return None
        instruction = translator.instructions[pointer]
        offset = self._find_offset(translator, instruction)
        if offset is not None and not self.left_out and self._taken <= _MOST_STEPS:
            self._taken += 1
            self._record(translator, instruction, offset, list(translator.stack))
        compiled = getattr(translator, "speculation_log", None) if self.left_out else None
        if compiled is not None:  # it is traced again, up to there
            self.ledger.given_up = [log for log in self.ledger.given_up if log is not compiled]
        if (translator.f_code, offset) not in self.left_out:
            return None
        if any(log is compiled and place == (translator.f_code, offset) for log, place in self._refused):
            return None
        self._refused.append((compiled, (translator.f_code, offset)))
        self.ledger.given_up.append(compiled)
        breaks = importlib.import_module("torch._dynamo.exc").Unsupported
        error: Exception = breaks(f"{instruction.opname} is left to eager mode")
        return error

    def _find_offset(self, translator: Any, instruction: Any) -> int | None:
        """The offset in the program's code, of which dynamo traces a copy that spells out ``super()`` and ``is None``.

        None for what is only in the copy.
        """
        code = translator.f_code
        if code not in self._offsets:
            own = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
            copied = [each for each in translator.instructions if each.opname != "EXTENDED_ARG"]
            names = [each.opname for each in own], [each.opname for each in copied]
            found = self._offsets[code] = dict[int, int]()
            changes = (
                difflib.SequenceMatcher(None, *names, autojunk=False).get_opcodes() if names[0] != names[1] else ()
            )
            for _, first, last, at, end in changes:
                if first < last:  # of one instruction that is spelled out, each is at its offset
                    found |= {
                        each.offset: own[min(first + n, last - 1)].offset for n, each in enumerate(copied[at:end])
                    }
        offset: int | None = instruction.offset
        return self._offsets[code].get(offset) if self._offsets[code] and offset is not None else offset

    def _record(self, translator: Any, instruction: Any, offset: int, stack: list[Any]) -> None:
        attempt, steps = self._find_attempt(translator)
        line = getattr(getattr(instruction, "positions", None), "lineno", None) or translator.lineno
        if steps and _get(steps[-1]).name.startswith(LOOKING_UP):
            self._looked_up |= {id(each): (each, _get(steps[-1]).does) for each in stack[-2:]}
        known = replace(
            describe_instruction(translator.f_code, line, instruction, stack, self._looked_up), offset=offset
        )
        moved = steps and _get(steps[-1]).name.startswith(KEEPING)
        read = functools.partial(digest_variable, tensors=self.tensors)
        values = steps[-1].values if moved else _read_modes() | digest_each(translator.symbolic_locals, read)
        if instruction.opname == "RETURN_VALUE" and stack:
            values = {"return": read(stack[-1])}
        elif steps and steps[-1].stores is not None:
            values = {**values, word_store(find_store(translator.f_code, steps[-1].offset)): read(steps[-1].stores)}
        if steps and stack:
            _look_at_result(attempt, steps[-1], stack[-1])
        expected = compute_result(translator, instruction, stack)
        stored = stack[-1:] if known.name == "STORE_GLOBAL" else []
        if known.name == "STORE_ATTR" and _stores_as_given(stack[-1]):
            stored = stack[-2:-1]
        step = InstructionStep(known.offset, self._taken, values, known, expected)
        step.stores = stored[0] if stored and find_store(translator.f_code, offset) else None
        steps.append(step)
        if instruction.opname in ENTERING:
            attempt.settings.setdefault(known.does, []).append(known)


def _look_at_result(attempt: _FrameAttempt, before: InstructionStep, result: Any) -> None:
    """Compare what the instruction before has left on the stack with what Python gets."""
    instruction = _get(before)
    before.gives_number = is_number(result)
    calls = instruction.name.startswith("CALL") and not holds_items(instruction.handler)
    if before.expected is None and not calls:
        return
    got = digest_variable(result)
    if not agree(before.expected, got):
        attempt.wrong.append((instruction, before.expected, got))
    elif calls and got == digest(None):
        attempt.settings.setdefault(instruction.does, []).append(instruction)


def wrap_step(trace: InstructionTrace, original: Function, translator: Any, *rest: object) -> object:
    """Record an instruction before dynamo traces it, or have it refused.

    Dynamo breaks the graph at what is refused while it is traced, when its result is pushed, and compiles the rest of
    the frame too; a frame of which an instruction is refused from outside is left to eager mode as a whole.
    """
    error = trace.take(translator)
    if error is None:
        return original(translator, *rest)

    def refuse(value: object) -> NoReturn:
        raise error

    if not trace.whole:
        with replace_attribute(translator, "push", refuse):
            original(translator, *rest)
    raise IntendedError(error)


# Eager mode.


@contextlib.contextmanager
def record_instructions() -> Iterator[Steps]:
    """The steps of the program's own code in the block, each with what it stored, or returned."""
    steps: Steps = {}
    calls: dict[CodeType, int] = defaultdict(int)
    open_frames: dict[FrameType, list[InstructionStep]] = {}
    taken, before = 0, sys.gettrace()
    read = functools.partial(digest, tensors=RunTensors())

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
            keeps = known and get_name(frame.f_code, known[-1].offset).startswith(KEEPING)
            values = known[-1].values if keeps else _read_modes() | digest_each(frame.f_locals, read)
            if known and (store := find_store(frame.f_code, known[-1].offset)):
                values = {**values, **digest_each(_read_store(frame, store), read)}
            known.append(InstructionStep(frame.f_lasti, taken, values))
        elif event == "exception" and known and get_name(frame.f_code, known[-1].offset) != "FOR_ITER":
            known[-1].raises = argument[0].__name__  # type: ignore[index]
        elif event == "return" and known and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            known[-1].values = {"return": read(argument)}
        return follow

    sys.settrace(enter)
    try:
        yield steps
    finally:
        sys.settrace(before)


# What is stored in attributes and global names: no local name has it.


def _stores_as_given(owner: Any) -> bool:
    """Return whether an attribute of a variable of dynamo's is what is stored in it, and no code of the program's."""
    try:
        return owner.python_type().__setattr__ in (object.__setattr__, type.__setattr__, torch.nn.Module.__setattr__)
    except Exception:  # of dynamo, which does not know the type
        return False


def _read_store(frame: FrameType, names: Sequence[str]) -> dict[str, object]:
    """The value that these names lead to, by their words; nothing where that takes code of the program's own."""
    found: object = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        own = _read_attributes(found)
        if name not in own:
            return {}
        found = own[name]
    return {word_store(names): found}


def _read_attributes(owner: object) -> Mapping[str, object]:
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    held = (own.get(name) for name in ("_parameters", "_buffers", "_modules") if isinstance(owner, torch.nn.Module))
    return dict(itertools.chain(own.items(), *(each.items() for each in held if each)))


# Where both part.


@dataclass(frozen=True)
class PartedInstruction:
    """An instruction behind which dynamo goes on otherwise than eager mode, or has another value.

    ``others`` do the same in other places. ``kind`` is ``path`` (a truth, or a line), ``value``, ``gradient`` (one of
    both values requires one), ``torch mode`` (one of torch's own is another), ``error`` (dynamo raises one),
    ``handler`` (an operator raises an exception of the expected type, which the program catches), ``refused`` (the
    instruction itself raises one in eager mode alone, which the program catches), ``call`` (the program's own code that
    it calls is not traced) or ``setting`` (nothing comes of it that could part).
    ``call`` is the number of the program's call that both are of, from 1; None where dynamo traced another one.
    ``of_tensors``: the value that is another is or holds tensors, which a break of the graph hands over as they are.
    """

    instruction: Instruction
    kind: str
    expected: str = ""
    got: str = ""
    others: tuple[Instruction, ...] = ()
    call: int | None = None
    of_tensors: bool = False

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instruction, and the others."""
        return self.instruction, *self.others


def find_partings(
    eager: Steps, trace: InstructionTrace, raised: str = "", call: int | None = None
) -> list[PartedInstruction]:
    """List places where dynamo parts from Python, the strongest evidence first.

    That are wrong results on constants, calls that it does not trace, and the first instruction behind which the path
    or a value is another than in eager mode. Where dynamo's steps end it has broken the graph, unless it ``raised``.

    ``call`` is the number of eager mode's call: what dynamo traced in the same one comes before anything else.
    """
    traced = trace.steps
    entered = {code for code, _ in traced}
    trace.tensors.compare_with(list_summaries(next((steps[0].values for steps in eager.values() if steps), {})))
    wrong = [
        PartedInstruction(each, "value", word_digest(ours), word_digest(theirs), call=call)
        for each, ours, theirs in trace.wrong
    ]
    special: list[tuple[int, PartedInstruction]] = []
    parted: list[tuple[int, PartedInstruction]] = []
    for (code, number), steps in eager.items():
        if (code, number) not in traced:
            continue
        ours, theirs = _pair(code, steps, traced[code, number])
        same_call = call if call == trace.find_call(code, number) else None
        # A call in other modes from its beginning is not the one that was traced.
        given = [steps[0].values if steps else {} for steps in (ours, theirs)]
        other_modes = {mode for mode in _MODES if given[0].get(mode) != given[1].get(mode)}
        for index, (step, other) in enumerate(zip(ours, theirs, strict=False)):
            if step.calls is not None and step.calls not in entered and step.calls.co_name.startswith("__"):
                called = PartedInstruction(_get(other), "call", step.calls.co_qualname, "not traced", call=same_call)
                special.append((step.number, called))
            names = (name for name in step.values if name not in other_modes)
            name = next((name for name in names if not agree(step.values[name], other.values.get(name))), None)
            if step.offset == other.offset and name is None:
                continue
            found = _iter_partings(code, ours, theirs, index, name, raised)
            parted += [(step.number, replace(each, call=same_call)) for each in found]
            break
        else:
            if raised and len(theirs) < len(ours):
                parted += [(ours[len(theirs)].number, each) for each in _iter_endings(ours, theirs, raised)]
    parted = [each for each in parted if each[1].call is not None] or parted
    earliest = min((number for number, _ in parted), default=None)
    first = [each for each in parted if each[0] == earliest]
    before = [each for each in special if earliest is None or each[0] <= earliest]
    known = {each.instruction.place for each in wrong}
    return [*wrong, *(each for _, each in (*before, *first) if each.instruction.place not in known)]


def _iter_partings(
    code: CodeType, ours: list[InstructionStep], theirs: list[InstructionStep], at: int, name: str | None, raised: str
) -> Iterator[PartedInstruction]:
    """Find what may have decided that the steps go on otherwise, or that a name stands for another value."""
    step, other, decided = ours[at], theirs[at], _find_deciding(theirs[:at])
    caught = ours[at - 1].raises if at else ""
    if decided is not None and step.offset != other.offset and _is_kept(decided, caught, raised):
        yield PartedInstruction(decided, "handler", caught, raised)
    elif caught and step.offset != other.offset:
        yield PartedInstruction(_get(theirs[at - 1]), "refused", caught, "goes on")
    elif decided is not None and step.offset != other.offset:
        words = word_truths([each.offset for each in theirs[:at]], decided, step.offset, other.offset)
        yield PartedInstruction(
            decided, "path", *(words or (word_line(code, step.offset), word_line(code, other.offset)))
        )
    elif decided is not None and name is not None:
        holds_tensors = TENSOR[0] in pytree.tree_leaves(step.values[name])
        suspects = _list_unnamed(theirs[:at], decided) if holds_tensors or _fills(decided) else [decided]
        kind, expected, got = _word_values(name, step.values[name], other.values.get(name))
        of_tensors = holds_tensors and kind == "value"
        yield from (PartedInstruction(each, kind, expected, got, of_tensors=of_tensors) for each in suspects)


def _iter_endings(
    ours: list[InstructionStep], theirs: list[InstructionStep], raised: str
) -> Iterator[PartedInstruction]:
    """Find what dynamo's steps end with, by an error, where those of eager mode go on."""
    decided, caught = _find_deciding(theirs), ours[len(theirs) - 1].raises if theirs else ""
    if decided is not None and _is_kept(decided, caught, raised):
        yield PartedInstruction(decided, "handler", caught, raised)
    elif decided is not None:
        yield PartedInstruction(decided, "error", "goes on", raised)


def _is_kept(decided: Instruction, caught: str, raised: str) -> bool:
    """Return whether an operator raises for dynamo, too, what the program catches, which dynamo does not hand on."""
    return bool(caught and raised) and "Tensor" in decided.does


def list_settings(trace: InstructionTrace) -> list[PartedInstruction]:
    """List instructions that set something beside Python's values, the latest first: dynamo may not heed them."""
    settings = reversed(trace.settings.values())
    return [PartedInstruction(last, "setting", others=tuple(others)) for *others, last in settings]


def _pair(
    code: CodeType, eager: list[InstructionStep], traced: list[InstructionStep]
) -> tuple[list[InstructionStep], list[InstructionStep]]:
    """The steps of both, without instructions that only one of them knows."""
    known, seen = {step.offset for step in traced}, {step.offset for step in eager}
    skipped = ("EXTENDED_ARG", "CACHE", "NOP", "RESUME", "PRECALL", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR")

    def keep(steps: list[InstructionStep], others: set[int]) -> list[InstructionStep]:
        # Dynamo takes an instruction that does two things at once for two in one place; the one that decides counts.
        groups = (list(alike) for _, alike in itertools.groupby(steps, key=lambda step: step.offset))
        single = (next(filter(_decides, reversed(group)), group[0]) for group in groups)
        return [step for step in single if step.offset in others or not get_name(code, step.offset).startswith(skipped)]

    return keep(eager, known), keep(traced, seen)


def _decides(step: InstructionStep) -> bool:
    return step.instruction is not None and step.instruction.decides


def _get(step: InstructionStep) -> Instruction:
    if step.instruction is None:
        raise LookupError("a step of eager mode has no instruction")
    return step.instruction


def _find_deciding(steps: list[InstructionStep]) -> Instruction | None:
    """The last instruction that a value came of, or that asked for the truth of one."""
    return next((known for step in reversed(steps) if (known := _get(step)).decides), None)


def _list_unnamed(steps: list[InstructionStep], decided: Instruction) -> list[Instruction]:
    """List instructions of the line that ``decided`` ends that may make a tensor wrong: numbers read, then itself.

    No name tells whether the values within the line are right. The latest come first, and a call that only puts one
    into a container comes last.
    """
    before = (step for step in reversed(steps) if _get(step) is not decided)
    line = itertools.takewhile(lambda step: not _get(step).name.startswith("STORE_"), before)
    deciding = [step for step in line if _get(step).decides]
    numbers = [_get(step) for step in deciding if step.gives_number][:_MOST_NUMBERS]
    others = [_get(step) for step in deciding if not step.gives_number]
    if not _fills(decided):
        return [*numbers, decided, *others]
    called = [each.does for each in map(_get, deciding) if each.name.startswith("CALL")] + [decided.does]
    others = [each for each in others if not any(call.startswith(f"{each.does}(") for call in called)]
    return [*numbers, *others, decided]


def _fills(instruction: Instruction) -> bool:
    """Whether it calls a method of a container, whose arguments have no name."""
    return instruction.name.startswith("CALL") and holds_items(instruction.handler)


def _word_values(name: str, eager: Digest, traced: Digest) -> tuple[str, str, str]:
    """Word what parts, with both values, for a reader."""
    kind = "torch mode" if name in _MODES else "gradient" if hold_alike(eager, traced) else "value"
    what = f"{name} " if name in _MODES else ""
    return kind, f"{what}{word_digest(eager)}", f"{what}{word_digest(traced)}"
