"""PyTorch's rules for reports that come from a fuzzer, and which of them a finding meets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.wording import figure

# Verdicts that rest on comparing numbers.
_NUMERIC = (
    Verdict.MISCOMPILE,
    Verdict.WRONG_GRADIENT,
    Verdict.NONFINITE,
    Verdict.PRECISION_LOSS,
    Verdict.ALIASING,
)


@dataclass(frozen=True)
class Rule:
    """One rule; ``met`` is None where it does not apply or the facts do not show it."""

    text: str
    met: bool | None
    note: str

    @property
    def mark(self) -> str:
        """The box of a Markdown task list."""
        return "x" if self.met else " "


def rules(facts: IssueFacts) -> list[Rule]:
    """The rules of the torch.compile bug template for fuzzers, and the maintainers' own."""
    return [*_numeric(facts), *_always(facts)]


def fit_to_file(facts: IssueFacts) -> bool:
    """Whether no rule is known to be broken."""
    return all(rule.met is not False for rule in rules(facts))


def _numeric(facts: IssueFacts) -> Iterator[Rule]:
    if facts.verdict not in _NUMERIC or facts.shares_wrongly:
        return
    within = _within_tolerance(facts)
    where = {True: "within", False: "outside", None: "not recorded whether within"}[within]
    met = None if within is None else not within
    yield Rule("Default tolerances", met, f"{where} `torch.testing.assert_close` defaults")
    integers = [str(wrong.get("name")) for wrong in facts.wrong if wrong.get("finding") == "integer"]
    yield Rule(
        "No comparison of indices of max, min and the like",
        None if integers else True,
        f"integer outputs differ ({', '.join(integers[:4])}): make sure that they are not such indices"
        if integers
        else "only floating values count here",
    )
    yield from _higher_precision(facts)


def _within_tolerance(facts: IssueFacts) -> bool | None:
    outputs = [facts.measured, *facts.wrong]
    return next((output.get("within_default_tolerance") for output in outputs if output is not None), None)


def _higher_precision(facts: IssueFacts) -> Iterator[Rule]:
    entry = facts.measured
    if entry is None:
        return
    same = entry.get("torch_same")
    verdict = {True: "calls them the same", False: "calls them different", None: "was not recorded"}[same]
    yield Rule(
        "Higher-precision baseline",
        None if same is None else not same,
        f"errors are against float64; `torch._dynamo.utils.same` with `fp64_ref` {verdict}",
    )
    eager, compiled = entry.get("max_abs_error_eager"), entry.get("max_abs_error_compiled")
    farther = compiled is None or eager is None or compiled > eager
    yield Rule(
        "Compiled is farther from float64 than eager",
        farther,
        f"{figure(entry, 'max_abs_error_compiled')} against {figure(entry, 'max_abs_error_eager')}",
    )


def _always(facts: IssueFacts) -> Iterator[Rule]:
    seeded = "manual_seed" in facts.reproducer if facts.reproducer else None
    yield Rule("Equal random state", seeded, "the reproducer seeds itself" if seeded else "not shown")
    stated = bool(facts.torch and facts.device)
    yield Rule("Device and version stated", stated, "above" if stated else "not recorded")
    if facts.target is not None:
        note = "the reproducer showed it there" if facts.seen_on_device else "run the reproducer on a GPU first"
        yield Rule(f"Seen on a {facts.target} device", facts.seen_on_device, note)
    tried = len(facts.report.get("ablations") or ())
    yield Rule("Ablation", bool(tried), f"{tried} settings tried" if tried else "none was run")
    yield Rule("Minimal reproducer", bool(facts.reproducer and facts.confirmed), _reproducer(facts))
    yield Rule("Existing issues searched", None, "by hand, before filing")


def _reproducer(facts: IssueFacts) -> str:
    if not facts.reproducer:
        return "there is none yet"
    shown = "run alone: exit status 1" if facts.target is None else f"judged alone for {facts.target}: the bug"
    run = shown if facts.confirmed else "not confirmed in a clean process"
    return f"{len(facts.reproducer.splitlines())} lines, {run}"
