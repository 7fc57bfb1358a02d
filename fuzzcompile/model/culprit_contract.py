"""The part of a report on what is at fault, as types: culprits with their details, ablations, workarounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class MatchedLineJson(TypedDict):
    """A line of the user's program that a rewrite matched.

    Keys:
        source: ``file.py:12``; null where the compiler kept no track.
        code: the text of that line.
        nodes: names of the graph's nodes that come from it.
    """

    source: str | None
    code: str | None
    nodes: list[str]


class FrameJson(TypedDict):
    """A function of the compiler on a stack: its file relative to the folder that holds torch, line and name."""

    source: str | None
    line: int
    function: str


class KernelInputJson(TypedDict, total=False):
    """A tensor that an ATen kernel was given: shape and stride in elements.

    Keys:
        below: for integers, a bound on the values.
    """

    shape: list[int]
    stride: list[int]
    dtype: str
    below: int


class AtenKernelJson(TypedDict):
    """An ATen kernel that gives other values on these operands than on contiguous copies of them.

    Keys:
        operator: with its overload.
        call: the call as Python, with the tensors as ``inputs[i]``.
        inputs: those tensors.
        differs_by: the largest difference, in units of the result's size.
        wrong_in: the side that hands it such operands: ``eager`` or ``compiled``.
    """

    operator: str
    call: str
    inputs: list[KernelInputJson]
    differs_by: float | None
    wrong_in: str


class CompositeJson(TypedDict):
    """A function that takes another path once it is traced: the operators on each side."""

    call: str
    eager: list[str]
    compiled: list[str]


# The functional form, because keys have spaces.
DetailsJson = TypedDict(
    "DetailsJson",
    {
        # A rewrite of a graph, as its replay measured it.
        "direction": str,
        "float64": float | None,
        "native": float | None,
        "native_noise": float | None,
        "changed": str | None,
        "matched": list[MatchedLineJson],
        "diff": str,
        # An operator, or a part of the compiler around the graphs.
        "kind": str,
        "way": str,
        "backward": bool,
        "inside": list[str],
        "expected": str | int,
        "got": str | int,
        "node": str,
        "composite": CompositeJson,
        "aten_kernel": AtenKernelJson,
        "differs": str | list[str],
        "saved": list[str],
        "read": str | None,
        "written through": str,
        "shape": list[int],
        "strides": list[int],
        "a run shows": list[str],
        "joint graph draws": dict[str, int],
        "its parts draw": dict[str, int],
        "call": str,
        "eager": list[str],
        "compiled": list[str],
        "agrees": str,
        "left": str,
        "operator": str,
        "output of": str,
        "path": str,
        # A generated kernel.
        "graph": str,
        "kernel": str | None,
        "code_generator": str,
        "fused": list[str],
        "kernel_source": str | None,
        "finding": str,
        "where": list[int] | None,
        "values": dict[str, float | int | bool | str | None],
        "shown_in_float64": bool,
        "operators": list[str],
        "vectorised": bool,
        "alone": str | None,
        "programs": str,
        "dependences": str,
        "right_in_scalars": str | None,
        "overwritten": str,
        "written_by": int,
        "output": str,
        "parting": str,
        # A generated program, an error, a worker that was lost.
        "program": str,
        "statement": str,
        "error": str,
        "raised": list[FrameJson],
        "stack": list[FrameJson],
        "proof": str,
        "non_finite": str,
    },
    total=False,
)
DetailsJson.__doc__ = """What a reader wants to see of one kind of culprit; which keys are there depends on the kind.

Keys:
    direction: the graph: ``inference``, ``joint``, ``forward`` or ``backward``.
    float64: the distance by which a rewrite moved the results, in units of their size, its graph run in float64.
    native: the same in the program's own dtypes; ``native_noise`` is what rounding alone does there.
    changed: the change of a rewrite to something else than values, such as a dtype, shape or stride.
    matched: the lines of the program that a rewrite matched.
    diff: the graph before and after a rewrite, as a diff.
    kind: of fault, such as ``values``, ``metadata``, ``alias``, ``check``, ``branch``, ``tangent`` (the copy of a
        gradient of this ``shape`` into these ``strides``), ``analysis`` (AOTAutograd's, contradicted by what ``a run
        shows``) or ``numbers`` (other random numbers, or another state of the generator after them).
    way: the two ways that part: decomposition and kernel, fake and real, composite, ...
    backward: whether that is in a backward graph.
    inside: the composite operators that called it.
    expected: the right result; ``got`` is the compiler's.
    node: of the graph.
    composite: the function whose paths part.
    aten_kernel: the kernel of ATen at fault.
    differs: the results that differ: ``read`` shows the fault first, ``written through`` is the view that was written.
    saved: the values saved for backward that are wrong.
    joint graph draws: the calls that draw random numbers, by operator; ``its parts draw``, those of its two halves.
    call: of the program that another value came from.
    eager: the operators called in eager mode alone; ``compiled`` those of the compiled program; ``agrees``, the proof.
    left: the operator that a pass left in the graph; ``operator`` is its family.
    output of: the operator that makes the wrong output, of a culprit of which the stage alone is known.
    path: the side that was judged.
    graph: ``forward``, ``backward`` or ``inference``.
    kernel: its name; ``code_generator`` wrote it, ``fused`` are the operators in it.
    kernel_source: the generated code; ``alone``, that of the operator on its own.
    finding: the difference in what the kernel wrote, ``where`` it is worst, and the ``values`` there.
    output: of the program, that is wrong although every kernel is right.
    shown_in_float64: whether the kernel is wrong in float64 too.
    operators: at fault or suspected.
    vectorised: whether they are right in scalars; ``right_in_scalars`` is the one for which that is enough.
    programs: of a Triton kernel: the orders in which they are right and wrong.
    dependences: ``kept`` or ``broken`` by a fusion.
    overwritten: the buffer that no longer held what kernel number ``written_by`` wrote.
    parting: the place where bits part.
    statement: of a generated program, at which it raised.
    program: of a lost worker, the statement of the generated program.
    error: the message.
    raised: the three innermost functions of the compiler in which an error rose.
    stack: the functions of the compiler in which a lost worker stood; ``proof`` says when that was written down.
    non_finite: ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that.
"""


# The functional form, because "pass" is a keyword.
CulpritJson = TypedDict(
    "CulpritJson",
    {
        "stage": str,
        "component": str,
        "pass": str | None,
        "rewrite": str | None,
        "nodes": list[str],
        "source": str | None,
        "line": int | None,
        "family": str,
        "site": str | None,
        "step": float | None,
        "necessary": bool | None,
        "sufficient": bool | None,
        "siblings": list[str],
        "details": DetailsJson,
        "non_finite": str,
    },
    total=False,
)
CulpritJson.__doc__ = """A rewrite, pass, decomposition, lowering or kernel, and what was proved of it.

Keys:
    stage: of the compiler.
    component: the part of PyTorch as its issues name it.
    pass: that runs a rewrite.
    rewrite: or whatever else is at fault there; null where the place alone is known.
    nodes: of the graph, that it concerns.
    source: its file, relative to the folder that holds torch; ``line`` is the line there.
    family: the name without numbers and overloads, a part of the signature.
    site: the user's source line and the ordinal among the matches of that family there, because names of nodes shift
        behind any veto.
    step: the distance by which it moves the result, in units of its size.
    necessary: without it the bug is gone; null where no such compile was run, or it could not answer.
    sufficient: with it alone the bug is there; null alike.
    siblings: the rules that take its place when it is vetoed.
    details: what else a reader wants to see of it.
    non_finite: ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that.
"""


class AblationJson(TypedDict, total=False):
    """A compile under one changed setting.

    Keys:
        toggle: the setting, as a user types it.
        repairs: whether the bug is gone under it.
        error: the largest absolute error that was left.
        non_finite: ``inf``, ``-inf`` or ``nan``, where the error is null for that.
    """

    toggle: str
    repairs: bool
    error: float | None
    non_finite: str


class SearchCostJson(TypedDict):
    """The part of an answer's cost that finding a workaround took: compiles, and seconds of wall time."""

    compiles: int
    seconds: float


class WorkaroundJson(TypedDict, total=False):
    """A setting that avoids the bug today.

    Keys:
        how: what to type.
        config: entries of ``torch._inductor.config``; empty where ``how`` says all there is to do.
        verified: whether it was run before it is offered.
        error: the largest absolute error under it.
        cost_ratio: the run time with it over that without; null where it was not measured.
        found_in: the part of the cost that went into finding it.
        non_finite: ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that.
    """

    how: str
    config: Mapping[str, object]
    verified: bool
    error: float | None
    cost_ratio: float | None
    found_in: SearchCostJson
    non_finite: str


def read_details(culprit: CulpritJson | None) -> DetailsJson:
    """Return the details of a culprit; empty without a culprit, or without details."""
    return (culprit or {}).get("details") or {}
