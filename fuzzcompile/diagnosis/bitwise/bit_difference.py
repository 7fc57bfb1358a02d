"""Differences of bits: their size, the operators and kernels at which they begin, and the promises that cover them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from fuzzcompile.compiler.kernels import ir_evaluation
from fuzzcompile.compiler.kernels.kernel_loops import find_loop_nodes, list_loop_operators, list_operators_behind
from fuzzcompile.compiler.kernels.lowering_control import find_lowering_source, get_operator_name, parse_operator
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.watch.ledger import GraphCall, Kernel, LoweredGraph
from fuzzcompile.compiler.watch.unseen import Unseen, UnseenLog
from fuzzcompile.diagnosis.attribution.culprit import Culprit, OutOfTime
from fuzzcompile.diagnosis.kernels.code_generators import find_generator
from fuzzcompile.diagnosis.kernels.watched_graph import WatchedGraph, find_kernel, find_site
from fuzzcompile.model.contract import PartingJson, PromiseJson
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, LOWERING, RUNTIME
from fuzzcompile.model.thresholds import DIFFERING_SHARE, FORMS_APART
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.tensors import SHORT_FLOATS, densify

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class BitDifference:
    """Difference between the bits of two values of one name: ``differing`` of their ``elements`` have other bits.

    Two zeros of different sign differ, and so do two NaN of different payload. Both are counted apart (``zero_signs``,
    ``nan_payloads``): IEEE 754 leaves the payload of a NaN open, and torch promises none. ``max_ulps`` is the largest
    distance over the elements that are numbers in both; None for values that are no floating tensors of one form.
    """

    name: str
    elements: int = 1
    differing: int = 1
    max_ulps: int | None = None
    zero_signs: int = 0
    nan_payloads: int = 0
    detail: str = ""

    @property
    def only_payloads(self) -> bool:
        """Return whether nothing but the payloads of NaN differs."""
        return self.differing == self.nan_payloads and not self.detail

    @property
    def only_zero_signs(self) -> bool:
        """Return whether nothing but payloads and the signs of zeros differs."""
        return self.differing == self.nan_payloads + self.zero_signs and not self.detail

    @property
    def is_rare(self) -> bool:
        """Return whether so few elements differ that two good implementations of a function explain it."""
        return self.differing <= max(1.0, DIFFERING_SHARE * self.elements)

    def __str__(self) -> str:
        ulps = "" if self.max_ulps is None else f", by up to {self.max_ulps} ulp"
        return self.detail or f"{self.differing} of {self.elements} elements differ{ulps}"


def compare_bits(name: str, first: torch.Tensor, second: torch.Tensor) -> BitDifference | None:
    """Compare two tensors; None if they have the same dtype, shape and bits."""
    if first.dtype != second.dtype or first.shape != second.shape:
        forms = [f"{value.dtype} {tuple(value.shape)}" for value in (first, second)]
        return BitDifference(name, second.numel(), second.numel(), detail=f"{forms[0]} against {forms[1]}")
    # The elements in a row on the CPU, complex numbers as pairs.
    rows = [densify(value).detach().cpu().contiguous().reshape(-1) for value in (first, second)]
    left, right = (torch.view_as_real(row.resolve_conj()).reshape(-1) if row.is_complex() else row for row in rows)
    bits = _INTEGERS[left.element_size()]
    apart = left.view(bits) != right.view(bits)
    count = int(apart.sum())
    if not count or not left.is_floating_point():
        return BitDifference(name, left.numel(), count) if count else None
    zeros, payloads = apart & (left == 0) & (right == 0), apart & left.isnan() & right.isnan()
    ulps = _count_ulps(left, right, bits)
    return BitDifference(name, left.numel(), count, ulps, int(zeros.sum()), int(payloads.sum()))


def find_significant(name: str, first: torch.Tensor, second: torch.Tensor) -> BitDifference | None:
    """As :func:`compare_bits`; None if nothing but payloads of NaN differs."""
    apart = compare_bits(name, first, second)
    return None if apart is None or apart.only_payloads else apart


def compare_runs(first: Observation, second: Observation) -> list[BitDifference]:
    """The values of two runs that differ, by name."""
    there, known = second.index_by_name(), first.index_by_name()
    found = [_compare_values(value, there.get(value.name)) for value in first.values]
    found += [_compare_values(value, None) for value in second.values if value.name not in known]
    return [apart for apart in found if apart is not None]


def _compare_values(value: Value, paired: Value | None) -> BitDifference | None:
    if paired is None or value.is_tensor != paired.is_tensor:
        return BitDifference(value.name, detail="only one of the runs has it")
    first, second = value.value, paired.value
    if isinstance(first, float) and isinstance(second, float):
        first, second = (torch.tensor(number, dtype=torch.float64) for number in (first, second))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return compare_bits(value.name, first, second)
    return None if first == second else BitDifference(value.name, detail=f"{first!r} against {second!r}"[:200])


def _count_ulps(left: torch.Tensor, right: torch.Tensor, bits: torch.dtype) -> int | None:
    numbers = ~(left.isnan() | right.isnan())
    if left.element_size() == 1 or not bool(numbers.any()):
        return None

    def order(value: torch.Tensor) -> torch.Tensor:
        """Signed magnitudes as integers in the order of the numbers; both zeros are 0."""
        wide = value[numbers].view(bits).to(torch.int64)
        return torch.where(wide < 0, torch.iinfo(bits).min - wide, wide)

    return int((order(left) - order(right)).abs().max())


@dataclass(frozen=True)
class Parting:
    """A place in a compiled program from which on bits differ.

    ``graph`` is the number of dynamo's graph. ``culprit`` is the operator (or the rewrite) in the stage that made the
    difference, ``kernel`` computes it, and ``detail`` says what was seen. ``unpromised`` is why torch promises nothing
    there; None where it does. ``position`` is its place in the order of execution, as far as it is known.
    """

    graph: int
    direction: str
    culprit: Culprit
    difference: BitDifference
    detail: str
    kernel: str | None = None
    unpromised: str | None = None
    position: int = 0

    @property
    def is_promised(self) -> bool:
        """Return whether torch promises equal bits there."""
        return self.unpromised is None

    @property
    def place(self) -> tuple[int, str]:
        """The graph, with its direction."""
        return self.graph, self.direction

    def __str__(self) -> str:
        culprit = self.culprit
        kernel = f" in kernel {self.kernel}" if self.kernel else ""
        at = f" at {culprit.site}" if culprit.site else ""
        graph = f"graph {self.graph} {self.direction}, {culprit.stage}"
        return f"{culprit.rewrite or 'no single operator'}{at}{kernel} ({graph})"

    def to_json(self) -> PartingJson:
        """The form of the triage contract."""
        culprit = self.culprit
        return {
            "graph": self.graph,
            "direction": self.direction,
            "operator": culprit.rewrite,
            "node": next(iter(culprit.nodes), None),
            "kernel": self.kernel,
            "stage": culprit.stage,
            "site": culprit.site,
            "source": culprit.source,
            "line": culprit.line,
            "promised": self.is_promised,
            "why": self.unpromised or self.detail,
            "differing": self.difference.differing,
            "elements": self.difference.elements,
            "max_ulps": self.difference.max_ulps,
        }


def sort_partings(partings: Iterable[Parting]) -> list[Parting]:
    """Partings in the order of execution: graphs forward, then backward in reverse; places within a graph."""

    def key(parting: Parting) -> tuple[bool, int, int]:
        backward = parting.direction == "backward"
        return backward, -parting.graph if backward else parting.graph, parting.position

    return sorted(partings, key=key)


_SHOWN = 20  # partings without a promise that a report lists


@dataclass(frozen=True)
class PromiseAnswer:
    """Outcome of checking one promise: ``eager``, ``batch`` or ``run_to_run``.

    ``holds`` is None where bits part and nothing is promised, and where it was not looked at; ``why`` is one sentence.
    ``partings`` are in the order of execution. ``unsure``: a better informed look might say otherwise.
    """

    name: str
    holds: bool | None
    why: str
    partings: tuple[Parting, ...] = ()
    outputs: tuple[BitDifference, ...] = ()
    unsure: bool = False

    @property
    def first(self) -> Parting | None:
        """The first parting where equal bits are promised; if there is none, the first of all."""
        return next((parting for parting in self.partings if parting.is_promised), next(iter(self.partings), None))

    def to_json(self) -> PromiseJson:
        """The form of the triage contract."""
        return {
            "promise": self.name,
            "holds": self.holds,
            "why": self.why,
            "first": self.first.to_json() if self.first is not None else None,
            "unpromised": [parting.to_json() for parting in self.partings if not parting.is_promised][:_SHOWN],
            "outputs": [vars(output) for output in self.outputs],  # type: ignore[misc]
        }


def answer_partings(
    name: str, what: str, partings: Sequence[Parting], outputs: Sequence[BitDifference], *, first_decides: bool = False
) -> PromiseAnswer:
    """Answer for outputs that differ: the promise is broken where a parting, or only the first, is promised."""
    said, shown = tuple(partings), tuple(outputs)
    if not said:
        return PromiseAnswer(name, None, f"{what}, and no graph or kernel shows where", outputs=shown, unsure=True)
    broken = next((each for each in said[: 1 if first_decides else None] if each.is_promised), None)
    if broken is not None:
        return PromiseAnswer(name, False, f"{what} although promised: {broken}: {broken.detail}", said, shown)
    why = f"{what} where nothing is promised: {said[0]}: {said[0].unpromised}"
    return PromiseAnswer(name, None, why, said, shown)


# Why torch leaves bits open: None of each of these says that it promises them.

_CASTS = ("convert_element_type", "_to_copy")
_ACCUMULATES = "its terms may be added in any order, or a library computes it"
_FUNCTION = "torch leaves open how it approximates this function"
_SCALAR = "torch does not say in which precision a Python number enters bfloat16 or float16 arithmetic"
_MULTIPLIED = "ATen multiplies by alpha and adds with one rounding"
_QUOTIENT = "torch leaves open how a quotient is computed that becomes a whole number"
_PAYLOAD = "the payload of a NaN is open"
_ZERO = "either zero is right"
_FACTS = facts().bitwise.covered


def why_open_bits(node: fx.Node, value: torch.Tensor, difference: BitDifference) -> str | None:
    """Return why the lowering of an operator may give other bits than ATen, which gives ``value``."""
    family, low = _find_family(node), value.dtype in SHORT_FLOATS
    if (spared := _why_spared(family, difference)) is not None:
        return spared
    if low and _has_number(node, value.dtype):
        return _SCALAR
    if node.kwargs.get("alpha", 1) != 1:
        return _MULTIPLIED
    if node.kwargs.get("rounding_mode") is not None and value.is_floating_point():
        return _QUOTIENT
    if family in _FACTS.exactly_rounded:
        return None
    if not _is_pointwise(node):
        return _ACCUMULATES
    if not low or difference.is_rare:
        return _FUNCTION
    if family in _FACTS.expanded:
        return f"torch expands {family} into operators that round on their own"
    inside = _find_decomposed_operator(node)
    return f"it is a part of {inside}, in which torch marks no cast" if inside else None


def why_open_cast(node: fx.Node) -> str | None:
    """Return why a lowering may leave its result unrounded."""
    inside = _find_decomposed_operator(node)
    if _find_family(node) in _CASTS or (_is_pointwise(node) and inside is None):
        return None
    if inside is not None:
        return f"it is a part of {inside}, in which torch marks no cast"
    return "torch promises casts after pointwise operators only"


def _why_open_code(
    lowered: LoweredGraph, kernel: Kernel, stored: ir_evaluation.StoredBuffer, difference: BitDifference
) -> str | None:
    """Return why a kernel may give other bits than its loop evaluated on the same inputs."""
    operators, dtype = list_loop_operators(kernel, stored.buffer), stored.written.dtype
    if difference.only_payloads:
        return _PAYLOAD
    if _accumulates(operators):
        return _ACCUMULATES
    if stored.reads_unknown:
        return "it reads a reduction or an approximation that no kernel stores, whose bits are open"
    names = find_loop_nodes(kernel, stored.buffer)
    if dtype in SHORT_FLOATS and any(
        _has_number(node, dtype) for node in lowered.snapshot.graph.nodes if node.name in names
    ):
        return _SCALAR
    if is_exact(operators):
        choosing = {"maximum", "minimum", "relu"} & set(operators)
        return _ZERO if difference.only_zero_signs and choosing else None
    return _FUNCTION if dtype not in SHORT_FLOATS or difference.is_rare else None


def why_open_batch(kernel: Kernel, buffer: str, known: Collection[str], difference: BitDifference) -> str | None:
    """Return why a kernel may give a row other bits in another batch, though the ``known`` buffers have the same."""
    if kernel.extern:
        return "a library computes it, and torch promises nothing of libraries"
    operators = list_operators_behind(kernel, buffer, known)
    if _accumulates(operators):
        steered = torch.cuda.is_available()
        return None if steered else "batch_invariant steers the reductions of Triton kernels, not of C++"
    if is_exact(operators) or (difference.max_ulps or 0) > FORMS_APART:
        return None
    return "kernels for other sizes may compute a function in vectors or in scalars"


def why_open_family(family: str, difference: BitDifference) -> str | None:
    """Return why a substitute for an operator's kernel may give other bits."""
    spared = _why_spared(family, difference)
    if spared is not None or family in _FACTS.exactly_rounded:
        return spared
    return "torch promises casts between operators, and not that a decomposition rounds as the operator's own kernel"


def is_exact(operators: Collection[str]) -> bool:
    """Return whether IEEE 754 leaves a loop of these operators one result."""
    return set(operators) <= _FACTS.exact_in_loops


def _accumulates(operators: Iterable[str]) -> bool:
    return any(name.startswith("reduction") or name in ("scan", "sort") for name in operators)


def _find_family(node: fx.Node) -> str:
    return get_operator_family(get_operator_name(node.target))


def _find_decomposed_operator(node: fx.Node) -> str | None:
    """The operator that a node is a part of the decomposition of; None if it is an operator of the program itself."""
    original = node.meta.get("original_aten")
    if original is None or original is node.target:
        return None
    name = get_operator_name(original)
    families = {get_operator_family(name), _find_family(node)}
    return None if len(families) == 1 or families <= set(_CASTS) else name


def _why_spared(family: str, difference: BitDifference) -> str | None:
    if difference.only_payloads:
        return _PAYLOAD
    return _ZERO if difference.only_zero_signs and family in _FACTS.either_zero else None


def _is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _has_number(node: fx.Node, dtype: torch.dtype) -> bool:
    numbers = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, (int, float))]
    return any(float(torch.tensor(float(number)).to(dtype)) != number for number in numbers)


# One execution of a graph, each step on what it really read: its lowerings beside ATen, its kernels beside their loops.


def find_call_partings(look: WatchedGraph) -> list[Parting]:
    """The partings of lowerings, kernels and the wrapper from the right values in one call, in graph order."""
    lowered, inputs = look.lowered, look.inputs or ()
    inexact = {
        buffer: kernel.extern or not is_exact(list_loop_operators(kernel, buffer))
        for kernel in lowered.kernels
        for buffer in kernel.writes
    }
    given = look.interpret(double=False)
    followed = ir_evaluation.GraphEvaluation(lowered, inputs, given, look.call, inexact=inexact)
    found: list[Parting | None] = []
    try:
        found += [_compare_lowering(lowered, each) for each in ir_evaluation.compare_operators(followed, inputs)]
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # an operator that does not run on these values leaves the rest uncompared
        missed = Unseen("operators of a graph", describe_error(error), (LOWERING, CODEGEN), "places where bits part")
        UnseenLog().note(missed)
    with contextlib.suppress(*ir_evaluation.NOT_FOLLOWED, ValueError):
        followed.finish()
    found += [_compare_kernel(lowered, stored) for stored in followed.stored.values()]
    found += _compare_outputs(look, followed)
    return sorted((each for each in found if each is not None), key=lambda parting: parting.position)


def _compare_lowering(lowered: LoweredGraph, applied: ir_evaluation.AppliedOperator) -> Parting | None:
    aten, value, node = applied.aten, applied.lowered, applied.node
    rounded = value.to(aten.dtype)
    if value.is_floating_point() and aten.is_floating_point():
        left, why = compare_bits(node.name, rounded.to(value.dtype), value), why_open_cast(node)
        if left is not None and not left.only_payloads:
            if applied.reads_unrounded and why is not None:
                return None
            what = f"its result is not rounded to {str(aten.dtype).removeprefix('torch.')}"
            return make_parting(lowered, node, left, what, why)
    apart = None if applied.reads_unrounded else compare_bits(node.name, aten, rounded)
    if apart is None:
        return None
    return make_parting(lowered, node, apart, "not what ATen gives", why_open_bits(node, aten, apart))


def _compare_kernel(lowered: LoweredGraph, stored: ir_evaluation.StoredBuffer) -> Parting | None:
    if stored.meant is None or stored.meant.shape != stored.written.shape:
        return None
    apart = compare_bits(stored.buffer, stored.meant, stored.written)
    kernel = lowered.kernels[stored.kernel]
    name = stored.node or (kernel.nodes[-1] if kernel.nodes else None)
    node = lowered.find_node(name) if name is not None else None
    if apart is None or node is None:
        return None
    what = "the kernel writes something else than a loop that the lowering wrote"
    return make_parting(lowered, node, apart, what, _why_open_code(lowered, kernel, stored, apart), kernel)


def _compare_outputs(look: WatchedGraph, followed: ir_evaluation.GraphEvaluation) -> Iterator[Parting]:
    lowered = look.lowered
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    for node, value in zip(lowered.snapshot.results, look.call.outputs or (), strict=False):
        stored = followed.find_stored(node.name) if isinstance(node, fx.Node) else None
        if stored is None or not isinstance(value, torch.Tensor) or stored.written.shape != value.shape:
            continue
        apart = compare_bits(node.name, stored.written, value.cpu())
        later = (name for kernel in lowered.kernels[stored.kernel + 1 :] for name in kernel.writes)
        if apart is not None and not any(renamed.get(name, name) == stored.buffer for name in later):
            what = f"output {node.name} is not what the kernel wrote: {apart}"
            yield _make_runtime_parting(lowered, apart, what, _find_position(lowered, node))


def _make_runtime_parting(lowered: LoweredGraph, apart: BitDifference, what: str, position: int = 0) -> Parting:
    culprit = Culprit.from_operator(RUNTIME, None)
    return Parting(lowered.frame, lowered.direction, culprit, apart, what, position=position)


def _find_position(lowered: LoweredGraph, node: fx.Node) -> int:
    return next((place for place, each in enumerate(lowered.snapshot.graph.nodes) if each.name == node.name), 0)


def make_parting(
    lowered: LoweredGraph, node: fx.Node, apart: BitDifference, what: str, why: str | None, kernel: Kernel | None = None
) -> Parting:
    """A parting at a node of a lowered graph: in its lowering, or in the code that was generated for a ``kernel``."""
    stage, position = LOWERING if kernel is None or kernel.extern else CODEGEN, _find_position(lowered, node)
    node = lowered.find_node(lowered.find_producer(node.name)) or node  # of several results, the operator
    kernel = kernel or find_kernel(lowered, node.name)
    label = lowered.labels.get(node.name)
    place = find_lowering_source(node.target)
    if stage == CODEGEN and kernel is not None:
        place = find_generator(lowered, kernel.name).find_fusion_code()[1:]
    operator, site = parse_operator(label) if label else None, find_site(lowered, node.name)
    culprit = Culprit.from_operator(stage, operator, place, nodes=(node.name,), site=site)
    name = kernel.name if kernel is not None else None
    return Parting(lowered.frame, lowered.direction, culprit, apart, f"{what}: {apart}", name, why, position)


# Two executions of one program held against each other: the first kernel and operator whose values differ.

# Why nothing is promised of a kernel and one of its buffers, given the buffers that were the same before it, and how
# the values differ; None where equal bits are.
Why = Callable[[Kernel, str, Collection[str], BitDifference], str | None]
# The part of the first value that the second should equal; None where they cannot be compared.
Project = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]


def find_first_parting(
    first: LoweredGraph,
    second: LoweredGraph,
    calls: Iterable[tuple[GraphCall, GraphCall]],
    why: Why,
    project: Project = lambda value, seen: value if value.shape == seen.shape else None,
) -> Parting | None:
    """The first operator whose values differ between calls of a graph and of the same graph in another execution.

    Else the graph, where its kernels give the same bits and its outputs do not. ``why`` says why nothing is promised of
    a difference, and ``project`` which part of the first value the second is.
    """
    nodes, others = ir_evaluation.map_buffers_to_nodes(first), ir_evaluation.map_buffers_to_nodes(second)
    for before, after in calls:
        # By what means the same operator in another compile; in the same compile, by the buffer itself.
        there = {
            buffer if first is second else second.labels.get(others.get(buffer, ""), buffer): value
            for (_, buffer), value in after.written.items()
        }
        compared: set[str] = set()
        for (number, buffer), value in before.written.items():
            kernel, node = first.kernels[number], nodes.get(buffer, "")
            seen = there.get(buffer if first is second else first.labels.get(node, ""))
            part = project(value, seen) if seen is not None else None
            if seen is None or part is None:
                continue
            apart = find_significant(buffer, part, seen)
            if apart is not None:
                at = first.find_node(node or next(reversed(kernel.nodes), ""))
                what, unpromised = "the kernel's values differ", why(kernel, buffer, compared, apart)
                return None if at is None else make_parting(first, at, apart, what, unpromised, kernel)
            compared.add(buffer)
        for number, (output, returned) in enumerate(zip(before.outputs or (), after.outputs or (), strict=False)):
            if isinstance(output, torch.Tensor) and isinstance(returned, torch.Tensor):
                part = project(output, returned)
                apart = find_significant(f"output {number}", part, returned) if part is not None else None
                if apart is not None:
                    return _make_runtime_parting(
                        first, apart, f"{apart.name} of the graph, behind its kernels: {apart}"
                    )
    return None


def single_out(parting: Parting, finer: Callable[[], list[Parting]]) -> Parting:
    """The operator of a kernel that makes the difference.

    ``parting`` names an operator whose value the kernel stores; ``finer`` finds the partings of a compile in which
    kernels store the value of each operator.
    """
    if parting.culprit.stage != CODEGEN or parting.kernel is None:
        return parting
    try:
        partings = finer()
    except OutOfTime:
        return parting
    same = (each for each in partings if each.place == parting.place and each.culprit.rewrite is not None)
    named = next(same, None)
    if named is None or named.position > parting.position:
        return parting
    return replace(named, kernel=parting.kernel)
