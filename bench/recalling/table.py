"""The report of the bench, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fuzzcompile.model.versions import installed_torch
from recalling.answers import Answer
from recalling.places import MUTATED_STAGES
from recalling.reading import Reading, estimate, section
from recalling.sampling import Reach
from recalling.survey import Pooled

_HEAD = """# Recall on torch {torch}

Mutants of the compiler's Python, made in memory (`bench/recall.py`), and what a campaign's worker makes of them. A
mutant is drawn from the lines that a pool of {cases} generated cases reaches. The {clean} of them that show no bug of
torch's own judge the mutants.

- **found**: a bug was shown in silence, that is, some compile that ran the mutated code did not fail by itself.
- **loud**: every compile that ran it failed.
- **no change**: on every case that ran it, all outputs have the bytes and layouts that they have without the mutation.
  Of no use to tell what the judge misses; many of them change what other programs compute.
- **rounding**: bytes differ; compiled in float64 the program is right on each of these cases.
- **missed**: values differ in another way, and nothing was reported.
- **named**: the mutated function, a rule that calls it, or its file is among culprit and contributors.

"""


def report_of(
    answers: Sequence[Answer],
    reach: Mapping[str, Reach],
    pool: Sequence[Pooled],
    reasons: Mapping[str, str],
    beside: Mapping[str, Sequence[Answer]],
    reading: Reading,
) -> str:
    """The report on all answers so far.

    Args:
        answers: the answers.
        reach: by stage, how much of its code the pool reaches.
        pool: the cases.
        reasons: by id of a mutant, what a person read in it.
        beside: by name, answers on the same mutants with other cases or another order.
        reading: mutants without a change that were drawn at random and read.
    """
    tried = [answer for answer in answers if answer.is_installed]
    shown_above = {mutant: f"{kind}, see above" for mutant, kind in reading.kinds.items()}
    lines = [
        *_HEAD.format(torch=installed_torch(), cases=len(pool), clean=sum(case.clean for case in pool)).splitlines(),
        "",
        *_table(tried, reach),
        "",
        *_rates(tried, beside, reading),
        "",
        *_compared(tried, beside),
        *_uninstalled(answers, tried),
        *_listed("Missed", [answer for answer in tried if answer.outcome == "missed"], reasons),
        *_listed("Differing in rounding alone", [row for row in tried if row.outcome == "rounding"], reasons),
        *_listed("Found or loud, and not named", _unnamed(tried), reasons),
        *_listed("Not reached under the mutant", [row for row in tried if row.outcome == "not reached"], reasons),
        *section(tried, reading, reasons),
        *_listed("No change", [row for row in tried if row.outcome == "no change"], {**reasons, **shown_above}),
        *_listed("Found", [row for row in tried if row.is_shown and row.named], reasons),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(tried: Sequence[Answer], reach: Mapping[str, Reach]) -> Iterator[str]:
    yield (
        "| stage | code reached | mutants | found | named | loud | named | missed | rounding | no change "
        "(same code) | not reached |"
    )
    yield "|---|" + "---:|" * 10
    stages = [stage for stage in MUTATED_STAGES if stage in reach]
    for stage in stages:
        known = reach[stage]
        yield _row(stage, [row for row in tried if row.stage == stage], known.reached, known.probes)
    yield _row("all", tried, *(sum(getattr(row, name) for row in reach.values()) for name in ("reached", "probes")))


def _row(stage: str, rows: Sequence[Answer], reached: int, probes: int) -> str:
    def of(outcome: str) -> list[Answer]:
        return [row for row in rows if row.outcome == outcome]

    cells = [
        f"{reached} of {probes} ({reached / max(1, probes):.0%})",
        str(len(rows)),
        str(len(of("found"))),
        str(sum(bool(row.named) for row in of("found"))),
        str(len(of("loud"))),
        str(sum(bool(row.named) for row in of("loud"))),
        str(len(of("missed"))),
        str(len(of("rounding"))),
        f"{len(of('no change'))} ({sum(row.same_code for row in of('no change'))})",
        str(len(of("not reached"))),
    ]
    return f"| {stage} | " + " | ".join(cells) + " |"


def _rates(tried: Sequence[Answer], beside: Mapping[str, Sequence[Answer]], reading: Reading) -> Iterator[str]:
    found, loud, missed, rounding = (
        [row for row in tried if row.outcome == outcome] for outcome in ("found", "loud", "missed", "rounding")
    )
    changed = len(found) + len(missed)
    yield (
        "- The judge's recall, **given a case of the pool whose bytes the mutant changes**: "
        f"{_share(len(found), changed)} silent ones found (goal: 90 %); with rounding counted, "
        f"{_share(len(found), changed + len(rounding))}. It says nothing of mutants that no case exposes, and all "
        "stand on lines that the pool reaches."
    )
    yield from estimate(tried, reading)
    yield from _campaign(tried, beside)
    yield f"- Of the found, {_share(_named(found), len(found))} named (goal: 95 %): {_levels(found)}."
    yield f"- Of the loud, {_share(_named(loud), len(loud))} named (goal: 95 %): {_levels(loud)}."


def _named(rows: Iterable[Answer]) -> int:
    return sum(bool(row.named) for row in rows)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


def _levels(rows: Iterable[Answer]) -> str:
    named = [row.named for row in rows]
    return ", ".join(f"{level} {named.count(level)}" for level in ("function", "rule", "file"))


def _unnamed(tried: Sequence[Answer]) -> list[Answer]:
    return [row for row in tried if row.is_shown and not row.named]


def _campaign(tried: Sequence[Answer], beside: Mapping[str, Sequence[Answer]]) -> Iterator[str]:
    """What drawing without knowledge of the mutated line shows, as a campaign draws."""
    if "uniform" not in beside:
        return
    _, _, shown, anywhere, silent = _side_by_side(tried, beside)
    yield (
        "- The campaign's recall, which draws without knowing the line: of the mutants that some way of drawing shows, "
        f"uniform drawing shows {_share(len(shown['uniform']), len(anywhere))}, and "
        f"{_share(len(shown['uniform'] & silent), len(anywhere & silent))} of the silent ones, in the same processor "
        "time a mutant (table below). Those that no way shows are not in that denominator either."
    )


_Ids = set[str]


def _side_by_side(
    tried: Sequence[Answer], beside: Mapping[str, Sequence[Answer]]
) -> tuple[dict[str, dict[str, Answer]], _Ids, dict[str, _Ids], _Ids, _Ids]:
    """By name the answers by id; the mutants that all have; by name those shown; shown by any; silent ones."""
    by_id = {name: {row.of.id: row for row in rows} for name, rows in {"steered": tried, **beside}.items()}
    common = set.intersection(*(set(rows) for rows in by_id.values()))
    shown = {name: {mutant for mutant in common if rows[mutant].is_shown} for name, rows in by_id.items()}
    silent = {row.of.id for row in tried if row.outcome in ("found", "missed", "rounding")}
    return by_id, common, shown, set().union(*shown.values()), silent


def _compared(tried: Sequence[Answer], beside: Mapping[str, Sequence[Answer]]) -> Iterator[str]:
    """How many of the mutants that all ways of drawing have tried each of them reaches, and shows a bug of."""
    if not beside:
        return
    by_id, common, shown, anywhere, silent = _side_by_side(tried, beside)
    yield f"## The same {len(common)} mutants, by way of drawing"
    yield ""
    yield (
        f"A bug is shown of {len(anywhere)} of them by some way; {len(anywhere & silent)} of these are silent. The "
        "ways beside the first end with the first bug, and judge no fresh cases."
    )
    yield ""
    yield "| drawing | reached | a bug shown | of the silent | not reached |"
    yield "|---|" + "---:|" * 4
    for name, rows in by_id.items():
        missing = sum(rows[mutant].outcome == "not reached" for mutant in common)
        yield (
            f"| {name} | {len(common) - missing} | {_share(len(shown[name]), len(anywhere))} "
            f"| {_share(len(shown[name] & silent), len(anywhere & silent))} | {missing} |"
        )
    yield ""


def _uninstalled(answers: Sequence[Answer], tried: Sequence[Answer]) -> Iterator[str]:
    if len(answers) > len(tried):
        count = len(answers) - len(tried)
        yield f"Mutants that could not be installed, and were replaced by the next draw: {count}."
        yield ""


def _listed(title: str, rows: Sequence[Answer], reasons: Mapping[str, str]) -> Iterator[str]:
    if not rows:
        return
    yield f"## {title}: {len(rows)}"
    yield ""
    yield "| id | stage | place | change | answer | read |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        mutation = row.of
        said = " ".join(filter(None, [row.outcome, row.verdict, f"({row.named})" if row.named else ""]))
        culprits = "; ".join(row.culprit[:2])
        ran = f"{row.reached} of {row.tried} cases ran it, {row.seconds:.0f} s"
        cells = [
            mutation.id,
            row.stage,
            f"`{mutation.place}` `{mutation.function}`",
            f"{mutation.operator}: `{mutation.diff}`",
            f"{said}, {ran}{': ' if culprits else ''}{culprits}",
            reasons.get(mutation.id, ""),
        ]
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    yield ""
