"""Circumstances of a verdict beside the outputs: stages, graph breaks, randomness, warnings, notes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from fuzzcompile.model.contract import EvidenceJson, ReportJson, read_target
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.package_files import read_table
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.stages import CODEGEN, LOWERING, SCHEDULER
from fuzzcompile.model.verdicts import HARMLESS, VALUES

if TYPE_CHECKING:
    from fuzzcompile.corpus.machines import Machines


# The words of reports by verdict, by severity and so on: words.toml, which says of each table what it is.
WORDS: Final[dict[str, Any]] = read_table(__package__, "words")

# What a report says of a target: the device that the compiler was told, while the case ran on the CPU.

_NOT_LOOKED_AT = "not looked at"
_KERNELS = (LOWERING, SCHEDULER, CODEGEN)


def meaning_for(report: ReportJson, plain: str) -> str:
    """Explain a verdict for a target in a few words; ``plain`` is its meaning for the device that runs."""
    target, verdict = read_target(report), report["verdict"]
    if verdict in HARMLESS:
        return f"nothing found in the stages looked at for {target}"
    if verdict not in VALUES:
        return f"{plain}, compiled for {target}" if report["is_bug"] else plain
    culprit = report.get("culprit")
    if culprit is None:
        return f"what is made of the program for {target} computes other values than the program"
    stage = culprit.get("stage") or ""
    if stage in _KERNELS:
        return f"a kernel generated for {target} computes other values than its graph, interpreted"
    what = "this rewrite" if culprit.get("rewrite") else f"the stage {stage}"
    return f"{what}, applied for {target}, changes the meaning in float64"


def advice_for(report: ReportJson, name: str | CommandSubject) -> str:
    """Advise on a bug for a target; ``name`` is the case's name on a command line."""
    subject = CommandSubject.from_name(name).with_options(device=None, target=read_target(report))
    return (
        f"confirm it on a GPU: `{subject.format_command('minimize')}` makes the reproducer to run there, "
        f"`{subject.format_command('issue')}` the draft"
    )


def stages_looked_at(report: ReportJson) -> Iterator[str]:
    """How the stages were looked at for a target: a heading, then a line each way; nothing without a target."""
    target = report.get("target")
    if target is None:
        return
    ways = defaultdict[str, list[str]](list)
    for stage, way in target["stages"].items():
        ways[way].append(stage)
    seen = f"for {target['device']}, {'seen on such a device too' if target['confirmed_on_device'] else 'with no GPU'}"
    yield f"stages {seen}:" if ways else f"{seen}: no stage was looked at to its end"
    for way in sorted(ways, key=lambda way: way.startswith(_NOT_LOOKED_AT)):
        yield f"  {way}: {', '.join(ways[way])}"


_NAMES = 6  # rewrites, warnings and notes shown
_BREAK = 200  # characters shown of a graph break's reason


def circumstances(report: ReportJson) -> Iterator[str]:
    """Other facts that bear on the verdict, if any."""
    yield from stages_looked_at(report)
    evidence: EvidenceJson = report.get("evidence") or {}
    graphs, breaks = evidence.get("graphs") or 0, evidence.get("graph_breaks") or ()
    if graphs > 1 or breaks:
        shown = [text if len(text) <= _BREAK else text[: _BREAK - 4] + " ..." for text in breaks]
        yield f"graphs: {graphs}" + (f"; broken by {several(shown, '; ')}" if breaks else "")
    if not evidence.get("eager_deterministic", True):
        yield "eager is not deterministic: it differs from run to run"
    if evidence.get("randomness"):
        yield f"random numbers: {evidence['randomness']}"
    survives = evidence.get("survives_float64")
    if survives is not None:
        still = "still there: precision does not explain it" if survives else "gone"
        yield f"compiled in float64 the difference is {still}"
    if evidence.get("warnings"):
        yield f"warnings of one run alone: {several(evidence['warnings'], '; ')}"
    yield from (f"note: {note}" for note in (evidence.get("notes") or ())[:_NAMES])


def several(texts: Sequence[str], separator: str, most: int = _NAMES) -> str:
    """The first of them on one line, and how many more there are."""
    shown = [" ".join(str(text).split()) for text in texts[:most]]
    return separator.join(shown) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def versions(environment: Mapping[str, object]) -> list[tuple[str, str]]:
    """Labels and values of the known parts of an environment (:func:`fuzzcompile.run.device.describe_environment`)."""
    known = ((label, environment.get(key)) for key, label in WORDS["versions"].items())
    return [(label, scrub(str(value))) for label, value in known if value not in (None, "")]


def seen_on(machines: Machines) -> str:
    """Return the environments in which it was seen or did not show, without a full stop: for a draft and a page."""
    types, confirmed = ", ".join(machines.processors), machines.second_machine == "confirmed"
    said = f"confirmed on {machines.count} machines" if confirmed else "seen on one machine"
    if machines.one_type_only:
        return f"{said}; shows on one type of processor only ({types}), not on {', '.join(machines.clean_processors)}"
    said += f" ({types})" if types else ""
    if number := len(machines.clean):
        said += f"; {count_noun(number, 'other machine')} judged the same program and did not show it"
    return said


def seen_on_and_next(machines: Machines, named: CommandSubject) -> str:
    """The same as a sentence for the terminal, with the command that asks a second machine."""
    said = seen_on(machines)
    if machines.second_machine == "pending":
        confirming = replace(named, name="").format_command("replay", confirm=True, select=named.name)
        said += f"; another machine confirms it with `{confirming}`"
    return f"{said[0].upper()}{said[1:]}."


# What lists of findings say of those that they count instead of showing.


class Ranked(Protocol):
    """Something with a severity: a word of `Severity`, or None."""

    @property
    def severity(self) -> str | None: ...  # noqa: D102


Line = TypeVar("Line", bound=Ranked)
_COUNTED = {Severity.LAYOUT: "of other layout", Severity.ACCEPTS_INVALID: "that accept what eager refuses"}


def divided(lines: Iterable[Line]) -> tuple[list[Line], list[Line]]:
    """Those to show, and those to count in one line, both in their order."""
    shown, counted = list[Line](), list[Line]()
    for line in lines:
        (counted if line.severity in _COUNTED else shown).append(line)
    return shown, counted


def counted_line(counted: Sequence[Ranked], how: str) -> str:
    """``12 of other layout and 7 that accept what eager refuses: HOW``."""
    numbers = Counter(line.severity for line in counted)
    parts = [f"{numbers[kind]} {words}" for kind, words in _COUNTED.items() if numbers[kind]]
    return f"{' and '.join(parts)}: {how}"
