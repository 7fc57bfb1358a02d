"""The last lines of a plain script: what they call, and the one observable that they compare."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.reduction.plain.rungs import ACCEPTED
from fuzzcompile.reduction.scripts import naming, tolerances
from fuzzcompile.reduction.scripts.comparing import Script, Target
from fuzzcompile.reduction.scripts.probe import Probe

# A result or the inputs of one call of several.
_CALL = re.compile(r"\b(outs|calls)\[\d+\]")
_PROPERTIES = {"strides": "{}.stride()", "dtype": "{}.dtype", "shape": "{}.shape"}


@dataclass(frozen=True)
class Check:
    """The way a script shows the bug; ``kind`` is one of `rungs.result_of`'s, or "dies" if its process does.

    ``lines`` use ``compiled`` and the names of the program and its inputs; ``setup`` are lines before the program is
    compiled. ``seeded`` is whether the values of the inputs matter.
    """

    kind: str
    lines: Sequence[str]
    setup: Sequence[str] = ()
    seeded: bool = True
    imports: Sequence[str] = ()


@dataclass(frozen=True)
class Calls:
    """A script's call of its program: the name of the callee, and the expressions of its arguments.

    ``star`` is put before a single argument that holds all of them. With ``runs``, the case's own ``run`` drives it.
    ``held`` are variables of the script that were attributes of the module.
    """

    callee: str
    arguments: Sequence[str]
    star: str = ""
    runs: bool = False
    held: frozenset[str] = field(default_factory=frozenset)

    def of(self, function: str, replaced: Mapping[str, str] | None = None, suffix: str = "") -> str:
        """A call of ``function``; ``replaced`` are other expressions for arguments, ``suffix`` follows each tensor."""
        arguments = [(replaced or {}).get(name, name + suffix) for name in self.arguments]
        if not self.runs:
            return f"{function}({self.star}{', '.join(arguments)})"
        whole = arguments[0] if self.star else f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        return f"run({function}, {whole})"

    def reached(self, expression: str, call: str) -> str:
        """An observable's expression, with ``call`` for the result, and the script's names for inputs and module."""
        tree = _Reaching(self, ast.parse(call, mode="eval").body).visit(ast.parse(expression, mode="eval"))
        return ast.unparse(tree)


def checks(script: Script, calls: Calls) -> Iterator[Check]:
    """The ways to show what ``script`` compares, the plainest first; each call of several is checked as it is made."""
    if len(script.drive.probe.inputs) == 1:
        yield from _of_one_call(script, calls)
        return
    targets = tuple(
        replace(target, expression=_CALL.sub(_of_each, target.expression), partner=_CALL.sub(_of_each, target.partner))
        for target in script.targets
    )
    for check in _of_one_call(replace(script, targets=targets), calls):
        yield replace(check, lines=["for inputs in [inputs, *CALLS]:", *(f"    {line}" for line in check.lines)])


def _of_each(match: re.Match[str]) -> str:
    return "out" if match[1] == "outs" else "inputs"


def _of_one_call(script: Script, calls: Calls) -> Iterator[Check]:
    probe = script.drive.probe
    if script.form == "raises":
        yield from _raising(script, calls, "raises")
    elif script.form == "process":
        yield from _raising(script, calls, "dies")
    elif script.form == "accepts":
        tail = _backward(script)
        yield Check(
            "accepts", [f'print("{ACCEPTED}", {calls.of("compiled")}{tail})', f"{calls.of(calls.callee)}{tail}"]
        )
    elif script.form == "nondeterministic":
        made = f"results = [{_of(script, calls, 'compiled')} for _ in range(4)]"
        equal = "torch.equal(result, results[0])" if script.tensors else "result == results[0]"
        yield Check("asserts", [made, f"assert all({equal} for result in results)"])
    elif script.form == "memory":
        yield from _memory(script, calls)
    elif script.form == "metadata":
        yield from _metadata(script, calls)
    elif any(_kind(target) == "gradient" for target in script.targets):
        yield _gradient(script, calls, _close(probe))
    elif any(_kind(target) == "mutation" for target in script.targets):
        yield from _mutation(script, calls)
    else:
        yield from _values(script, calls)


# -- values -------------------------------------------------------------------------------------


def _values(script: Script, calls: Calls) -> Iterator[Check]:
    probe = script.drive.probe
    doubled = _doubled(calls, probe) if script.form == "apart in float64" else []
    pair = f"{_of(script, calls, 'compiled')}, {_of(script, calls, calls.callee)}"
    if not script.tensors:
        result, expected = (_of(script, calls, function) for function in ("compiled", calls.callee))
        yield Check("asserts", [f"print({pair})", f"assert {result} == {expected}"])
        return
    hidden = [target for target in script.targets if target.evidence.get("within_default_tolerance")]
    plain = _compared(script, pair, _close(probe), calls, doubled)
    if not hidden:
        yield plain
    target = script.targets[0] if script.targets else None
    if target is not None and target.observable.floating:
        share = tolerances.share_apart([(target.observable, target.evidence)])
        relative = f", rtol={_number(share)}, atol=0{_close(probe)}"
        yield _compared(script, pair, relative, calls, doubled)
        convertible = not (probe.is_module and calls.held)
        if script.form == "values" and probe.tensor_inputs and convertible:
            yield _against_float64(script, calls)


def _compared(script: Script, pair: str, tolerance: str, calls: Calls, doubled: Sequence[str]) -> Check:
    if not script.drive.random:
        return Check("asserts", [f"torch.testing.assert_close({pair}{tolerance})"], doubled)
    lines = []
    for name, function in (("expected", calls.callee), ("result", "compiled")):
        lines += ["torch.manual_seed(0)", f"{name} = {_of(script, calls, function)}"]
    return Check("asserts", [*lines, f"torch.testing.assert_close(result, expected{tolerance})"], doubled)


def _against_float64(script: Script, calls: Calls) -> Check:
    """Both errors against float64, for what `torch.testing.assert_close` lets pass."""
    target, probe = script.targets[0], script.drive.probe
    exact = calls.reached(target.expression, _in_float64(calls, probe))
    wide = calls.reached(target.expression, calls.of("function", _clones(script, calls)))
    bound = script.bound if not script.several else f"10 * error_eager + {_number(1.3e-6)} * exact.abs().max().item()"
    return Check(
        "asserts",
        [
            f"exact = {exact}",
            f"error_eager, error_compiled = (({wide} - exact).abs().max().item() "
            f"for function in ({calls.callee}, compiled))",
            'print(f"error against float64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")',
            f"assert error_compiled <= {bound}",
        ],
    )


def _mutation(script: Script, calls: Calls) -> Iterator[Check]:
    """An input or a part of the module after the call."""
    target = next(target for target in script.targets if _kind(target) == "mutation")
    reached = calls.reached(target.expression, "out")
    if reached in calls.arguments:
        lines = [f"expected = {reached}.clone()", calls.of(calls.callee, {reached: "expected"}), calls.of("compiled")]
        yield Check("asserts", [*lines, f"torch.testing.assert_close({reached}, expected{_close(script.drive.probe)})"])
    elif target.expression.startswith("model.") and (not calls.held or reached.startswith(f"{calls.callee}.")):
        expected = calls.reached(target.expression, "out").replace(calls.callee, "expected", 1)
        lines = [calls.of("expected"), calls.of("compiled")]
        lines.append(f"torch.testing.assert_close({reached}, {expected}{_close(script.drive.probe)})")
        yield Check("asserts", lines, [f"expected = copy.deepcopy({calls.callee})"], imports=["import copy"])


def _gradient(script: Script, calls: Calls, tolerance: str, measured: str = "") -> Check:
    """Gradients by ``torch.autograd.grad``, of a fixed combination of the outputs.

    ``measured`` is a property of them to compare, with ``{}`` for the gradient, in place of their values.
    """
    target = next(target for target in script.targets if _kind(target) == "gradient")
    with_respect_to = calls.reached(target.expression.removesuffix(".grad"), "out")
    output = script.drive.probe.outputs[0] if script.drive.probe.outputs else None
    if isinstance(output, torch.Tensor) and not (script.drive.random or script.drive.calls):
        sizes = ", ".join(map(str, output.shape)) or "()"
        kind = "" if output.dtype is torch.get_default_dtype() else f", dtype={output.dtype}"
        setup = [f"grad = torch.randn({sizes}{kind})"]
        got, expected = (
            f"torch.autograd.grad({calls.of(function)}, {with_respect_to}, grad)[0]"
            for function in ("compiled", calls.callee)
        )
        imports = []
    else:
        setup = [
            "def gradient(function):",
            "    torch.manual_seed(0)",
            f"    outs = [x for x in tree_leaves({calls.of('function')}) if torch.is_tensor(x) and x.requires_grad]",
            "    loss = sum((x * torch.randn(x.shape)).sum() for x in outs)",
            f"    return torch.autograd.grad(loss, {with_respect_to})[0]",
        ]
        got, expected = "gradient(compiled)", f"gradient({calls.callee})"
        imports = ["from torch.utils._pytree import tree_leaves"]
    if measured:
        lines = [f"eager, result = {expected}, {got}", *_measured(measured)]
    else:
        lines = [f"expected = {expected}", f"torch.testing.assert_close({got}, expected{tolerance})"]
    return Check("asserts", lines, setup, imports=imports)


# -- metadata and memory ----------------------------------------------------------------


def _metadata(script: Script, calls: Calls) -> Iterator[Check]:
    target = script.targets[0]
    if script.property_name == "structure":
        pair = [f"tree_structure({calls.of(function)})" for function in (calls.callee, "compiled")]
        lines = [f"eager, result = {', '.join(pair)}", "print(eager, result)", "assert result == eager"]
        yield Check("asserts", lines, seeded=False, imports=["from torch.utils._pytree import tree_structure"])
        return
    written = _PROPERTIES.get(script.property_name, "({0}.dtype, {0}.shape, {0}.stride())")
    if _kind(target) == "gradient":
        yield _gradient(script, calls, "", written)
        return
    eager, result = (calls.reached(target.expression, calls.of(name)) for name in (calls.callee, "compiled"))
    if _kind(target) == "mutation":
        reached = calls.reached(target.expression, "out")
        if reached not in calls.arguments:
            return
        first = [f"eager = {reached}.clone()", calls.of(calls.callee, {reached: "eager"}), calls.of("compiled")]
        first.append(f"result = {reached}")
    else:
        first = [f"eager, result = {eager}, {result}"]
    if target.evidence.get("view_raises") and script.property_name == "strides":
        printed = 'print("eager:", eager.stride(), "compiled:", result.stride())'
        yield Check("views", [*first, printed, "eager.view(-1)  # runs", "result.view(-1)"], seeded=False)
    yield Check("asserts", [*first, *_measured(written)], seeded=False)


def _measured(written: str) -> list[str]:
    eager, result = written.format("eager"), written.format("result")
    return [f'print("eager:", {eager}, "compiled:", {result})', f"assert {result} == {eager}"]


def _memory(script: Script, calls: Calls) -> Iterator[Check]:
    """Writing into one tensor and looking at the other; where the other is no input, their addresses."""
    target = script.targets[0]
    partner = calls.reached(target.partner, "out")
    if partner in calls.arguments:
        written = {name: calls.reached(target.expression, calls.of(name)) for name in (calls.callee, "compiled")}
        for write in (".add_(1)", ".logical_not_()"):
            lines = [
                f"expected = {partner}.clone()",
                calls.reached(target.expression, calls.of(calls.callee, {partner: "expected"})) + write,
                written["compiled"] + write,
                f"torch.testing.assert_close({partner}, expected)",
            ]
            yield Check("asserts", lines)
    lines = [f"eager, result = {calls.of(calls.callee)}, {calls.of('compiled')}"]
    same = {}
    for name in ("eager", "result"):
        pair = [calls.reached(part, name) for part in (target.expression, target.partner)]
        same[name] = " == ".join(f"{part}.untyped_storage().data_ptr()" for part in pair)
    lines += [f"shared = [{same['eager']}, {same['result']}]", "print(shared)", "assert shared[1] == shared[0]"]
    yield Check("asserts", lines, seeded=False)


def _raising(script: Script, calls: Calls, kind: str) -> Iterator[Check]:
    tail = _backward(script)
    clones = _clones(script, calls)
    yield Check(kind, [f"{calls.of(calls.callee, clones)}{tail}  # runs", f"{calls.of('compiled', clones)}{tail}"])


def _kind(target: Target) -> str:
    """Return the kind of value that a script compares: a result, its gradient, or state after a call."""
    if target.expression.endswith(".grad"):
        return "gradient"
    return "output" if target.expression.startswith("out") else target.observable.kind


# -- parts ------------------------------------------------------------------------------


def _of(script: Script, calls: Calls, function: str) -> str:
    """The compared outputs of a call of ``function``."""
    call = calls.of(function, _clones(script, calls))
    if _is_whole(script):
        return call
    parts = [calls.reached(target.expression, call) for target in script.targets] or [call]
    return parts[0]


def _is_whole(script: Script) -> bool:
    """Return whether all outputs are compared, and `torch.testing.assert_close` takes them as returned."""
    outputs = script.drive.probe.outputs
    if not script.targets or not outputs:
        return True
    leaves = pytree.tree_leaves(outputs[0])
    comparable = naming.is_flat(outputs[0]) and all(torch.is_tensor(leaf) for leaf in leaves)
    return comparable and len(leaves) == len(script.targets)


def _clones(script: Script, calls: Calls) -> dict[str, str]:
    """Copies in place of the inputs that the program writes to."""
    probe = script.drive.probe
    written = [name for name, seen in probe.observables.items() if seen.kind == "mutation"]
    expressions = [naming.expression(name, probe) for name in written]
    reached = [calls.reached(text, "out") for text in expressions if text is not None]
    return {name: f"{name}.clone()" for name in reached if name in calls.arguments}


def _backward(script: Script) -> str:
    probe = script.drive.probe
    single = bool(probe.outputs) and isinstance(probe.outputs[0], torch.Tensor)
    return ".sum().backward()" if probe.case.backward and single else ""


def _doubled(calls: Calls, probe: Probe) -> list[str]:
    lines = [
        f"{name} = {name}.double()"
        for name, value in zip(calls.arguments, probe.tensor_inputs, strict=False)
        if value.is_floating_point()
    ]
    return [*lines, f"{calls.callee}.double()"] if probe.is_module else lines


def _in_float64(calls: Calls, probe: Probe) -> str:
    leaves = pytree.tree_leaves(probe.inputs[0])
    wide = {
        name: f"{name}.double()"
        for name, value in zip(calls.arguments, leaves, strict=False)
        if torch.is_tensor(value) and value.is_floating_point()
    }
    return calls.of(f"copy.deepcopy({calls.callee}).double()" if probe.is_module else calls.callee, wide)


def _close(probe: Probe) -> str:
    return ", equal_nan=True" if probe.nonfinite else ""


def _number(value: float) -> str:
    return f"{value:.2g}".replace("e-0", "e-")


class _Reaching(ast.NodeTransformer):
    """Puts a script's own names into an observable's expression."""

    def __init__(self, calls: Calls, call: ast.expr) -> None:
        self._calls, self._call = calls, call

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "out":
            return self._call
        return ast.Name(self._calls.callee, node.ctx) if node.id == "model" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "model" and node.attr in self._calls.held:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        index = node.slice
        flat = isinstance(node.value, ast.Name) and node.value.id == "inputs" and not self._calls.star
        if flat and isinstance(index, ast.Constant) and isinstance(index.value, int):
            return ast.parse(self._calls.arguments[index.value], mode="eval").body
        return self.generic_visit(node)
