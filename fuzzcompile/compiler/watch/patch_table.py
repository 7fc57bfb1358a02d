"""Every attribute of torch that fuzzcompile replaces, each with a probe or the reason why it has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fuzzcompile.compiler import (
    compiling_predicate,
    custom_code,
    graph_breaks,
    graph_caches,
    instructions,
    source_probes,
    torch_api,
    torch_config,
)
from fuzzcompile.compiler.graph_breaks import GraphExclusions
from fuzzcompile.compiler.instructions import InstructionTrace
from fuzzcompile.compiler.kernels import ir_evaluation, kernel_patches
from fuzzcompile.compiler.kernels.kernel_patches import LoweringWatch
from fuzzcompile.compiler.operators import decompositions, operator_application, sharded_check
from fuzzcompile.compiler.operators.decompositions import ChosenOperators
from fuzzcompile.compiler.target import target_process
from fuzzcompile.compiler.watch import aot_autograd, fresh_calls
from fuzzcompile.compiler.watch import pass_patches as passes
from fuzzcompile.compiler.watch import stage_patches as stages
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Ledger, LoweredGraph, ProbeLedgers
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.torch_patch import Patch, PatchProbe, forbid_wrapping
from fuzzcompile.model.stages import (
    AROUND_CAPTURE,
    CODEGEN,
    CUDAGRAPHS,
    DECOMPOSITION,
    DYNAMO,
    FAKE_TENSOR,
    FREEZING,
    FUNCTIONALIZATION,
    GRAPH_STAGES,
    JOINT_GRAPH,
    LOWERING,
    PARTITION,
    POST_GRAD,
    PRE_GRAD,
    RUNTIME,
    SCHEDULER,
)
from fuzzcompile.model.targets import TARGETS
from fuzzcompile.run import attention_backends, ranks, runs
from fuzzcompile.run.torch_attributes import ReplacedAttribute

# Probes: what each patch alone shows of a few small compiles (:mod:`~fuzzcompile.compiler.watch.conformance` makes
# them); None if it holds, or what is wrong.

_Read = Callable[[ProbeLedgers], Any]


def _expect(what: str, read: _Read, wanted: object = None) -> PatchProbe:
    """What was recorded is ``wanted``; if that is None, there is anything at all."""

    def probe(findings: ProbeLedgers) -> str | None:
        found = read(findings)
        if wanted is None:
            return None if found else f"{what}: none"
        return None if found == wanted else f"{what}: {found} instead of {wanted}"

    return probe


def _find(name: str, read: _Read) -> PatchProbe:
    """``name`` is among the names recorded, or within one of them."""

    def probe(findings: ProbeLedgers) -> str | None:
        names = [str(found) for found in read(findings)]
        return None if any(name in found for found in names) else f"{name} is not in {', '.join(names) or 'the record'}"

    return probe


def _get_frame(ledger: Ledger) -> Frame:
    if len(ledger.frames) != 1:
        raise LookupError(f"{len(ledger.frames)} graphs recorded instead of one")
    return ledger.frames[0]


def _get_lowered(ledger: Ledger) -> LoweredGraph:
    if len(ledger.lowered) != 1:
        raise LookupError(f"{len(ledger.lowered)} lowered graphs recorded instead of one")
    return ledger.lowered[0]


def _get_record(ledger: Ledger, stage: str, direction: str | None = None) -> GraphRecord:
    record = _get_frame(ledger).find_record(stage, direction)
    if record is None or not record.snapshots:
        raise LookupError(f"no {direction or ''} graph of stage {stage} was recorded".replace("  ", " "))
    return record


def _records(compiled: str, stage: str, direction: str) -> PatchProbe:
    return _expect("graphs", lambda findings: _get_record(getattr(findings, compiled), stage, direction))


def _rewrites(compiled: str, rewrite: str, stage: str | None = None, direction: str | None = None) -> PatchProbe:
    def list_names(findings: ProbeLedgers) -> list[str]:
        ledger: Ledger = getattr(findings, compiled)
        if stage is not None:
            _get_record(ledger, stage, direction)
        return [
            found.label.rewrite
            for _, record, found in ledger.list_rewrites()
            if stage in (None, record.stage) and direction in (None, record.direction)
        ]

    return _find(rewrite, list_names)


def _reaches(stage: str) -> PatchProbe:
    return _expect("counts", lambda findings: [rule for rule in findings.generated.reached if rule.stage == stage])


def _lowers(attribute: str) -> PatchProbe:
    return _expect(attribute, lambda findings: getattr(_get_lowered(findings.generated), attribute))


def _writes_line(operator: str) -> PatchProbe:
    def list_operators(findings: ProbeLedgers) -> list[str]:
        return [line.operator for lines in _get_lowered(findings.generated).statements.values() for line in lines]

    return _find(operator, list_operators)


def _writes_values(*, extern: bool) -> PatchProbe:
    def probe(findings: ProbeLedgers) -> str | None:
        lowered = _get_lowered(findings.generated)
        numbers = {kernel.number for kernel in lowered.kernels if kernel.extern is extern}
        kept = numbers & {number for call in lowered.calls for number, _ in call.written}
        return None if numbers and numbers == kept else f"kernels recorded: {len(numbers)}, with values: {len(kept)}"

    return probe


def _count_calls(findings: ProbeLedgers) -> tuple[int, int, int]:
    frame = _get_frame(findings.trained)
    return len(frame.dynamo_calls), len(frame.forward_calls), len(frame.backward_calls)


def _list_frozen_inputs(findings: ProbeLedgers) -> list[int]:
    """The numbers of inputs of the graphs that freezing worked on, in order."""
    records = [record for record in _get_frame(findings.frozen).records if record.stage == FREEZING]
    return [len(record.snapshots[0].graph.find_nodes(op="placeholder")) for record in records]


def _probe_frozen_parameters(findings: ProbeLedgers) -> str | None:
    """Once parameters are constants, the graph has one input left, and a record of its own."""
    inputs = _list_frozen_inputs(findings)
    return None if inputs and inputs[-1] == 1 < inputs[0] else f"inputs of the graphs recorded: {inputs}"


def _probe_pattern_pass(findings: ProbeLedgers) -> str | None:
    """A planted pattern is recorded, and a veto of it has an effect."""
    if (wrong := _rewrites("trained", "doubled_sine")(findings)) is not None:
        return wrong
    vetoed = findings.vetoed_is_right and _rewrites("vetoed", "doubled_sine")(findings) is not None
    return None if vetoed else "a veto of the planted pattern had no effect"


def _read_analysis(findings: ProbeLedgers) -> object:
    return getattr(_get_frame(findings.trained).analysis, "gradients", None)


def _list_cuts(findings: ProbeLedgers) -> list[bool]:
    return [bool(cut.backward.operator_names) for cut in _get_frame(findings.trained).partitions]


def _list_cpp_operators(findings: ProbeLedgers) -> list[str]:
    lowered = _get_lowered(findings.generated)
    return [name for kernel in lowered.kernels if not kernel.extern and lowered.sources for name in kernel.nodes]


def _list_nests(ledger: Ledger) -> list[Any]:
    return list(getattr(_get_lowered(ledger).scheduler, "nodes", ()))


def _fuses(ledger: Ledger) -> bool:
    return any(len(node.get_nodes()) > 1 for node in _list_nests(ledger))


def _computes_scalars(ledger: Ledger) -> bool:
    return any("std::exp(" in source for source in _get_lowered(ledger).sources.values())


def _compare(what: str, read: Callable[[Ledger], bool], *wanted: bool) -> PatchProbe:
    """``read`` gives the first without the change, the second with it."""
    return _expect(what, lambda findings: (read(findings.generated), read(findings.changed)), wanted)


def _probe_separate_kernels(findings: ProbeLedgers) -> str | None:
    apart = sum(not kernel.extern for kernel in _get_lowered(findings.changed).kernels)
    nests = sum(not node.is_extern() for node in _list_nests(findings.changed))
    return None if nests and nests == apart else f"{apart} generated kernels for {nests} loop nests"


def _list_traced_calls(findings: ProbeLedgers) -> list[int]:
    return sorted({record.call for record in findings.anew.guards if record.kind == "TENSOR_MATCH" and record.checks})


def _list_stored(findings: ProbeLedgers) -> list[str]:
    """The values that the kernel of two fused loops stores, by their names in C++."""
    sources = "".join(_get_lowered(findings.stored).sources.values())
    return sorted(set(re.findall(r"(?<=\] = )tmp\d+|tmp\d+(?=\.store\()", sources)))


_PROBE_RESULTS = _expect(
    "results of compiled graphs", lambda findings: _get_lowered(findings.generated).calls[-1].outputs
)

_FX = "torch._inductor.compile_fx"
_PASSES = "torch._inductor.fx_passes"
_FREEZE = "torch._inductor.freezing"
_OBSERVER = "torch.fx.passes.graph_transform_observer"
_MATCHER = "torch._inductor.pattern_matcher"
_GRAPH = "torch._inductor.graph"
_SCHEDULER = "torch._inductor.scheduler"
_COMMON = "torch._inductor.codegen.common"
_WRAPPER = "torch._inductor.codegen.wrapper"
_TRITON = "torch._inductor.codegen.triton"
_OUTPUT = "torch._inductor.output_code"
_ASYNC = "torch._inductor.async_compile"
_FUNCTORCH = "torch._functorch.config"
_FROZEN = ("freezing",)
_AT_ERRORS = "It acts only where the compile fails in it; its parameters are checked."
_AT_OUTER_LOOPS = "It answers yes or no, and only loops of other ranges ask; its parameters are checked."
_AT_DIVISIONS = "It acts only where an index divides the variable of a loop; its parameters are checked."
_ON_GPUS = "It is called only where Triton generates code, for a GPU or a target; its parameters are checked."
_ENTRY = (*AROUND_CAPTURE, *GRAPH_STAGES, LOWERING)
_CAPTURED = (DYNAMO, FUNCTIONALIZATION, DECOMPOSITION, FAKE_TENSOR, PRE_GRAD)

# fmt: off
# The recorder of graphs: installed in every watched compile. Of two patches of one function, the later is outside.
GRAPHS: tuple[Patch[Recorder], ...] = (
    Patch("plain passes", (*GRAPH_STAGES, PARTITION), "passes that Inductor calls straight",
          _PASSES, "*", forbid_wrapping, _rewrites("frozen", "constant_fold"), members=passes.list_plain_patches),
    Patch("joint pass", (JOINT_GRAPH,), "the user's own passes over the joint graph",
          _FUNCTORCH, passes.JOINT_PASS, passes.wrap_joint_pass, _rewrites("trained", "joint_probe")),
    Patch("backend entry", _ENTRY, "graphs of the program",
          _FX, "compile_fx", stages.wrap_compile_fx,
          _expect("calls of dynamo's, the forward and the backward graph", _count_calls, (1, 1, 1))),
    Patch("pre-grad stage", _CAPTURED, "rewrites of dynamo's graph",
          _FX, "_recursive_pre_grad_passes", stages.record_stage(PRE_GRAD), _records("trained", PRE_GRAD, "inference")),
    Patch("joint-graph stage", (JOINT_GRAPH,), "rewrites of the joint graph",
          _FX, "_recursive_joint_graph_passes", stages.record_stage(JOINT_GRAPH),
          _rewrites("trained", "doubled_sine", JOINT_GRAPH, "joint")),
    Patch("post-grad stage", (POST_GRAD,), "rewrites of lowered graphs",
          _FX, "_recursive_post_grad_passes", stages.record_stage(POST_GRAD, in_place=True),
          _records("trained", POST_GRAD, "backward")),
    Patch("partition", (PARTITION,), "cuts of joint graphs",
          _FX, "partition_fn", stages.wrap_partition,
          _expect("cuts with a backward graph", _list_cuts, [True])),
    Patch("freezing stage", (FREEZING,), "rewrites of frozen graphs",
          _FREEZE, "freeze", stages.record_stage(FREEZING, position=1),
          _rewrites("frozen", "constant_fold", FREEZING), under=_FROZEN),
    Patch("frozen parameters", (FREEZING,), "frozen parameters",
          _FREEZE, "replace_params_with_constants", stages.wrap_frozen_parameters, _probe_frozen_parameters,
          under=_FROZEN),
    Patch("layout of frozen weights", (FREEZING,), "layouts of frozen weights",
          _FREEZE, "convert_conv_weights_to_channels_last", stages.record_stage(FREEZING, in_place=True),
          _expect("a third record", lambda findings: _list_frozen_inputs(findings)[2:]), under=_FROZEN),
    Patch("dead code", GRAPH_STAGES, "removals of dead code",
          "torch.fx.graph", "Graph.eliminate_dead_code", passes.wrap_dead_code,
          _rewrites("inferred", "eliminate_dead_code")),
    Patch("graph pass", GRAPH_STAGES, "passes over a graph",
          _OBSERVER, "GraphTransformObserver.apply_graph_pass", passes.wrap_observed_pass,
          _rewrites("trained", "last_probe", POST_GRAD, "forward")),
    Patch("module pass", GRAPH_STAGES, "passes over a graph module",
          _OBSERVER, "GraphTransformObserver.apply_gm_pass", passes.wrap_observed_pass,
          _rewrites("inferred", "module_probe")),
    Patch("pattern pass", GRAPH_STAGES, "rewrites by patterns",
          _MATCHER, "PatternMatcherPass.apply", passes.wrap_pattern_pass, _probe_pattern_pass),
    Patch("analysis of inputs and outputs", (FUNCTIONALIZATION,), "what AOTAutograd says of inputs and outputs",
          "torch._functorch.aot_autograd", aot_autograd.FUNCTION, aot_autograd.wrap_analysis,
          _expect("outputs with gradients", _read_analysis, (True,))),
    Patch("tangents", (FUNCTIONALIZATION,), "copies of tangents into another layout",
          *aot_autograd.PLACE, aot_autograd.wrap_coercion, takes=("x", "memory_format"),
          unprobed="It records only copies with other values, and no torch that is right makes one."),
    Patch("fusion passes", (SCHEDULER,), "the user's own passes over scheduler nodes",
          _SCHEDULER, "Scheduler.__init__", passes.wrap_fusion_passes,
          _find("fusion_probe", lambda findings: [label.rewrite for label in findings.generated.unreplayed]),
          takes=("self", "nodes"), under=passes.FUSION_PASSES),
)

# What a recorded compile reached, for coverage: no verdict depends on it.
COVERAGE: tuple[Patch[Ledger], ...] = (
    Patch("reached decompositions", (DECOMPOSITION,), "counts of decompositions",
          _FX, "select_decomp_table", stages.count_decompositions, _reaches(DECOMPOSITION), harmless=True),
    Patch("reached lowerings", (LOWERING,), "counts of lowerings",
          _GRAPH, "GraphLowering.call_function", stages.count_lowerings, _reaches(LOWERING), harmless=True),
    Patch("reached kernels", (SCHEDULER,), "counts of kernel shapes",
          _SCHEDULER, "Scheduler.__init__", stages.count_kernels, _reaches(SCHEDULER), harmless=True),
)

# Behind the graphs: installed where values of kernels are kept, or where something is changed for a proof.
KERNELS: tuple[Patch[LoweringWatch], ...] = (
    Patch("scalar operators", (CODEGEN,), "operators computed element by element",
          kernel_patches.CPP, "CppVecOverrides", forbid_wrapping,
          _compare("exp in scalars, without and with the change", _computes_scalars, False, True),
          members=kernel_patches.list_scalar_patches),
    Patch("lowered graph", (LOWERING,), "lowered graphs",
          _GRAPH, "GraphLowering.run", kernel_patches.wrap_run, _lowers("snapshot")),
    Patch("lowered node", (LOWERING,), "lowerings of operators",
          _GRAPH, "GraphLowering.run_node", kernel_patches.wrap_run_node, _lowers("values")),
    Patch("fallback", (LOWERING,), "operators computed by ATen",
          _GRAPH, "GraphLowering.call_function", kernel_patches.wrap_call_function,
          _find("cos", lambda findings: [each.name for each in _get_lowered(findings.changed).kernels if each.extern])),
    Patch("scheduler", (SCHEDULER,), "kernels' dependences",
          _SCHEDULER, "Scheduler.__init__", kernel_patches.wrap_scheduler_init, _lowers("scheduler")),
    Patch("scheduler node", (SCHEDULER,), "errors of the scheduler",
          _SCHEDULER, "Scheduler.create_scheduler_node", kernel_patches.wrap_scheduler_node, takes=("self", "node"),
          unprobed=_AT_ERRORS),
    Patch("fusion", (SCHEDULER,), "operators kept apart",
          _SCHEDULER, "Scheduler.can_fuse", kernel_patches.wrap_can_fuse,
          _compare("loops fused, without and with the change", _fuses, True, False)),
    Patch("buffers of one kernel", (SCHEDULER,), "values that one kernel alone reads",
          _SCHEDULER, "Scheduler.can_buffer_be_removed_through_fusion", kernel_patches.wrap_buffer_removal,
          _expect("values stored", _list_stored, ["tmp1", "tmp2"]), takes=("self", "name")),
    Patch("code generation", (CODEGEN,), "errors of the code generator",
          _SCHEDULER, "Scheduler._codegen", kernel_patches.wrap_codegen, takes=("self",), unprobed=_AT_ERRORS),
    Patch("library call", (CODEGEN, RUNTIME), "calls of libraries",
          _SCHEDULER, "Scheduler.codegen_extern_call", kernel_patches.wrap_extern_call, _writes_values(extern=True)),
    Patch("C++ loop nest", (CODEGEN,), "loop nests in kernels of their own",
          kernel_patches.CPP, "CppScheduling.codegen_node", kernel_patches.wrap_cpp_node, _probe_separate_kernels),
    Patch("C++ outer loops", (CODEGEN,), "loops of other ranges kept apart",
          kernel_patches.CPP, "CppScheduling.can_fuse_vertical_outer_loop", kernel_patches.wrap_outer_loops,
          takes=("self", "node1", "node2"), unprobed=_AT_OUTER_LOOPS),
    Patch("C++ loop split", (CODEGEN,), "loops made two for a division in an index",
          kernel_patches.CPP, "CppScheduling.try_loop_split", kernel_patches.wrap_loop_split,
          takes=("self", "nodes"), unprobed=_AT_DIVISIONS),
    Patch("C++ kernel", (CODEGEN,), "C++ kernels",
          kernel_patches.CPP, "CppScheduling.define_kernel", kernel_patches.wrap_define_kernel,
          _expect("operators", _list_cpp_operators)),
    Patch("Triton kernel", (CODEGEN,), "Triton kernels",
          _TRITON, "TritonScheduling.define_kernel", kernel_patches.wrap_define_kernel,
          takes=("self", "src_code", "node_schedule"), unprobed=_ON_GPUS),
    Patch("masked code", (CODEGEN,), "masks of Triton code applied once more",
          _TRITON, "TritonKernelOverrides.masked", kernel_patches.wrap_triton_masked, takes=("mask", "body", "other"),
          unprobed=_ON_GPUS),
    Patch("operator's code", (CODEGEN,), "operators of lines of code",
          _COMMON, "CSEProxy._default", kernel_patches.wrap_operator, _writes_line("exp")),
    Patch("load's code", (CODEGEN,), "loads in lines of code",
          _COMMON, "CSEProxy.load", kernel_patches.wrap_load, _writes_line("load")),
    Patch("reduction's code", (CODEGEN,), "reductions in lines of code",
          _COMMON, "CSEProxy.reduction", kernel_patches.wrap_reduction, _writes_line("reduction:sum")),
    Patch("line of code", (CODEGEN,), "lines of generated code",
          _COMMON, "CSE.generate", kernel_patches.wrap_generate, _writes_line("exp")),
    Patch("kernel call", (CODEGEN, RUNTIME), "values of kernels",
          _WRAPPER, "PythonWrapperCodegen.generate_kernel_call", kernel_patches.wrap_kernel_call,
          _writes_values(extern=False)),
    Patch("compiled graph", (RUNTIME, CUDAGRAPHS), "results of compiled graphs",
          _OUTPUT, "CompiledFxGraph.__init__", kernel_patches.wrap_compiled_graph, _PROBE_RESULTS),
    Patch("call of a compiled graph", (RUNTIME,), "results of compiled graphs",
          _OUTPUT, "CompiledFxGraph.__call__", kernel_patches.wrap_compiled_call, _PROBE_RESULTS),
    Patch("C++ compiler", (CODEGEN,), "errors of the C++ compiler",
          _ASYNC, "AsyncCompile.cpp_pybinding", kernel_patches.wrap_cpp_compile,
          takes=("self", "argtypes", "source_code"), unprobed=_AT_ERRORS),
    Patch("Triton compiler", (CODEGEN,), "errors of the Triton compiler",
          _ASYNC, "AsyncCompile.triton", kernel_patches.wrap_triton_compile, takes=("self", "kernel_name",
          "source_code"), unprobed=_ON_GPUS),
)

# What an ablation asks for.
DECOMPOSITIONS: tuple[Patch[ChosenOperators], ...] = (
    Patch("decomposition table", (DECOMPOSITION,), "operators without decompositions",
          _FX, "select_decomp_table", decompositions.wrap_table,
          _find("aten.silu", lambda findings: _get_record(findings.vetoed, POST_GRAD).snapshots[-1].operator_names)),
)
METADATA: tuple[Patch[ChosenOperators], ...] = (
    Patch("fake tensors", (FAKE_TENSOR,), "metadata from kernels",
          operator_application.FAKE_TENSOR_MODULE, "FakeTensorMode._dispatch_impl", operator_application.wrap_dispatch,
          _expect("shape of a result of two elements", lambda findings: findings.metadata, (2,))),
)

GUARDS: tuple[Patch[Recorder], ...] = (
    Patch("guards", (DYNAMO,), "dynamo's guards",
          "torch._dynamo.guards", "CheckFunctionManager.__init__", fresh_calls.wrap_check_functions,
          _expect("calls that were traced, with checks of a tensor", _list_traced_calls, [1, 2]),
          takes=("self", "f_code", "output_graph")),
)

BREAKS: tuple[Patch[GraphExclusions], ...] = (
    Patch("nodes of dynamo's graph", (DYNAMO, FUNCTIONALIZATION), "compiles without one method",
          "torch._dynamo.output_graph", "SubgraphTracer.create_proxy", graph_breaks.wrap_create_proxy,
          _find("setitem> is left", lambda findings: findings.broken.graph_breaks), takes=("self", "kind", "target")),
    Patch("methods of tensors", (DYNAMO, FUNCTIONALIZATION), "compiles without one method",
          "torch._dynamo.variables.tensor", "TensorVariable.call_method", graph_breaks.wrap_call_method,
          _find("dim is left", lambda findings: findings.broken.graph_breaks), takes=("self", "tx", "name")),
    Patch("frames with operators", (DYNAMO, FUNCTIONALIZATION), "compiles without one of Python's operators",
          "torch._dynamo.symbolic_convert", "InstructionTranslatorBase.run", graph_breaks.wrap_run,
          _expect("graphs behind an operator", lambda findings: len(findings.broken.frames), 2), takes=("self",)),
)

INSTRUCTIONS: tuple[Patch[InstructionTrace], ...] = (
    Patch("instructions", (DYNAMO,), "Python's instructions as dynamo traces them",
          "torch._dynamo.symbolic_convert", "InstructionTranslatorBase.step", instructions.wrap_step,
          _expect("values of a name", lambda findings: findings.ranks, ((int, "2"),))),
    Patch("frames with instructions", (DYNAMO,), "compiles without one of Python's instructions",
          "torch._dynamo.symbolic_convert", "InstructionTranslatorBase.run", graph_breaks.wrap_run,
          unprobed="It is that of frames with operators.", takes=("self",)),
)

# Patches that make compiles cheaper.
SPEED: tuple[Patch[Recorder], ...] = (
    Patch("guard timing", (DYNAMO,), "compiles without timed guards",
          "torch._dynamo.guards", "profile_guard_manager", torch_config.skip_guard_timing, harmless=True,
          unprobed="It saves time and nothing else: where it is not called, compiles take 20 ms longer."),
)
# fmt: on

Watched = Patch[GraphExclusions] | Patch[InstructionTrace]
AnyPatch = Patch[Recorder] | Patch[Ledger] | Patch[LoweringWatch] | Patch[ChosenOperators] | Watched
PATCHES: tuple[AnyPatch, ...] = (
    *GRAPHS,
    *COVERAGE,
    *KERNELS,
    *DECOMPOSITIONS,
    *METADATA,
    *GUARDS,
    *BREAKS,
    *INSTRUCTIONS,
    *SPEED,
)


# Replaced outside of what a watched compile records. Attributes of single objects (a pattern's entry, a compiled graph,
# a node) that a patch sets on what it is called with are tried by the probe of that patch.
REPLACED: tuple[ReplacedAttribute, ...] = (
    torch_api.COMPILE,
    *torch_api.OPTIMIZE,
    torch_api.BACKWARD,
    torch_api.CUDA,
    attention_backends.ATTENTION,
    attention_backends.FLEX,
    attention_backends.FLEX_OPERATOR,
    ranks.TIMEOUT,
    ranks.GROUP_COUNT,
    *ranks.GROUP_LOOKUPS,
    runs.CONDITION,
    sharded_check.REDISTRIBUTION,
    compiling_predicate.COMPILING,
    compiling_predicate.EXPORTING,
    custom_code.REGISTRATION,
    source_probes.CODE,
    decompositions.DISPATCHER_KERNELS,
    ir_evaluation.FREE_INDEXING,
    kernel_patches.FLAGS,
    aot_autograd.VIEWS,
    *(cache.folder for cache in graph_caches.GRAPH_CACHES),
)


def list_replaced_for_targets() -> list[ReplacedAttribute]:
    """What a process that compiles for a target replaces besides, for any of them; this imports Triton."""
    from fuzzcompile.compiler.target import kernel_execution, kernel_launch

    answering = [place for target in TARGETS.values() for place in target_process.list_replaced(target)]
    return [target_process.HAS_TRITON, *answering, *kernel_launch.INTERPRETER_PLACES, *kernel_execution.LANGUAGE_PLACES]
