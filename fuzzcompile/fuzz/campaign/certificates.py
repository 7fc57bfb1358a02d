"""Certificates: results of a campaign for the user's own passes and backend, in a sentence that may be quoted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fuzzcompile.corpus.records import FindingSummary
from fuzzcompile.fuzz.campaign.case_sources import DrawnCase
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.verdicts import NO_REFERENCE, CoverageCount, Verdict

# Kinds of programs by the first word of an idiom, or by where a case comes from.
_KINDS = {
    "attention": "attentions",
    "program": "of its own patterns",
    "near_miss": "near misses of these",
    "varied": "variations of the case",
    "user": "the case itself",
}
# Verdicts that say nothing about the compiled program.
_NOT_JUDGED = ("unjudged", str(Verdict.INVALID))


@dataclass
class Certificate:
    """Counts of one pass or backend over the cases of a campaign.

    ``programs`` counts, by kind, the judged programs in which it fired: ``exact`` of them were compared with a float64
    run, and for ``screened`` of them no code was generated. ``rules`` counts matches by rule and outcome. ``step`` is
    the largest step in float64 of any firing, None where none was replayed. ``hit`` are the findings that those
    programs hit.
    """

    loaded: LoadedCustom
    hit: set[str] = field(default_factory=set)
    programs: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    screened: int = 0
    unjudged: int = 0
    step: float | None = None
    rules: dict[str, Counter[str]] = field(default_factory=dict)

    def count_case(
        self,
        case: DrawnCase,
        report: ReportJson,
        coverage: Sequence[CoverageCount],
        *,
        screened: bool,
        finding: str | None,
    ) -> None:
        """Count a judged case, which hit ``finding``."""
        if not self._count(report, coverage):
            return
        if report["verdict"] in _NOT_JUDGED:
            self.unjudged += 1
            return
        self.programs[classify_program(case)] += 1
        self.exact += not any(note.startswith(NO_REFERENCE) for note in report["evidence"].get("notes") or ())
        self.screened += screened
        if finding is not None:
            self.hit.add(finding)

    def rename_findings(self, vanished: Collection[str], finding: str) -> None:
        """Replace findings that were merged into another by that one."""
        if self.hit & set(vanished):
            self.hit = self.hit - set(vanished) | {finding}

    def _count(self, report: ReportJson, coverage: Sequence[CoverageCount]) -> bool:
        if self.loaded.kind == "backend":
            return bool(report["evidence"].get("graphs"))
        own = [count for count in coverage if count.pass_name == self.loaded.name]
        for count in own:
            self.rules.setdefault(count.rewrite, Counter())[count.outcome] += count.count
        steps = [count.step for count in own if count.step is not None]
        known = [] if self.step is None else [self.step]
        self.step = max([*known, *steps], default=None)
        return any(count.outcome == "fired" for count in own)

    def certify(self, findings: Sequence[FindingSummary], cases: int) -> dict[str, object]:
        """Return the certificate at the end of a campaign that judged so many cases and hit these findings.

        ``sentence`` may be quoted; if it fired in no ``programs``, nothing was tested.
        """
        own = {finding.public_id: finding.verdict for finding in findings if self._is_culprit(finding.culprit)}
        open_ones = {
            finding.public_id: finding.verdict
            for finding in findings
            if finding.public_id in self.hit - set(own) and not (finding.culprit or {}).get("necessary")
        }
        return self._to_json(own, open_ones) | {"sentence": self._sentence(own, open_ones, cases)}

    def _is_culprit(self, culprit: CulpritJson | None) -> bool:
        name = self.loaded.name
        return culprit is not None and name in (culprit.get("pass"), culprit.get("rewrite"))

    def _sentence(self, own: Mapping[str, str], open_ones: Mapping[str, str], cases: int) -> str:
        name = f"`{self.loaded.name}`" + (f" ({self.loaded.place})" if self.loaded.place else "")
        if not self.programs:
            idle = "never fired" if self.loaded.kind == "pass" else "compiled nothing"
            return f"{name} {idle} in {cases} programs: nothing was tested, and nothing is certified."
        total = self.programs.total()
        verb = "fired on" if self.loaded.kind == "pass" else "compiled"
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.programs.most_common())
        exact = "judged in float64" if self.exact == total else f"{self.exact} of them judged in float64"
        exact += f" ({self.screened} without generated code)" if self.screened else ""
        programs = f"{count_noun(total, 'program')} ({kinds})"
        fired = f"{name} {verb} {programs}, {exact}"
        return "; ".join([fired, *self._describe_steps(), _describe_findings(own, open_ones)])

    def _describe_steps(self) -> Iterator[str]:
        if self.loaded.kind == "pass":
            yield "not replayed" if self.step is None else f"largest step {self.step:.2g}"
        silent = [rule for rule in self.loaded.rules if not self.rules.get(rule, Counter())["fired"]]
        if silent and self.loaded.kind == "pass":
            yield f"never fired: {', '.join(silent)}"
        if self.unjudged:
            further = count_noun(self.unjudged, "further program")
            yield f"{further} could not be judged"

    def _to_json(self, own: Mapping[str, str], open_ones: Mapping[str, str]) -> dict[str, object]:
        finite = self.step is not None and math.isfinite(self.step)
        return {
            "name": self.loaded.name,
            "kind": self.loaded.kind,
            "at": self.loaded.place or None,
            "setting": self.loaded.setting or None,
            "programs": self.programs.total(),
            "kinds": dict(self.programs),
            "in_float64": self.exact,
            "screened": self.screened,
            "unjudged": self.unjudged,
            "largest_step": self.step if finite else None,
            "rules": {
                rule: {outcome: self.rules.get(rule, Counter())[outcome] for outcome in ("fired", "refused")}
                for rule in dict.fromkeys((*self.loaded.rules, *self.rules))
            },
            "findings": list(own),
            "not_attributed": list(open_ones),
        }


def _describe_findings(own: Mapping[str, str], open_ones: Mapping[str, str]) -> str:
    if not (own or open_ones):
        return "nothing found."
    its, others = (", ".join(f"{key} ({verdict})" for key, verdict in each.items()) for each in (own, open_ones))
    found = f"findings: {its}" if own else "nothing found that is its doing"
    return f"{found}; not attributed: {others}." if open_ones else f"{found}."


def classify_program(case: DrawnCase) -> str:
    """Return the kind of a program in a word: blocks, attentions, another first idiom, or the origin of the case."""
    if "stack" in case.features:
        return "blocks"
    head = case.idioms[0].partition("_")[0] if case.idioms else ""
    return _KINDS.get(head or case.origin, head or case.origin)
