"""A program as the reducers see it: inputs, statements of torch's public functions, outputs. Plain data."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast

import torch

Tree = TypeVar("Tree")
# How the values of an input are written: as they were recorded, or by the name of a torch function.
Fill = Literal["recorded", "randn", "rand", "zeros", "ones", "arange", "randint", "literal", "tril", "full"]
Form = Literal["function", "method", "operator", "attribute", "getitem", "setitem", "enter", "exit"]


@dataclass(frozen=True)
class Ref:
    """The value of an input or of an earlier statement, by name."""

    name: str


@dataclass(frozen=True)
class Input:
    """A tensor input. ``stride`` is in elements.

    ``values`` are the recorded ones, of any strides; ``fill`` says what a script has in their place. ``parameter``: it
    was a parameter of a module.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    fill: Fill = "recorded"
    requires_grad: bool = False
    parameter: bool = False
    values: torch.Tensor | None = field(default=None, compare=False)

    @classmethod
    def from_tensor(cls, name: str, tensor: torch.Tensor, *, parameter: bool = False) -> Input:
        """The input that a recorded tensor makes."""
        shape, stride, dtype = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
        return cls(name, shape, stride, dtype, "recorded", tensor.requires_grad, parameter, tensor.detach())


@dataclass(frozen=True)
class Statement:
    """``name = target(args, kwargs)``; ``target`` is text that torch's users write.

    ``module`` is the path of the submodule that it came from, ``line`` the user's line (0: not known). ``enter`` and
    ``exit`` open and close a ``with`` block of the context ``target``.
    """

    name: str
    form: Form
    target: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    module: str = ""
    line: int = 0

    @property
    def writes(self) -> bool:
        """Return whether it changes its first argument (or what ``out`` names)."""
        if self.form == "setitem" or "out" in self.kwargs or self.kwargs.get("inplace") is True:
            return True
        if self.form == "operator":
            return self.target.endswith("=") and self.target not in ("==", "!=", "<=", ">=")
        last = self.target.rpartition(".")[2]
        return self.form in ("function", "method") and last.endswith("_") and not last.endswith("__")

    def refs(self) -> list[str]:
        """Names that it uses, in order, each as often as it is used."""
        return find_refs((self.args, self.kwargs))

    def map_refs(self, function: Callable[[Ref], object]) -> Statement:
        """The statement with every ref in its arguments replaced."""
        return replace(self, args=map_refs(function, self.args), kwargs=map_refs(function, self.kwargs))

    def map_leaves(self, function: Callable[[object], object]) -> Statement:
        """The statement with every leaf of its arguments (refs and constants) replaced."""
        return replace(self, args=map_leaves(function, self.args), kwargs=map_leaves(function, self.kwargs))


@dataclass(frozen=True)
class Program:
    """Inputs, statements and outputs, and how the whole is compiled.

    ``outputs`` is a tree of :class:`Ref` and constants, what the program returns. ``settings`` are the module-level
    names of the case file (GRAD, BACKWARD, OPTIONS...), by name. With ``as_module`` its parameters are a module's.
    """

    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: object
    settings: Mapping[str, object] = field(default_factory=dict)
    as_module: bool = False

    @property
    def size(self) -> tuple[int, int, int, int]:
        """Operators, inputs, elements and settings; a smaller program sorts first."""
        operators = [s for s in self.statements if s.form not in ("enter", "exit")]
        elements = sum(torch.Size(input_.shape).numel() for input_ in self.inputs)
        return len(operators), len(self.inputs), elements, len(self.settings)

    @property
    def is_recorded(self) -> bool:
        """Return whether an input still has its recorded values, which a script cannot hold."""
        return any(input_.fill == "recorded" for input_ in self.inputs)

    def input(self, name: str) -> Input | None:
        """The input of that name."""
        return next((input_ for input_ in self.inputs if input_.name == name), None)

    def output_refs(self) -> list[str]:
        """Names that are returned, in order."""
        return find_refs(self.outputs)

    def with_input(self, changed: Input) -> Program:
        """The program with the input of that name replaced."""
        return self.map_inputs(lambda input_: changed if input_.name == changed.name else input_)

    def with_statement(self, changed: Statement) -> Program:
        """The program with the statement of that name replaced."""
        return self.map_statements(lambda statement: changed if statement.name == changed.name else statement)

    def map_inputs(self, change: Callable[[Input], Input]) -> Program:
        """The program with every input changed."""
        return replace(self, inputs=tuple(change(input_) for input_ in self.inputs))

    def map_statements(self, change: Callable[[Statement], Statement]) -> Program:
        """The program with every statement changed."""
        return replace(self, statements=tuple(change(statement) for statement in self.statements))

    def replace_statement(self, old: Statement, *new: Statement) -> Program:
        """The program with other statements in the place of one."""
        place = self.statements.index(old)
        return replace(self, statements=(*self.statements[:place], *new, *self.statements[place + 1 :]))

    def count_uses(self, name: str) -> int:
        """Count the places where statements and outputs use a value."""
        return find_refs([[(s.args, s.kwargs) for s in self.statements], self.outputs]).count(name)

    def without_gradients(self) -> Program:
        """The program with no input that requires a gradient."""
        return self.map_inputs(lambda input_: replace(input_, requires_grad=False))

    def rename(self, names: Mapping[str, str]) -> Program:
        """The same program with other names."""

        def rename(ref: Ref) -> Ref:
            return Ref(names.get(ref.name, ref.name))

        return replace(
            self,
            inputs=tuple(replace(input_, name=names.get(input_.name, input_.name)) for input_ in self.inputs),
            statements=tuple(replace(s.map_refs(rename), name=names.get(s.name, s.name)) for s in self.statements),
            outputs=map_refs(rename, self.outputs),
        )

    def substitute(self, name: str, value: object) -> Program:
        """The program without the statement or input ``name``, whose uses get ``value``."""

        def put(ref: Ref) -> object:
            return value if ref.name == name else ref

        return replace(
            self,
            inputs=tuple(input_ for input_ in self.inputs if input_.name != name),
            statements=tuple(s.map_refs(put) for s in self.statements if s.name != name),
            outputs=map_refs(put, self.outputs),
        )

    def without_dead_code(self) -> Program:
        """The program without the statements and inputs that no output needs.

        A statement that writes stays while any tensor that may share the written memory is used.
        """
        roots, live = self._roots(), set(self.output_refs())
        live_roots = {roots[name] for name in live if name in roots}
        mutable = {roots[s.refs()[0]] for s in self.statements if s.writes and s.refs()}
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            used = statement.refs()
            needed = statement.name in live or statement.form in ("enter", "exit")
            if statement.writes and used:
                needed = needed or roots[used[0]] in live_roots or self.input(roots[used[0]]) is not None
            if statement.form == "enter" and kept and kept[-1].form == "exit":
                kept.pop()  # nothing is left in the block
            elif needed:
                kept.append(statement)
                live |= set(used)
                live_roots |= {roots[name] for name in used if roots.get(name) in mutable}
        inputs = tuple(input_ for input_ in self.inputs if input_.name in live)
        return replace(self, statements=tuple(reversed(kept)), inputs=inputs)

    def _roots(self) -> dict[str, str]:
        """For each name, the input or statement whose memory it may be a view of (followed through first arguments)."""
        roots = {input_.name: input_.name for input_ in self.inputs}
        for statement in self.statements:
            first = next((name for name in statement.refs() if name in roots), None)
            viewing = statement.form in ("method", "getitem", "attribute", "setitem") or statement.writes
            viewing = viewing or statement.target.startswith(("torch.", "F."))
            roots[statement.name] = roots[first] if first is not None and viewing else statement.name
        return roots


def find_refs(tree: object) -> list[str]:
    """Names of the refs in a tree of tuples, lists, dictionaries and slices, in order."""
    names: list[str] = []
    map_refs(lambda ref: names.append(ref.name), tree)
    return names


def map_refs(function: Callable[[Ref], object], tree: Tree) -> Tree:
    """The tree with every ref replaced."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Ref) else leaf, tree)


def map_leaves(function: Callable[[object], object], tree: Tree) -> Tree:
    """The tree with every leaf replaced (tuples, lists, dictionaries and slices are its branches)."""
    mapped: Any
    if isinstance(tree, tuple):
        mapped = tuple(map_leaves(function, part) for part in tree)
    elif isinstance(tree, list):
        mapped = [map_leaves(function, part) for part in tree]
    elif isinstance(tree, Mapping):
        mapped = {key: map_leaves(function, part) for key, part in tree.items()}
    elif isinstance(tree, slice):
        mapped = slice(*(map_leaves(function, part) for part in (tree.start, tree.stop, tree.step)))
    else:
        mapped = function(tree)
    return cast(Tree, mapped)


# Short names for inputs and statements, none of which shadows another.

# Names that a variable of a case file may not have.
TAKEN = {*dir(builtins), *keyword.kwlist, "torch", "nn", "F", "make", "program", "Model", "self", "run"}
# Names that the compiler gives to parts and arguments, which say nothing.
_MEANINGLESS = ("getitem", "arg", "chunk", "split", "unbind", "primals", "tangents")


def use_plain_names(program: Program) -> Program:
    """The program with short names: inputs by dynamo's last words, statements as the user called them."""
    names, taken = dict[str, str](), set(TAKEN)
    inputs = [input_.name for input_ in program.inputs]
    free = (letter for letter in "xyzwuv" if letter not in inputs)
    for name in (*inputs, *(s.name for s in program.statements)):
        base = name.rstrip("0123456789_") or name  # all of it, or a second renaming would find another name
        if name in inputs and base in _MEANINGLESS:
            base = next((letter for letter in free if letter not in taken), base)
        wanted = base if base not in taken else name
        number = 1
        while wanted in taken:
            number += 1
            wanted = f"{base}_{number}"
        taken.add(wanted)
        names[name] = wanted
    return program.rename(names)


def make_input_name(target: str) -> str:
    """A plain name for one of dynamo's inputs: ``L_x_`` becomes ``x``, a parameter its last two words."""
    text = re.sub(r"^[LG]_+", "", target, flags=re.IGNORECASE).strip("_")
    words = [w for w in re.split(r"_modules_|_parameters_|_buffers_|_{2,}", text) if w and w not in ("self", "s")]
    return "_".join(words[-2:]) if "_parameters_" in target or "_buffers_" in target else text or "x"
