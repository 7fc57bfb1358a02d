"""Suspects behind the graph passes that show in one compile of which the kernels were watched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzcompile.attribution.behind.errors import failure_of
from fuzzcompile.attribution.behind.values import Examined, examined
from fuzzcompile.attribution.behind.wrong import WrongKernel
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.kernels.codegen_operators import code_operators
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.operators import operator_of
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import BEHIND_GRAPHS as BEHIND
from fuzzcompile.stages.base import Suspect
from fuzzcompile.trials.compiles import Trial


def kernels_suspected(trial: Trial) -> list[Suspect]:
    """Who may be at fault behind the graph passes, in a compile of which the kernels were watched."""
    looks = examined(trial.ledger, ReplayCount())
    if trial.observation.failure is not None:
        found = list(_failed(trial))
    elif trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
        found = [Suspect("lowering", _family(look.lowered, name)) for look in looks if (name := look.first_refused())]
    else:
        found = [one for look in looks for one in _wrong(look)]
    return list(dict.fromkeys(found))


def _failed(trial: Trial) -> Iterator[Suspect]:
    """Behind the passes an error is named by an operator of the graph or of the code; the stage is not sure yet."""
    failure = failure_of(trial)
    if failure is None:
        return
    lowered, failed = failure
    kernel = next((one for one in lowered.kernels if one.name == failed.kernel), None)
    code = code_operators(kernel.scheduled, kernel.writes[-1]) if kernel is not None and kernel.writes else []
    families = [*failed.operators, *(_family(lowered, name) for name in reversed(failed.nodes)), *code]
    for family in dict.fromkeys(families):
        yield from (Suspect(stage, family) for stage in BEHIND)


def _wrong(look: Examined) -> Iterator[Suspect]:
    operators = look.wrong_operators()
    yield from (Suspect("lowering", _family(look.lowered, one.node)) for one in operators)
    kernels = look.as_run.wrong_kernels()
    for wrong in kernels[:1]:
        yield from _kernel(wrong)
    if not operators and not kernels and look.wrong_outputs():
        yield Suspect("runtime", "wrapper")


def _kernel(wrong: WrongKernel) -> Iterator[Suspect]:
    if wrong.overwritten is not None:
        yield from (Suspect("scheduler", name) for name in ("buffer reuse", "order of kernels"))
        return
    if wrong.kernel.extern:
        yield Suspect("lowering", _family(wrong.lowered, wrong.nodes[-1]))
        return
    scheduled: Any = wrong.kernel.scheduled
    names = [name for buffer in (wrong.buffer, *wrong.kernel.writes) for name in code_operators(scheduled, buffer)]
    names += [_family(wrong.lowered, node) for node in wrong.kernel.nodes]
    for name in dict.fromkeys([*names, "fusion", "loop", "kernel call"]):
        yield from (Suspect(stage, name) for stage in ("codegen", "scheduler", "runtime"))


def _family(lowered: Lowered, node: str) -> str:
    return family_of_operator(operator_of(lowered.labels.get(lowered.producer(node), "")))
