"""The proof of a culprit in words and rows, for the terminal and the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuzzcompile.model.contract import CulpritJson, ReportJson, read_target
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.verdicts import VALUES

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
    "stack": "stood in",
}


def role_of_contributor(contributor: CulpritJson) -> str:
    """What a contributor is beside the culprit: needed too, or suspected of the same flaw of a generated program."""
    return "also suspected" if "program" in (contributor.get("details") or {}) else NEEDED


@dataclass(frozen=True)
class Fact:
    """A detail of a culprit; a ``text`` of several lines is code, or a list."""

    label: str
    text: str

    @property
    def is_block(self) -> bool:
        """Whether it takes lines of its own."""
        return "\n" in self.text


@dataclass(frozen=True)
class Tried:
    """One line of the ablation table; ``toggle`` is in words, with code between backticks."""

    toggle: str
    repairs: bool
    error: str


@dataclass(frozen=True)
class Bar:
    """How far one rewrite moved the result, relative to its size: in float64, and in the program's own dtypes.

    None where the graph could not be replayed. ``of_culprit`` marks the culprit's own.
    """

    name: str
    stage: str
    site: str
    float64: float | None
    native: float | None
    of_culprit: bool


def matched(culprit: CulpritJson) -> list[str]:
    """The lines of the program that the culprit matched, each with its code and the names of its nodes."""
    lines = []
    for entry in _mappings(culprit.get("details", {}).get("matched")):
        nodes = _strings(entry.get("nodes"))
        more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
        code = f": {entry['code']}" if entry.get("code") else ""
        lines.append(f"{entry.get('source') or 'no known line'}{code}  ({', '.join(nodes[:_NAMED])}{more})")
    return lines


def step_of(culprit: CulpritJson) -> str | None:
    """How far the culprit moved the result, in units of its size; None where it did not, or no replay shows it."""
    details = culprit.get("details", {})
    exact, native = _number(details, "float64"), _number(details, "native")
    moved = [] if exact is None else [f"{figure(exact)} in float64"]
    if native is not None:
        noise = _number(details, "native_noise")
        moved.append(f"{figure(native)} natively" + ("" if noise is None else f" (rounding alone: {figure(noise)})"))
    if details.get("changed") and not exact and not native:
        return None  # it changed a dtype, shape or the like
    if moved:
        return ", ".join(moved)
    step = culprit.get("step")
    return None if step is None else figure(step)


def facts_of(culprit: CulpritJson) -> Iterator[Fact]:
    """The other details: what changed in the result, a kernel's source, what was expected and computed."""
    details = culprit.get("details", {})
    if details.get("changed"):
        yield Fact("it changed", str(details["changed"]))
    for key, value in details.items():
        text = _text(value)
        if key not in _HANDLED and text:
            yield Fact(_LABELS.get(key, key.replace("_", " ")), text)


def diff_of(culprit: CulpritJson | None) -> list[str]:
    """The graph before and after the culprit, as a diff; empty where there is none."""
    return str((culprit or {}).get("details", {}).get("diff") or "").splitlines()


def plain_toggle(toggle: str) -> str:
    """A changed setting in words that need no explanation."""
    text = scrub(toggle).replace(" (graphs interpreted)", ", graphs run without generated code")
    words = (
        (r"^veto (.+?)(, graphs run .*)?$", r"`\1` off\2"),
        (r"^only (.+?)(, graphs run .*)?$", r"only `\1` on\2"),
        (r"^decomposition of (\S+) off$", r"`\1` not decomposed"),
    )
    for pattern, plain in words:
        if re.match(pattern, text):
            return re.sub(pattern, plain, text)
    return f"`{text}`" if re.search(r"[=(]", text) else text


def role_of(culprit: CulpritJson) -> str:
    """What to call a culprit: a suspect where the bug stays without it and no replay shows that it changes a result."""
    return "suspect" if _is_doubted(culprit) else "culprit"


def _is_doubted(culprit: CulpritJson) -> bool:
    return culprit.get("necessary") is False and culprit.get("step") is None


def shown_of(culprit: CulpritJson) -> str:
    """What was shown of a culprit by compiling without it, and with every other optional rewrite off; may be empty."""
    parts = []
    if culprit.get("necessary") is not None:
        siblings = culprit.get("siblings")
        alike = f" and {', '.join(siblings)}, which takes its place" if siblings else ""
        doubt = "not proved: " if _is_doubted(culprit) else ""
        parts.append(f"{doubt}the bug {'is gone' if culprit['necessary'] else 'stays'} without it{alike}")
    if culprit.get("sufficient") is not None:
        parts.append(f"{'it alone shows the bug' if culprit['sufficient'] else 'it alone does not show the bug'}")
    return "; ".join(parts)


def has_errors(report: ReportJson) -> bool:
    """Whether the errors that ablations left mean anything: of a wrong stride or an exception they say nothing."""
    left = (entry.get("error") or entry.get("non_finite") for entry in report.get("ablations") or ())
    return report["verdict"] in VALUES and any(left)


def tried(report: ReportJson) -> list[Tried]:
    """The ablation table."""
    return [
        Tried(
            plain_toggle(str(entry["toggle"])),
            bool(entry["repairs"]),
            str(entry.get("non_finite") or "-") if (error := entry.get("error")) is None else figure(error),
        )
        for entry in report.get("ablations") or ()
    ]


def bars(report: ReportJson) -> list[Bar]:
    """The rewrites that moved any bit, in the order in which they were applied."""
    culprit = report.get("culprit")
    blamed = None if culprit is None else _identity(culprit)
    return [_bar(rewrite, of_culprit=_identity(rewrite) == blamed) for rewrite in report.get("changed_bits") or ()]


def _identity(rewrite: CulpritJson) -> tuple[object, ...]:
    return rewrite.get("stage"), rewrite.get("rewrite"), rewrite.get("site"), *(rewrite.get("nodes") or ())


def _bar(rewrite: CulpritJson, *, of_culprit: bool) -> Bar:
    details = rewrite.get("details", {})
    direction = details.get("direction")
    return Bar(
        str(rewrite.get("rewrite") or rewrite.get("family")),
        str(rewrite.get("stage")) + (f", {direction}" if direction and direction != "inference" else ""),
        str(rewrite.get("site") or ""),
        _number(details or {"float64": rewrite.get("step")}, "float64"),
        _number(details, "native"),
        of_culprit,
    )


def workaround_of(report: ReportJson) -> str | None:
    """What a user can set until the bug is fixed; None where nothing is known."""
    workaround = report.get("workaround")
    if not workaround:
        return None
    return workaround.get("how") or ", ".join(f"{key} = {value!r}" for key, value in workaround.items())


def workaround_with_cost(report: ReportJson) -> str | None:
    """The workaround with what was measured: that it removes the bug, and its price."""
    workaround, how = report.get("workaround"), workaround_of(report)
    if how is None or not workaround:
        return how
    notes = []
    if "verified" in workaround:
        notes.append("run, and the bug is gone" if workaround["verified"] else "not verified")
    # The time of a run for a target is that of the CPU and of an interpreter.
    if (ratio := workaround.get("cost_ratio")) is not None and read_target(report) is None:
        notes.append(f"{ratio:.2f} times the run time")
    return f"{how}  # {', '.join(notes)}" if notes else how


def figure(value: float | int) -> str:
    """A number of two or three digits."""
    return f"{value:.3g}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.1e}"


def _number(details: Mapping[str, object], key: str) -> float | None:
    """A number of the details; ``non_finite`` beside it names what JSON cannot hold."""
    value = details.get(key)
    if value is None and key in details and details.get("non_finite"):
        value = details["non_finite"]
    return float(value) if isinstance(value, int | float | str) else None


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _text(value: object) -> str:
    if value is None or value is False or value in ("", [], {}, ()):
        return ""
    if value is True:
        return "yes"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, str):
        return value.rstrip()
    if isinstance(value, Mapping):
        return _joined([f"{key} {_text(item) or '-'}" for key, item in value.items()])
    return _joined([_text(item) or "-" for item in value]) if isinstance(value, Sequence) else str(value)


def _joined(parts: Sequence[str]) -> str:
    """On one line if each part is short, else one below the other."""
    return ("\n" if any("\n" in part or len(part) > _SHORT for part in parts) else ", ").join(parts)
