"""Every function of torch that fuzzcompile replaces while it watches a compile, and the probe of each."""

from __future__ import annotations

from fuzzcompile.compiler import graph_breaks, torch_config
from fuzzcompile.compiler.graph_breaks import GraphExclusions
from fuzzcompile.compiler.kernels import kernel_patches
from fuzzcompile.compiler.kernels.kernel_watch import LoweringWatch
from fuzzcompile.compiler.operators import decompositions, operator_application
from fuzzcompile.compiler.operators.decompositions import ChosenOperators
from fuzzcompile.compiler.torch_api import CAPTURE, OptimizeReplacement
from fuzzcompile.compiler.watch import aot_autograd, pass_patches, stage_patches
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

# Probes: what each patch alone shows of a few small compiles (:mod:`~fuzzcompile.compiler.watch.conformance` makes
# them).

# -- the graphs -------------------------------------------------------------------------------------


def probe_entry(findings: ProbeLedgers) -> str | None:
    """A training step is one graph, called once in each direction."""
    frame = _get_frame(findings.trained)
    calls = (len(frame.dynamo_calls), len(frame.forward_calls), len(frame.backward_calls))
    return None if calls == (1, 1, 1) else f"calls recorded: {calls} instead of (1, 1, 1)"


def probe_pre_grad(findings: ProbeLedgers) -> str | None:
    """Dynamo's graph is recorded."""
    return _check_recorded(findings.trained, PRE_GRAD, "inference")


def probe_analysis(findings: ProbeLedgers) -> str | None:
    """AOTAutograd says that the one output of a training step gets gradients."""
    said = _get_frame(findings.trained).analysis
    return None if said is not None and list(said.gradients) == [True] else f"it says {said}"


def probe_joint_graph(findings: ProbeLedgers) -> str | None:
    """A planted pattern is recorded in the joint graph."""
    return _check_rewrite(findings.trained, "doubled_sine", JOINT_GRAPH, "joint")


def probe_post_grad(findings: ProbeLedgers) -> str | None:
    """The graph of the backward pass is recorded."""
    return _check_recorded(findings.trained, POST_GRAD, "backward")


def probe_partition(findings: ProbeLedgers) -> str | None:
    """The joint graph is cut once."""
    cut = _get_frame(findings.trained).partitions
    return (
        None
        if len(cut) == 1 and cut[0].backward.operator_names
        else "the partition of the joint graph was not recorded"
    )


def probe_freezing(findings: ProbeLedgers) -> str | None:
    """Constants are folded in a frozen graph."""
    return _check_rewrite(findings.frozen, "constant_fold", FREEZING)


def probe_plain_passes(findings: ProbeLedgers) -> str | None:
    """``constant_fold``, which freezing calls straight, is recorded."""
    return _check_fired(findings.frozen, "constant_fold")


def probe_frozen_parameters(findings: ProbeLedgers) -> str | None:
    """Once parameters are constants, the graph has one input left, and a record of its own."""
    records = [record for record in _get_frame(findings.frozen).records if record.stage == FREEZING]
    inputs = [[len(kept.graph.find_nodes(op="placeholder")) for kept in record.snapshots] for record in records]
    first = [counts[0] for counts in inputs]
    return None if first and first[-1] == 1 < first[0] else f"inputs of the graphs recorded: {inputs}"


def probe_weights_layout(findings: ProbeLedgers) -> str | None:
    """The new layout of weights has a record of its own."""
    records = [record for record in _get_frame(findings.frozen).records if record.stage == FREEZING]
    return None if len(records) > 2 else "no record of its own"


def probe_dead_code(findings: ProbeLedgers) -> str | None:
    """Planted dead code is removed by the stage."""
    return _check_fired(findings.inferred, "eliminate_dead_code")


def probe_graph_pass(findings: ProbeLedgers) -> str | None:
    """A planted pass over a graph is recorded."""
    return _check_rewrite(findings.trained, "last_probe", POST_GRAD, "forward")


def probe_module_pass(findings: ProbeLedgers) -> str | None:
    """A planted pass over a graph module is recorded."""
    return _check_fired(findings.inferred, "module_probe")


def probe_joint_pass(findings: ProbeLedgers) -> str | None:
    """A planted pass of functorch's config is recorded."""
    return _check_fired(findings.trained, "joint_probe")


def probe_pattern_pass(findings: ProbeLedgers) -> str | None:
    """A planted pattern is recorded, and a veto of it has an effect."""
    if (wrong := _check_fired(findings.trained, "doubled_sine")) is not None:
        return wrong
    if not findings.vetoed_is_right or _check_fired(findings.vetoed, "doubled_sine") is None:
        return "a veto of the planted pattern had no effect"
    return None


def probe_fusion_passes(findings: ProbeLedgers) -> str | None:
    """A planted pass over the scheduler's nodes is recorded."""
    seen = [label.rewrite for label in findings.generated.unreplayed]
    return None if "fusion_probe" in seen else f"fusion_probe was not recorded: {', '.join(seen) or 'nothing'}"


# -- coverage ---------------------------------------------------------------------------------------


def probe_decomposition_counts(findings: ProbeLedgers) -> str | None:
    """``aten.silu`` is decomposed where nothing is changed."""
    return _check_reached(findings.generated, DECOMPOSITION)


def probe_lowering_counts(findings: ProbeLedgers) -> str | None:
    """Operators are lowered."""
    return _check_reached(findings.generated, LOWERING)


def probe_kernel_counts(findings: ProbeLedgers) -> str | None:
    """Kernels are scheduled."""
    return _check_reached(findings.generated, SCHEDULER)


def _check_reached(ledger: Ledger, stage: str) -> str | None:
    return None if any(reached.stage == stage for reached in ledger.reached) else "nothing was counted"


# -- behind the graphs ------------------------------------------------------------------------------


def probe_lowered_graph(findings: ProbeLedgers) -> str | None:
    """A graph is lowered."""
    return None if len(findings.generated.lowered) == 1 else "the lowered graph was not recorded"


def probe_lowered_node(findings: ProbeLedgers) -> str | None:
    """Its nodes have an IR."""
    return None if _get_lowered(findings.generated).values else "no operator's IR was recorded"


def probe_fallback(findings: ProbeLedgers) -> str | None:
    """An operator that is to fall back is called as a library's."""
    names = [kernel.name for kernel in _get_lowered(findings.changed).kernels if kernel.extern]
    return None if any("cos" in name for name in names) else f"no fallback among the calls of libraries: {names}"


def probe_scheduler(findings: ProbeLedgers) -> str | None:
    """The graph has a scheduler."""
    return None if _get_lowered(findings.generated).scheduler is not None else "the scheduler was not recorded"


def probe_fusion(findings: ProbeLedgers) -> str | None:
    """Loops are fused, and not where they are to stay apart."""
    fused, apart = (_count_fused(_get_lowered(ledger)) for ledger in (findings.generated, findings.changed))
    return None if fused and not apart else f"fused loops: {fused}; where they were to stay apart: {apart}"


def _count_fused(lowered: LoweredGraph) -> int:
    return sum(len(node.get_nodes()) > 1 for node in getattr(lowered.scheduler, "nodes", ()))


def probe_library_call(findings: ProbeLedgers) -> str | None:
    """A matrix product is a library's, and its result is kept."""
    return _check_written(findings.generated, extern=True)


def probe_kernel_call(findings: ProbeLedgers) -> str | None:
    """Check that the values written by a generated kernel are kept."""
    return _check_written(findings.generated, extern=False)


def _check_written(ledger: Ledger, *, extern: bool) -> str | None:
    lowered = _get_lowered(ledger)
    numbers = {kernel.number for kernel in lowered.kernels if kernel.extern is extern}
    kept = {number for call in lowered.calls for number, _ in call.written}
    return (
        None if numbers and numbers <= kept else f"kernels recorded: {len(numbers)}, with values: {len(numbers & kept)}"
    )


def probe_separate_kernels(findings: ProbeLedgers) -> str | None:
    """Loop nests are kernels of their own where they are to be."""
    lowered = _get_lowered(findings.changed)
    apart = sum(not kernel.extern for kernel in lowered.kernels)
    nests = sum(not node.is_extern() for node in getattr(lowered.scheduler, "nodes", ()))
    return None if nests and nests == apart else f"{apart} generated kernels for {nests} loop nests"


def probe_cpp_kernel(findings: ProbeLedgers) -> str | None:
    """A kernel has a source and operators."""
    lowered = _get_lowered(findings.generated)
    operators = [kernel.nodes for kernel in lowered.kernels if not kernel.extern]
    return None if lowered.sources and any(operators) else "no source or no operators of a kernel were recorded"


def probe_scalar_operators(findings: ProbeLedgers) -> str | None:
    """An operator is computed element by element where it is to be."""
    vectors, scalars = (
        any("std::exp(" in source for source in _get_lowered(ledger).sources.values())
        for ledger in (findings.generated, findings.changed)
    )
    return None if scalars and not vectors else f"exp in scalars: {scalars}; without being asked for: {vectors}"


def make_statement_probe(operator: str) -> PatchProbe:
    """A line of code is known to belong to ``operator``."""

    def probe(findings: ProbeLedgers) -> str | None:
        written = {line.operator for lines in _get_lowered(findings.generated).statements.values() for line in lines}
        return None if operator in written else f"no line of code for {operator}"

    return probe


def probe_compiled_graph(findings: ProbeLedgers) -> str | None:
    """Check that the result of a compiled graph is kept."""
    calls = _get_lowered(findings.generated).calls
    return None if calls and calls[-1].outputs is not None else "no results of the compiled graph were kept"


# -- changes ----------------------------------------------------------------------------------------


def probe_undecomposed(findings: ProbeLedgers) -> str | None:
    """An operator without its decomposition stands in the graph."""
    calls = _get_record(findings.vetoed, POST_GRAD).snapshots[-1].operator_names
    return None if "aten.silu.default" in calls else f"aten.silu was decomposed: {', '.join(calls)}"


def probe_fake_tensors(findings: ProbeLedgers) -> str | None:
    """The kernel's metadata are taken for the ones that are described wrong."""
    return None if findings.metadata == (2,) else f"a result of shape (2,) has shape {findings.metadata}"


# -- what is looked up in ledgers ------------------------------------------------------------------------


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


def _check_recorded(ledger: Ledger, stage: str, direction: str | None = None) -> str | None:
    _get_record(ledger, stage, direction)
    return None


def _check_rewrite(ledger: Ledger, rewrite: str, stage: str, direction: str | None = None) -> str | None:
    _get_record(ledger, stage, direction)
    records = [record for record in _get_frame(ledger).records if record.stage == stage]
    seen = [
        rewrite.label.rewrite
        for record in records
        if direction in (None, record.direction)
        for rewrite in record.rewrites
    ]
    lacking = f"planted {rewrite} is not in the record of {stage}: {', '.join(seen) or 'empty'}"
    return None if rewrite in seen else lacking


def _check_fired(ledger: Ledger, rewrite: str) -> str | None:
    seen = [rewrite.label.rewrite for _, _, rewrite in ledger.list_rewrites()]
    return None if rewrite in seen else f"{rewrite} was not recorded"


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
_ENTRY = (*AROUND_CAPTURE, *GRAPH_STAGES, LOWERING)
_CAPTURED = (DYNAMO, FUNCTIONALIZATION, DECOMPOSITION, FAKE_TENSOR, PRE_GRAD)

# fmt: off
# The recorder of graphs: installed in every watched compile. Of two patches of one function, the later is outside.
GRAPHS: tuple[Patch[Recorder], ...] = (
    Patch("plain passes", (*GRAPH_STAGES, PARTITION), "passes that Inductor calls straight",
          _PASSES, "*", forbid_wrapping, probe_plain_passes, members=pass_patches.list_plain_patches),
    Patch("joint pass", (JOINT_GRAPH,), "the user's own passes over the joint graph",
          _FUNCTORCH, passes.JOINT_PASS, passes.wrap_joint_pass, probe_joint_pass),
    Patch("backend entry", _ENTRY, "graphs of the program",
          _FX, "compile_fx", stages.wrap_compile_fx, probe_entry),
    Patch("pre-grad stage", _CAPTURED, "rewrites of dynamo's graph",
          _FX, "_recursive_pre_grad_passes", stages.wrap_pre_grad, probe_pre_grad),
    Patch("joint-graph stage", (JOINT_GRAPH,), "rewrites of the joint graph",
          _FX, "_recursive_joint_graph_passes", stages.wrap_joint, probe_joint_graph),
    Patch("post-grad stage", (POST_GRAD,), "rewrites of lowered graphs",
          _FX, "_recursive_post_grad_passes", stages.wrap_post_grad, probe_post_grad),
    Patch("partition", (PARTITION,), "cuts of joint graphs",
          _FX, "partition_fn", stages.wrap_partition, probe_partition),
    Patch("freezing stage", (FREEZING,), "rewrites of frozen graphs",
          _FREEZE, "freeze", stages.wrap_freezing, probe_freezing, under=_FROZEN),
    Patch("frozen parameters", (FREEZING,), "frozen parameters",
          _FREEZE, "replace_params_with_constants", stages.wrap_frozen_parameters, probe_frozen_parameters,
          under=_FROZEN),
    Patch("layout of frozen weights", (FREEZING,), "layouts of frozen weights",
          _FREEZE, "convert_conv_weights_to_channels_last", stages.wrap_weights_layout, probe_weights_layout,
          under=_FROZEN),
    Patch("dead code", GRAPH_STAGES, "removals of dead code",
          "torch.fx.graph", "Graph.eliminate_dead_code", passes.wrap_dead_code, probe_dead_code),
    Patch("graph pass", GRAPH_STAGES, "passes over a graph",
          _OBSERVER, "GraphTransformObserver.apply_graph_pass", passes.wrap_observed_pass, probe_graph_pass),
    Patch("module pass", GRAPH_STAGES, "passes over a graph module",
          _OBSERVER, "GraphTransformObserver.apply_gm_pass", passes.wrap_observed_pass, probe_module_pass),
    Patch("pattern pass", GRAPH_STAGES, "rewrites by patterns",
          _MATCHER, "PatternMatcherPass.apply", passes.wrap_pattern_pass, probe_pattern_pass),
    Patch("analysis of inputs and outputs", (FUNCTIONALIZATION,), "what AOTAutograd says of inputs and outputs",
          "torch._functorch.aot_autograd", aot_autograd.FUNCTION, aot_autograd.wrap_analysis, probe_analysis),
    Patch("tangents", (FUNCTIONALIZATION,), "copies of tangents into another layout",
          *aot_autograd.PLACE, aot_autograd.wrap_coercion, takes=("x", "memory_format")),
    Patch("fusion passes", (SCHEDULER,), "the user's own passes over scheduler nodes",
          _SCHEDULER, "Scheduler.__init__", passes.wrap_fusion_passes, probe_fusion_passes,
          takes=("self", "nodes"), under=passes.FUSION_PASSES),
)

# What a recorded compile reached, for coverage: no verdict depends on it.
COVERAGE: tuple[Patch[Ledger], ...] = (
    Patch("reached decompositions", (DECOMPOSITION,), "counts of decompositions",
          _FX, "select_decomp_table", stage_patches.count_decompositions, probe_decomposition_counts, harmless=True),
    Patch("reached lowerings", (LOWERING,), "counts of lowerings",
          _GRAPH, "GraphLowering.call_function", stage_patches.count_lowerings, probe_lowering_counts, harmless=True),
    Patch("reached kernels", (SCHEDULER,), "counts of kernel shapes",
          _SCHEDULER, "Scheduler.__init__", stage_patches.count_kernels, probe_kernel_counts, harmless=True),
)

# Behind the graphs: installed where values of kernels are kept, or where something is changed for a proof.
KERNELS: tuple[Patch[LoweringWatch], ...] = (
    Patch("scalar operators", (CODEGEN,), "operators computed element by element",
          kernel_patches.CPP, "CppVecOverrides", forbid_wrapping, probe_scalar_operators,
          members=kernel_patches.list_scalar_patches),
    Patch("lowered graph", (LOWERING,), "lowered graphs",
          _GRAPH, "GraphLowering.run", kernel_patches.wrap_run, probe_lowered_graph),
    Patch("lowered node", (LOWERING,), "lowerings of operators",
          _GRAPH, "GraphLowering.run_node", kernel_patches.wrap_run_node, probe_lowered_node),
    Patch("fallback", (LOWERING,), "operators computed by ATen",
          _GRAPH, "GraphLowering.call_function", kernel_patches.wrap_call_function, probe_fallback),
    Patch("scheduler", (SCHEDULER,), "kernels' dependences",
          _SCHEDULER, "Scheduler.__init__", kernel_patches.wrap_scheduler_init, probe_scheduler),
    Patch("scheduler node", (SCHEDULER,), "errors of the scheduler",
          _SCHEDULER, "Scheduler.create_scheduler_node", kernel_patches.wrap_scheduler_node, takes=("self", "node")),
    Patch("fusion", (SCHEDULER,), "operators kept apart",
          _SCHEDULER, "Scheduler.can_fuse", kernel_patches.wrap_can_fuse, probe_fusion),
    Patch("buffers of one kernel", (SCHEDULER,), "values that one kernel alone reads",
          _SCHEDULER, "Scheduler.can_buffer_be_removed_through_fusion", kernel_patches.wrap_buffer_removal,
          takes=("self", "name")),
    Patch("code generation", (CODEGEN,), "errors of the code generator",
          _SCHEDULER, "Scheduler._codegen", kernel_patches.wrap_codegen, takes=("self",)),
    Patch("library call", (CODEGEN, RUNTIME), "calls of libraries",
          _SCHEDULER, "Scheduler.codegen_extern_call", kernel_patches.wrap_extern_call, probe_library_call),
    Patch("C++ loop nest", (CODEGEN,), "loop nests in kernels of their own",
          kernel_patches.CPP, "CppScheduling.codegen_node", kernel_patches.wrap_cpp_node, probe_separate_kernels),
    Patch("C++ kernel", (CODEGEN,), "C++ kernels",
          kernel_patches.CPP, "CppScheduling.define_kernel", kernel_patches.wrap_define_kernel, probe_cpp_kernel),
    Patch("Triton kernel", (CODEGEN,), "Triton kernels",
          _TRITON, "TritonScheduling.define_kernel", kernel_patches.wrap_define_kernel,
          takes=("self", "src_code", "node_schedule")),
    Patch("masked code", (CODEGEN,), "masks of Triton code applied once more",
          _TRITON, "TritonKernelOverrides.masked", kernel_patches.wrap_triton_masked, takes=("mask", "body", "other")),
    Patch("operator's code", (CODEGEN,), "operators of lines of code",
          _COMMON, "CSEProxy._default", kernel_patches.wrap_operator, make_statement_probe("exp")),
    Patch("load's code", (CODEGEN,), "loads in lines of code",
          _COMMON, "CSEProxy.load", kernel_patches.wrap_load, make_statement_probe("load")),
    Patch("reduction's code", (CODEGEN,), "reductions in lines of code",
          _COMMON, "CSEProxy.reduction", kernel_patches.wrap_reduction, make_statement_probe("reduction:sum")),
    Patch("line of code", (CODEGEN,), "lines of generated code",
          _COMMON, "CSE.generate", kernel_patches.wrap_generate, make_statement_probe("exp")),
    Patch("kernel call", (CODEGEN, RUNTIME), "values of kernels",
          _WRAPPER, "PythonWrapperCodegen.generate_kernel_call", kernel_patches.wrap_kernel_call, probe_kernel_call),
    Patch("compiled graph", (RUNTIME, CUDAGRAPHS), "results of compiled graphs",
          _OUTPUT, "CompiledFxGraph.__init__", kernel_patches.wrap_compiled_graph, probe_compiled_graph),
    Patch("call of a compiled graph", (RUNTIME,), "results of compiled graphs",
          _OUTPUT, "CompiledFxGraph.__call__", kernel_patches.wrap_compiled_call, probe_compiled_graph),
    Patch("C++ compiler", (CODEGEN,), "errors of the C++ compiler",
          _ASYNC, "AsyncCompile.cpp_pybinding", kernel_patches.wrap_cpp_compile,
          takes=("self", "argtypes", "source_code")),
    Patch("Triton compiler", (CODEGEN,), "errors of the Triton compiler",
          _ASYNC, "AsyncCompile.triton", kernel_patches.wrap_triton_compile, takes=("self", "kernel_name",
          "source_code")),
)

# What an ablation asks for.
DECOMPOSITIONS: tuple[Patch[ChosenOperators], ...] = (
    Patch("decomposition table", (DECOMPOSITION,), "operators without decompositions",
          _FX, "select_decomp_table", decompositions.wrap_table, probe_undecomposed),
)
METADATA: tuple[Patch[ChosenOperators], ...] = (
    Patch("fake tensors", (FAKE_TENSOR,), "metadata from kernels",
          operator_application.FAKE_TENSOR_MODULE, "FakeTensorMode._dispatch_impl", operator_application.wrap_dispatch,
          probe_fake_tensors),
)

BREAKS: tuple[Patch[GraphExclusions], ...] = (
    Patch("nodes of dynamo's graph", (DYNAMO, FUNCTIONALIZATION), "compiles without one method",
          "torch._dynamo.output_graph", "SubgraphTracer.create_proxy", graph_breaks.wrap_create_proxy,
          takes=("self", "kind", "target")),
    Patch("methods of tensors", (DYNAMO, FUNCTIONALIZATION), "compiles without one method",
          "torch._dynamo.variables.tensor", "TensorVariable.call_method", graph_breaks.wrap_call_method,
          takes=("self", "tx", "name")),
)

# Patches that make compiles cheaper.
SPEED: tuple[Patch[Recorder], ...] = (
    Patch("guard timing", (DYNAMO,), "compiles without timed guards",
          "torch._dynamo.guards", "profile_guard_manager", torch_config.wrap_guard_timing, harmless=True),
)
# fmt: on

AnyPatch = (
    Patch[Recorder]
    | Patch[Ledger]
    | Patch[LoweringWatch]
    | Patch[ChosenOperators]
    | Patch[GraphExclusions]
    | Patch[OptimizeReplacement]
)
PATCHES: tuple[AnyPatch, ...] = (*GRAPHS, *COVERAGE, *KERNELS, *DECOMPOSITIONS, *METADATA, *BREAKS, *SPEED, *CAPTURE)


def list_patches(stage: str) -> tuple[AnyPatch, ...]:
    """The patches that serve a stage (:mod:`fuzzcompile.model.stages`)."""
    return tuple(patch for patch in PATCHES if stage in patch.stages)
