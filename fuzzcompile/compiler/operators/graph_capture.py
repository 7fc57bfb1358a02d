"""Dynamo's graphs of a program and the ATen operators that they call, with the inputs that they really get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from fuzzcompile.compiler.functional_run import OperatorMode
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.model.stages import JOINT_GRAPH
from fuzzcompile.run.case import Case, CompileSettings
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import observe
from fuzzcompile.run.tensors import copy_tree


@dataclass(frozen=True)
class CapturedGraph:
    """One graph of dynamo at the level of torch's own functions, as it was first called.

    ``inputs`` are copies of what its placeholders got, in order; ``parameters`` says which of them are parameters.
    ``grad`` is whether gradients were recorded then.
    """

    module: fx.GraphModule
    inputs: list[object]
    parameters: tuple[bool, ...]
    grad: bool


def make_watching_backend(seen: dict[int, CapturedGraph]) -> Callable[[fx.GraphModule, object], Callable[..., object]]:
    """A backend that runs graphs as they are, and adds each to ``seen``, by module, when it is first called.

    A graph comes with the inputs of its first call, or of the call that it refused.
    """

    def backend(module: fx.GraphModule, example_inputs: object) -> Callable[..., object]:
        def run(*inputs: object) -> object:
            if id(module) not in seen:
                seen[id(module)] = _copy_call(module, inputs)
                return module(*inputs)
            try:
                return module(*inputs)
            except Exception:  # the case may be one of a call that eager refuses, whatever it raises
                # Copied after the call: a copy before each call would be for nothing in all other cases.
                seen[id(module)] = _copy_call(module, inputs)
                raise

        return run

    return backend


def capture_graphs(case: Case, device: torch.device, *, dynamic: bool | None = False) -> list[CapturedGraph]:
    """Run the case with a backend that only watches: every graph that was called, in the order of the first calls.

    ``dynamic`` is as ``torch.compile`` takes it; False captures each shape as it is.
    """
    seen: dict[int, CapturedGraph] = {}
    backend = make_watching_backend(seen)
    settings = replace(case.settings, backend=backend, options={}, mode=None, dynamic=dynamic)
    _compile_and_run(case, device, settings, Compilation(record=False))
    return list(seen.values())


def _compile_and_run(case: Case, device: torch.device, settings: CompileSettings, how: Compilation) -> Ledger:
    with open_session(settings, how) as session:
        program = build(case, device)
        observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)
    return session.ledger


def _copy_call(module: fx.GraphModule, inputs: Sequence[object]) -> CapturedGraph:
    held = tuple(isinstance(value, torch.nn.Parameter) for value in inputs)
    return CapturedGraph(module, copy_tree(list(inputs)), held, torch.is_grad_enabled())


def capture_functional(case: Case, device: torch.device) -> list[CapturedGraph]:
    """The graphs that AOTAutograd hands on where no gradients are recorded, in ATen operators, with their inputs.

    Transforms of functions (``vmap``, ``grad``) and higher-order operators that dynamo's graphs hold are worked out in
    them. Sizes are as symbolic as the case asks for.
    """
    found = []
    for frame in _compile_and_run(case, device, case.settings, Compilation(screen=True)).frames:
        record = frame.find_record(JOINT_GRAPH)
        if record is None or record.direction == "joint" or not record.snapshots:
            continue
        snapshot = record.snapshots[0]
        wanted = sum(node.op == "placeholder" for node in snapshot.graph.nodes)
        calls = [call for call in (*frame.forward_calls, *frame.dynamo_calls) if len(call) == wanted]
        if calls:
            held = tuple(isinstance(value, torch.nn.Parameter) for value in calls[0])
            module = fx.GraphModule(dict(snapshot.attributes), snapshot.graph)
            found.append(CapturedGraph(module, list(calls[0]), held, grad=False))
    return found


@dataclass(frozen=True)
class AtenCall:
    """One call of an ATen operator: copies of its arguments, with their strides."""

    operator: torch._ops.OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]


def record_operator_calls(case: Case, device: torch.device, *, decomposed: bool) -> list[AtenCall]:
    """Run the case in eager mode, forward and backward, and return its calls of ATen operators.

    Views, operators that write to their arguments and those that draw random numbers are left out: run again, they
    would not be the same call. With ``decomposed``, the case is compiled to graphs of operators decomposed as Inductor
    does before it lowers them, which run call by call.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
    from torch._inductor.decomposition import select_decomp_table

    calls: list[AtenCall] = []

    def record(operator: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        returned = operator._schema.returns if isinstance(operator, torch._ops.OpOverload) else ()
        views = any(result.alias_info is not None for result in returned)
        random = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
        if operator.namespace == "aten" and not (views or random or operator._schema.is_mutable):
            calls.append(AtenCall(operator, *copy_tree((list(args), dict(kwargs)))))
        return operator(*args, **kwargs)

    def compiler(module: fx.GraphModule, inputs: object) -> Callable[..., object]:
        def run(*inputs: object) -> object:
            with OperatorMode(record):
                return module(*inputs)

        boxed: Callable[..., object] = make_boxed_func(run)
        return boxed

    if not decomposed:
        program = build(case, device)
        observe(case, program, program.model, around=OperatorMode(record))
        return calls
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=select_decomp_table())
    settings = replace(case.settings, backend=backend, options={}, mode=None)
    _compile_and_run(case, device, settings, Compilation(record=False))
    return calls
