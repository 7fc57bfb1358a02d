"""What proves a culprit, in words and rows: what the terminal and the page show beyond the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAMED = 4  # nodes named of each line of the program
_SHORT = 40  # characters of an item of a list that stands on one line
# Of the details of a culprit, what has a form of its own (see Culprit).
_HANDLED = ("direction", "float64", "native", "native_noise", "changed", "matched", "diff", "non_finite")
_LABELS = {
    "got": "the compiler's",
    "expected": "should be",
    "fused": "operators fused",
    "kernel_source": "generated code",
}


@dataclass(frozen=True)
class Fact:
    """One thing to know of a culprit; ``text`` of several lines is code, or a list."""

    label: str
    text: str

    @property
    def is_block(self) -> bool:
        """Whether it takes lines of its own."""
        return "\n" in self.text


@dataclass(frozen=True)
class Tried:
    """One line of the ablation table."""

    toggle: str
    repairs: bool
    error: str


@dataclass(frozen=True)
class Bar:
    """How far one rewrite moved the result, relative to its size: in float64, and as the program has it.

    ``of_culprit`` says that it is the culprit's. None where the graph could not be replayed so.
    """

    name: str
    stage: str
    site: str
    float64: float | None
    native: float | None
    of_culprit: bool


def matched(culprit: Mapping[str, Any]) -> list[str]:
    """The lines of the program that the culprit matched, each with what it has there and the nodes' names."""
    lines = []
    for entry in (culprit.get("details") or {}).get("matched") or ():
        nodes = list(entry.get("nodes") or ())
        more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
        code = f": {entry['code']}" if entry.get("code") else ""
        lines.append(f"{entry.get('source') or 'no known line'}{code}  ({', '.join(nodes[:_NAMED])}{more})")
    return lines


def step_of(culprit: Mapping[str, Any]) -> str | None:
    """How far the culprit moved the result, in units of its size; None where no replay says, or where it did not."""
    details = culprit.get("details") or {}
    exact, native = _number(details, "float64"), _number(details, "native")
    moved = [] if exact is None else [f"{figure(exact)} in float64"]
    if native is not None:
        noise = details.get("native_noise")
        moved.append(f"{figure(native)} natively" + ("" if noise is None else f" (rounding alone: {figure(noise)})"))
    if details.get("changed") and not exact and not native:
        return None  # what it changed is no number
    if moved:
        return ", ".join(moved)
    return None if culprit.get("step") is None else figure(culprit["step"])


def facts_of(culprit: Mapping[str, Any]) -> Iterator[Fact]:
    """What else is known of a culprit: what changed in the result, a kernel's source, what was expected and got."""
    details = culprit.get("details") or {}
    if details.get("changed"):
        yield Fact("it changed", str(details["changed"]))
    for key, value in details.items():
        text = _text(value)
        if key not in _HANDLED and text:
            yield Fact(_LABELS.get(key, key.replace("_", " ")), text)


def diff_of(culprit: Mapping[str, Any]) -> list[str]:
    """The graph before and after the culprit, as a diff; empty where there is none."""
    return str((culprit.get("details") or {}).get("diff") or "").splitlines()


def tried(report: Mapping[str, Any]) -> list[Tried]:
    """The ablation table."""
    return [
        Tried(
            str(entry["toggle"]),
            bool(entry["repairs"]),
            str(entry.get("non_finite") or "-") if entry.get("error") is None else figure(entry["error"]),
        )
        for entry in report.get("ablations") or ()
    ]


def bars(report: Mapping[str, Any]) -> list[Bar]:
    """The rewrites that moved any bit, in the order in which they were applied."""
    culprit = report.get("culprit") or {}
    blamed = (culprit.get("stage"), culprit.get("rewrite"), culprit.get("site"), tuple(culprit.get("nodes") or ()))
    found = []
    for other in report.get("changed_bits") or ():
        details = other.get("details") or {}
        own = (other.get("stage"), other.get("rewrite"), other.get("site"), tuple(other.get("nodes") or ()))
        direction = details.get("direction")
        stage = str(other.get("stage")) + (f", {direction}" if direction and direction != "inference" else "")
        found.append(
            Bar(
                str(other.get("rewrite") or other.get("family")),
                stage,
                str(other.get("site") or ""),
                _number(details or {"float64": other.get("step")}, "float64"),
                _number(details, "native"),
                own == blamed,
            )
        )
    return found


def workaround_of(report: Mapping[str, Any]) -> str | None:
    """What to type until the bug is mended; None where nothing is known."""
    found = report.get("workaround")
    if not found:
        return None
    if isinstance(found, Mapping) and found.get("how"):
        return str(found["how"])
    return ", ".join(f"{key} = {value!r}" for key, value in found.items()) if isinstance(found, Mapping) else str(found)


def workaround_with_cost(report: Mapping[str, Any]) -> str | None:
    """The workaround and what was measured of it: that it repairs, and its price."""
    found, how = report.get("workaround"), workaround_of(report)
    if how is None or not isinstance(found, Mapping):
        return how
    said = []
    if "verified" in found:
        said.append("run, and the bug is gone" if found["verified"] else "not verified")
    if found.get("cost_ratio") is not None:
        said.append(f"{found['cost_ratio']:.2f} times the run time")
    return f"{how}  # {', '.join(said)}" if said else how


def figure(value: float | int) -> str:
    """A number of two or three digits."""
    return f"{value:.3g}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.1e}"


def _number(details: Mapping[str, Any], key: str) -> float | None:
    """A number of the details; what JSON cannot hold stands beside it by name."""
    value = details.get(key)
    if value is None and key in details and details.get("non_finite"):
        return float(details["non_finite"])
    return None if value is None else float(value)


def _text(value: Any) -> str:
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
    """On one line where each is short, else one below the other."""
    return ("\n" if any("\n" in part or len(part) > _SHORT for part in parts) else ", ").join(parts)
