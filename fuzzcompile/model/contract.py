"""The JSON object that ``fuzzcompile triage --json`` prints, as types (docs/machines.md).

The corpus stores it and the reports are written from it, without torch. Keys may be missing: an older corpus holds
what an older version wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

SCHEMA = 1
"""The version of the contract, in each object."""


class ErrorMapJson(TypedDict):
    """A map of the wrong values of an output: absolute errors against the float64 run, in at most 32 by 32 cells.

    Keys:
        shape: of the output, in elements.
        row_dims: how many leading dimensions make the rows, one behind the other; the dimension behind them makes the
            columns, and any further one has one element.
        rows, columns: where the range of each cell begins, and the end of the last one.
        eager, compiled: the largest error in each cell, row by row; null where an error is not finite.
    """

    shape: list[int]
    row_dims: int
    rows: list[int]
    columns: list[int]
    eager: list[list[float | None]]
    compiled: list[list[float | None]]


class OutputJson(TypedDict, total=False):
    """The differences of one output. Errors are absolute, against the float64 run; None where none was measured.

    ``error_map`` is there for outputs whose values differ, and only where a page asked for it.
    """

    name: str
    finding: str
    max_abs_error_eager: float | None
    max_abs_error_compiled: float | None
    rms_error_eager: float | None
    rms_error_compiled: float | None
    max_ulps_eager: float | None
    max_ulps_compiled: float | None
    error_ratio: float | None
    noise_floor: float | None
    scale: float | None
    within_default_tolerance: bool | None
    torch_same: bool | None
    cosine: float | None
    view_raises: bool | None
    where: list[int] | None
    at: dict[str, float | int | str | None] | None
    detail: str
    non_finite: str
    error_map: ErrorMapJson


class EvidenceJson(TypedDict, total=False):
    """The evidence that the verdict rests on."""

    outputs: list[OutputJson]
    eager_deterministic: bool
    float64_step: float | None
    survives_float64: bool | None
    against: str
    path: str
    threads: int
    graphs: int
    graph_breaks: list[str]
    randomness: str | None
    gives: str | None
    promise: str | None
    warnings: list[str]
    notes: list[str]


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
        "details": Mapping[str, object],
    },
    total=False,
)
CulpritJson.__doc__ = """A rewrite, pass, decomposition, lowering or kernel, and what was proved of it."""


class AblationJson(TypedDict, total=False):
    """A compile under one changed setting; ``error`` is the largest absolute error that was left."""

    toggle: str
    repairs: bool
    error: float | None
    non_finite: str


class WorkaroundJson(TypedDict, total=False):
    """A setting that avoids the bug today; ``cost_ratio`` is the run time with it over that without."""

    how: str
    config: Mapping[str, object]
    verified: bool
    error: float | None
    cost_ratio: float | None


class RewriteJson(TypedDict):
    """A rule that matched anything, and how often each outcome followed."""

    stage: str
    rewrite: str
    fired: int
    refused: int
    vetoed: int


class SuspectJson(TypedDict):
    """The result for a rewrite that the user asked about."""

    name: str
    said: str


class TargetJson(TypedDict):
    """The device that the compiler generated code for, where that is not the one that ran.

    ``device`` is its name (``cuda:sm_90``). ``stages`` says of each stage how it was looked at: ``real code, fake
    device``, ``replayed on the CPU``, ``interpreted``, ``not decided``, or ``not looked at:`` and why.
    ``confirmed_on_device`` says whether a device of that kind showed the same.
    """

    device: str
    stages: dict[str, str]
    confirmed_on_device: bool


class PartingJson(TypedDict):
    """The place where bits part: a graph of dynamo by its number, the operator, and the kernel that computes it.

    ``source`` and ``line`` are the compiler's code at work there, ``site`` is the user's line. ``why`` says what was
    seen, or, without ``promised``, why torch promises nothing there.
    """

    graph: int
    direction: str
    operator: str | None
    node: str | None
    kernel: str | None
    stage: str
    site: str | None
    source: str | None
    line: int | None
    promised: bool
    why: str
    differing: int
    elements: int
    max_ulps: int | None


class BitsJson(TypedDict):
    """The number of elements of an output that have other bits, and how far apart they are."""

    name: str
    differing: int
    elements: int
    max_ulps: int | None
    zero_signs: int
    nan_payloads: int
    detail: str


class PromiseJson(TypedDict):
    """The result for a promise: ``eager``, ``batch`` (a row alone and in a batch) or ``run_to_run``.

    ``holds`` is None where bits part and nothing is promised, and where it was not looked at. ``first`` is the first
    place where bits part although promised, else the first of all.
    """

    promise: str
    holds: bool | None
    why: str
    first: PartingJson | None
    unpromised: list[PartingJson]
    outputs: list[BitsJson]


class ContractJson(TypedDict):
    """The part that ``--contract bitwise`` adds: settings in force, torch's word on each, and each promise."""

    name: str
    settings: dict[str, object]
    promised: dict[str, str]
    compared: str
    promises: list[PromiseJson]


class CostJson(TypedDict, total=False):
    """Cost of the answer; ``seconds`` is wall time, ``cause_screens`` what the search for the cause took besides."""

    compiles: int
    screens: int
    cause_screens: int
    replays: int
    seconds: float


class CauseJson(TypedDict, total=False):
    """The change that makes a case pass: the nearest neighbour of the case that the compiler treats rightly.

    Keys:
        fingerprint: the cause in words that do not hang on sizes, such as ``softmax(dim)`` or ``layout``; the last part
            of the signature.
        kind: of the change: ``argument``, ``dtype``, ``layout``, ``sharing``, ``size``, ``value``, ``gradient``.
        before, after: the text that the change replaces, and what replaces it, as a user writes it.
        still: what the culprit does on the neighbour: ``fires``, ``refused`` by its check, or ``absent``.
        computes: what the compiled case computes instead, where that is known: ``neighbour`` if it gives what eager
            gives on the neighbour, so that what was changed is ignored; None otherwise.
        neighbour: the source of the neighbour, a case file.
    """

    fingerprint: str
    kind: str
    before: str
    after: str
    still: str
    computes: str | None
    neighbour: str


class RungJson(TypedDict):
    """A rung of the ladder of backends: ``result`` is ``right``, ``wrong``, ``raises`` or ``not run``."""

    backend: str
    result: str
    says: str


class ShownJson(TypedDict, total=False):
    """Observations of a reproducer when it was made; each script ran alone in a clean process.

    Keys:
        plain: the script for an issue, without exit codes: ``torch.testing.assert_close`` or the one observable.
        plain_output: what it printed on the bug, its last lines, without paths of this machine.
        plain_shows: whether it showed the bug.
        cuda: the same script for a CUDA device; absent where it makes no sense there. It was not run.
        eager_only: a script that calls the operator at fault in eager mode; absent where the fault needs a compiler.
        eager_only_output: what it printed.
        eager_is_wrong: whether eager mode calls that operator in the same way (it agrees with aot_eager), so that eager
            is wrong, and the compiled program need not be.
        ladder: eager, aot_eager, aot_eager_decomp_partition and inductor, in this order.
        expression: the operation at fault in the user's words, such as ``torch.add(x, a @ b, alpha=0.5)``.
        error_log: the whole text of an error, with that of the C++ or Triton compiler, without paths of this machine.
        collect_env: what ``torch.utils.collect_env`` prints, without paths of this machine.
    """

    plain: str
    plain_output: str
    plain_shows: bool
    cuda: str
    eager_only: str
    eager_only_output: str
    eager_is_wrong: bool
    ladder: list[RungJson]
    expression: str
    error_log: str
    collect_env: str


class WhereJson(TypedDict):
    """The place where a call of a running program was judged: ``worker``, or ``in place`` and why."""

    process: str
    why: str


class ReportJson(TypedDict, total=False):
    """The answer on one case."""

    schema: int
    case: str
    torch: str
    device: str
    verdict: str
    is_bug: bool
    confidence: str
    detail: str
    evidence: EvidenceJson
    culprit: CulpritJson | None
    contributors: list[CulpritJson]
    changed_bits: list[CulpritJson]
    ablations: list[AblationJson]
    workaround: WorkaroundJson | None
    cause: CauseJson | None
    signature: str | None
    severity: str | None
    rewrites: list[RewriteJson]
    suspects: list[SuspectJson]
    cost: CostJson
    target: TargetJson | None
    contract: ContractJson
    known: bool
    where: WhereJson


def find_broken_promise(report: Mapping[str, Any]) -> str | None:
    """The promise of equal bits that a report calls broken where none of its values is wrong; None otherwise."""
    evidence = report.get("evidence") or {}
    wrong = any(output.get("finding") not in ("same", "close", "wild") for output in evidence.get("outputs") or ())
    bits = report.get("verdict") in ("precision_loss", "nondeterministic")
    return evidence.get("promise") if bits and not wrong else None


def read_target(report: ReportJson) -> str | None:
    """Return the target that the compiler generated code for; None if that is the device that ran."""
    target = report.get("target")
    return None if target is None else target["device"]


class LayerJson(TypedDict, total=False):
    """One call of one module (or operator), run in two ways. Errors are absolute, in the units of the output.

    Keys:
        name: qualified name of the module, with ``#2`` behind it at its second call.
        kind: its class, or the operator.
        size: RMS of the reference's output.
        max_error, rms_error: of the output, against the reference's.
        cosine: of the angle between both outputs; null where one of them is zero or not finite.
        float64_error, reference_float64_error: RMS errors of both sides against float64.
        made: RMS of the error newly made here: the output against the reference's module run on this side's own input.
        inherited: RMS of the error that the module passes on: the reference's module on this side's input, against
            the reference's output.
        noise: RMS error that rounding alone makes here: the reference's module with every operator moved by an ulp.
        rounding: RMS error that rounding alone has made up to here: the whole program with every operator so moved.
        made_in_float64: error newly made here with all of this side computed in float64, in units of ``size``.
        amplification: relative inherited error over the relative error of the inputs; null where those are equal.
        non_finite: which numbers are not finite, where one of the above is therefore null.
        note: what could not be measured here, and why.
    """

    name: str
    kind: str
    size: float | None
    max_error: float | None
    rms_error: float | None
    cosine: float | None
    float64_error: float | None
    reference_float64_error: float | None
    made: float | None
    inherited: float | None
    noise: float | None
    rounding: float | None
    made_in_float64: float | None
    amplification: float | None
    non_finite: str
    note: str


class ToleranceJson(TypedDict):
    """The difference allowed between two ways to run, and the reason (see :mod:`fuzzcompile.model.tolerances`)."""

    pair: str
    dtype: str
    factor: float
    relative: float
    absolute: float
    reason: str


class AttentionBackendJson(TypedDict):
    """A kernel of ``scaled_dot_product_attention`` for given inputs; ``reason`` says why it is not usable."""

    name: str
    usable: bool
    chosen: bool
    reason: str


class AttentionKernelsJson(TypedDict):
    """The answer of every kernel to one kind of typical inputs, in ``fuzzcompile doctor --json``."""

    inputs: str
    head_dim: int
    dtype: str
    backends: list[AttentionBackendJson]


class AttentionTensorJson(TypedDict):
    """An argument of ``scaled_dot_product_attention``; shape and strides in elements."""

    shape: list[int]
    strides: list[int]
    dtype: str


class AttentionCallJson(TypedDict):
    """A distinct call of ``scaled_dot_product_attention``, and how often a run made it.

    ``backends`` is empty where torch could not answer for the inputs; ``note`` says why.
    """

    query: AttentionTensorJson
    key: AttentionTensorJson
    value: AttentionTensorJson
    mask: AttentionTensorJson | None
    device: str
    dropout: float
    causal: bool
    scale: float | None
    enable_gqa: bool
    needs_grad: bool
    switched_on: list[str]
    calls: int
    backends: list[AttentionBackendJson]
    note: str


class ProfileJson(TypedDict, total=False):
    """The answer of ``fuzzcompile profile``.

    ``layers`` are in the order in which they end, inner modules before those that contain them. ``verdict`` is
    ``expected_compounding``, ``jump``, ``unstable_reference`` or ``equal``; ``layer`` names the layer of a jump, and
    ``rule`` says in one sentence which rule decided, with its numbers. ``attention`` lists the kernels of
    ``scaled_dot_product_attention`` that exist for the inputs at hand, and why the others refuse. ``triage`` is the
    report on that layer alone, ``triage_whole`` that on the whole program where the layer alone shows nothing.
    """

    schema: int
    case: str
    torch: str
    device: str
    against: str
    reference: str
    verdict: str
    layer: str | None
    rule: str
    tolerance: ToleranceJson
    layers: list[LayerJson]
    attention: list[AttentionCallJson]
    notes: list[str]
    environment: dict[str, object]
    triage: ReportJson | None
    triage_whole: ReportJson | None
    cost: CostJson


# Ways to run a program, as a case file's ``PATH`` spells them. Needs no torch.

COMPILE, EXPORT, AOTI = "compile", "export", "aoti"
PATHS = (COMPILE, EXPORT, AOTI)
"""``torch.compile``; ``torch.export``, whose program runs in eager mode; AOTInductor, which compiles that program."""
