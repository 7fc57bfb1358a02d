"""Run a program eagerly, statement by statement, and keep the value of every name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from fuzzcompile.model.errors import describe_error
from fuzzcompile.programs.ir.case_source import Writer, input_expression
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import StorageCopier, copy_tree

# Asked before a program runs in this process, which it may take down; the block that it opens is left once it has run.
Guard = Callable[[Program], AbstractContextManager[bool]]
_guards: list[Guard] = []
_ENDS = "its eager run ends the process"
# Characters of an error that say which one it is: the sizes that are wrong come later.
_MESSAGE = 60


@dataclass(frozen=True)
class Evaluation:
    """Copies of the value of each name right after its statement.

    ``failed`` is the position of the statement that raised ``error``; None if all ran.
    """

    values: Mapping[str, object]
    failed: int | None = None
    error: str = ""

    @property
    def refusal(self) -> str | None:
        """The error without sizes and values: equal for a smaller program that fails alike in eager."""
        return None if self.failed is None else without_sizes(self.error)

    def get_shape(self, name: str) -> tuple[tuple[int, ...], torch.dtype] | None:
        """Shape and dtype of a tensor; None for anything else."""
        value = self.values.get(name)
        return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def without_sizes(error: str) -> str:
    """The beginning of an error's type and message, without numbers, lists and names."""
    return re.sub(r"'[^']*'|\[[^]]*\]|-?\d+(?:\.\d+)?", "…", error)[:_MESSAGE]


@contextlib.contextmanager
def guard_runs(guard: Guard) -> Iterator[None]:
    """Let ``guard`` decide in this block whether this process survives the eager run of a program.

    Sizes that do not fit together make some operators of eager mode read out of bounds (``torch.lstm`` in torch 2.13).
    """
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.pop()


def evaluate(program: Program) -> Evaluation:
    """Run the program as its case file would, keep the error it raises, and restore the random state.

    A program that a guard holds back counts as one that fails at its first statement.
    """
    with _guards[-1](program) if _guards else nullcontext(True) as survives:
        return _run(program) if survives else Evaluation({}, 0, _ENDS)


def _run(program: Program) -> Evaluation:
    namespace: dict[str, object] = {"torch": torch, "F": torch.nn.functional}
    values: dict[str, object] = {}
    writer = Writer(set())
    grad = program.settings.get("GRAD") == "enabled" or bool(program.settings.get("BACKWARD"))
    with contextlib.ExitStack() as stack, torch.random.fork_rng(devices=[]):
        stack.enter_context(torch.enable_grad() if grad else torch.no_grad())
        position = 0
        blocks: list[contextlib.ExitStack] = []
        try:
            _make_inputs(program, namespace, values)
            seed_everything(0)
            for position, statement in enumerate(program.statements):  # noqa: B007 - where it failed
                if statement.form == "enter":
                    blocks.append(stack.enter_context(contextlib.ExitStack()))
                    blocks[-1].enter_context(eval(statement.target, namespace))
                elif statement.form == "exit":
                    blocks.pop().close()
                else:
                    exec(writer.line(statement, used=True), namespace)
                    name = statement.name if statement.name in namespace else statement.refs()[0]
                    namespace.setdefault(statement.name, namespace[name])
                    values[statement.name] = copy_tree(namespace[statement.name])
        except Exception as error:  # a candidate may be any nonsense
            return Evaluation(values, position, describe_error(error))
    return Evaluation(values)


def _make_inputs(program: Program, namespace: dict[str, object], values: dict[str, object]) -> None:
    torch.manual_seed(0)
    leaves = (leaf for s in program.statements for leaf in tree_leaves((s.args, dict(s.kwargs))))
    gpus = (leaf for leaf in leaves if isinstance(leaf, torch.device) and leaf.type != "cpu")
    device = next(gpus, torch.device("cpu"))  # the GPU that the program names, as it was captured there
    for input_ in program.inputs:
        # Copied, because a program may write to its inputs.
        recorded = {input_.name: copy_tree(input_.values)} if input_.fill == "recorded" else {}
        made = eval(input_expression(input_), {"torch": torch, "VALUES": recorded})
        if made.device.type != device.type:
            made = StorageCopier(device=device)(made)
        values[input_.name] = copy_tree(made.detach())
        namespace[input_.name] = made
