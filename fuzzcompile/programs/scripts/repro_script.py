"""The code by which a reproducer runs its case: settings, conversions, calls, backward."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.model.contract import AOTI, COMPILE, OutputJson
from fuzzcompile.programs.ir.case_text import find_bound_names, makes_tensors
from fuzzcompile.programs.scripts import eager_probe
from fuzzcompile.programs.scripts.eager_probe import EagerProbe, Observable
from fuzzcompile.run.case_program import RUN_SEED
from fuzzcompile.run.observation import COTANGENT_SEED

_GENERATOR = f"torch.manual_seed({COTANGENT_SEED})"

# Export takes modules.
_AS_MODULE = 'type("Program", (torch.nn.Module,), {"forward": lambda self, *args: model(*args)})()'


@dataclass(frozen=True)
class Driving:
    """Expressions and statements that run the case of ``probe``, for the script's template.

    Without ``with_backward`` the backward pass is left out, for scripts that compare nothing after it. A case that was
    ``told`` ran on the CPU, and the script runs it on the GPU.
    """

    probe: EagerProbe
    source: str
    device: str
    with_backward: bool
    seed: int = RUN_SEED
    told: bool = False

    @property
    def on_gpu(self) -> bool:
        """Return whether the script needs a GPU."""
        return self.device.startswith("cuda")

    @property
    def placed(self) -> bool:
        """Return whether the program makes tensors without a device argument, which would stay on the CPU."""
        return self.told and makes_tensors(self.source)

    @property
    def calls(self) -> bool:
        """Return whether the case makes several calls in a row."""
        return len(self.probe.inputs) > 1

    @property
    def random(self) -> bool:
        """Return whether the program draws random numbers."""
        return self.probe.random

    @property
    def seed_before_make(self) -> bool:
        """Return whether ``make()`` leaves the seeding to its caller."""
        return "manual_seed" not in self.source

    @property
    def around(self) -> str:
        """The context managers around a run."""
        case = self.probe.case
        contexts = [] if case.grad == "enabled" else [f"torch.{case.grad}()"]
        for name in case.settings.config_patches:
            contexts.append(f'torch._{name}.config.patch(CONFIG["{name}"])')
        if self.placed:
            contexts.append('torch.device("cuda")')
        return ", ".join(contexts)

    @property
    def compiled(self) -> str:
        """The call of ``torch.compile``, or what stands for it on another path."""
        settings, arguments = self.probe.case.settings, ["model"]
        if settings.path != COMPILE:
            return self._export_call
        if settings.backend != "inductor":
            arguments.append("backend=BACKEND")
        if settings.mode:
            arguments.append("mode=MODE")
        if settings.options:
            whole = "OPTIONS" in find_bound_names(self.source)
            arguments.append("options=OPTIONS" if whole else f"options={dict(settings.options)}")
        if settings.dynamic is not None:
            arguments.append("dynamic=DYNAMIC")
        if settings.fullgraph:
            arguments.append("fullgraph=FULLGRAPH")
        return f"torch.compile({', '.join(arguments)})"

    @property
    def _export_call(self) -> str:
        """The program exported for the inputs of a call; with symbolic sizes for the first call's, and run for all."""
        settings, sizes = self.probe.case.settings, ""
        if settings.dynamic:
            free = "{d: Dim.AUTO for d in range(x.dim())} if torch.is_tensor(x) else None"
            sizes = f", dynamic_shapes=tree_map(lambda x: {free}, args)"
        model = "model" if self.probe.is_module else _AS_MODULE
        run = f"torch.export.export({model}, args{sizes})"
        if settings.path == AOTI:
            options = f", inductor_configs={dict(settings.options)}" if settings.options else ""
            run = f"torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package({run}{options}))"
        else:
            run += ".module()"
        if settings.dynamic and self.calls:
            return f"(lambda *args: {run})(*inputs)"
        return f"(lambda *args: {run}(*args))"

    def call(self, target: str, inputs: str = "inputs") -> str:
        """One call of ``target``."""
        if self.probe.case.run is not None:
            return f"run({target}, {inputs})"
        arguments = self.probe.inputs[0]
        stars = "**" if isinstance(arguments, dict) else "*" if isinstance(arguments, tuple) else ""
        return f"{target}({stars}{inputs})"

    @property
    def call_doubled(self) -> str:
        """One call in float64."""
        model = "model.double()" if self.probe.is_module else "model"
        return self.call(model, self._convert("x.double()"))

    @property
    def doubled(self) -> str:
        """The statement that brings the program to float64."""
        return self._conversion("model.double()", "x.double()")

    @property
    def moved(self) -> str:
        """The statement that brings the program to the device; empty for the CPU."""
        if not self.on_gpu:
            return ""
        return self._conversion("model.cuda()", "x.cuda()", floating=False)

    @property
    def backward(self) -> str:
        """The statement that runs the backward pass, as ``execution.runs`` does it; empty without one."""
        if not self.with_backward:
            return ""
        output = self.probe.outputs[0] if self.probe.outputs else None
        if isinstance(output, torch.Tensor):
            return f"out.backward({self._cotangent('out', _GENERATOR)})"
        leaves = "out" if eager_probe.is_flat(output) and not isinstance(output, dict) else "tree_leaves(out)"
        if any(not _is_floating(leaf) for leaf in pytree.tree_leaves(output)):
            leaves = f"[x for x in {leaves} if torch.is_tensor(x) and x.is_floating_point()]"
        product = f"x * {self._cotangent('x', 'random')}"
        return f"random = {_GENERATOR}\nsum(({product}).sum() for x in {leaves}).backward()"

    def clashes(self, text: str) -> bool:
        """Return whether the script text binds names of the case."""
        return bool(find_bound_names(self.source) & find_bound_names(text))

    def needs(self, text: str) -> list[str]:
        """The import lines that the script text needs."""
        lines = [f"import {name}" for name in ("copy", "inspect", "subprocess", "sys") if f"{name}." in text]
        modules = [f"torch._{name}.config" for name in self.probe.case.settings.config_patches]
        if "torch._dynamo.reset" in text:
            modules.append("torch._dynamo")
        if self.random:
            modules.append("torch._inductor.config")
        lines += [f"import {name}" for name in sorted(modules)] or (
            [] if "torch" in find_bound_names(self.source) else ["import torch"]
        )
        trees = [name for name in ("tree_leaves", "tree_map", "tree_structure") if f"{name}(" in text]
        if "Dim.AUTO" in text:
            lines.append("from torch.export import Dim")
        if trees:
            lines.append(f"from torch.utils._pytree import {', '.join(trees)}")
        if self.random:
            lines.append("torch._inductor.config.fallback_random = True")
        return lines

    def _cotangent(self, output: str, generator: str) -> str:
        """The expression for an output's cotangent, as ``execution.observing.backward`` draws it."""
        where = ', device="cpu"' if self.placed else ""
        return f"torch.randn({output}.shape, generator={generator}{where}).bfloat16().half().to({output})"

    def _conversion(self, model: str, tensor: str, *, floating: bool = True) -> str:
        inputs = "calls" if self.calls else "inputs"
        converted = self._convert(tensor, floating=floating)
        return f"model, {inputs} = {model}, {converted}" if self.probe.is_module else f"{inputs} = {converted}"

    def _convert(self, tensor: str, *, floating: bool = True) -> str:
        """The inputs (all calls' inputs) with each (floating) tensor ``x`` replaced by ``tensor``."""
        tensors, arguments = self.probe.tensor_inputs, self.probe.inputs[0]
        if self.with_backward and any(x.requires_grad for x in tensors):
            tensor = tensor.replace("x.", "x.detach().", 1) + ".requires_grad_(x.requires_grad)"
        plain = not floating or all(x.is_floating_point() for x in tensors)
        if self.calls or not _only_tensors(arguments):
            which = "torch.is_tensor(x)" + (" and x.is_floating_point()" if floating else "")
            return f"tree_map(lambda x: {tensor} if {which} else x, {'calls' if self.calls else 'inputs'})"
        if isinstance(arguments, torch.Tensor):
            return tensor.replace("x.", "inputs.")
        return f"[{tensor}{'' if plain else ' if x.is_floating_point() else x'} for x in inputs]"


def _only_tensors(arguments: object) -> bool:
    """Return whether a plain list comprehension over the inputs (or the input itself) reaches every tensor."""
    if isinstance(arguments, torch.Tensor):
        return arguments.is_floating_point()
    return isinstance(arguments, tuple) and all(isinstance(x, torch.Tensor) for x in arguments)


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


# Bounds for a reproducer: wide enough for rounding, narrow enough for the error that was seen.

# Relative part of torch.testing.assert_close's default tolerance.
_DEFAULT_RTOL = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}
_SINGLE_RTOL = 1.3e-6
# How far two float64 runs of one program may be apart, in units of the largest value.
FLOAT64_SHARE = 1e-9
# Perturbed runs are small samples of what rounding can do.
_NOISE_FACTOR = 3
# The error that was seen must exceed the bound by this much, or the bound says too little.
_MARGIN = 1.5

SeenErrors = Iterable[tuple[Observable, OutputJson]]


@dataclass(frozen=True)
class Allowed:
    """The compiled error may be ``factor`` times the eager error plus ``share`` of the largest value."""

    factor: float
    share: float

    def at(self, eager: float, largest: float) -> float:
        """The bound in absolute terms."""
        return self.factor * eager + self.share * largest


def choose_bound(seen: SeenErrors) -> Allowed:
    """The widest usual bound that every error in the evidence exceeds; the widest of all without evidence."""
    seen = list(seen)
    share = max((_share(observable, evidence) for observable, evidence in seen), default=_SINGLE_RTOL)
    choices = (Allowed(10, share), Allowed(3, share), Allowed(3, 0.0), Allowed(1.5, 0.0))
    return next((choice for choice in choices if all(_exceeds(*pair, choice) for pair in seen)), choices[-1])


def share_apart(seen: SeenErrors) -> float:
    """Share of the largest value by which compiled and eager may differ where float64 cannot arbitrate."""
    seen = list(seen)
    share = max((_share(observable, evidence) for observable, evidence in seen), default=_SINGLE_RTOL)
    wide = Allowed(0, 10 * share)
    return wide.share if all(_exceeds(*pair, wide) for pair in seen) else share


def _share(observable: Observable, evidence: OutputJson) -> float:
    rtol = _DEFAULT_RTOL.get(observable.dtype, _SINGLE_RTOL) if observable.dtype else _SINGLE_RTOL
    noise = evidence.get("noise_floor")
    if not noise or not observable.largest:
        return rtol
    return max(rtol, _NOISE_FACTOR * float(noise) / observable.largest)


def _exceeds(observable: Observable, evidence: OutputJson, bound: Allowed) -> bool:
    compiled = evidence.get("max_abs_error_compiled")
    if compiled is None or not math.isfinite(compiled) or evidence.get("finding") == "missing":
        return True  # not measured, or not finite
    return bool(compiled > _MARGIN * bound.at(evidence.get("max_abs_error_eager") or 0.0, observable.largest))


# The comparison that a reproducer makes, as expressions for its template.

Form = Literal[
    "values",
    "apart",
    "apart in float64",
    "integers",
    "metadata",
    "memory",
    "raises",
    "accepts",
    "nondeterministic",
    "process",
]
_PROPERTIES = {
    "dtype": "out.dtype",
    "shape": "tuple(out.shape)",
    "strides": "[s for n, s in zip(out.shape, out.stride()) if n > 1]",
}


@dataclass(frozen=True)
class ComparedValue:
    """One observable that the script compares: the expression for it, and its evidence, if there is any.

    ``partner`` is the expression for a tensor that shares its memory in one of the runs.
    """

    observable: Observable
    expression: str
    evidence: OutputJson = field(default_factory=OutputJson)
    partner: str = ""


@dataclass(frozen=True)
class ScriptPlan:
    """The data of the template ``reports/reproducer.py.j2``; ``drive`` runs the case."""

    drive: Driving
    form: Form
    targets: tuple[ComparedValue, ...] = ()
    property_name: str = ""
    remark: str = ""
    limit: int = 120

    @property
    def flat(self) -> bool:
        """Return whether one model and one set of inputs serve all runs, so that the script needs no loop."""
        probe = self.drive.probe
        return (
            probe.repeatable
            and self.form != "memory"
            and (probe.float64 or self.form != "values")
            and not (self.drive.calls or self.several)
            and all(target.observable.kind == "output" for target in self.targets)
        )

    @property
    def several(self) -> bool:
        """Return whether more than one observable is compared."""
        return len(self.targets) > 1

    @property
    def tensors(self) -> bool:
        """Return whether tensors are compared, not Python objects."""
        return all(target.observable.is_tensor for target in self.targets)

    @property
    def shown(self) -> str:
        """The expression for what is compared, after a run."""
        expressions = [_compare(target) for target in self.targets]
        return f"[{', '.join(expressions)}]" if self.several else expressions[0]

    def show(self, call: str) -> str:
        """The same, with the call in place of ``out``."""
        return self.shown.replace("(out)", f"({call})") if "(out)" in self.shown else call + self.shown[3:]

    @property
    def names(self) -> str:
        """The names of the observables, as the text of a tuple."""
        return "({})".format(", ".join(f'"{target.observable.name}"' for target in self.targets))

    @property
    def nonfinite(self) -> bool:
        """Return whether NaN or infinity is part of a right answer."""
        return self.drive.probe.nonfinite

    @property
    def difference(self) -> str:
        """The largest difference between compiled and eager."""
        dtypes = [target.observable.dtype for target in self.targets]
        complex_ = any(dtype is not None and dtype.is_complex for dtype in dtypes)
        wide = ".to(torch.complex128)" if complex_ else ".double()"
        if self.nonfinite:
            return f"distance(compiled{wide}, eager{wide}).max().item()"
        return f"(compiled{wide} - eager{wide}).abs().max().item()"

    @property
    def bound(self) -> str:
        """The expression for the largest allowed error."""
        if self.form == "apart in float64":
            return f"{format_number(FLOAT64_SHARE)} * {self._largest('eager')}"
        pairs = [(target.observable, target.evidence) for target in self.targets]
        if self.form == "apart":
            return f"{format_number(share_apart(pairs))} * {self._largest('eager')}"
        allowed = choose_bound(pairs)
        share = f" + {format_number(allowed.share)} * {self._largest('exact')}" if allowed.share else ""
        return f"{allowed.factor:g} * error_eager{share}"

    @property
    def metadata(self) -> str:
        """The expression for the metadata that is compared."""
        if self.property_name == "structure":
            return "tree_structure(out)"
        return _PROPERTIES.get(self.property_name) or f"({', '.join(_PROPERTIES.values())})"

    @property
    def equal(self) -> str:
        """The expression for two runs being the same, in the form that repeats runs."""
        if self.several:
            return "all(map(torch.equal, out, outs[0]))"
        return "torch.equal(out, outs[0])" if self.tensors else "(out == outs[0])"

    @property
    def heading(self) -> str:
        """The start of the line of figures (torch, device, what is measured), as part of an f-string."""
        gpu = ", {torch.cuda.get_device_name()}" if self.drive.device.startswith("cuda") else ""
        figures = {
            "values": ", error vs fp64:",
            "apart": ", compiled differs from eager by:",
            "apart in float64": ", in float64 compiled differs from eager by:",
            "integers": ", elements that differ from eager:" if self.tensors else ":",
        }
        return "torch {torch.__version__}" + gpu + figures.get(self.form, ":")

    @property
    def sharing(self) -> str:
        """The pairs of tensors whose memory is compared, as part of an f-string."""
        return ", ".join(f"{target.expression} and {target.partner}" for target in self.targets).replace('"', "'")

    def _largest(self, run: str) -> str:
        finite = ".nan_to_num(0, 0, 0)" if self.nonfinite else ""
        return f"{run}{finite}.abs().max().item()"


def _compare(target: ComparedValue) -> str:
    return f"memory({target.expression}) == memory({target.partner})" if target.partner else target.expression


def format_number(value: float) -> str:
    """Two digits, without leading zeros in the exponent: 1.3e-6."""
    return f"{value:.2g}".replace("e-0", "e-")
