"""The last lines of a plain script: what they call, and the one observable that they compare."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.programs.scripts import eager_probe, repro_script
from fuzzcompile.programs.scripts.eager_probe import EagerProbe
from fuzzcompile.programs.scripts.repro_script import ComparedValue, ScriptPlan

# Runs scripts one after the other in one process, and classifies the result of each.

# The last line of a traceback: the type of an error and its message.
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::|$)")
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+', re.MULTILINE)
_COMPARES = "torch/testing/_comparison.py"
ACCEPTED = "compiled:"


def split_error(output: str) -> tuple[str, str, str]:
    """Split an output into the text before the final traceback, the traceback's frames, and the error with its text.

    The last two are empty if no error ended it.
    """
    before, head, rest = output.rpartition(f"\n{_HEAD}\n") if not output.startswith(f"{_HEAD}\n") else ("", "x", output)
    if not head:
        return output, "", ""
    lines = rest.splitlines()
    number = next((n for n, line in enumerate(lines) if line != _HEAD and _ERROR.match(line)), len(lines))
    return before.split(_HEAD)[0], "\n".join(lines[:number]), "\n".join(lines[number:])


def classify_output(check: str, output: str, status: int) -> str:
    """Return the result of a script, from its output and exit status: "right", "wrong" or "raises".

    ``check`` says how it shows the bug: "asserts", "views" (a view that only compiled results refuse), "raises",
    "accepts" (prints what compiled code returns, and raises after that).
    """
    _, frames, error = split_error(output)
    if status != 0 and not error:
        return "raises"
    if check == "accepts":
        return "wrong" if error and any(line.startswith(ACCEPTED) for line in output.splitlines()) else "right"
    if not error:
        return "right"
    files = _FRAME.findall(frames)
    own = bool(files) and (files[-1].endswith(("repro.py", "rung.py")) or files[-1].endswith(_COMPARES))
    if check == "asserts" and own and error.startswith("AssertionError"):
        return "wrong"
    if check == "views" and own and error.startswith("RuntimeError: view "):
        return "wrong"
    return "raises"


def shows_bug(check: str, result: str) -> bool:
    """Return whether a script that showed ``result`` under Inductor shows the bug."""
    return result == ("raises" if check == "raises" else "wrong")


def _run(script: str) -> tuple[str, int]:
    """Run a script in this process; return its output, and the exit status that it would have."""
    import contextlib
    import io
    import runpy
    import traceback

    import torch

    torch._dynamo.reset()
    Path("rung.py").write_text(script, encoding="utf-8")
    printed, status = io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path("rung.py", run_name="__main__")
        except BaseException:  # the script is a candidate: whatever it raises is what it shows
            status = 1
            traceback.print_exc()
    return printed.getvalue(), status


def _climb() -> None:
    for number, rungs in enumerate(json.loads(Path("scripts.json").read_text(encoding="utf-8"))):
        for place, rung in enumerate(rungs):
            with Path("seen.jsonl").open("a", encoding="utf-8") as seen:
                print(json.dumps({"candidate": number, "backend": rung["backend"]}), file=seen, flush=True)
                output, status = _run(rung["script"])
                answer = classify_output(rung["check"], output, status)
                print(json.dumps({"candidate": number, "backend": rung["backend"], "result": answer, "output": output,
                                  "status": status}), file=seen, flush=True)  # fmt: skip
            if (place == 0 and not shows_bug(rung["check"], answer)) or (place == 1 and answer != "right"):
                break
        else:
            return


if __name__ == "__main__":
    sys.path.insert(0, "")
    _climb()


# A result or the inputs of one call of several.
_CALL = re.compile(r"\b(outs|calls)\[\d+\]")
_PROPERTIES = {"strides": "{}.stride()", "dtype": "{}.dtype", "shape": "{}.shape"}


@dataclass(frozen=True)
class ScriptCheck:
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
class CallText:
    """A script's call of its program: the name of the callee, and the expressions of its arguments.

    ``star`` is put before a single argument that holds all of them. With ``runs``, the case's own ``run`` drives it.
    ``held`` are variables of the script that were attributes of the module.
    """

    callee: str
    arguments: Sequence[str]
    star: str = ""
    runs: bool = False
    held: frozenset[str] = field(default_factory=frozenset)

    def format_call(self, function: str, replaced: Mapping[str, str] | None = None, suffix: str = "") -> str:
        """A call of ``function``; ``replaced`` are other expressions for arguments, ``suffix`` follows each tensor."""
        arguments = [(replaced or {}).get(name, name + suffix) for name in self.arguments]
        if not self.runs:
            return f"{function}({self.star}{', '.join(arguments)})"
        whole = arguments[0] if self.star else f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        return f"run({function}, {whole})"

    def format_observable(self, expression: str, call: str) -> str:
        """An observable's expression, with ``call`` for the result, and the script's names for inputs and module."""
        tree = _ObservableRewriter(self, ast.parse(call, mode="eval").body).visit(ast.parse(expression, mode="eval"))
        return ast.unparse(tree)


def generate_checks(script: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    """The ways to show what ``script`` compares, the plainest first; each call of several is checked as it is made."""
    if len(script.drive.probe.inputs) == 1:
        yield from _check_one_call(script, calls)
        return
    targets = tuple(
        replace(
            target,
            expression=_CALL.sub(_rename_call, target.expression),
            partner=_CALL.sub(_rename_call, target.partner),
        )
        for target in script.targets
    )
    for check in _check_one_call(replace(script, targets=targets), calls):
        yield replace(check, lines=["for inputs in [inputs, *CALLS]:", *(f"    {line}" for line in check.lines)])


def _rename_call(match: re.Match[str]) -> str:
    return "out" if match[1] == "outs" else "inputs"


def _check_one_call(script: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    probe = script.drive.probe
    if script.form == "raises":
        yield from _check_error(script, calls, "raises")
    elif script.form == "process":
        yield from _check_error(script, calls, "dies")
    elif script.form == "accepts":
        tail = _format_backward(script)
        yield ScriptCheck(
            "accepts",
            [f'print("{ACCEPTED}", {calls.format_call("compiled")}{tail})', f"{calls.format_call(calls.callee)}{tail}"],
        )
    elif script.form == "nondeterministic":
        made = f"results = [{_format_outputs(script, calls, 'compiled')} for _ in range(4)]"
        equal = "torch.equal(result, results[0])" if script.tensors else "result == results[0]"
        yield ScriptCheck("asserts", [made, f"assert all({equal} for result in results)"])
    elif script.form == "memory":
        yield from _check_memory(script, calls)
    elif script.form == "metadata":
        yield from _check_metadata(script, calls)
    elif any(_find_value_kind(target) == "gradient" for target in script.targets):
        yield _check_gradient(script, calls, _format_assert_close(probe))
    elif any(_find_value_kind(target) == "mutation" for target in script.targets):
        yield from _check_mutation(script, calls)
    else:
        yield from _check_values(script, calls)


# -- values -------------------------------------------------------------------------------------


def _check_values(script: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    probe = script.drive.probe
    doubled = _convert_to_float64(calls, probe) if script.form == "apart in float64" else []
    pair = f"{_format_outputs(script, calls, 'compiled')}, {_format_outputs(script, calls, calls.callee)}"
    if not script.tensors:
        result, expected = (_format_outputs(script, calls, function) for function in ("compiled", calls.callee))
        yield ScriptCheck("asserts", [f"print({pair})", f"assert {result} == {expected}"])
        return
    hidden = [target for target in script.targets if target.evidence.get("within_default_tolerance")]
    plain = _check_pair(script, pair, _format_assert_close(probe), calls, doubled)
    if not hidden:
        yield plain
    target = script.targets[0] if script.targets else None
    if target is not None and target.observable.floating:
        share = repro_script.share_apart([(target.observable, target.evidence)])
        relative = f", rtol={repro_script.format_number(share)}, atol=0{_format_assert_close(probe)}"
        yield _check_pair(script, pair, relative, calls, doubled)
        convertible = not (probe.is_module and calls.held)
        if script.form == "values" and probe.tensor_inputs and convertible:
            yield _check_against_float64(script, calls)


def _check_pair(script: ScriptPlan, pair: str, tolerance: str, calls: CallText, doubled: Sequence[str]) -> ScriptCheck:
    if not script.drive.random:
        return ScriptCheck("asserts", [f"torch.testing.assert_close({pair}{tolerance})"], doubled)
    lines = []
    for name, function in (("expected", calls.callee), ("result", "compiled")):
        lines += ["torch.manual_seed(0)", f"{name} = {_format_outputs(script, calls, function)}"]
    return ScriptCheck("asserts", [*lines, f"torch.testing.assert_close(result, expected{tolerance})"], doubled)


def _check_against_float64(script: ScriptPlan, calls: CallText) -> ScriptCheck:
    """Both errors against float64, for what `torch.testing.assert_close` lets pass."""
    target, probe = script.targets[0], script.drive.probe
    exact = calls.format_observable(target.expression, _call_in_float64(calls, probe))
    wide = calls.format_observable(target.expression, calls.format_call("function", _clone_inputs(script, calls)))
    bound = (
        script.bound
        if not script.several
        else f"10 * error_eager + {repro_script.format_number(1.3e-6)} * exact.abs().max().item()"
    )
    return ScriptCheck(
        "asserts",
        [
            f"exact = {exact}",
            f"error_eager, error_compiled = (({wide} - exact).abs().max().item() "
            f"for function in ({calls.callee}, compiled))",
            'print(f"error against float64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")',
            f"assert error_compiled <= {bound}",
        ],
    )


def _check_mutation(script: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    """An input or a part of the module after the call."""
    target = next(target for target in script.targets if _find_value_kind(target) == "mutation")
    reached = calls.format_observable(target.expression, "out")
    if reached in calls.arguments:
        compared = f"torch.testing.assert_close({reached}, expected{_format_assert_close(script.drive.probe)})"
        yield ScriptCheck("asserts", [*_run_on_copy(calls, reached, "expected"), compared])
    elif target.expression.startswith("model.") and (not calls.held or reached.startswith(f"{calls.callee}.")):
        expected = calls.format_observable(target.expression, "out").replace(calls.callee, "expected", 1)
        lines = [calls.format_call("expected"), calls.format_call("compiled")]
        lines.append(f"torch.testing.assert_close({reached}, {expected}{_format_assert_close(script.drive.probe)})")
        yield ScriptCheck("asserts", lines, [f"expected = copy.deepcopy({calls.callee})"], imports=["import copy"])


def _run_on_copy(calls: CallText, reached: str, copied: str) -> list[str]:
    """Eager mode on a copy of the argument that is written to, and then the compiled program on the argument itself."""
    first = [f"{copied} = {reached}.clone()", calls.format_call(calls.callee, {reached: copied})]
    return [*first, calls.format_call("compiled")]


def _check_gradient(script: ScriptPlan, calls: CallText, tolerance: str, measured: str = "") -> ScriptCheck:
    """Gradients by ``torch.autograd.grad``, of a fixed combination of the outputs.

    ``measured`` is a property of them to compare, with ``{}`` for the gradient, in place of their values.
    """
    target = next(target for target in script.targets if _find_value_kind(target) == "gradient")
    with_respect_to = calls.format_observable(target.expression.removesuffix(".grad"), "out")
    output = script.drive.probe.outputs[0] if script.drive.probe.outputs else None
    if isinstance(output, torch.Tensor) and not (script.drive.random or script.drive.calls):
        sizes = ", ".join(map(str, output.shape)) or "()"
        kind = "" if output.dtype is torch.get_default_dtype() else f", dtype={output.dtype}"
        setup = [f"grad = torch.randn({sizes}{kind})"]
        got, expected = (
            f"torch.autograd.grad({calls.format_call(function)}, {with_respect_to}, grad)[0]"
            for function in ("compiled", calls.callee)
        )
        imports = []
    else:
        setup = [
            "def gradient(function):",
            "    torch.manual_seed(0)",
            f"    outs = [x for x in tree_leaves({calls.format_call('function')}) if torch.is_tensor(x) and "
            "x.requires_grad]",
            "    loss = sum((x * torch.randn(x.shape)).sum() for x in outs)",
            f"    return torch.autograd.grad(loss, {with_respect_to})[0]",
        ]
        got, expected = "gradient(compiled)", f"gradient({calls.callee})"
        imports = ["from torch.utils._pytree import tree_leaves"]
    if measured:
        lines = [f"eager, result = {expected}, {got}", *_list_measured(measured)]
    else:
        lines = [f"expected = {expected}", f"torch.testing.assert_close({got}, expected{tolerance})"]
    return ScriptCheck("asserts", lines, setup, imports=imports)


# -- metadata and memory ----------------------------------------------------------------


def _check_metadata(script: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    target = script.targets[0]
    if script.property_name == "structure":
        pair = [f"tree_structure({calls.format_call(function)})" for function in (calls.callee, "compiled")]
        lines = [f"eager, result = {', '.join(pair)}", "print(eager, result)", "assert result == eager"]
        yield ScriptCheck("asserts", lines, seeded=False, imports=["from torch.utils._pytree import tree_structure"])
        return
    written = _PROPERTIES.get(script.property_name, "({0}.dtype, {0}.shape, {0}.stride())")
    if _find_value_kind(target) == "gradient":
        yield _check_gradient(script, calls, "", written)
        return
    eager, result = (
        calls.format_observable(target.expression, calls.format_call(name)) for name in (calls.callee, "compiled")
    )
    if _find_value_kind(target) == "mutation":
        reached = calls.format_observable(target.expression, "out")
        if reached not in calls.arguments:
            return
        first = [*_run_on_copy(calls, reached, "eager"), f"result = {reached}"]
    else:
        first = [f"eager, result = {eager}, {result}"]
    if target.evidence.get("view_raises") and script.property_name == "strides":
        printed = 'print("eager:", eager.stride(), "compiled:", result.stride())'
        yield ScriptCheck("views", [*first, printed, "eager.view(-1)  # runs", "result.view(-1)"], seeded=False)
    yield ScriptCheck("asserts", [*first, *_list_measured(written)], seeded=False)


def _list_measured(written: str) -> list[str]:
    eager, result = written.format("eager"), written.format("result")
    return [f'print("eager:", {eager}, "compiled:", {result})', f"assert {result} == {eager}"]


def _check_memory(script: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    """Writing into one tensor and looking at the other; where the other is no input, their addresses."""
    target = script.targets[0]
    partner = calls.format_observable(target.partner, "out")
    if partner in calls.arguments:
        written = {
            name: calls.format_observable(target.expression, calls.format_call(name))
            for name in (calls.callee, "compiled")
        }
        for write in (".add_(1)", ".logical_not_()"):
            lines = [
                f"expected = {partner}.clone()",
                calls.format_observable(target.expression, calls.format_call(calls.callee, {partner: "expected"}))
                + write,
                written["compiled"] + write,
                f"torch.testing.assert_close({partner}, expected)",
            ]
            yield ScriptCheck("asserts", lines)
    lines = [f"eager, result = {calls.format_call(calls.callee)}, {calls.format_call('compiled')}"]
    same = {}
    for name in ("eager", "result"):
        pair = [calls.format_observable(part, name) for part in (target.expression, target.partner)]
        same[name] = " == ".join(f"{part}.untyped_storage().data_ptr()" for part in pair)
    lines += [f"shared = [{same['eager']}, {same['result']}]", "print(shared)", "assert shared[1] == shared[0]"]
    yield ScriptCheck("asserts", lines, seeded=False)


def _check_error(script: ScriptPlan, calls: CallText, kind: str) -> Iterator[ScriptCheck]:
    tail = _format_backward(script)
    clones = _clone_inputs(script, calls)
    yield ScriptCheck(
        kind,
        [f"{calls.format_call(calls.callee, clones)}{tail}  # runs", f"{calls.format_call('compiled', clones)}{tail}"],
    )


def _find_value_kind(target: ComparedValue) -> str:
    """Return the kind of value that a script compares: a result, its gradient, or state after a call."""
    if target.expression.endswith(".grad"):
        return "gradient"
    return "output" if target.expression.startswith("out") else target.observable.kind


# -- parts ------------------------------------------------------------------------------


def _format_outputs(script: ScriptPlan, calls: CallText, function: str) -> str:
    """The compared outputs of a call of ``function``."""
    call = calls.format_call(function, _clone_inputs(script, calls))
    if _is_whole(script):
        return call
    parts = [calls.format_observable(target.expression, call) for target in script.targets] or [call]
    return parts[0]


def _is_whole(script: ScriptPlan) -> bool:
    """Return whether all outputs are compared, and `torch.testing.assert_close` takes them as returned."""
    outputs = script.drive.probe.outputs
    if not script.targets or not outputs:
        return True
    leaves = pytree.tree_leaves(outputs[0])
    comparable = eager_probe.is_flat(outputs[0]) and all(torch.is_tensor(leaf) for leaf in leaves)
    return comparable and len(leaves) == len(script.targets)


def _clone_inputs(script: ScriptPlan, calls: CallText) -> dict[str, str]:
    """Copies in place of the inputs that the program writes to."""
    probe = script.drive.probe
    written = [name for name, seen in probe.observables.items() if seen.kind == "mutation"]
    expressions = [eager_probe.find_expression(name, probe) for name in written]
    reached = [calls.format_observable(text, "out") for text in expressions if text is not None]
    return {name: f"{name}.clone()" for name in reached if name in calls.arguments}


def _format_backward(script: ScriptPlan) -> str:
    probe = script.drive.probe
    single = bool(probe.outputs) and isinstance(probe.outputs[0], torch.Tensor)
    return ".sum().backward()" if probe.case.backward and single else ""


def _convert_to_float64(calls: CallText, probe: EagerProbe) -> list[str]:
    lines = [
        f"{name} = {name}.double()"
        for name, value in zip(calls.arguments, probe.tensor_inputs, strict=False)
        if value.is_floating_point()
    ]
    return [*lines, f"{calls.callee}.double()"] if probe.is_module else lines


def _call_in_float64(calls: CallText, probe: EagerProbe) -> str:
    leaves = pytree.tree_leaves(probe.inputs[0])
    wide = {
        name: f"{name}.double()"
        for name, value in zip(calls.arguments, leaves, strict=False)
        if torch.is_tensor(value) and value.is_floating_point()
    }
    return calls.format_call(f"copy.deepcopy({calls.callee}).double()" if probe.is_module else calls.callee, wide)


def _format_assert_close(probe: EagerProbe) -> str:
    return ", equal_nan=True" if probe.nonfinite else ""


class _ObservableRewriter(ast.NodeTransformer):
    """Puts a script's own names into an observable's expression."""

    def __init__(self, calls: CallText, call: ast.expr) -> None:
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
