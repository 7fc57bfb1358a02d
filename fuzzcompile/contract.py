"""The JSON object that ``fuzzcompile triage --json`` prints, as types (ARCHITECTURE.md, "Contracts").

The corpus stores it and the reports are written from it, without torch. Keys may be missing: an older corpus holds
what an older version wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class OutputJson(TypedDict, total=False):
    """How one output differs. Errors are absolute, against the float64 run; None where none was measured."""

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
    where: list[int] | None
    at: dict[str, float | int | str | None] | None
    detail: str
    non_finite: str


class EvidenceJson(TypedDict, total=False):
    """What the verdict rests on."""

    outputs: list[OutputJson]
    eager_deterministic: bool
    float64_step: float | None
    survives_float64: bool | None
    against: str
    threads: int
    graphs: int
    graph_breaks: list[str]
    randomness: str | None
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
    """What a user can set today; ``cost_ratio`` is the run time with it over that without."""

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
    """What became of a rewrite that the user asked about."""

    name: str
    said: str


class TargetJson(TypedDict):
    """The device that the compiler was told, where that is not the one that ran.

    ``device`` is its name (``cuda:sm_90``). ``stages`` says of each stage how it was looked at: ``real code, fake
    device``, ``replayed on the CPU``, ``interpreted``, ``not decided``, or ``not looked at:`` and why.
    ``confirmed_on_device`` says whether a device of that kind showed the same.
    """

    device: str
    stages: dict[str, str]
    confirmed_on_device: bool


class CostJson(TypedDict, total=False):
    """What the answer took; ``seconds`` is wall time."""

    compiles: int
    screens: int
    replays: int
    seconds: float


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
    signature: str | None
    rewrites: list[RewriteJson]
    suspects: list[SuspectJson]
    cost: CostJson
    target: TargetJson | None
    known: bool


def told(report: ReportJson) -> str | None:
    """The target that the compiler was told; None if it compiled for the device that ran."""
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
    """What a pair of ways to run may differ by, and why (see :mod:`fuzzcompile.tolerances`)."""

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
    """What every kernel says to one kind of typical inputs, in ``fuzzcompile doctor --json``."""

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
