"""The ATen operators that a compiled program calls, with the inputs that they really get, strides and all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from fuzzcompile.case import Case
from fuzzcompile.compiler.session import Compilation, compiling
from fuzzcompile.execution.building import build
from fuzzcompile.execution.runs import observe
from fuzzcompile.execution.tensors import copy_tree


@dataclass(frozen=True)
class OperatorCall:
    """One call of an ATen operator: copies of its arguments, with their strides."""

    operator: torch._ops.OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]

    def run(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> object:
        """Call it on fresh copies; ``change`` is applied to each tensor."""
        args, kwargs = copy_tree((list(self.args), dict(self.kwargs)))
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, change, (args, kwargs))
        with torch.no_grad():
            return self.operator(*args, **kwargs)


def operator_calls(case: Case, device: torch.device, *, decomposed: bool) -> list[OperatorCall]:
    """Run the case compiled to graphs of ATen operators, forward and backward, which run call by call.

    Views, operators that write to their arguments and those that draw random numbers are left out: run again, they
    would not be the same call.

    Args:
        case: the case.
        device: where to run it.
        decomposed: decompose operators as Inductor does before it lowers them.

    Raises:
        CaseError: ``make()`` fails.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
    from torch._inductor.decomposition import select_decomp_table

    calls: list[OperatorCall] = []

    def compiler(module: fx.GraphModule, inputs: object) -> Callable[..., object]:
        boxed: Callable[..., object] = make_boxed_func(_Recorder(module, calls).run)
        return boxed

    table = select_decomp_table() if decomposed else {}
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=table)
    settings = replace(case.settings, backend=backend, options={}, mode=None)
    with compiling(settings, Compilation(record=False)) as session:
        program = build(case, device)
        observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)
    return calls


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps a copy of the arguments of each call of an operator."""

    def __init__(self, module: fx.GraphModule, calls: list[OperatorCall]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._calls = calls

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if isinstance(target, torch._ops.OpOverload) and _can_be_repeated(target):
            self._calls.append(OperatorCall(target, *copy_tree((list(args), dict(kwargs)))))
        return super().call_function(target, args, kwargs)


def _can_be_repeated(operator: torch._ops.OpOverload) -> bool:
    views = any(result.alias_info is not None for result in operator._schema.returns)
    random = torch.Tag.nondeterministic_seeded in operator.tags
    return operator.namespace == "aten" and not (views or random or operator._schema.is_mutable)
