"""Fate of a pass or pattern that the user suspects by name in the judged compile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuzzcompile.attribution.steps import Step
from fuzzcompile.compiler.catalogue import Known, known_to
from fuzzcompile.compiler.labels import base_name, vetoes
from fuzzcompile.compiler.ledger import Label, Ledger
from fuzzcompile.compiler.settings import MISSING, setting
from fuzzcompile.trials.compiles import Experiments, Trial

_OPTION = re.compile(r"^'(?P<name>\w+)' in config\.(?P<entry>\w+_fusion_options)$")
_FLAG = re.compile(r"^(?P<no>not )?config\.(?P<entry>[\w.]+)$")


@dataclass(frozen=True)
class Asked:
    """Fate of a suspected rewrite in the judged compile.

    ``ran`` says whether it was applied, ``changed_bits`` whether that moved any bit of its graph's results, ``on``
    whether it is switched on (None: no rewrite has that name). ``said`` is all of it in a sentence.
    """

    name: str
    ran: bool
    changed_bits: bool
    on: bool | None
    said: str


def ask(experiments: Experiments, trial: Trial, steps: Sequence[Step], name: str) -> Asked:
    """Report the effect in ``trial`` of the rewrite (or of all of a pass) called ``name``.

    One that is switched off is switched on and looked for once more, without code generation.

    Args:
        experiments: make that further compile.
        trial: the judged compile.
        steps: how much each of its rewrites moved the result.
        name: what ``--veto`` takes, or the name of a pass.
    """
    seen = _outcomes(trial.ledger, name)
    if seen:
        moved = [step for step in steps if _means(step.label, name) and step.changed_bits]
        ran = any(_means(rewrite.label, name) for _, _, rewrite in trial.ledger.rewrites())
        return Asked(name, ran, bool(moved), True, _described(seen, ran, moved))
    known = [
        rewrite
        for rewrite in known_to(experiments.device)
        if rewrite.kind in ("pass", "pattern") and _is_meant(rewrite, name)
    ]
    if not known:
        said = "no rewrite of this torch has that name; `fuzzcompile passes` lists them"
        return Asked(name, False, False, None, said)
    if any(rewrite.on is not False for rewrite in known):
        return Asked(name, False, False, True, "did not run: it is on, and found nothing to match")
    return Asked(name, False, False, False, "did not run: " + _when_on(experiments, known, name))


def _when_on(experiments: Experiments, known: Sequence[Known], name: str) -> str:
    conditions = list(dict.fromkeys(rewrite.when for rewrite in known if rewrite.when))
    said = f"it is off (runs if {' or '.join(conditions)})" if conditions else "it is off"
    config = next((entries for text in conditions if (entries := _switched_on(text, experiments)) is not None), None)
    if config is None:
        return said
    how = replace(experiments.how, config={**(experiments.how.config or {}), **config}, screen=True)
    ledger = experiments.trial(how).ledger
    seen = _outcomes(ledger, name)
    ran = any(_means(rewrite.label, name) for _, _, rewrite in ledger.rewrites())
    return f"{said}; switched on, it {_described(seen, ran, []) if seen else 'finds nothing to match'}"


def _outcomes(ledger: Ledger, name: str) -> Counter[str]:
    seen: Counter[str] = Counter()
    for (label, outcome), count in ledger.coverage.items():
        if _means(label, name):
            seen[outcome] += count
    return seen


def _described(seen: Mapping[str, int], ran: bool, moved: Sequence[Step]) -> str:
    if moved:
        steps = [step.float64 for step in moved if step.float64 is not None]
        size = f"; the largest step in float64 is {max(steps):.1e} of the result's size" if steps else ""
        return f"ran {_times(seen['fired'])} and changed bits{size}"
    if ran:
        return f"ran {_times(seen['fired'])} and changed no bit"
    if seen["fired"]:
        return f"was called {_times(seen['fired'])} and left the graph as it was"
    if seen["vetoed"]:
        return f"was vetoed {_times(seen['vetoed'])}"
    return f"matched {_times(seen['refused'])} and was refused by its own check"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _means(label: Label, name: str) -> bool:
    return label.pass_name == name or vetoes(label, [name])


def _is_meant(known: Known, name: str) -> bool:
    return _means(Label(known.stage, known.pass_name, known.name), name) or base_name(known.name) == name


def _switched_on(condition: str, experiments: Experiments) -> dict[str, Any] | None:
    """Settings under which a condition on the config holds; None if it is of another kind."""
    given = {**experiments.case.settings.inductor, **experiments.case.settings.options}
    config: dict[str, Any] = {}
    for part in condition.split(" and "):
        option, flag = _OPTION.match(part), _FLAG.match(part)
        if option is not None:
            present = given.get(option["entry"], setting(option["entry"]))
            config[option["entry"]] = {**(present if isinstance(present, Mapping) else {}), option["name"]: {}}
        elif flag is not None and setting(flag["entry"]) is not MISSING:
            config[flag["entry"]] = not flag["no"]
        else:
            return None
    return config
