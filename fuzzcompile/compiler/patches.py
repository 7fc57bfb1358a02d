"""Every function of torch that fuzzcompile replaces while it watches a compile: the one table.

A row says what the patch is called, which stages of the compiler it serves, what is not seen without it, which function
it replaces, by what, and how it is probed (:mod:`~fuzzcompile.compiler.probes`). A function of torch that moved or was
renamed is changed here and nowhere else.
"""

from __future__ import annotations

from fuzzcompile.compiler import (
    analysis,
    breaks,
    decompositions,
    entry,
    fake,
    plain,
    probes,
    reached,
    settings,
    tangents,
)
from fuzzcompile.compiler import pass_patches as passes
from fuzzcompile.compiler import stage_patches as stages
from fuzzcompile.compiler.breaks import LeftOut
from fuzzcompile.compiler.decompositions import Removal
from fuzzcompile.compiler.entry import Interception
from fuzzcompile.compiler.fake import Metadata
from fuzzcompile.compiler.kernels import kernel_code, kernels, statements
from fuzzcompile.compiler.kernels.kernel_watch import Watch
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.patching import Patch, no_wrapper
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.stage_names import (
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
          _PASSES, "*", no_wrapper, probes.plain_passes, members=plain.plain_patches),
    Patch("joint pass", (JOINT_GRAPH,), "the user's own passes over the joint graph",
          _FUNCTORCH, passes.JOINT_PASS, passes.wrap_joint_pass, probes.joint_pass),
    Patch("backend entry", _ENTRY, "graphs of the program",
          _FX, "compile_fx", stages.wrap_compile_fx, probes.entry),
    Patch("pre-grad stage", _CAPTURED, "rewrites of dynamo's graph",
          _FX, "_recursive_pre_grad_passes", stages.wrap_pre_grad, probes.pre_grad),
    Patch("joint-graph stage", (JOINT_GRAPH,), "rewrites of the joint graph",
          _FX, "_recursive_joint_graph_passes", stages.wrap_joint, probes.joint_graph),
    Patch("post-grad stage", (POST_GRAD,), "rewrites of lowered graphs",
          _FX, "_recursive_post_grad_passes", stages.wrap_post_grad, probes.post_grad),
    Patch("partition", (PARTITION,), "cuts of joint graphs",
          _FX, "partition_fn", stages.wrap_partition, probes.partition),
    Patch("freezing stage", (FREEZING,), "rewrites of frozen graphs",
          _FREEZE, "freeze", stages.wrap_freezing, probes.freezing, under=_FROZEN),
    Patch("frozen parameters", (FREEZING,), "frozen parameters",
          _FREEZE, "replace_params_with_constants", stages.wrap_frozen_parameters, probes.frozen_parameters,
          under=_FROZEN),
    Patch("layout of frozen weights", (FREEZING,), "layouts of frozen weights",
          _FREEZE, "convert_conv_weights_to_channels_last", stages.wrap_weights_layout, probes.weights_layout,
          under=_FROZEN),
    Patch("dead code", GRAPH_STAGES, "removals of dead code",
          "torch.fx.graph", "Graph.eliminate_dead_code", passes.wrap_dead_code, probes.dead_code),
    Patch("graph pass", GRAPH_STAGES, "passes over a graph",
          _OBSERVER, "GraphTransformObserver.apply_graph_pass", passes.wrap_observed_pass, probes.graph_pass),
    Patch("module pass", GRAPH_STAGES, "passes over a graph module",
          _OBSERVER, "GraphTransformObserver.apply_gm_pass", passes.wrap_observed_pass, probes.module_pass),
    Patch("pattern pass", GRAPH_STAGES, "rewrites by patterns",
          _MATCHER, "PatternMatcherPass.apply", passes.wrap_pattern_pass, probes.pattern_pass),
    Patch("analysis of inputs and outputs", (FUNCTIONALIZATION,), "what AOTAutograd says of inputs and outputs",
          "torch._functorch.aot_autograd", analysis.FUNCTION, analysis.wrap_analysis, probes.analysis),
    Patch("tangents", (FUNCTIONALIZATION,), "copies of tangents into another layout",
          *tangents.PLACE, tangents.wrap_coercion, takes=("x", "memory_format")),
    Patch("fusion passes", (SCHEDULER,), "the user's own passes over scheduler nodes",
          _SCHEDULER, "Scheduler.__init__", passes.wrap_scheduler, probes.fusion_passes,
          takes=("self", "nodes"), under=passes.FUSION_PASSES),
)

# What a recorded compile reached, for coverage: no verdict depends on it.
COVERAGE: tuple[Patch[Ledger], ...] = (
    Patch("reached decompositions", (DECOMPOSITION,), "counts of decompositions",
          _FX, "select_decomp_table", reached.wrap_decompositions, probes.reached_decompositions, harmless=True),
    Patch("reached lowerings", (LOWERING,), "counts of lowerings",
          _GRAPH, "GraphLowering.call_function", reached.wrap_lowering, probes.reached_lowerings, harmless=True),
    Patch("reached kernels", (SCHEDULER,), "counts of kernel shapes",
          _SCHEDULER, "Scheduler.__init__", reached.wrap_scheduler, probes.reached_kernels, harmless=True),
)

# Behind the graphs: installed where values of kernels are kept, or where something is changed for a proof.
KERNELS: tuple[Patch[Watch], ...] = (
    Patch("scalar operators", (CODEGEN,), "operators computed element by element",
          kernels.CPP, "CppVecOverrides", no_wrapper, probes.scalar_operators, members=kernels.scalar_patches),
    Patch("lowered graph", (LOWERING,), "lowered graphs",
          _GRAPH, "GraphLowering.run", kernels.wrap_run, probes.lowered_graph),
    Patch("lowered node", (LOWERING,), "lowerings of operators",
          _GRAPH, "GraphLowering.run_node", kernels.wrap_run_node, probes.lowered_node),
    Patch("fallback", (LOWERING,), "operators computed by ATen",
          _GRAPH, "GraphLowering.call_function", kernels.wrap_call_function, probes.fallback),
    Patch("scheduler", (SCHEDULER,), "kernels' dependences",
          _SCHEDULER, "Scheduler.__init__", kernels.wrap_scheduler, probes.scheduler),
    Patch("scheduler node", (SCHEDULER,), "errors of the scheduler",
          _SCHEDULER, "Scheduler.create_scheduler_node", kernels.wrap_scheduler_node, takes=("self", "node")),
    Patch("fusion", (SCHEDULER,), "operators kept apart",
          _SCHEDULER, "Scheduler.can_fuse", kernels.wrap_can_fuse, probes.fusion),
    Patch("buffers of one kernel", (SCHEDULER,), "values that one kernel alone reads",
          _SCHEDULER, "Scheduler.can_buffer_be_removed_through_fusion", kernels.wrap_removal, takes=("self", "name")),
    Patch("code generation", (CODEGEN,), "errors of the code generator",
          _SCHEDULER, "Scheduler._codegen", kernels.wrap_codegen, takes=("self",)),
    Patch("library call", (CODEGEN, RUNTIME), "calls of libraries",
          _SCHEDULER, "Scheduler.codegen_extern_call", kernel_code.wrap_extern_call, probes.library_call),
    Patch("C++ loop nest", (CODEGEN,), "loop nests in kernels of their own",
          kernels.CPP, "CppScheduling.codegen_node", kernels.wrap_cpp_node, probes.separate_kernels),
    Patch("C++ kernel", (CODEGEN,), "C++ kernels",
          kernels.CPP, "CppScheduling.define_kernel", kernel_code.wrap_define_kernel, probes.cpp_kernel),
    Patch("Triton kernel", (CODEGEN,), "Triton kernels",
          _TRITON, "TritonScheduling.define_kernel", kernel_code.wrap_define_kernel,
          takes=("self", "src_code", "node_schedule")),
    Patch("masked code", (CODEGEN,), "masks of Triton code applied once more",
          _TRITON, "TritonKernelOverrides.masked", kernels.wrap_masked, takes=("mask", "body", "other")),
    Patch("operator's code", (CODEGEN,), "operators of lines of code",
          _COMMON, "CSEProxy._default", statements.wrap_operator, probes.statement("exp")),
    Patch("load's code", (CODEGEN,), "loads in lines of code",
          _COMMON, "CSEProxy.load", statements.wrap_load, probes.statement("load")),
    Patch("reduction's code", (CODEGEN,), "reductions in lines of code",
          _COMMON, "CSEProxy.reduction", statements.wrap_reduction, probes.statement("reduction:sum")),
    Patch("line of code", (CODEGEN,), "lines of generated code",
          _COMMON, "CSE.generate", statements.wrap_generate, probes.statement("exp")),
    Patch("kernel call", (CODEGEN, RUNTIME), "values of kernels",
          _WRAPPER, "PythonWrapperCodegen.generate_kernel_call", kernel_code.wrap_kernel_call, probes.kernel_call),
    Patch("compiled graph", (RUNTIME, CUDAGRAPHS), "results of compiled graphs",
          _OUTPUT, "CompiledFxGraph.__init__", kernel_code.wrap_compiled, probes.compiled_graph),
    Patch("call of a compiled graph", (RUNTIME,), "results of compiled graphs",
          _OUTPUT, "CompiledFxGraph.__call__", kernel_code.wrap_compiled_call, probes.compiled_graph),
    Patch("C++ compiler", (CODEGEN,), "errors of the C++ compiler",
          _ASYNC, "AsyncCompile.cpp_pybinding", kernel_code.wrap_cpp_compile,
          takes=("self", "argtypes", "source_code")),
    Patch("Triton compiler", (CODEGEN,), "errors of the Triton compiler",
          _ASYNC, "AsyncCompile.triton", kernel_code.wrap_triton_compile, takes=("self", "kernel_name", "source_code")),
)

# What an ablation asks for.
DECOMPOSITIONS: tuple[Patch[Removal], ...] = (
    Patch("decomposition table", (DECOMPOSITION,), "operators without decompositions",
          _FX, "select_decomp_table", decompositions.wrap_table, probes.undecomposed),
)
METADATA: tuple[Patch[Metadata], ...] = (
    Patch("fake tensors", (FAKE_TENSOR,), "metadata from kernels",
          fake.FAKE_TENSOR_MODULE, "FakeTensorMode._dispatch_impl", fake.wrap_dispatch, probes.fake_tensors),
)

BREAKS: tuple[Patch[LeftOut], ...] = (
    Patch("nodes of dynamo's graph", (DYNAMO, FUNCTIONALIZATION), "compiles without one method",
          "torch._dynamo.output_graph", "SubgraphTracer.create_proxy", breaks.wrap_create_proxy,
          takes=("self", "kind", "target")),
    Patch("methods of tensors", (DYNAMO, FUNCTIONALIZATION), "compiles without one method",
          "torch._dynamo.variables.tensor", "TensorVariable.call_method", breaks.wrap_call_method,
          takes=("self", "tx", "name")),
)

# What makes compiles cheaper, and the older way into the compiler, which scripts take.
SPEED: tuple[Patch[Recorder], ...] = (
    Patch("guard timing", (DYNAMO,), "compiles without timed guards",
          "torch._dynamo.guards", "profile_guard_manager", settings.wrap_guard_timing, harmless=True),
)
CAPTURE: tuple[Patch[Interception], ...] = (
    Patch("optimize", (DYNAMO,), "scripts that call torch._dynamo.optimize",
          "torch._dynamo", "optimize", entry.wrap_optimize),
    Patch("optimize_assert", (DYNAMO,), "scripts that call torch._dynamo.optimize_assert",
          "torch._dynamo", "optimize_assert", entry.wrap_optimize),
)
# fmt: on

AnyPatch = (
    Patch[Recorder]
    | Patch[Ledger]
    | Patch[Watch]
    | Patch[Removal]
    | Patch[Metadata]
    | Patch[LeftOut]
    | Patch[Interception]
)
PATCHES: tuple[AnyPatch, ...] = (*GRAPHS, *COVERAGE, *KERNELS, *DECOMPOSITIONS, *METADATA, *BREAKS, *SPEED, *CAPTURE)


def patches_of(stage: str) -> tuple[AnyPatch, ...]:
    """The patches that serve a stage (:mod:`fuzzcompile.stage_names`)."""
    return tuple(patch for patch in PATCHES if stage in patch.stages)
