"""Conformance of the patches with the installed torch: each is tried on a few small compiles."""

from __future__ import annotations

import functools
import importlib
import operator
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzzcompile.compiler.compile_changes import (
    CompileChange,
    CompiledAnew,
    GraphBreak,
    InductorSettings,
    Lowered,
    Undecomposed,
    Veto,
    WatchedInstructions,
)
from fuzzcompile.compiler.instructions import InstructionTrace
from fuzzcompile.compiler.kernels.lowering_control import EVERYTHING, Control
from fuzzcompile.compiler.operators import decompositions, operator_application
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, open_session, silence_torch
from fuzzcompile.compiler.watch import patch_table
from fuzzcompile.compiler.watch.compiler_errors import find_inner_error
from fuzzcompile.compiler.watch.ledger import Ledger, ProbeLedgers
from fuzzcompile.compiler.watch.patch_table import AnyPatch
from fuzzcompile.compiler.watch.torch_patch import install_patches, run_contained, switched_off
from fuzzcompile.compiler.watch.unseen import Unseen, get_gathered
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.facts import is_tried_release
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.torch_attributes import ReplacedAttribute

# Programs that the probes of the patches compile, and passes that leave a mark in their graphs.


class _TrainedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((5,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * self.weight * torch.ones(5)


class _FrozenModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.scale = nn.Conv2d(2, 4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.sin(self.convolution(x)) * (self.scale * 2)
        return result


def _run_inference(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(torch.sin(x) * torch.ones(5))


def _run_activation(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(_run_inference(x))


def _run_several_kernels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.exp(x), torch.cos(x), x.sum(-1), nn.functional.silu(x), x @ x


def _run_fused_loops(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.sin(x))


def _run_methods(x: torch.Tensor) -> torch.Tensor:
    result = torch.sin(x)
    result[0] = 1
    rank = result.dim()
    return torch.exp(result * rank)


_SINE, _TIMES = torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor


def last_probe(graph: fx.Graph, sine: Any = _SINE, times: Any = _TIMES) -> None:
    """A user's pass that marks a graph with a multiplication by one behind each sine."""
    for node in graph.find_nodes(op="call_function", target=sine):
        with graph.inserting_after(node):
            new = graph.call_function(times, (node, 1.0))
        new.meta.update(node.meta)
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)


def module_probe(module: fx.GraphModule) -> None:
    """A pass over a module that marks its graph."""
    last_probe(module.graph)


def joint_probe(module: fx.GraphModule, inputs: object) -> fx.GraphModule:
    """A user's pass over the joint graph that marks it."""
    last_probe(module.graph)
    return module


def fusion_probe(nodes: object) -> object:
    """A user's pass over the scheduler's nodes that leaves them as they are."""
    return nodes


def _dead_probe(graph: fx.Graph) -> None:
    observer = importlib.import_module("torch.fx.passes.graph_transform_observer").GraphTransformObserver
    observer(graph.owning_module, "module_probe").apply_gm_pass(module_probe)
    for node in graph.find_nodes(op="call_function", target=_SINE):
        with graph.inserting_after(node):
            graph.call_function(torch.ops.aten.neg.default, (node,)).meta.update(node.meta)


def doubled_sine(match: Any, x: fx.Node) -> None:
    """Handler of the planted pattern: it makes every sine twice as large."""
    match.replace_by_example(lambda x: torch.sin(x) * 2, [x])


def _pattern_probe(graph: fx.Graph) -> None:
    matcher = importlib.import_module("torch._inductor.pattern_matcher")
    table = matcher.PatternMatcherPass()
    pattern = matcher.CallFunction(_SINE, matcher.KeywordArg("x"))
    matcher.register_graph_pattern(pattern, pass_dict=table)(doubled_sine)
    table.apply(graph)


_CHANGES = Control(
    fallbacks=("aten.cos.default",),
    apart=(EVERYTHING,),
    realised=("aten.exp.default",),
    scalarised=("exp",),
    separate=True,
    strided=True,
)


_STORED = Control(realised=("aten.sin.default",), stored=True)
_BREAKS = GraphBreak(
    (("operator.setitem", operator.setitem), ("torch.Tensor.dim", "dim"), ("operator.mul", operator.mul))
)


def find_missing_patches() -> dict[str, str]:
    """Names of the patches that the installed torch has no place for, and why."""
    return {patch.name: why for patch in patch_table.PATCHES if (why := patch.check_place()) is not None}


def probe_patches() -> dict[str, str]:
    """Try every patch; the name of each that failed, and how. Switches those off for this process."""
    switched_off.clear()
    missing = find_missing_patches()
    findings = _compile_without_failing_patches()
    untried = [patch for patch in patch_table.PATCHES if patch.name not in {**switched_off, **missing}]
    found = {patch.name: _try_patch(patch, findings) for patch in untried}
    switched_off.update({name: wrong for name, wrong in found.items() if wrong is not None})
    return {**switched_off, **missing}


def probe_replaced() -> dict[str, str]:
    """Try what is replaced outside of watched compiles; the name of each attribute that failed, and how."""
    found = {place.name: place.check_place() or _probe_place(place) for place in patch_table.REPLACED}
    return {name: wrong for name, wrong in found.items() if wrong is not None}


def _probe_place(place: ReplacedAttribute) -> str | None:
    try:
        return None if place.probe is None else place.probe()
    except Exception as error:  # whatever a probe stumbles over says that the replacement does not hold
        return describe_error(error)


def _try_patch(patch: AnyPatch, findings: ProbeLedgers | None) -> str | None:
    try:
        wrong = patch.check_parameters()
        if wrong is not None or findings is None:
            return wrong
        ledgers = (value for value in vars(findings).values() if isinstance(value, Ledger))
        trouble = [missed.why for ledger in ledgers for missed in ledger.unseen if missed.what == patch.name]
        return trouble[0] if trouble else patch.probe(findings) if patch.probe is not None else None
    except Exception as error:  # whatever a probe stumbles over says that its patch does not hold
        return describe_error(error)


def _compile_without_failing_patches() -> ProbeLedgers | None:
    """Compile the programs, and switch patches off until they compile; None if they do not compile without any."""
    while len(switched_off) < len(patch_table.PATCHES):
        try:
            return _compile_programs()
        except Exception as error:  # of any kind: the compiler passes on what rises in a patch
            cause = find_inner_error(error)
            guilty = _find_patches(cause) - set(switched_off) or {patch.name for patch in patch_table.PATCHES}
            switched_off.update(dict.fromkeys(guilty, describe_error(cause)))
    return None


def _find_patches(error: BaseException) -> set[str]:
    names = {patch.name for patch in patch_table.PATCHES}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is run_contained.__code__]
    called = [frame.f_locals["unseen"]("").what for frame in frames]
    return set([name for name in called if name in names][-1:])


def probe_unknown_torch() -> None:
    """Probe once a process where the torch is one that fuzzcompile has not been tried on.

    Patches that fail are switched off, which every compile notes; of what is replaced besides, every judgement does.
    """
    for missed in _probe_once(str(torch.__version__)):
        get_gathered().note(missed)


@functools.cache
def _probe_once(version: str) -> tuple[Unseen, ...]:
    if is_tried_release(version):
        return ()
    probe_patches()
    return tuple(Unseen(name, why, (), "effects of its replacement") for name, why in probe_replaced().items())


def _compile_programs() -> ProbeLedgers:
    initialise_patterns(torch.device("cpu"))
    x, square = torch.linspace(-1, 1, 15).reshape(3, 5), torch.linspace(-1, 1, 256).reshape(16, 16)
    findings = ProbeLedgers()

    def record(
        name: str,
        program: Callable[..., Any],
        given: torch.Tensor,
        *changes: CompileChange,
        kernels: bool = False,
        settings: CompileSettings = CompileSettings(),  # noqa: B008 - it is frozen
    ) -> Any:
        with open_session(settings, Compilation(changes, screen=not kernels, kernels=kernels)) as session:
            compiled = session.compile(program)
            result: Any = compiled(given)
            if CompiledAnew() in changes:
                compiled(given)
            if torch.is_grad_enabled():
                torch.autograd.backward(result.sum())
        setattr(findings, name, session.ledger)
        return result

    with torch.random.fork_rng(devices=[]), torch.enable_grad(), silence_torch():
        torch.manual_seed(0)
        first = functools.partial(last_probe, sine=torch.sin, times=torch.mul)
        pattern = {"joint_custom_pre_pass": _pattern_probe}
        marks = InductorSettings({"pre_grad_custom_pass": first, "post_grad_custom_post_pass": last_probe, **pattern})
        joint = CompileSettings(functorch={"joint_custom_pass": joint_probe})
        record("trained", _TrainedModule(), x.clone().requires_grad_(), marks, settings=joint)
        with torch.no_grad():
            dead = InductorSettings({"joint_custom_post_pass": _dead_probe, "dce": True})
            record("inferred", _run_inference, x, dead)
            frozen = InductorSettings({"freezing": True})
            record("frozen", _FrozenModule().eval(), torch.ones(1, 2, 5, 5), frozen)
            without = InductorSettings(pattern), Veto(("doubled_sine",)), Undecomposed(("aten.silu.default",))
            result = record("vetoed", _run_activation, x, *without)
            findings.vetoed_is_right = torch.allclose(result, _run_activation(x))
            fusion = InductorSettings({"_post_fusion_custom_pass": fusion_probe})
            record("generated", _run_several_kernels, square, fusion, kernels=True)
            record("changed", _run_several_kernels, square, Lowered(_CHANGES), kernels=True)
            record("stored", _run_fused_loops, square, Lowered(_STORED), kernels=True)
            record("broken", _run_methods, x, _BREAKS)
            record("anew", _run_inference, x, CompiledAnew())
            trace = InstructionTrace()
            record("watched", _run_methods, x, WatchedInstructions(trace))
            findings.ranks = trace.list_values("rank")
    findings.metadata = _compute_fake_shape(findings.vetoed)
    return findings


def _compute_fake_shape(ledger: Ledger) -> tuple[int, ...]:
    with torch.library._scoped_library("fuzzcompile_probe", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: x.new_empty(3), "Meta")
        metadata = decompositions.ChosenOperators(("fuzzcompile_probe.twice.default",), ledger)
        with (
            install_patches(metadata, patch_table.METADATA),
            operator_application.forget_metadata(),
            FakeTensorMode() as mode,
        ):
            result = torch.ops.fuzzcompile_probe.twice(mode.from_tensor(torch.zeros(2)))
    return tuple(result.shape)
