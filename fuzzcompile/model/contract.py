"""The JSON object that ``fuzzcompile triage --json`` prints, as types (docs/machines.md).

The corpus stores it and the reports are written from it, without torch. Keys may be missing: an older corpus holds
what an older version wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, cast

from fuzzcompile.model.culprit_contract import AblationJson, CulpritJson, WorkaroundJson
from fuzzcompile.model.verdicts import AGREEING

SCHEMA = 1
"""The version of the contract, in each object."""


WrongSide = Literal["compiled", "eager", "both", "undecided"]


class ErrorMapJson(TypedDict):
    """A map of the wrong values of an output: absolute errors against the float64 run, in at most 32 by 32 cells."""

    shape: list[int]  # of the output, in elements
    # how many leading dimensions make the rows, one behind the other; the dimension behind them makes the columns, and
    # any further one has one element
    row_dims: int
    rows: list[int]  # where the range of each cell begins, and the end of the last one
    columns: list[int]
    eager: list[list[float | None]]  # the largest error in each cell, row by row; null where an error is not finite
    compiled: list[list[float | None]]


class OutputJson(TypedDict, total=False):
    """The differences of one output, gradient, or input, parameter or buffer that a call may change.

    Errors are absolute, against the float64 run; null where none was measured.
    """

    # ``out0``, ``input1.key``, ``parameter weight``, prefixed with ``call1.`` where there are several calls and with
    # ``gradient of`` for gradients, and followed by ``after the call`` for the state that a call left
    name: str
    # ``same``, ``close`` (by rounding), ``wild`` (eager itself has no correct digits), ``far`` (further than rounding
    # explains), ``nonfinite``, ``integer``, ``dtype``, ``shape``, ``stride``, ``requires_grad``, ``alias``, ``missing``
    finding: str
    max_abs_error_eager: float | None  # the largest error
    max_abs_error_compiled: float | None
    rms_error_eager: float | None  # the root mean square of the errors
    rms_error_compiled: float | None
    max_ulps_eager: float | None  # the largest error in units in the last place of the program's dtype
    max_ulps_compiled: float | None
    error_ratio: float | None  # the largest error of compiled over that of eager; null where eager is exact
    noise_floor: float | None  # the error that rounding alone makes
    scale: float | None  # the root mean square of the reference
    within_default_tolerance: bool | None  # whether ``torch.testing.assert_close`` accepts compiled against eager
    torch_same: bool | None  # the answer of ``torch._dynamo.utils.same``; null if it was not asked
    cosine: float | None  # cosine similarity of compiled and reference
    view_raises: bool | None  # of other strides, whether ``.view()`` raises on the compiled result alone
    where: list[int] | None  # index of the worst element
    at: dict[str, float | int | bool | str | None] | None  # the values there, by run
    detail: str  # what differs that is no value, such as both dtypes
    non_finite: str  # ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that
    error_map: ErrorMapJson  # for pages only, the errors in cells


WHOLE = 0
"""The number of a script's call that stands for all of the script."""


class LaterCallJson(TypedDict):
    """A later call of a script, judged by itself because it parts from eager mode."""

    number: int  # from 1; 0 is the whole script, for what it raises behind its calls
    dynamic: bool  # compiled with open sizes, as dynamo compiles anew once a size has changed


class EvidenceJson(TypedDict, total=False):
    """The evidence that the verdict rests on."""

    outputs: list[OutputJson]  # everything that can be observed of a run, each with its differences
    eager_deterministic: bool  # whether two eager runs are equal
    float64_step: float | None  # the largest step of a rewrite in float64, in units of the result's size
    survives_float64: bool | None  # whether the difference is still there when compiled in float64; null: not tried
    against: str  # what the compiled program was compared with
    path: str  # the side that was judged: ``compile``, or what ``PATH`` of the case says
    threads: int  # the CPU threads that code was generated for
    graphs: int  # how many graphs dynamo captured; ``graph_breaks`` says why it stopped
    graph_breaks: list[str]
    randomness: str | None  # how a program that draws random numbers was judged; null: it draws none
    gives: str | None  # for ``accepts_invalid``, dtypes and shapes of what the compiled program returns
    promise: str | None  # the promise of a setting that is broken; null where none is
    layout_doubt: str | None  # where strides alone differ, why they mean nothing; null where they do
    warnings: list[str]  # the warnings that only one of the two runs gave
    notes: list[str]  # what else a reader should know, such as what lowers the confidence
    call: LaterCallJson | None  # of a script, if that was judged by itself, in place of the first
    non_finite: str  # ``inf``, ``-inf`` or ``nan``, of the number beside it that is null for that


RewriteJson = TypedDict(
    "RewriteJson",
    {
        "stage": str,  # of the compiler, with the ``pass`` that runs the rule ``rewrite``
        "pass": str | None,
        "rewrite": str,
        "fired": int,  # how often it was applied; ``refused`` by its own check, ``vetoed`` by ``--veto``
        "refused": int,
        "vetoed": int,
    },
)
RewriteJson.__doc__ = "A rule that matched anything."


class SuspectJson(TypedDict):
    """The result for a rewrite that the user asked about."""

    name: str  # as it was typed
    ran: bool  # whether it was applied
    changed_bits: bool  # whether that moved any bit of its graph's results
    on: bool | None  # whether it is switched on; null where no rewrite has that name
    said: str  # all of it in a sentence


class TargetJson(TypedDict):
    """The device that the compiler generated code for, where that is not the one that ran."""

    device: str  # its name (``cuda:sm_90``)
    # of each stage, how it was looked at: ``real code, fake device``, ``replayed on the CPU``, ``interpreted``, ``not
    # decided``, or ``not looked at:`` and why
    stages: dict[str, str]
    confirmed_on_device: bool  # whether a device of that kind showed the same


class PartingJson(TypedDict):
    """The place where bits part."""

    graph: int  # the number of dynamo's graph; ``direction`` is ``forward``, ``backward`` or ``inference``
    direction: str
    operator: str | None  # that part there; ``kernel`` computes it
    node: str | None
    kernel: str | None
    stage: str  # of the compiler; ``source`` and ``line`` are its code at work there
    site: str | None  # the user's line
    source: str | None
    line: int | None
    promised: bool  # whether torch promises equal bits there
    why: str  # what was seen, or why nothing is promised
    differing: int  # the elements with other bits, out of ``elements``
    elements: int
    max_ulps: int | None  # how far apart they are


class BitsJson(TypedDict):
    """The number of elements of an output that have other bits, and how far apart they are."""

    name: str  # of the output
    differing: int  # the elements with other bits, out of ``elements``
    elements: int
    max_ulps: int | None  # the largest distance, in units in the last place
    zero_signs: int  # how many differ in the sign of a zero; ``nan_payloads``, in the payload of a NaN
    nan_payloads: int
    detail: str  # what differs beside bits


class PromiseJson(TypedDict):
    """The result for a promise."""

    promise: str  # ``eager``, ``batch`` (a row alone and in a batch) or ``run_to_run``
    # null where bits part and nothing is promised, and where it was not looked at; ``why`` in a sentence
    holds: bool | None
    why: str
    first: PartingJson | None  # the first place where bits part although promised, else the first of all
    unpromised: list[PartingJson]  # places where nothing is promised, at most 20
    outputs: list[BitsJson]  # how the outputs differ


class ContractJson(TypedDict):
    """The part that ``--contract bitwise`` adds."""

    name: str  # ``bitwise``
    settings: dict[str, object]  # in force
    promised: dict[str, str]  # what torch says of each setting
    compared: str  # what counts as equal
    promises: list[PromiseJson]  # the result for each


class CostJson(TypedDict, total=False):
    """Cost of the answer."""

    compiles: int  # with generated code
    screens: int  # compiles without; ``cause_screens`` are those that the search for the cause took besides
    cause_screens: int
    replays: int  # runs of a graph in eager mode
    seconds: float  # of wall time


class CauseJson(TypedDict, total=False):
    """The change that makes a case pass: the nearest neighbour of the case that the compiler treats rightly."""

    # the cause in words that do not hang on sizes, such as ``softmax(dim)`` or ``layout``; the last part of the
    # signature. Whatever is changed, ``sharing`` wherever the verdict is ``aliasing``, ``layout`` where strides alone
    # differ, ``nonfinite lost`` or ``nonfinite made`` where nothing but NaN or infinity does: for each of these, one
    # place is one bug
    fingerprint: str
    kind: str  # of the change: ``argument``, ``dtype``, ``layout``, ``sharing``, ``size``, ``value``, ``gradient``
    before: str  # the text that the change replaces, and what replaces it, as a user writes it
    after: str
    # what the culprit does on the neighbour: ``fires``; in older reports also ``refused`` or ``absent``, where a
    # neighbour tells nothing
    still: str
    # what the compiled case computes instead, where that is known: ``neighbour`` if it gives what eager gives on the
    # neighbour, so that what was changed is ignored; None otherwise
    computes: str | None
    neighbour: str  # the source of the neighbour, a case file


class RungJson(TypedDict):
    """A rung of the ladder of backends: ``result`` is ``right``, ``wrong``, ``raises`` or ``not run``."""

    backend: str
    result: str
    says: str


class FixJson(TypedDict, total=False):
    """A guard that was tried on the rule or decomposition at fault, in memory; it need not be the right fix."""

    guard: str  # the condition in words; absent where none was tried
    patch: str  # Python to stand before the script; absent where ``why_not`` says why none is offered
    why_not: str
    known: int  # the programs written for the rule on which it is right; ``fires``, those to which it still applies
    fires: int
    wrong: int  # those on which it is wrong besides; ``stopped``, those to which it applies no more, or less often
    stopped: int
    torch: str  # the version that was patched


class ShownJson(TypedDict, total=False):
    """Observations of a reproducer when it was made; each script ran alone in a clean process."""

    plain: str  # the script for an issue, without exit codes: ``torch.testing.assert_close`` or the one observable
    plain_output: str  # what it printed on the bug, its last lines, without paths of this machine
    plain_shows: bool  # whether it showed the bug
    cuda: str  # the same script for a CUDA device; absent where it makes no sense there. It was not run.
    eager_only: str  # a script that calls the operator at fault in eager mode; absent where the fault needs a compiler
    eager_only_output: str  # what it printed
    # whether eager mode calls that operator in the same way (it agrees with aot_eager), so that eager is wrong, and
    # the compiled program need not be
    eager_is_wrong: bool
    bisector: str  # the answer of ``torch._inductor.compiler_bisector``, where it was asked
    fix: FixJson  # a fix that was tried, where that was asked for
    ladder: list[RungJson]  # eager, aot_eager, aot_eager_decomp_partition and inductor, in this order
    expression: str  # the operation at fault in the user's words, such as ``torch.add(x, a @ b, alpha=0.5)``
    error_log: str  # the whole text of an error, with that of the C++ or Triton compiler, without paths of this machine
    collect_env: str  # what ``torch.utils.collect_env`` prints, without paths of this machine


class WhereJson(TypedDict):
    """The place where a call of a running program was judged."""

    process: str  # ``worker``, or ``in place``; ``why`` that was so
    why: str


class ReportJson(TypedDict, total=False):
    """The answer on one case."""

    schema: int  # 1. A change that breaks a reader increases it; further keys may be added without an increase.
    case: str  # its name
    torch: str  # the version that compiled it; ``device`` where it ran
    device: str
    plants: list[str]  # with ``--plant``, the names of the files that put bugs into that torch
    verdict: str  # a word of the verdict kinds; ``is_bug`` says whether it is worth a report to PyTorch
    is_bug: bool
    # of a verdict on values or gradients, the side that is wrong: ``compiled``, ``eager``, ``both`` or ``undecided``;
    # null for others
    wrong: WrongSide | None
    confidence: str  # ``high`` or ``low``; the notes of the evidence say what lowers it
    detail: str  # one sentence
    evidence: EvidenceJson  # that the verdict rests on
    culprit: CulpritJson | None  # the part of the compiler at fault; null for what is no bug
    contributors: list[CulpritJson]  # others that are necessary too
    changed_bits: list[CulpritJson]  # the rewrites that moved any bit: for a rounding verdict the only answer there is
    ablations: list[AblationJson]  # the compiles that were tried for the proof
    workaround: WorkaroundJson | None  # a setting that was run before it is offered; null where none was found
    cause: CauseJson | None  # the change that makes the case pass; null where none was found
    signature: str | None  # the identity of the bug; null for what is no bug
    severity: str | None  # a word of the severities; null for what is no bug, but for ``by_design``
    # of a bug of Inductor's or AOTAutograd's, their settings that the case sets to other values than the default;
    # none where the same verdict is seen without them
    opt_in: list[str]
    rewrites: list[RewriteJson]  # the rules that matched anything
    suspects: list[SuspectJson]  # the answers to ``--suspect``
    cost: CostJson  # of the answer
    target: TargetJson | None  # with ``--target``, the device that code was generated for; null otherwise
    contract: ContractJson  # with ``--contract bitwise``, the promises of equal bits
    known: bool  # with ``--baseline``, whether the bug is in it
    where: WhereJson  # from Python, the process that judged


def find_broken_promise(report: Mapping[str, Any]) -> str | None:
    """The promise of equal bits that a report calls broken where none of its values is wrong; None otherwise."""
    evidence = report.get("evidence") or {}
    wrong = any(output.get("finding") not in AGREEING for output in evidence.get("outputs") or ())
    bits = report.get("verdict") in ("precision_loss", "nondeterministic")
    return evidence.get("promise") if bits and not wrong else None


def name_non_finite(numbers: Mapping[str, Any], key: str) -> str:
    """Return ``inf``, ``-inf`` or ``nan`` of a number that is null for that; "" where nothing is said of it."""
    return str(numbers.get(f"non_finite_{key}") or numbers.get("non_finite") or "")


def read_target(report: ReportJson) -> str | None:
    """Return the target that the compiler generated code for; None if that is the device that ran."""
    target = report.get("target")
    return None if target is None else target["device"]


# Ways to run a program, as a case file's ``PATH`` spells them. Needs no torch.

COMPILE, EXPORT, AOTI, EAGER, CACHED = "compile", "export", "aoti", "eager", "cached"
PATHS = (COMPILE, EXPORT, AOTI, EAGER, CACHED)
"""``torch.compile``; ``torch.export``, whose program runs in eager mode; AOTInductor, which compiles that program;
eager mode alone, held against a second reference: nothing is compiled, and values called so are the reference's; and
``torch.compile`` once more, with the graphs that another process has stored in torch's caches on disk."""
EXPORTED = (EXPORT, AOTI)
"""The paths of a program that ``torch.export`` captures."""


CORE = ("schema", "case", "torch", "device", "verdict", "is_bug", "confidence")
"""Keys that every report has."""


class ReportMalformed(ValueError):
    """A value is no report of the contract; the message names the place in it and what stands there."""


def check_report(value: object) -> ReportJson:
    """Return ``value`` as a report, with whatever further keys a newer version wrote; ReportMalformed if it is none."""
    import msgspec  # most commands read no foreign report

    try:
        report = msgspec.convert(value, ReportJson)
    except msgspec.ValidationError as error:
        raise ReportMalformed(str(error)) from None
    if missing := [key for key in CORE if key not in report]:
        raise ReportMalformed(f"Object lacks `{missing[0]}`")
    if report["schema"] > SCHEMA:
        raise ReportMalformed(f"a newer fuzzcompile wrote it (schema {report['schema']}, this one reads {SCHEMA})")
    return cast(ReportJson, value)
