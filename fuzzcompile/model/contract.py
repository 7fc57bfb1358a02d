"""The JSON object that ``fuzzcompile triage --json`` prints, as types (docs/machines.md).

The corpus stores it and the reports are written from it, without torch. Keys may be missing: an older corpus holds
what an older version wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from fuzzcompile.model.culprit_contract import AblationJson, CulpritJson, WorkaroundJson

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
    """The differences of one output, gradient, or input, parameter or buffer that a call may change.

    Errors are absolute, against the float64 run; null where none was measured.

    Keys:
        name: ``out0``, ``input1.key``, ``parameter weight``, prefixed with ``call1.`` where there are several calls and
            with ``gradient of`` for gradients, and followed by ``after the call`` for the state that a call left.
        finding: ``same``, ``close`` (by rounding), ``wild`` (eager itself has no correct digits), ``far`` (further than
            rounding explains), ``nonfinite``, ``integer``, ``dtype``, ``shape``, ``stride``, ``alias``, ``missing``.
        max_abs_error_eager, max_abs_error_compiled: the largest error.
        rms_error_eager, rms_error_compiled: the root mean square of the errors.
        max_ulps_eager, max_ulps_compiled: the largest error in units in the last place of the program's dtype.
        error_ratio: the largest error of compiled over that of eager; null where eager is exact.
        noise_floor: the error that rounding alone makes.
        scale: the root mean square of the reference.
        within_default_tolerance: whether ``torch.testing.assert_close`` accepts compiled against eager.
        torch_same: the answer of ``torch._dynamo.utils.same``; null if it was not asked.
        cosine: cosine similarity of compiled and reference.
        view_raises: of other strides, whether ``.view()`` raises on the compiled result alone.
        where: index of the worst element.
        at: the values there, by run.
        detail: what differs that is no value, such as both dtypes.
        non_finite: ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that.
        error_map: for pages only, the errors in cells.
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
    at: dict[str, float | int | bool | str | None] | None
    detail: str
    non_finite: str
    error_map: ErrorMapJson


class EvidenceJson(TypedDict, total=False):
    """The evidence that the verdict rests on.

    Keys:
        outputs: everything that can be observed of a run, each with its differences.
        eager_deterministic: whether two eager runs are equal.
        float64_step: the largest step of a rewrite in float64, in units of the result's size.
        survives_float64: whether the difference is still there when compiled in float64; null: not tried.
        against: what the compiled program was compared with.
        path: the side that was judged: ``compile``, ``export`` or ``aoti``.
        threads: the CPU threads that code was generated for.
        graphs: how many graphs dynamo captured; ``graph_breaks`` says why it stopped.
        randomness: how a program that draws random numbers was judged; null: it draws none.
        gives: for ``accepts_invalid``, dtypes and shapes of what the compiled program returns.
        promise: the promise of a setting that is broken; null where none is.
        warnings: the warnings that only one of the two runs gave.
        notes: what else a reader should know, such as what lowers the confidence.
        non_finite: ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that.
    """

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
    non_finite: str


RewriteJson = TypedDict(
    "RewriteJson",
    {"stage": str, "pass": str | None, "rewrite": str, "fired": int, "refused": int, "vetoed": int},
)
RewriteJson.__doc__ = """A rule that matched anything.

Keys:
    stage: of the compiler, with the ``pass`` that runs the rule ``rewrite``.
    fired: how often it was applied; ``refused`` by its own check, ``vetoed`` by ``--veto``.
"""


class SuspectJson(TypedDict):
    """The result for a rewrite that the user asked about.

    Keys:
        ran: whether it was applied.
        changed_bits: whether that moved any bit of its graph's results.
        on: whether it is switched on; null where no rewrite has that name.
        name: as it was typed.
        said: all of it in a sentence.
    """

    name: str
    ran: bool
    changed_bits: bool
    on: bool | None
    said: str


class TargetJson(TypedDict):
    """The device that the compiler generated code for, where that is not the one that ran.

    Keys:
        device: its name (``cuda:sm_90``).
        stages: of each stage, how it was looked at: ``real code, fake device``, ``replayed on the CPU``,
            ``interpreted``, ``not decided``, or ``not looked at:`` and why.
        confirmed_on_device: whether a device of that kind showed the same.
    """

    device: str
    stages: dict[str, str]
    confirmed_on_device: bool


class PartingJson(TypedDict):
    """The place where bits part.

    Keys:
        graph: the number of dynamo's graph; ``direction`` is ``forward``, ``backward`` or ``inference``.
        operator, node: that part there; ``kernel`` computes it.
        stage: of the compiler; ``source`` and ``line`` are its code at work there.
        site: the user's line.
        promised: whether torch promises equal bits there.
        why: what was seen, or why nothing is promised.
        differing: the elements with other bits, out of ``elements``.
        max_ulps: how far apart they are.
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
    """The number of elements of an output that have other bits, and how far apart they are.

    Keys:
        name: of the output.
        differing: the elements with other bits, out of ``elements``.
        max_ulps: the largest distance, in units in the last place.
        zero_signs: how many differ in the sign of a zero; ``nan_payloads``, in the payload of a NaN.
        detail: what differs beside bits.
    """

    name: str
    differing: int
    elements: int
    max_ulps: int | None
    zero_signs: int
    nan_payloads: int
    detail: str


class PromiseJson(TypedDict):
    """The result for a promise.

    Keys:
        promise: ``eager``, ``batch`` (a row alone and in a batch) or ``run_to_run``.
        holds: null where bits part and nothing is promised, and where it was not looked at; ``why`` in a sentence.
        first: the first place where bits part although promised, else the first of all.
        unpromised: places where nothing is promised, at most 20.
        outputs: how the outputs differ.
    """

    promise: str
    holds: bool | None
    why: str
    first: PartingJson | None
    unpromised: list[PartingJson]
    outputs: list[BitsJson]


class ContractJson(TypedDict):
    """The part that ``--contract bitwise`` adds.

    Keys:
        name: ``bitwise``.
        settings: in force.
        promised: what torch says of each setting.
        compared: what counts as equal.
        promises: the result for each.
    """

    name: str
    settings: dict[str, object]
    promised: dict[str, str]
    compared: str
    promises: list[PromiseJson]


class CostJson(TypedDict, total=False):
    """Cost of the answer.

    Keys:
        compiles: with generated code.
        screens: compiles without; ``cause_screens`` are those that the search for the cause took besides.
        replays: runs of a graph in eager mode.
        seconds: of wall time.
    """

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
    """The place where a call of a running program was judged.

    Keys:
        process: ``worker``, or ``in place``; ``why`` that was so.
    """

    process: str
    why: str


class ReportJson(TypedDict, total=False):
    """The answer on one case.

    Keys:
        schema: 1. A change that breaks a reader increases it; further keys may be added without an increase.
        case: its name.
        torch: the version that compiled it; ``device`` where it ran.
        evidence: that the verdict rests on.
        verdict: a word of the verdict kinds; ``is_bug`` says whether it is worth a report to PyTorch.
        confidence: ``high`` or ``low``; the notes of the evidence say what lowers it.
        detail: one sentence.
        culprit: the part of the compiler at fault; null for what is no bug.
        contributors: others that are necessary too.
        changed_bits: the rewrites that moved any bit: for a rounding verdict the only answer there is.
        ablations: the compiles that were tried for the proof.
        workaround: a setting that was run before it is offered; null where none was found.
        cause: the change that makes the case pass; null where none was found.
        signature: the identity of the bug; null for what is no bug.
        severity: a word of the severities; null for what is no bug.
        rewrites: the rules that matched anything.
        suspects: the answers to ``--suspect``.
        cost: of the answer.
        target: with ``--target``, the device that code was generated for; null otherwise.
        contract: with ``--contract bitwise``, the promises of equal bits.
        known: with ``--baseline``, whether the bug is in it.
        where: from Python, the process that judged.
    """

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


# Ways to run a program, as a case file's ``PATH`` spells them. Needs no torch.

COMPILE, EXPORT, AOTI = "compile", "export", "aoti"
PATHS = (COMPILE, EXPORT, AOTI)
"""``torch.compile``; ``torch.export``, whose program runs in eager mode; AOTInductor, which compiles that program."""


# Reading a report that was written elsewhere.

CORE = ("schema", "case", "torch", "device", "verdict", "is_bug", "confidence")
"""Keys that every report has."""


class ReportMalformed(ValueError):
    """A value is no report of the contract; the message names the place in it and what stands there."""


def check_report(value: object) -> ReportJson:
    """Return ``value`` as a report, with whatever further keys a newer version wrote.

    Raises:
        ReportMalformed: it is no object, lacks a part that every report has, or holds a part of another type.
    """
    import msgspec  # most commands read no foreign report

    try:
        report = msgspec.convert(value, ReportJson)
    except msgspec.ValidationError as error:
        raise ReportMalformed(str(error)) from None
    if missing := [key for key in CORE if key not in report]:
        raise ReportMalformed(f"Object lacks `{missing[0]}`")
    return cast(ReportJson, value)
