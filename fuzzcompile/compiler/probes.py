"""Probes: what each patch alone shows of a few small compiles (:mod:`~fuzzcompile.compiler.conformance` makes them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Ledger
from fuzzcompile.compiler.patching import Probe
from fuzzcompile.stage_names import DECOMPOSITION, FREEZING, JOINT_GRAPH, LOWERING, POST_GRAD, PRE_GRAD, SCHEDULER


@dataclass
class Findings:
    """Records of the probes' compiles (:mod:`~fuzzcompile.compiler.probed` holds the programs).

    Attributes:
        trained, inferred, frozen: graphs of a training step, of inference and of a module whose parameters are frozen.
        vetoed: a compile with a pattern vetoed, and ``aten.silu`` not decomposed.
        generated: a compile up to generated C++, with the values of its kernels.
        changed: the same with every change that a proof of a culprit in code generation asks for.
        vetoed_is_right: whether the vetoed compile gave the right result.
        metadata: what a fake tensor says of an operator whose description is wrong and whose kernel is to be asked.
    """

    trained: Ledger = field(default_factory=Ledger)
    inferred: Ledger = field(default_factory=Ledger)
    frozen: Ledger = field(default_factory=Ledger)
    vetoed: Ledger = field(default_factory=Ledger)
    generated: Ledger = field(default_factory=Ledger)
    changed: Ledger = field(default_factory=Ledger)
    vetoed_is_right: bool = False
    metadata: tuple[int, ...] = ()

    def ledgers(self) -> Sequence[Ledger]:
        """The ledgers of all compiles."""
        return self.trained, self.inferred, self.frozen, self.vetoed, self.generated, self.changed


# -- the graphs -------------------------------------------------------------------------------------


def entry(findings: Findings) -> str | None:
    """A training step is one graph, called once in each direction."""
    frame = _frame(findings.trained)
    calls = (len(frame.dynamo_calls), len(frame.forward_calls), len(frame.backward_calls))
    return None if calls == (1, 1, 1) else f"calls recorded: {calls} instead of (1, 1, 1)"


def pre_grad(findings: Findings) -> str | None:
    """Dynamo's graph is recorded."""
    return _recorded(findings.trained, PRE_GRAD, "inference")


def analysis(findings: Findings) -> str | None:
    """AOTAutograd says that the one output of a training step gets gradients."""
    said = _frame(findings.trained).analysis
    return None if said is not None and list(said.gradients) == [True] else f"it says {said}"


def joint_graph(findings: Findings) -> str | None:
    """A planted pattern is recorded in the joint graph."""
    return _has(findings.trained, "doubled_sine", JOINT_GRAPH, "joint")


def post_grad(findings: Findings) -> str | None:
    """The graph of the backward pass is recorded."""
    return _recorded(findings.trained, POST_GRAD, "backward")


def partition(findings: Findings) -> str | None:
    """The joint graph is cut once."""
    cut = _frame(findings.trained).partitions
    return None if len(cut) == 1 and cut[0].backward.calls else "the partition of the joint graph was not recorded"


def freezing(findings: Findings) -> str | None:
    """Constants are folded in a frozen graph."""
    return _has(findings.frozen, "constant_fold", FREEZING)


def plain_passes(findings: Findings) -> str | None:
    """``constant_fold``, which freezing calls straight, is recorded."""
    return _fired(findings.frozen, "constant_fold")


def frozen_parameters(findings: Findings) -> str | None:
    """Once parameters are constants, the graph has one input left, and a record of its own."""
    records = [record for record in _frame(findings.frozen).records if record.stage == FREEZING]
    inputs = [[len(kept.graph.find_nodes(op="placeholder")) for kept in record.snapshots] for record in records]
    first = [counts[0] for counts in inputs]
    return None if first and first[-1] == 1 < first[0] else f"inputs of the graphs recorded: {inputs}"


def weights_layout(findings: Findings) -> str | None:
    """The new layout of weights has a record of its own."""
    records = [record for record in _frame(findings.frozen).records if record.stage == FREEZING]
    return None if len(records) > 2 else "no record of its own"


def dead_code(findings: Findings) -> str | None:
    """Planted dead code is removed by the stage."""
    return _fired(findings.inferred, "eliminate_dead_code")


def graph_pass(findings: Findings) -> str | None:
    """A planted pass over a graph is recorded."""
    return _has(findings.trained, "last_probe", POST_GRAD, "forward")


def module_pass(findings: Findings) -> str | None:
    """A planted pass over a graph module is recorded."""
    return _fired(findings.inferred, "module_probe")


def joint_pass(findings: Findings) -> str | None:
    """A planted pass of functorch's config is recorded."""
    return _fired(findings.trained, "joint_probe")


def pattern_pass(findings: Findings) -> str | None:
    """A planted pattern is recorded, and a veto of it has an effect."""
    if (wrong := _fired(findings.trained, "doubled_sine")) is not None:
        return wrong
    if not findings.vetoed_is_right or _fired(findings.vetoed, "doubled_sine") is None:
        return "a veto of the planted pattern had no effect"
    return None


def fusion_passes(findings: Findings) -> str | None:
    """A planted pass over the scheduler's nodes is recorded."""
    seen = [label.rewrite for label in findings.generated.unreplayed]
    return None if "fusion_probe" in seen else f"fusion_probe was not recorded: {', '.join(seen) or 'nothing'}"


# -- coverage ---------------------------------------------------------------------------------------


def reached_decompositions(findings: Findings) -> str | None:
    """``aten.silu`` is decomposed where nothing is changed."""
    return _reached(findings.generated, DECOMPOSITION)


def reached_lowerings(findings: Findings) -> str | None:
    """Operators are lowered."""
    return _reached(findings.generated, LOWERING)


def reached_kernels(findings: Findings) -> str | None:
    """Kernels are scheduled."""
    return _reached(findings.generated, SCHEDULER)


def _reached(ledger: Ledger, stage: str) -> str | None:
    return None if any(reached.stage == stage for reached in ledger.reached) else "nothing was counted"


# -- behind the graphs ------------------------------------------------------------------------------


def lowered_graph(findings: Findings) -> str | None:
    """A graph is lowered."""
    return None if len(findings.generated.lowered) == 1 else "the lowered graph was not recorded"


def lowered_node(findings: Findings) -> str | None:
    """Its nodes have an IR."""
    return None if _lowered(findings.generated).values else "no operator's IR was recorded"


def fallback(findings: Findings) -> str | None:
    """An operator that is to fall back is called as a library's."""
    names = [kernel.name for kernel in _lowered(findings.changed).kernels if kernel.extern]
    return None if any("cos" in name for name in names) else f"no fallback among the calls of libraries: {names}"


def scheduler(findings: Findings) -> str | None:
    """The graph has a scheduler."""
    return None if _lowered(findings.generated).scheduler is not None else "the scheduler was not recorded"


def fusion(findings: Findings) -> str | None:
    """Loops are fused, and not where they are to stay apart."""
    fused, apart = (_fused(_lowered(ledger)) for ledger in (findings.generated, findings.changed))
    return None if fused and not apart else f"fused loops: {fused}; where they were to stay apart: {apart}"


def _fused(lowered: Lowered) -> int:
    return sum(len(node.get_nodes()) > 1 for node in getattr(lowered.scheduler, "nodes", ()))


def library_call(findings: Findings) -> str | None:
    """A matrix product is a library's, and its result is kept."""
    return _written(findings.generated, extern=True)


def kernel_call(findings: Findings) -> str | None:
    """Check that the values written by a generated kernel are kept."""
    return _written(findings.generated, extern=False)


def _written(ledger: Ledger, *, extern: bool) -> str | None:
    lowered = _lowered(ledger)
    numbers = {kernel.number for kernel in lowered.kernels if kernel.extern is extern}
    kept = {number for call in lowered.calls for number, _ in call.written}
    return (
        None if numbers and numbers <= kept else f"kernels recorded: {len(numbers)}, with values: {len(numbers & kept)}"
    )


def separate_kernels(findings: Findings) -> str | None:
    """Loop nests are kernels of their own where they are to be."""
    lowered = _lowered(findings.changed)
    apart = sum(not kernel.extern for kernel in lowered.kernels)
    nests = sum(not node.is_extern() for node in getattr(lowered.scheduler, "nodes", ()))
    return None if nests and nests == apart else f"{apart} generated kernels for {nests} loop nests"


def cpp_kernel(findings: Findings) -> str | None:
    """A kernel has a source and operators."""
    lowered = _lowered(findings.generated)
    operators = [kernel.nodes for kernel in lowered.kernels if not kernel.extern]
    return None if lowered.sources and any(operators) else "no source or no operators of a kernel were recorded"


def scalar_operators(findings: Findings) -> str | None:
    """An operator is computed element by element where it is to be."""
    vectors, scalars = (
        any("std::exp(" in source for source in _lowered(ledger).sources.values())
        for ledger in (findings.generated, findings.changed)
    )
    return None if scalars and not vectors else f"exp in scalars: {scalars}; without being asked for: {vectors}"


def statement(operator: str) -> Probe:
    """A line of code is known to belong to ``operator``."""

    def probe(findings: Findings) -> str | None:
        written = {line.operator for lines in _lowered(findings.generated).statements.values() for line in lines}
        return None if operator in written else f"no line of code for {operator}"

    return probe


def compiled_graph(findings: Findings) -> str | None:
    """Check that the result of a compiled graph is kept."""
    calls = _lowered(findings.generated).calls
    return None if calls and calls[-1].outputs is not None else "no results of the compiled graph were kept"


# -- changes ----------------------------------------------------------------------------------------


def undecomposed(findings: Findings) -> str | None:
    """An operator without its decomposition stands in the graph."""
    calls = _record(findings.vetoed, POST_GRAD).snapshots[-1].calls
    return None if "aten.silu.default" in calls else f"aten.silu was decomposed: {', '.join(calls)}"


def fake_tensors(findings: Findings) -> str | None:
    """The kernel's metadata are taken for the ones that are described wrong."""
    return None if findings.metadata == (2,) else f"a result of shape (2,) has shape {findings.metadata}"


# -- what is looked up in ledgers ------------------------------------------------------------------------


def _frame(ledger: Ledger) -> Frame:
    if len(ledger.frames) != 1:
        raise LookupError(f"{len(ledger.frames)} graphs recorded instead of one")
    return ledger.frames[0]


def _lowered(ledger: Ledger) -> Lowered:
    if len(ledger.lowered) != 1:
        raise LookupError(f"{len(ledger.lowered)} lowered graphs recorded instead of one")
    return ledger.lowered[0]


def _record(ledger: Ledger, stage: str, direction: str | None = None) -> GraphRecord:
    record = _frame(ledger).record(stage, direction)
    if record is None or not record.snapshots:
        raise LookupError(f"no {direction or ''} graph of stage {stage} was recorded".replace("  ", " "))
    return record


def _recorded(ledger: Ledger, stage: str, direction: str | None = None) -> str | None:
    _record(ledger, stage, direction)
    return None


def _has(ledger: Ledger, rewrite: str, stage: str, direction: str | None = None) -> str | None:
    _record(ledger, stage, direction)
    records = [record for record in _frame(ledger).records if record.stage == stage]
    seen = [
        rewrite.label.rewrite
        for record in records
        if direction in (None, record.direction)
        for rewrite in record.rewrites
    ]
    lacking = f"planted {rewrite} is not in the record of {stage}: {', '.join(seen) or 'empty'}"
    return None if rewrite in seen else lacking


def _fired(ledger: Ledger, rewrite: str) -> str | None:
    seen = [rewrite.label.rewrite for _, _, rewrite in ledger.rewrites()]
    return None if rewrite in seen else f"{rewrite} was not recorded"
