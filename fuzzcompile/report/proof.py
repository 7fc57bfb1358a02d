"""The proof of a culprit in words and rows, for the terminal and the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fuzzcompile.model.contract import EAGER, OutputJson, ReportJson, name_non_finite, read_target
from fuzzcompile.model.culprit_contract import AblationJson, CulpritJson, format_place, read_details
from fuzzcompile.model.privacy import fold_lines, scrub
from fuzzcompile.model.stages import BY_NAME, CODEGEN, DISPATCHER_LABEL, DYNAMO, INDUCTOR_LABEL
from fuzzcompile.model.verdicts import FORMS, VALUES, Verdict
from fuzzcompile.report.circumstances import WORDS, several
from fuzzcompile.report.finding_facts import UNMEASURED, IssueFacts

NEEDED = "also needed"
_NAMED = 4  # nodes named of each line of the program
_SHORT = 40  # characters of an item of a list that stands on one line
# Details of a culprit that are shown in a form of their own, not as facts.
_HANDLED = ("direction", "float64", "native", "native_noise", "changed", "matched", "diff", "non_finite")
_LABELS = {
    "got": "the compiler's",
    "expected": "should be",
    "fused": "operators fused",
    "kernel_source": "generated code",
    "raised": "raised in",
    "given": "where it has",
    "stack": "stood in",
}


class Fact(NamedTuple):
    """A detail of a culprit; a ``text`` of several lines is code, or a list, and takes lines of its own."""

    label: str
    text: str


class Tried(NamedTuple):
    """One line of the ablation table; ``toggle`` is in words, with code between backticks."""

    toggle: str
    repairs: bool
    error: str


class Bar(NamedTuple):
    """Distance by which a rewrite moved the result, relative to its size; None where its graph was not replayed."""

    name: str
    stage: str
    site: str
    float64: float | None  # its graph run in float64; ``native`` in the dtypes of the program
    native: float | None
    of_culprit: bool  # whether it is the culprit's own


def matched(culprit: CulpritJson) -> list[str]:
    """The lines of the program that the culprit matched, each with its code and the names of its nodes."""
    lines = []
    for entry in read_details(culprit).get("matched") or ():
        code = f": {entry['code']}" if entry["code"] else ""
        lines.append(f"{entry['source'] or 'no known line'}{code}  ({several(entry['nodes'], ', ', _NAMED)})")
    return lines


def find_step(culprit: CulpritJson) -> str | None:
    """Return the distance by which the culprit moved the result, in units of its size; None if no replay shows one."""
    details = read_details(culprit)
    exact, native, noise = (_number(details, key) for key in ("float64", "native", "native_noise"))
    if details.get("changed") and not exact and not native:
        return None  # it changed a dtype, shape or the like
    moved = [] if exact is None else [f"{format_number(exact)} in float64"]
    if native is not None:
        rounding = "" if noise is None else f" (rounding alone: {format_number(noise)})"
        moved.append(f"{format_number(native)} natively{rounding}")
    step = culprit.get("step")
    return ", ".join(moved) if moved else None if step is None else format_number(step)


def list_proof_facts(culprit: CulpritJson) -> Iterator[Fact]:
    """The other details: what changed in the result, a kernel's source, what was expected and computed."""
    details = read_details(culprit)
    if details.get("changed"):
        yield Fact("it changed", str(details["changed"]))
    for key, value in details.items():
        text = _text(value)
        if key not in _HANDLED and text:
            yield Fact(_LABELS.get(key, key.replace("_", " ")), text)


def get_diff(culprit: CulpritJson | None) -> list[str]:
    """The graph before and after the culprit, as a diff; empty where there is none."""
    return str(read_details(culprit).get("diff") or "").splitlines()


# A changed setting, and the same in words that need no explanation.
_PLAIN = (
    (r"^veto (.+?)(, graphs run .*)?$", r"`\1` off\2"),
    (r"^only (.+?)(, graphs run .*)?$", r"only `\1` on\2"),
    (r"^decomposition of (.+) off$", r"`\1` not decomposed"),
    (r"^(graph break at|the frame left to eager mode for) (.+?)(?: in line \d+)?$", r"\1 `\2`"),
    (r"^([\w.]+(?:\[[^]]*\])?(?: ?=.*|\(.*\)))$", r"`\1`"),
)
# Settings by which a culprit is switched off, and do not always reach it.
_SWITCHES = re.compile(r"^(?:veto |graph break at |torch\._inductor\.config\.disabled_passes = )(.+)$")


def plain_toggle(toggle: str) -> str:
    """A changed setting in words that need no explanation."""
    text = scrub(toggle).replace(" (graphs interpreted)", ", graphs run without generated code")
    return next((re.sub(pattern, plain, text) for pattern, plain in _PLAIN if re.match(pattern, text)), text)


def name_role(culprit: CulpritJson) -> str:
    """What to call a culprit: a suspect where the bug stays without it and no replay shows that it changes a result."""
    return "suspect" if culprit.get("necessary") is False and culprit.get("step") is None else "culprit"


def format_shown(culprit: CulpritJson) -> str:
    """Describe the results of compiles without a culprit, and with every other optional rewrite off; may be empty."""
    if read_details(culprit).get("kind") == "guard":
        return "compiled anew where that changed, the calls are right" if culprit.get("necessary") else ""
    if "design" in read_details(culprit):
        return "eager mode agrees on that branch"
    if read_details(culprit).get("kind") == "mode":
        return "eager mode without it agrees with the compiled program"
    parts, necessary, sufficient = [], culprit.get("necessary"), culprit.get("sufficient")
    if necessary is not None:
        siblings = culprit.get("siblings")
        alike = f" and {', '.join(siblings)}, which takes its place" if siblings else ""
        doubt = "not proved: " if name_role(culprit) == "suspect" else ""
        parts.append(f"{doubt}the bug {'is gone' if necessary else 'stays'} without it{alike}")
    if sufficient is not None:
        parts.append("it alone shows the bug" if sufficient else "it alone does not show the bug")
    return "; ".join(parts)


def has_errors(report: ReportJson) -> bool:
    """Whether the errors that ablations left mean anything: of a wrong stride or an exception they say nothing."""
    left = (entry.get("error") or entry.get("non_finite") for entry in report.get("ablations") or ())
    return report["verdict"] in VALUES and any(left)


def tried(report: ReportJson, form: Callable[[float], str] | None = None, nothing: str = "-") -> list[Tried]:
    """The ablation table; ``form`` writes a number, ``nothing`` stands where there is none."""
    rows = []
    for entry in report.get("ablations") or ():
        error = entry.get("error")
        left = str(entry.get("non_finite") or nothing) if error is None else (form or format_number)(error)
        rows.append(Tried(plain_toggle(str(entry["toggle"])), bool(entry["repairs"]), left))
    return list(dict.fromkeys(rows))


def tried_for_draft(report: ReportJson) -> list[Tried]:
    """The ablation table of a draft, without rows that tell a reader nothing of a proved culprit.

    These are settings that should switch it off and do not reach it, and graphs run without generated code on which
    something else raises than the code that does not compile.
    """
    culprit = report.get("culprit") or {}
    names = {str(name) for name in (culprit.get("rewrite"), culprit.get("pass")) if name and culprit.get("necessary")}

    def reaches(entry: AblationJson) -> bool:
        if _is_other_error(report, entry):
            return False
        switched = _SWITCHES.match(str(entry["toggle"]))
        return bool(entry["repairs"]) or switched is None or not any(name in switched[1] for name in names)

    kept = [entry for entry in report.get("ablations") or () if reaches(entry)]
    return tried({**report, "ablations": kept}, "{:.3g}".format, NOTHING)


def _is_other_error(report: ReportJson, entry: AblationJson) -> bool:
    uncoded = str(entry["toggle"]).endswith("(graphs interpreted)")
    return uncoded and not entry["repairs"] and "CompileError" in str(report.get("detail"))


def bars(report: ReportJson) -> list[Bar]:
    """The rewrites that moved any bit, in the order in which they were applied."""
    culprit, made = report.get("culprit"), []
    for rewrite in report.get("changed_bits") or ():
        details = read_details(rewrite)
        direction = details.get("direction")
        bar = Bar(
            str(rewrite.get("rewrite") or rewrite.get("family")),
            str(rewrite.get("stage")) + (f", {direction}" if direction and direction != "inference" else ""),
            str(rewrite.get("site") or ""),
            _number(details or {"float64": rewrite.get("step")}, "float64"),
            _number(details, "native"),
            of_culprit=culprit is not None and _identity(rewrite) == _identity(culprit),
        )
        made.append(bar)
    return made


def _identity(rewrite: CulpritJson) -> tuple[object, ...]:
    return rewrite.get("stage"), rewrite.get("rewrite"), rewrite.get("site"), *(rewrite.get("nodes") or ())


def format_workaround(report: ReportJson) -> str | None:
    """Return the setting that helps until the bug is fixed; None where nothing is known."""
    workaround = report.get("workaround")
    if not workaround:
        return None
    return workaround.get("how") or ", ".join(f"{key} = {value!r}" for key, value in workaround.items())


def workaround_with_cost(report: ReportJson) -> str | None:
    """The workaround with what was measured: that it removes the bug, and its price."""
    workaround, how, notes = report.get("workaround") or {}, format_workaround(report), []
    if "verified" in workaround:
        notes.append("run, and the bug is gone" if workaround["verified"] else "not verified")
    # The time of a run for a target is that of the CPU and of an interpreter.
    if (ratio := workaround.get("cost_ratio")) is not None and read_target(report) is None:
        notes.append(f"{ratio:.2f} times the run time")
    return f"{how}  # {', '.join(notes)}" if notes else how


def format_number(value: float | int) -> str:
    """A number of two or three digits."""
    return f"{value:.3g}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.1e}"


def _number(details: Mapping[str, object], key: str) -> float | None:
    """A number of the details; ``non_finite`` beside it names what JSON cannot hold."""
    value = details.get(key)
    if value is None and key in details:
        value = name_non_finite(details, key)
    return float(value) if isinstance(value, int | float | str) and value != "" else None


def _text(value: object) -> str:
    if value is None or value is False or value in ("", [], {}, ()):
        return ""
    if isinstance(value, Mapping):
        parts = [f"{key} {_text(item) or '-'}" for key, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_text(item) or "-" for item in value]
    else:
        return "yes" if value is True else f"{value:.9g}" if isinstance(value, float) else str(value).rstrip()
    # On one line if each part is short, else one below the other.
    return ("\n" if any("\n" in part or len(part) > _SHORT for part in parts) else ", ").join(parts)


# Where a bug sits: the component that triages it, the code at fault, and what proves it.

_REPOSITORY = "https://github.com/pytorch/pytorch/blob"
# The first rung of the ladder of backends that is not right tells the component (section 2 of the rubric).
_DYNAMO = BY_NAME[DYNAMO]
_RUNGS = {
    "eager": (_DYNAMO.title, _DYNAMO.label),
    "aot_eager": ("AOTAutograd", DISPATCHER_LABEL),
    "aot_eager_decomp_partition": ("decompositions or the partitioner", DISPATCHER_LABEL),
    "inductor": ("Inductor", INDUCTOR_LABEL),
}


def name_component(facts: IssueFacts) -> tuple[str, str] | None:
    """The component and its label in PyTorch's issues: the culprit's, else that of the first backend that is wrong."""
    if facts.without_compiler or facts.verdict == Verdict.EAGER_WRONG:
        return None
    if facts.proved and facts.culprit is not None and facts.culprit.get("stage") in BY_NAME:
        stage = BY_NAME[str(facts.culprit["stage"])]
        generated = stage.name == CODEGEN and (facts.device or "").startswith("cpu") and facts.target is None
        if generated:
            return "Inductor's C++ code generation", "oncall: cpu inductor"
        file = str(facts.culprit.get("source") or "")
        by_file = (label for begins, label in WORDS["file_labels"].items() if file.startswith(begins))
        return stage.title, next(by_file, stage.label)
    wrong = (rung["backend"] for rung in facts.ladder if rung["result"] in ("wrong", "raises"))
    return _RUNGS.get(next(wrong, ""))


def list_kernel_labels(facts: IssueFacts) -> list[str]:
    """The labels of issues about the ATen operator at fault; empty where it is the compiler that is."""
    if facts.kernel is None or not (facts.without_compiler or facts.eager_is_wrong):
        return []
    by_name = [label for part, label in WORDS["operator_labels"].items() if part in facts.kernel]
    device = WORDS["device_labels"].get((facts.device or "").partition(":")[0])
    return [*by_name, *([device] if device else [])]


def paths(facts: IssueFacts) -> str:
    """What a composite operator calls in eager mode and as it is traced; empty where no such operator is at fault."""
    composite = read_details(facts.culprit).get("composite")
    if composite is None:
        return ""
    eager, compiled = (
        several([f"`{name}`" for name in dict.fromkeys(composite[side])], ", ") for side in ("eager", "compiled")
    )
    return f"eager mode calls {eager or 'nothing'}; traced for the compiler it becomes {compiled or 'nothing'}"


def culprit_line(facts: IssueFacts) -> str:
    """The code at fault, with a link; that of a suspect says that it is one. Empty where there is neither."""
    culprit = facts.culprit
    if culprit is None:
        return ""
    stage, within = str(culprit.get("stage")), culprit.get("pass")
    name = facts.kernel or culprit.get("rewrite") or within or culprit.get("family") or "?"
    component = "an ATen kernel" if facts.kernel else BY_NAME[stage].title if stage in BY_NAME else stage
    inside = f" in `{within}`" if within and not facts.kernel and within != name else ""
    place = "" if facts.kernel else source_link(facts)
    # "an Inductor lowering" is one of many: of which operator says more.
    article, _, kind = component.partition(" ")
    guard = read_details(culprit).get("guard")
    named = f"`{scrub(str(name))}`{inside}" if guard is None else f"a guard `{name}` ({guard})"
    what = f"the {kind} of {named}" if article in ("a", "an") else f"{named}, {component}"
    return what + (f": {place}" if place else "")


def source_link(facts: IssueFacts) -> str:
    """The culprit's file and line as Markdown: a permalink if it is torch's own at a known commit."""
    source, line = (facts.culprit or {}).get("source"), (facts.culprit or {}).get("line")
    if not source:
        return ""
    text = format_place(scrub(source), line)
    commit = str(facts.environment.get("torch_git") or "")
    known = re.fullmatch(r"[0-9a-f]{7,40}", commit) and facts.environment.get("torch") == facts.torch
    if not known or not source.startswith("torch/"):
        return f"`{text}`"
    return f"[{text}]({_REPOSITORY}/{commit}/{source}" + (f"#L{line})" if line is not None else ")")


def describe_repair(facts: IssueFacts) -> str:
    """Describe the repair of an operator with which eager mode is right."""
    if facts.by_gradient:
        return "once that operator is differentiated by differences of its forward pass"
    if not facts.by_layout:
        return "once that operator is computed by other code"
    copied = "".join(f" of `{name}`" for name in facts.misreads[:1]) if len(facts.misreads) == 1 else ""
    return f"once that operator is called on contiguous copies{copied}"


def list_changes(facts: IssueFacts) -> list[tuple[str, str]]:
    """What changed between the calls of a stale graph: its name, and what it was and is."""
    changes = (str(change).partition(": ") for change in read_details(facts.culprit).get("between_calls") or ())
    return [(name, values) for name, _, values in changes]


def proof(facts: IssueFacts) -> str:
    """Describe the proof of the culprit in one line; empty where nothing proves it."""
    if facts.without_compiler:
        if facts.by_gradient:
            return "the script above holds the operator's gradient against differences of its forward pass."
        if facts.by_layout:
            return "the script above calls the operator in eager mode, on equal values in two layouts."
        return (
            "the script above calls the operator in eager mode; the values that it expects were computed by other code."
        )
    culprit = facts.culprit
    if culprit is None or not facts.proved:
        return ""
    if facts.verdict == Verdict.EAGER_WRONG:
        right = "a second reference" if facts.path == EAGER else "the compiled program"
        return f"eager mode agrees with {right} {describe_repair(facts)}."
    if read_details(culprit).get("kind") == "cache":
        return "compiled anew without the cache, the program is right."
    if facts.verdict == Verdict.STALE:
        changed = " and ".join(f"`{name}`" for name, _ in list_changes(facts))
        return f"compiled anew only where {changed} changed, the calls are right."
    if read_details(culprit).get("kind") == "mode":
        return f"the compiled program agrees with eager mode without `{culprit['rewrite']}`."
    siblings = ", ".join(f"`{name}`" for name in culprit.get("siblings") or ())
    what = f"switching off this and {siblings}, which takes its place" if siblings else "switching off this alone"
    repairing = (entry for entry in facts.report.get("ablations") or () if entry.get("repairs"))
    how = next((f" ({plain_toggle(str(entry['toggle']))})" for entry in repairing), "")
    text = f"the bug is gone after {what}{how}"
    other = any(_is_other_error(facts.report, entry) for entry in facts.report.get("ablations") or ())
    if culprit.get("sufficient") and not other:
        text += "; it stays with every other optional rewrite off"
    if contributors := facts.report.get("contributors"):
        text += "; the bug also needs "
        text += ", ".join(f"`{entry.get('rewrite') or entry.get('family')}`" for entry in contributors)
    return f"{text}."


_MAX_ROWS = 12
NOTHING = "–"
ERRORS = ("max_abs_error_eager", "max_abs_error_compiled", "error_ratio", "noise_floor")


def error_rows(facts: IssueFacts) -> tuple[list[dict[str, str]], int]:
    """The table of outputs, wrong ones first, as text; and how many outputs it leaves out."""
    wrong, rows = facts.wrong, list[dict[str, str]]()
    for entry in [*wrong, *(output for output in facts.outputs if output not in wrong)][:_MAX_ROWS]:
        # Where dtype, shape or presence differ, no distance was measured; of another layout it says nothing.
        finding = entry.get("finding")
        bare = finding in FORMS or (finding in UNMEASURED and not entry.get("max_abs_error_compiled"))
        row = {key: NOTHING if bare else format_entry(entry, key) for key in ERRORS}
        within = None if bare else entry.get("within_default_tolerance")
        row["tolerance"] = NOTHING if within is None else "pass" if within else "fail"
        row["name"] = str(entry.get("name"))
        detail = fold_lines(str(entry.get("detail") or ""), 100)
        row["finding"] = " ".join(part for part in (str(entry.get("finding") or NOTHING), detail) if part)
        rows.append(row)
    return rows, max(0, len(facts.outputs) - _MAX_ROWS)


def format_entry(entry: OutputJson, key: str) -> str:
    """A figure of the evidence as text: infinities by name, a dash where there is none."""
    value = entry.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.3g}"
    if key.endswith("_error_compiled") and entry.get("non_finite"):
        return str(entry["non_finite"])
    return NOTHING
