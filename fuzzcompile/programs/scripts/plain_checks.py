"""The last lines of a plain script: what they call, and the one observable that they compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.utils._pytree import tree_leaves

from fuzzcompile.programs.scripts import eager_probe, script_plan
from fuzzcompile.programs.scripts.script_plan import ComparedValue, ScriptPlan

ACCEPTED = "compiled:"
# A result or the inputs of one call of several.
_CALL = re.compile(r"\b(outs|calls)\[\d+\]")
# The names in an observable's expression that a script has other ones for.
_OBSERVABLE = re.compile(r"(?<![\w.\"'])(?:out|model(?:\.(?P<attribute>\w+))?|inputs\[(?P<index>\d+)\])(?!\w)")
_PROPERTIES = {"strides": "{0}.stride()", "dtype": "{0}.dtype", "shape": "{0}.shape"}


@dataclass(frozen=True)
class ScriptCheck:
    """The way a script shows the bug.

    ``kind`` is one of those of `fuzzcompile.programs.scripts.ladder.classify_output`, or "dies" if its process does.
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

    def format_call(self, function: str, replaced: Mapping[str, str] | None = None) -> str:
        """A call of ``function``; ``replaced`` are other expressions for arguments."""
        arguments = [(replaced or {}).get(name, name) for name in self.arguments]
        if not self.runs:
            return f"{function}({self.star.strip()}{', '.join(arguments)})"
        whole = arguments[0] if self.star else f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        return f"run({function}, {whole})"

    def format_observable(self, expression: str, call: str) -> str:
        """An observable's expression, with ``call`` for the result, and the script's names for inputs and module."""

        def put(found: re.Match[str]) -> str:
            if found["index"]:
                return found[0] if self.star else self.arguments[int(found["index"])]
            if found[0] == "out":
                return call
            attribute = found["attribute"] or ""
            return attribute if attribute in self.held else found[0].replace("model", self.callee, 1)

        return _OBSERVABLE.sub(put, expression)


def generate_checks(plan: ScriptPlan, calls: CallText) -> Iterator[ScriptCheck]:
    """The ways to show what ``plan`` compares, the plainest first; each call of several is checked as it is made."""
    if not plan.calls:
        yield from _Checks(plan, calls).generate()
        return

    def rename(expression: str) -> str:
        return _CALL.sub(lambda match: "out" if match[1] == "outs" else "inputs", expression)

    one_call = [replace(t, expression=rename(t.expression), partner=rename(t.partner)) for t in plan.targets]
    for check in _Checks(replace(plan, targets=tuple(one_call)), calls).generate():
        yield replace(check, lines=["for inputs in [inputs, *CALLS]:", *(f"    {line}" for line in check.lines)])


class _Checks:
    """The checks of one call: what the script compares, in the script's own names."""

    def __init__(self, plan: ScriptPlan, calls: CallText) -> None:
        self.plan, self.calls, self.probe = plan, calls, plan.probe
        self.target = plan.targets[0] if plan.targets else None
        self.equal_nan = ", equal_nan=True" if self.probe.nonfinite else ""
        # Copies in place of the inputs that the program writes to.
        written = [name for name, seen in self.probe.observables.items() if seen.kind == "mutation"]
        reached = [text for name in written if (text := eager_probe.find_expression(name, self.probe)) is not None]
        reached = [calls.format_observable(text, "out") for text in reached]
        self.clones = {name: f"{name}.clone()" for name in reached if name in calls.arguments}

    def generate(self) -> Iterator[ScriptCheck]:
        form, callee, call = self.plan.form, self.calls.callee, self.calls.format_call
        single = bool(self.probe.outputs) and isinstance(self.probe.outputs[0], torch.Tensor)
        tail = ".sum().backward()" if self.probe.case.backward and single else ""
        kinds = {_find_value_kind(target): target for target in reversed(self.plan.targets)}
        if form in ("raises", "process"):
            lines = [f"{call(callee, self.clones)}{tail}  # runs", f"{call('compiled', self.clones)}{tail}"]
            yield ScriptCheck("raises" if form == "raises" else "dies", lines)
        elif form == "accepts":
            yield ScriptCheck("accepts", [f'print("{ACCEPTED}", {call("compiled")}{tail})', f"{call(callee)}{tail}"])
        elif form == "nondeterministic":
            equal = "torch.equal(result, results[0])" if self.plan.tensors else "result == results[0]"
            made = f"results = [{self._outputs('compiled')} for _ in range(4)]"
            yield ScriptCheck("asserts", [made, f"assert all({equal} for result in results)"])
        elif form == "memory":
            yield from self._compare_memory(self.plan.targets[0])
        elif form == "metadata":
            yield from self._compare_metadata(self.plan.targets[0])
        elif "gradient" in kinds:
            yield self._compare_gradient(kinds["gradient"])
        elif "mutation" in kinds:
            yield from self._compare_mutation(kinds["mutation"])
        else:
            yield from self._compare_values()

    # -- values -------------------------------------------------------------------------------------

    def _compare_values(self) -> Iterator[ScriptCheck]:
        result, expected = self._outputs("compiled"), self._outputs(self.calls.callee)
        if not self.plan.tensors:
            yield ScriptCheck("asserts", [f"print({result}, {expected})", f"assert {result} == {expected}"])
            return
        if not any(target.evidence.get("within_default_tolerance") for target in self.plan.targets):
            yield self._pair(result, expected, self.equal_nan)
        if self.target is not None and self.target.observable.floating:
            share = script_plan.share_apart([self.target])
            wide = f", rtol={script_plan.format_number(share)}, atol=0{self.equal_nan}"
            yield self._pair(result, expected, wide)
            convertible = not (self.probe.is_module and self.calls.held)
            if self.plan.form == "values" and self.probe.tensor_inputs and convertible:
                yield self._against_float64(self.target)

    def _pair(self, result: str, expected: str, tolerance: str) -> ScriptCheck:
        doubled: list[str] = []
        if self.plan.form == "apart in float64":
            pairs = zip(self.calls.arguments, self.probe.tensor_inputs, strict=False)
            doubled = [f"{name} = {name}.double()" for name, value in pairs if value.is_floating_point()]
            doubled += [f"{self.calls.callee}.double()"] * self.probe.is_module
        lines, seed = list[str](), "torch.manual_seed(0)"
        if self.probe.random:
            lines, result, expected = [seed, f"expected = {expected}", seed, f"result = {result}"], "result", "expected"
        return ScriptCheck("asserts", [*lines, f"torch.testing.assert_close({result}, {expected}{tolerance})"], doubled)

    def _against_float64(self, target: ComparedValue) -> ScriptCheck:
        """Both errors against float64, for what `torch.testing.assert_close` lets pass."""
        calls, callee = self.calls, self.calls.callee
        pairs = zip(calls.arguments, tree_leaves(self.probe.inputs[0]), strict=False)
        wide = {name: f"{name}.double()" for name, x in pairs if torch.is_tensor(x) and x.is_floating_point()}
        double = calls.format_call(f"copy.deepcopy({callee}).double()" if self.probe.is_module else callee, wide)
        exact = calls.format_observable(target.expression, double)
        result = calls.format_observable(target.expression, calls.format_call("function", self.clones))
        error = f"({result} - exact).abs().max().item()"
        single = f"10 * error_eager + {script_plan.format_number(script_plan.SINGLE_RTOL)} * exact.abs().max().item()"
        lines = [
            f"exact = {exact}",
            f"error_eager, error_compiled = ({error} for function in ({callee}, compiled))",
            'print(f"error against float64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")',
            f"assert error_compiled <= {single if self.plan.several else self.plan.bound}",
        ]
        return ScriptCheck("asserts", lines)

    def _compare_mutation(self, target: ComparedValue) -> Iterator[ScriptCheck]:
        calls, reached = self.calls, self.calls.format_observable(target.expression, "out")
        if reached in calls.arguments:
            compared = f"torch.testing.assert_close({reached}, expected{self.equal_nan})"
            yield ScriptCheck("asserts", [*self._run_on_copy(reached, "expected"), compared])
        elif target.expression.startswith("model.") and (not calls.held or reached.startswith(f"{calls.callee}.")):
            expected = reached.replace(calls.callee, "expected", 1)
            lines = [calls.format_call("expected"), calls.format_call("compiled")]
            lines.append(f"torch.testing.assert_close({reached}, {expected}{self.equal_nan})")
            yield ScriptCheck("asserts", lines, [f"expected = copy.deepcopy({calls.callee})"], imports=["import copy"])

    def _run_on_copy(self, reached: str, copied: str) -> list[str]:
        first = self.calls.format_call(self.calls.callee, {reached: copied})
        return [f"{copied} = {reached}.clone()", first, self.calls.format_call("compiled")]

    def _compare_gradient(self, target: ComparedValue, measured: str = "") -> ScriptCheck:
        """Gradients by ``torch.autograd.grad``, of a fixed combination of the outputs.

        ``measured`` is a property of them to compare, with ``{}`` for the gradient, in place of their values.
        """
        with_respect_to = self.calls.format_observable(target.expression.removesuffix(".grad"), "out")
        output = self.probe.outputs[0] if self.probe.outputs else None
        imports: list[str] = []
        if isinstance(output, torch.Tensor) and not (self.probe.random or self.plan.calls):
            sizes = ", ".join(map(str, output.shape)) or "()"
            kind = "" if output.dtype is torch.get_default_dtype() else f", dtype={output.dtype}"
            setup = [f"grad = torch.randn({sizes}{kind})"]
            got, expected = (
                f"torch.autograd.grad({self.calls.format_call(function)}, {with_respect_to}, grad)[0]"
                for function in ("compiled", self.calls.callee)
            )
        else:
            made = f"tree_leaves({self.calls.format_call('function')})"
            setup = [
                "def gradient(function):",
                "    torch.manual_seed(0)",
                f"    outs = [x for x in {made} if torch.is_tensor(x) and x.requires_grad]",
                "    loss = sum((x * torch.randn(x.shape)).sum() for x in outs)",
                f"    return torch.autograd.grad(loss, {with_respect_to})[0]",
            ]
            got, expected = "gradient(compiled)", f"gradient({self.calls.callee})"
            imports = ["from torch.utils._pytree import tree_leaves"]
        if measured:
            lines = [f"eager, result = {expected}, {got}", *_list_measured(measured)]
        else:
            lines = [f"expected = {expected}", f"torch.testing.assert_close({got}, expected{self.equal_nan})"]
        return ScriptCheck("asserts", lines, setup, imports=imports)

    # -- metadata and memory ----------------------------------------------------------------

    def _compare_metadata(self, target: ComparedValue) -> Iterator[ScriptCheck]:
        calls, name = self.calls, self.plan.property_name
        if name == "structure":
            eager, result = (f"tree_structure({calls.format_call(name)})" for name in (calls.callee, "compiled"))
            lines = [f"eager, result = {eager}, {result}", "print(eager, result)", "assert result == eager"]
            imports = ["from torch.utils._pytree import tree_structure"]
            yield ScriptCheck("asserts", lines, seeded=False, imports=imports)
            return
        written = _PROPERTIES.get(name, "({0}.dtype, {0}.shape, {0}.stride())")
        kind = _find_value_kind(target)
        if kind == "gradient":
            yield self._compare_gradient(target, written)
            return
        if kind == "mutation":
            reached = calls.format_observable(target.expression, "out")
            if reached not in calls.arguments:
                return
            first = [*self._run_on_copy(reached, "eager"), f"result = {reached}"]
        else:
            eager, result = (self._observe(target.expression, name) for name in (calls.callee, "compiled"))
            first = [f"eager, result = {eager}, {result}"]
        if target.evidence.get("view_raises") and name == "strides":
            printed = 'print("eager:", eager.stride(), "compiled:", result.stride())'
            yield ScriptCheck("views", [*first, printed, "eager.view(-1)  # runs", "result.view(-1)"], seeded=False)
        yield ScriptCheck("asserts", [*first, *_list_measured(written)], seeded=False)

    def _compare_memory(self, target: ComparedValue) -> Iterator[ScriptCheck]:
        """Writing into one tensor and looking at the other; where the other is no input, their addresses."""
        calls, callee = self.calls, self.calls.callee
        partner = calls.format_observable(target.partner, "out")
        if partner in calls.arguments:
            eager = self._observe(target.expression, callee, {partner: "expected"})
            compiled = self._observe(target.expression, "compiled")
            copied, compared = f"expected = {partner}.clone()", f"torch.testing.assert_close({partner}, expected)"
            for write in (".add_(1)", ".logical_not_()"):
                yield ScriptCheck("asserts", [copied, f"{eager}{write}", f"{compiled}{write}", compared])
        made = f"eager, result = {calls.format_call(callee)}, {calls.format_call('compiled')}"
        eager, result = (
            " == ".join(
                f"{calls.format_observable(part, name)}.untyped_storage().data_ptr()"
                for part in (target.expression, target.partner)
            )
            for name in ("eager", "result")
        )
        shared = [f"shared = [{eager}, {result}]", "print(shared)", "assert shared[1] == shared[0]"]
        yield ScriptCheck("asserts", [made, *shared], seeded=False)

    def _observe(self, expression: str, function: str, replaced: Mapping[str, str] | None = None) -> str:
        return self.calls.format_observable(expression, self.calls.format_call(function, replaced))

    def _outputs(self, function: str) -> str:
        """The compared outputs of a call: all of them, if `torch.testing.assert_close` takes them as returned."""
        call, outputs = self.calls.format_call(function, self.clones), self.probe.outputs
        if self.target is None or not outputs:
            return call
        leaves = tree_leaves(outputs[0])
        comparable = eager_probe.is_flat(outputs[0]) and all(torch.is_tensor(leaf) for leaf in leaves)
        if comparable and len(leaves) == len(self.plan.targets):
            return call
        return self.calls.format_observable(self.target.expression, call)


def _list_measured(written: str) -> list[str]:
    eager, result = written.format("eager"), written.format("result")
    return [f'print("eager:", {eager}, "compiled:", {result})', f"assert {result} == {eager}"]


def _find_value_kind(target: ComparedValue) -> str:
    """Return the kind of value that a script compares: a result, its gradient, or state after a call."""
    if target.expression.endswith(".grad"):
        return "gradient"
    return "output" if target.expression.startswith("out") else target.observable.kind
