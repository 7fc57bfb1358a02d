"""The JSON object that ``fuzzcompile profile --json`` prints, and kernels of attention, as types."""

from __future__ import annotations

from typing import TypedDict

from fuzzcompile.model.contract import CostJson, ReportJson


class LayerJson(TypedDict, total=False):
    """One call of one module (or operator), run in two ways. Errors are absolute, in the units of the output."""

    # qualified name of the module, with ``#2`` behind it at its second call, and ``rank1.`` in front where another rank
    # than the first calls it
    name: str
    kind: str  # its class, or the operator
    size: float | None  # RMS of the reference's output
    max_error: float | None  # of the output, against the reference's
    rms_error: float | None
    cosine: float | None  # of the angle between both outputs; null where one of them is zero or not finite
    float64_error: float | None  # RMS errors of both sides against float64
    reference_float64_error: float | None
    # RMS of the error newly made here: the output against the reference's module run on this side's own input
    made: float | None
    # RMS of the error that the module passes on: the reference's module on this side's input, against the reference's
    # output
    inherited: float | None
    # RMS error that rounding alone makes here: the reference's module with every operator moved by an ulp
    noise: float | None
    # RMS error that rounding alone has made up to here: the whole program with every operator so moved
    rounding: float | None
    # error newly made here with all of this side computed in float64, in units of ``size``
    made_in_float64: float | None
    # relative inherited error over the relative error of the inputs; null where those are equal
    amplification: float | None
    non_finite: str  # which numbers are not finite, where one of the above is therefore null
    note: str  # what could not be measured here, and why


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

    ``layers`` are in the order in which they end, inner modules before those that contain them; those of other ranks
    than the first come behind them, rank by rank. ``verdict`` is ``expected_compounding``, ``jump``,
    ``unstable_reference`` or ``equal``; ``layer`` names the layer of a jump, and ``rule`` says in one sentence which
    rule decided, with its numbers. ``attention`` lists the kernels of ``scaled_dot_product_attention`` that exist for
    the inputs at hand, and why the others refuse. ``triage`` is the report on that layer alone, ``triage_whole`` that
    on the whole program where the layer alone shows nothing.
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
