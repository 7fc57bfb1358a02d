"""Another way through Python under dynamo than in eager mode, as a culprit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.compiler.branches import branch_of, traced_paths
from fuzzcompile.compiler.composites import listening, operators_of
from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.replay import random_calls
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.stage_names import DYNAMO, PRE_GRAD
from fuzzcompile.trials.compiles import Experiments

_FEW = 2


def branch_taken(divergence: Divergence) -> Culprit | None:
    """The first operator that is called only in eager mode or, without one, only in the captured graph.

    Only a program that is one graph without random numbers is looked at.
    """
    ledger = divergence.trial.ledger
    record = ledger.frames[0].record(PRE_GRAD) if len(ledger.frames) == 1 and not ledger.graph_breaks else None
    inputs = inputs_of(ledger.frames[0], record) if record is not None and record.snapshots else None
    if record is None or inputs is None or random_calls(record.snapshots[0]):
        return None
    divergence.count.replays += 1
    snapshot = record.snapshots[0]
    branch = branch_of(_called_in_eager(divergence.experiments), snapshot, inputs)
    if branch is None:
        return None
    calling = [node for node in snapshot.graph.nodes if node.name in branch.nodes]
    source, line = _module_of(calling[0]) if calling else (None, None)
    where = location(calling[:1])
    return Culprit(
        DYNAMO,
        None,
        branch.telling,
        family_of_operator(branch.telling),
        nodes=branch.nodes,
        source=source,
        line=line,
        site=None if where is None else f"{where} #1",
        details={"kind": "branch", "eager": list(branch.eager), "compiled": list(branch.captured)},
    )


def _module_of(node: fx.Node) -> tuple[str | None, int | None]:
    """File and line of the ``forward`` of the library's module that makes a call; None twice for a user's own."""
    for _, kind in reversed(list((node.meta.get("nn_module_stack") or {}).values())):
        source, line = source_of(getattr(kind, "forward", None))
        if source is not None and "/" in source:
            return source, line
    return None, None


def prove_branch(ablator: Ablator, culprit: Culprit) -> Attribution:
    """The branch, proved where one side agrees with the other once it takes the same way.

    Either the captured graph does without the few calls that it alone makes, or eager mode does on the path that dynamo
    traces.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    if 0 < len(culprit.nodes) <= _FEW:
        without = replace(ablator.how, backend="eager", record=False, bypassed=culprit.nodes)
        toggle = f"backend=eager without {', '.join(culprit.nodes)}"
        if ablator.attempt(without, toggle)[1]:
            operator = culprit.details["compiled"][0]
            return _proved(replace(culprit, rewrite=operator, family=family_of_operator(operator)), toggle)
    for way, change in traced_paths():
        if ablator.attempt_in_eager(change, way):
            return _proved(culprit, way)
    return Attribution(replace(culprit, confidence="low"))


def _proved(culprit: Culprit, way: str) -> Attribution:
    return Attribution(replace(culprit, necessary=True, details={**culprit.details, "agrees": way}))


def _called_in_eager(experiments: Experiments) -> list[str]:
    """The operators that the program itself calls in eager mode, in order, the first time that it runs."""
    called: list[str] = []
    program = build(experiments.case, experiments.device)

    def model(*args: Any, **kwargs: Any) -> Any:
        if called:
            return program.model(*args, **kwargs)
        with listening() as heard:
            result = program.model(*args, **kwargs)
        called.extend(name for name, _ in operators_of(heard, {""}))
        return result

    runs.observe(experiments.case, program, model)
    return called
