"""Errors of a program that eager and compiled both refuse: alike, unlike, or of the compiler's own."""

from __future__ import annotations

import builtins
import re
from typing import Literal

from fuzzcompile.model.signatures import normalise_message
from fuzzcompile.model.stages import DECOMPOSITION, DYNAMO, FAKE_TENSOR, find_file_stage
from fuzzcompile.run.observation import Failure
from fuzzcompile.run.raise_sites import RaisedError

Relation = Literal["alike", "unlike", "internal"]

# Stages that check arguments as operators of eager mode do: what is raised there refuses the program.
_REFUSING = (FAKE_TENSOR, DECOMPOSITION)
_FAKE_TENSORS = "torch/_subclasses/"  # what is asserted there is of the compiler's own
# Exceptions by which no operator refuses its arguments: a program that looks something up is at fault.
_RUN_SLIPS = ("AssertionError", "AttributeError", "KeyError", "NameError", "RecursionError", "UnboundLocalError")
_SLIPS = (*_RUN_SLIPS, "StopIteration", "ZeroDivisionError")
# Operators and device kernels raise it too, but not by a statement of Python in these folders.
_UNFINISHED, _UNFINISHED_IN = "NotImplementedError", ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/")
# Those by which operators, checks and kernels do.
_REFUSALS = ("RuntimeError", "ValueError", "IndexError", "TypeError", "NotImplementedError", "AssertionError")
# Dynamo's word for an operator that refuses fake tensors.
_REFUSED_FAKE = "TorchRuntimeError"
_COMMON = ("Exception", "BaseException", "object")
_FILE = re.compile(r"\S*/\S*")
_WORD = re.compile(r"[A-Z]?[a-z]{3,}")
# Words that messages have in common whatever they are about.
_EMPTY_WORDS = frozenset((
    "error", "expected", "expects", "with", "that", "this", "from", "have", "must", "should", "tensor", "tensors",
    "torch", "kernel", "given", "found", "invalid", "does", "only", "were", "when", "while", "input", "argument",
    "got", "but", "the", "and", "for", "not", "are", "out", "was", "has", "been",
))  # fmt: skip


def relate_failures(eager: Failure, compiled: Failure) -> Relation:
    """How the error of a compiled program relates to the one with which eager mode refuses the program.

    Alike are errors of which one is of the other's class, those that say the same, and two refusals of arguments: a
    meta function, a decomposition and a kernel check arguments in an order, and with classes, of their own. Of unlike
    errors nothing tells whether the compiled program is at fault.
    """
    if _is_internal(compiled, eager):
        return "internal"
    if _are_of_a_kind(compiled, eager) or _share_words(compiled, eager):
        return "alike"
    return "alike" if _refuses_arguments(compiled) and _refuses_arguments(eager) else "unlike"


def _is_internal(compiled: Failure, eager: Failure) -> bool:
    """Return whether an error is the compiler's own, and not the refusal of a program that eager mode refuses too."""
    if compiled.unsupported or compiled.machine:
        return False
    if compiled.phase == "run":
        return _slips_at_run(compiled, eager)
    if compiled.type_name == "InternalTorchDynamoError":  # dynamo's own word for it
        return True
    if _says_the_same(compiled, eager):
        return False  # an operator refused its arguments wherever the compiler called it
    file = compiled.raised[0][0] if compiled.raised else ""
    stage = find_file_stage(file)
    asserted = compiled.origin == "AssertionError" and compiled.worded
    if asserted and stage in _REFUSING and not file.startswith(_FAKE_TENSORS):
        return False  # so do meta functions and decompositions say what arguments they do not take
    if stage in (None, DYNAMO, *_REFUSING):
        slipped = compiled.origin in _SLIPS or _is_unfinished(compiled)
        return compiled.origin != eager.type_name and slipped
    return True


def _slips_at_run(compiled: Failure, eager: Failure) -> bool:
    """Return whether a compiled program fails in code of the compiler, or that it generated, by a slip of that."""
    site, name = compiled.site, compiled.origin or compiled.type_name
    if site is None or name == eager.type_name or _says_the_same(compiled, eager):
        return False
    stage = find_file_stage(site.file) if site.owner == "torch" else None
    own = site.owner == "generated" or stage not in (None, *_REFUSING)
    return own and (name in _RUN_SLIPS or _is_unfinished(compiled))


def _is_unfinished(failure: Failure) -> bool:
    site = failure.site
    if site is None or (failure.origin or failure.type_name) != _UNFINISHED:
        return False
    return site.how == "stated" and (site.owner == "generated" or site.file.startswith(_UNFINISHED_IN))


def _says_the_same(compiled: Failure, eager: Failure) -> bool:
    """Return whether two errors are of one type and have one message, up to numbers and names, or up to a colon."""
    if compiled.is_like(eager):
        return True
    said = normalise_message(eager.message)
    return (
        bool(said)
        and (compiled.origin or compiled.type_name) == eager.type_name
        and said in normalise_message(compiled.message)
    )


def _are_of_a_kind(compiled: Failure, eager: Failure) -> bool:
    """Return whether the class of an error, or of one that it was raised for, is eager's, a base of it or below it."""
    first, *_ = _list_errors(eager)
    chain = _list_errors(compiled)
    return any(error.name in first.classes or first.name in error.classes for error in chain)


def _list_errors(failure: Failure) -> tuple[RaisedError, ...]:
    """The error and its causes; of one that came without its classes, what is known of them by name."""
    if failure.chain:
        return failure.chain
    names = (failure.type_name, *([failure.origin] if failure.origin else []))
    return tuple(RaisedError(_list_classes(name), failure.message) for name in names)


def _list_classes(name: str) -> tuple[str, ...]:
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type):
        return (name,)
    return tuple(base.__name__ for base in kind.__mro__ if base.__name__ not in _COMMON) or (name,)


def _share_words(compiled: Failure, eager: Failure) -> bool:
    """Return whether the errors say the same, or have most of their words in common."""
    said = (compiled.message, *(error.message for error in _list_errors(compiled)))
    return any(_are_alike_in_words(eager.message, text) for text in said if text)


def _are_alike_in_words(first: str, second: str) -> bool:
    """Return whether two messages are one, or have two words and half of the shorter one's in common."""
    if normalise_message(first) == normalise_message(second):
        return True
    words = [_list_words(text) for text in (first, second)]
    shared, least = words[0] & words[1], min(map(len, words))
    return bool(shared) and (words[0] == words[1] or len(shared) >= max(2, least / 2))


def _list_words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(_FILE.sub(" ", text))} - _EMPTY_WORDS


def _refuses_arguments(failure: Failure) -> bool:
    """Return whether an operator, or a check in its place, refused its arguments on purpose.

    What the program itself raises says something of its own, and so does what Python raises for an instruction in the
    compiler.
    """
    site = failure.site
    if site is None or not set(_list_errors(failure)[-1].classes) & set(_REFUSALS):
        return False
    if site.owner in ("program", "library"):
        return site.how != "stated"  # operators are called, or stand between operands
    if site.how == "implied":
        return False
    stage = find_file_stage(site.file)
    if failure.phase == "run":
        return site.how == "called" or site.owner == "generated" or stage in (None, *_REFUSING)
    return failure.type_name == _REFUSED_FAKE or stage in (None, *_REFUSING)
