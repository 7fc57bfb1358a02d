"""The code by which a reproducer runs its case: settings, conversions, calls, backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.execution.building import RUN_SEED
from fuzzcompile.execution.observing import COTANGENT_SEED
from fuzzcompile.reduction.scripts import naming
from fuzzcompile.reduction.scripts.probe import Probe
from fuzzcompile.reduction.scripts.sources import makes_tensors, names_bound
from fuzzcompile.sides import AOTI, COMPILE

_GENERATOR = f"torch.manual_seed({COTANGENT_SEED})"

# Export takes modules.
_AS_MODULE = 'type("Program", (torch.nn.Module,), {"forward": lambda self, *args: model(*args)})()'


@dataclass(frozen=True)
class Driving:
    """Expressions and statements that run the case of ``probe``, for the script's template.

    Without ``with_backward`` the backward pass is left out, for scripts that compare nothing after it. A case that was
    ``told`` ran on the CPU, and the script runs it on the GPU.
    """

    probe: Probe
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
            return self._exported
        if settings.backend != "inductor":
            arguments.append("backend=BACKEND")
        if settings.mode:
            arguments.append("mode=MODE")
        if settings.options:
            whole = "OPTIONS" in names_bound(self.source)
            arguments.append("options=OPTIONS" if whole else f"options={dict(settings.options)}")
        if settings.dynamic is not None:
            arguments.append("dynamic=DYNAMIC")
        if settings.fullgraph:
            arguments.append("fullgraph=FULLGRAPH")
        return f"torch.compile({', '.join(arguments)})"

    @property
    def _exported(self) -> str:
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
        return self.call(model, self._converted("x.double()"))

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
        leaves = "out" if naming.is_flat(output) and not isinstance(output, dict) else "tree_leaves(out)"
        if any(not _is_floating(leaf) for leaf in pytree.tree_leaves(output)):
            leaves = f"[x for x in {leaves} if torch.is_tensor(x) and x.is_floating_point()]"
        product = f"x * {self._cotangent('x', 'random')}"
        return f"random = {_GENERATOR}\nsum(({product}).sum() for x in {leaves}).backward()"

    def clashes(self, text: str) -> bool:
        """Return whether the script text binds names of the case."""
        return bool(names_bound(self.source) & names_bound(text))

    def needs(self, text: str) -> list[str]:
        """The import lines that the script text needs."""
        lines = [f"import {name}" for name in ("copy", "inspect", "subprocess", "sys") if f"{name}." in text]
        modules = [f"torch._{name}.config" for name in self.probe.case.settings.config_patches]
        if "torch._dynamo.reset" in text:
            modules.append("torch._dynamo")
        if self.random:
            modules.append("torch._inductor.config")
        lines += [f"import {name}" for name in sorted(modules)] or (
            [] if "torch" in names_bound(self.source) else ["import torch"]
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
        converted = self._converted(tensor, floating=floating)
        return f"model, {inputs} = {model}, {converted}" if self.probe.is_module else f"{inputs} = {converted}"

    def _converted(self, tensor: str, *, floating: bool = True) -> str:
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
