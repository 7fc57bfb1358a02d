"""The part of a report on what is at fault, as types: culprits with their details, ablations, workarounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

KernelFault = Literal["layout", "dtype", "values", "gradient", "size"]


class MatchedLineJson(TypedDict):
    """A line of the user's program that a rewrite matched."""

    source: str | None  # ``file.py:12``; null where the compiler kept no track
    code: str | None  # the text of that line
    nodes: list[str]  # names of the graph's nodes that come from it


class FrameJson(TypedDict):
    """A function of the compiler on a stack: its file relative to the folder that holds torch, line and name."""

    source: str | None
    line: int
    function: str


class KernelInputJson(TypedDict, total=False):
    """A tensor that an ATen kernel was given: shape and stride in elements."""

    shape: list[int]
    stride: list[int]
    dtype: str
    below: int  # for integers, a bound on the values


class AtenKernelJson(TypedDict):
    """An ATen kernel that gives wrong values on these operands."""

    operator: str  # with its overload
    call: str  # the call as Python, with the tensors as ``inputs[i]``
    inputs: list[KernelInputJson]  # those tensors
    differs_by: float | None  # the largest difference, in units of the result's size
    # ``layout``: right on contiguous copies; ``gradient``: not of its values; ``dtype``: right in float64; ``size``:
    # right for the same values in other sizes; ``values``
    about: NotRequired[KernelFault]
    size: NotRequired[int]  # of a fault of size, that of the dimensions with which the kernel is wrong
    right_sizes: NotRequired[list[int]]  # those with which it is right
    misreads: NotRequired[list[str]]  # of a fault of layout, the arguments whose contiguous copies repair it
    wrong_in: str  # the side that hands it such operands: ``eager`` or ``compiled``


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
        "direction": str,  # the graph: ``inference``, ``joint``, ``forward`` or ``backward``
        # the distance by which a rewrite moved the results, in units of their size, its graph run in float64
        "float64": float | None,
        # the same in the program's own dtypes; ``native_noise`` is what rounding alone does there
        "native": float | None,
        "native_noise": float | None,
        "reordered": bool,  # whether the results hold the same numbers behind a rewrite, in another order
        # the change of a rewrite to something else than values, such as a dtype, shape or stride
        "changed": str | None,
        "shares": str | None,  # the memory that is read behind a rewrite alone, which moved no value but by that
        "writes in place": bool,  # whether a rewrite has more written in place than before
        "writes to overlap": bool,  # and whether several elements are one there
        "matched": list[MatchedLineJson],  # the lines of the program that a rewrite matched
        "diff": str,  # the graph before and after a rewrite, as a diff
        # of fault, such as ``values``, ``metadata``, ``alias``, ``check``, ``branch``, ``gradient`` (which one of both
        # values requires), ``mode`` (of the program's own, ignored), ``torch mode`` (another while dynamo traces),
        # ``own setting`` (of the case's, without which it is right), ``tangent`` (the copy of a gradient of this
        # ``shape`` into these ``strides``), ``analysis`` (AOTAutograd's, contradicted by what ``a run shows``) or
        # ``numbers`` (other random numbers, or another state of the generator after them)
        "kind": str,
        "way": str,  # the two ways that part: decomposition and kernel, fake and real, composite, ...
        "backward": bool,  # whether that is in a backward graph
        "inside": list[str],  # the composite operators that called it
        "expected": str | int,  # the right result; ``got`` is the compiler's
        "got": str | int,
        "traced call": int,  # the number of the call that both are of, where they are known to be of one
        "node": str,  # of the graph
        "composite": CompositeJson,  # the function whose paths part
        "aten_kernel": AtenKernelJson,  # the kernel of ATen at fault
        # the results that differ: ``read`` shows the fault first, ``written through`` is the view that was written
        "differs": str | list[str],
        "saved": list[str],  # the values saved for backward that are wrong, or are inputs that may be written to
        "read": str | None,
        "written through": str,
        "shape": list[int],
        "strides": list[int],
        "a run shows": list[str],
        # the calls that draw random numbers, by operator; ``its parts draw``, those of its two halves
        "joint graph draws": dict[str, int],
        "its parts draw": dict[str, int],
        "call": str,  # of the program that another value came from
        # the operators called in eager mode alone; ``compiled`` those of the compiled program; ``agrees``, the proof
        "eager": list[str],
        "compiled": list[str],
        "agrees": str,
        # of a branch that torch means compiled programs to take: why, and where torch says so
        "design": str,
        "design_source": str,
        "effects": list[str],  # on Python objects, that a call has in eager mode and not compiled
        # A stale graph.
        "between_calls": list[str],  # what changed before the call that ran it: a name, what it was, what it is then
        "raises": str,  # the error of that call, where it raises
        "guard": str,  # of the guard that should have noticed: whether it was asked for, and whether it has a check
        "guards": list[str],  # dynamo's guards on what changed, each with its checks
        # the operator that a pass left in the graph; ``operator`` is its family, or that of the one that raised
        "left": str,
        "operator": str,
        "output of": str,  # the operator that makes the wrong output, of a culprit of which the stage alone is known
        "path": str,  # the side that was judged
        # A generated kernel.
        "graph": str,  # ``forward``, ``backward`` or ``inference``
        "kernel": str | None,  # its name; ``code_generator`` wrote it, ``fused`` are the operators in it
        "code_generator": str,
        "fused": list[str],
        "kernel_source": str | None,  # the generated code; ``alone``, that of the operator on its own
        "finding": str,  # the difference in what the kernel wrote, ``where`` it is worst, and the ``values`` there
        "where": list[int] | None,
        "values": dict[str, float | int | bool | str | None],
        "shown_in_float64": bool,  # whether the kernel is wrong in float64 too
        "operators": list[str],  # at fault or suspected
        # whether they are right in scalars; ``right_in_scalars`` is the one for which that is enough
        "vectorised": bool,
        "alone": str | None,
        "programs": str,  # of a Triton kernel: the orders in which they are right and wrong
        "dependences": str,  # ``kept`` or ``broken`` by a fusion
        "right_in_scalars": str | None,
        "stored": str | None,  # the operator whose result has to be in memory for its loop to be right
        "overwritten": str,  # the buffer that no longer held what kernel number ``written_by`` wrote
        "written_by": int,
        "output": str,  # of the program, that is wrong although every kernel is right
        "parting": str,  # the place where bits part
        # A generated program, an error, a worker that was lost.
        "program": str,  # of a lost worker, the statement of the generated program
        "statement": str,  # of a generated program, at which it raised
        "error": str,  # the message
        "setting": str,  # that is on by default and runs the function at fault: config and entry
        "raised": list[FrameJson],  # the three innermost functions of the compiler in which an error rose
        "given": list[str],  # arguments of the first of them: numbers, text, the forms of tensors
        # the functions of the compiler in which a lost worker stood; ``proof`` says when that was written down
        "stack": list[FrameJson],
        "proof": str,
        "non_finite": str,  # ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that
    },
    total=False,
)
DetailsJson.__doc__ = "What a reader wants to see of one kind of culprit; which keys are there depends on the kind."


# The functional form, because "pass" is a keyword.
CulpritJson = TypedDict(
    "CulpritJson",
    {
        "stage": str,  # of the compiler
        "component": str,  # the part of PyTorch as its issues name it
        "pass": str | None,  # that runs a rewrite
        "rewrite": str | None,  # or whatever else is at fault there; null where the place alone is known
        "nodes": list[str],  # of the graph, that it concerns
        "source": str | None,  # its file, relative to the folder that holds torch; ``line`` is the line there
        "line": int | None,
        "family": str,  # the name without numbers and overloads, a part of the signature
        # the user's source line and the ordinal among the matches of that family there, because names of nodes shift
        # behind any veto
        "site": str | None,
        "step": float | None,  # the distance by which it moves the result, in units of its size
        # without it the bug is gone; null where no such compile was run, or it could not answer
        "necessary": bool | None,
        "sufficient": bool | None,  # with it alone the bug is there; null alike
        "siblings": list[str],  # the rules that take its place when it is vetoed
        "details": DetailsJson,  # what else a reader wants to see of it
        "non_finite": str,  # ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that
    },
    total=False,
)
CulpritJson.__doc__ = "A rewrite, pass, decomposition, lowering or kernel, and what was proved of it."


class AblationJson(TypedDict, total=False):
    """A compile under one changed setting."""

    toggle: str  # the setting, as a user types it
    repairs: bool  # whether the bug is gone under it
    error: float | None  # the largest absolute error that was left
    non_finite: str  # ``inf``, ``-inf`` or ``nan``, where the error is null for that


class SearchCostJson(TypedDict):
    """The part of an answer's cost that finding a workaround took: compiles, and seconds of wall time."""

    compiles: int
    seconds: float


class WorkaroundJson(TypedDict, total=False):
    """A setting that avoids the bug today."""

    how: str  # what to type
    config: Mapping[str, object]  # entries of ``torch._inductor.config``; empty where ``how`` says all there is to do
    verified: bool  # whether it was run before it is offered
    error: float | None  # the largest absolute error under it
    cost_ratio: float | None  # the run time with it over that without; null where it was not measured
    found_in: SearchCostJson  # the part of the cost that went into finding it
    non_finite: str  # ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that


def spell_operator(name: str) -> str:
    """How Python calls an operator, or a function of ``torch.nn.functional``, which is named ``F.`` in reports."""
    return f"torch.nn.functional.{name[2:]}" if name.startswith("F.") else f"torch.ops.{name}"


def read_details(culprit: CulpritJson | None) -> DetailsJson:
    """Return the details of a culprit; empty without a culprit, or without details."""
    return (culprit or {}).get("details") or {}


def format_place(source: str, line: int | None) -> str:
    """A file of source, with the line in it where one is known."""
    return source if line is None else f"{source}:{line}"
