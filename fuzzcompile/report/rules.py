"""PyTorch's rules for reports that come from a fuzzer, and which of them a finding meets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.program import case_part
from fuzzcompile.report.tables import figure

# Verdicts that rest on comparing numbers.
_NUMERIC = (
    Verdict.MISCOMPILE,
    Verdict.WRONG_GRADIENT,
    Verdict.NONFINITE,
    Verdict.PRECISION_LOSS,
    Verdict.ALIASING,
)


# Calls that return positions.
_INDICES = re.compile(
    r"\b(arg(?:max|min|sort|where)|max|min|sort|topk|mode|median|nanmedian|kthvalue|cummax|cummin|multinomial)\("
)

_LARGER = "a case in which the difference is larger than PyTorch tolerates"


@dataclass(frozen=True)
class Rule:
    """One rule; ``met`` is None where it does not apply or the facts do not show it.

    ``remedy`` is what meets it.
    """

    text: str
    met: bool | None
    note: str
    remedy: str = ""

    @property
    def mark(self) -> str:
        """The box of a Markdown task list."""
        return "x" if self.met else " "


def rules(facts: IssueFacts) -> list[Rule]:
    """The rules of the torch.compile bug template for fuzzers, and the maintainers' own."""
    # Where eager mode is wrong too, so is the float64 run, which calls the same operator.
    return [*(() if facts.eager_is_wrong else _numeric(facts)), *_always(facts)]


def _numeric(facts: IssueFacts) -> Iterator[Rule]:
    if facts.verdict not in _NUMERIC or facts.shares_wrongly:
        return
    within = _within_tolerance(facts)
    where = {True: "within", False: "outside", None: "not recorded whether within"}[within]
    met = None if within is None else not within
    yield Rule("Default tolerances", met, f"{where} `torch.testing.assert_close` defaults", _LARGER)
    yield from _indices(facts)
    yield _random_state(facts)
    yield from _higher_precision(facts)


def _indices(facts: IssueFacts) -> Iterator[Rule]:
    integers = ", ".join(str(entry.get("name")) for entry in facts.wrong if entry.get("finding") == "integer")
    calls = sorted({match[1] for match in _INDICES.finditer(case_part(facts.reproducer))})
    rule = "No comparison of indices of max, min and the like"
    if integers and (calls or not facts.reproducer):
        of = f" of {', '.join(calls)}" if calls else ""
        yield Rule(rule, None, f"integer outputs differ ({integers}): make sure that they are not indices{of}")
    else:
        yield Rule(rule, True, "the program computes none" if integers else "only floating values count here")


def _within_tolerance(facts: IssueFacts) -> bool | None:
    outputs = [facts.measured, *facts.wrong]
    return next((output.get("within_default_tolerance") for output in outputs if output is not None), None)


def _higher_precision(facts: IssueFacts) -> Iterator[Rule]:
    entry = facts.measured
    if entry is None:
        return
    same, finite = entry.get("torch_same"), entry.get("max_abs_error_compiled") is not None
    verdict = {True: "calls them the same", False: "calls them different", None: "was not recorded"}[same]
    # Its root mean squares are NaN where either side is not finite, and then it lets everything pass.
    met = None if same is None or (same and not finite) else not same
    note = f"errors are against float64; `torch._dynamo.utils.same` with `fp64_ref` {verdict}"
    yield Rule("Higher-precision baseline", met, note, _LARGER)
    eager, compiled = entry.get("max_abs_error_eager"), entry.get("max_abs_error_compiled")
    farther = compiled is None or eager is None or compiled > eager
    figures = f"{figure(entry, 'max_abs_error_compiled')} against {figure(entry, 'max_abs_error_eager')}"
    yield Rule("Compiled is farther from float64 than eager", farther, figures, _LARGER)


def _always(facts: IssueFacts) -> Iterator[Rule]:
    stated = bool(facts.torch and facts.device)
    yield Rule("Device and version stated", stated, "below" if stated else "not recorded", "judge the case again")
    if facts.target is not None:
        note = "the reproducer showed it there" if facts.seen_on_device else "run the reproducer on a GPU first"
        yield Rule(
            f"Seen on a {facts.target} device",
            facts.seen_on_device,
            note,
            f"run the reproducer on a {facts.target} GPU",
        )
    tried, rungs = len(facts.report.get("ablations") or ()), len(facts.shown.get("ladder") or ())
    parts = [f"{tried} settings tried"] if tried else []
    parts += [f"{rungs} backends tried"] if rungs else []
    yield Rule(
        "Ablation", bool(parts), ", ".join(parts) or "none was run", f"`{_judged_again(facts.subject)}` runs them"
    )
    yield Rule(
        "Minimal reproducer",
        bool(facts.reproducer and facts.confirmed),
        _reproducer(facts),
        f"`{facts.subject.format_command('minimize')}` makes one and confirms it in a clean process",
    )
    searched = f"on {facts.searched}: {len(facts.related)} related" if facts.searched else "by hand, before filing"
    yield Rule("Existing issues and pull requests searched", bool(facts.searched) or None, searched)


def _judged_again(subject: CommandSubject) -> str:
    return subject.format_command("corpus", "refresh") if subject.is_finding else subject.format_command("triage")


def _random_state(facts: IssueFacts) -> Rule:
    text = facts.plain or facts.reproducer or ""
    seeded, draws = "manual_seed" in text, "rand" in text or "dropout" in text
    met = None if not text else seeded or not draws
    note = "the reproducer seeds itself" if seeded else "it draws no random numbers" if met else "not shown"
    return Rule("Equal random state", met, note, "seed the script before each of the two runs")


def _reproducer(facts: IssueFacts) -> str:
    if not facts.reproducer:
        return "there is none yet"
    shown = "run alone: it shows the bug" if facts.target is None else f"judged alone for {facts.target}: the bug"
    run = shown if facts.confirmed else "not confirmed in a clean process"
    return f"{len((facts.shown.get('plain') or facts.reproducer).splitlines())} lines, {run}"
