"""Faults of the capture: calls of the program beside the nodes that dynamo's graph has for their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzcompile import stage_names
from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.breaks import call_of
from fuzzcompile.compiler.capturing import handler_of
from fuzzcompile.compiler.functional import run_plainly
from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.replay import random_calls
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.oracle.change import relative_change
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stages.base import Stage, Suspect, Without
from fuzzcompile.stages.branches import branch_taken, prove_branch
from fuzzcompile.stages.operators.lines import program_lines
from fuzzcompile.stages.operators.stage import culprit_of
from fuzzcompile.stages.operators.suspected import doubted, lost_checks_suspected
from fuzzcompile.trials.compiles import Experiments, Trial

# The same kernels on the same values: what differs by more than this many units in the last place is another call.
_ULPS = 100.0
__watches_calls__ = True  # its frames stand between a call and the program that makes it
_KEPT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class _Call:
    """A call of the program: what was called, on which line, and the first tensor of its result."""

    function: Callable[..., Any]
    name: str
    line: str
    value: torch.Tensor | None

    @property
    def writes(self) -> bool:
        """Return whether the call is made for its write, judging by its name."""
        dunder = self.name.startswith("__")
        return self.name.startswith("__i") or self.name == "__setitem__" or (self.name.endswith("_") and not dunder)


@dataclass(frozen=True)
class _Differing:
    """The first call of the program that gives something else in dynamo's graph, and the nodes it became (if any)."""

    call: _Call
    nodes: tuple[str, ...]


class Dynamo(Stage):
    """The capture: a call of the program that is another one, or none, in dynamo's graph.

    Found by running the program in eager mode and the captured graphs, and matching their values line by line.
    """

    name = stage_names.DYNAMO
    component = "dynamo"

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The first call that gives something else, or whose check was lost."""
        if divergence.verdict is Verdict.ACCEPTS_INVALID:
            return [lost for lost in divergence.once(lost_checks_suspected) if lost.stage == self.name]
        if not divergence.is_of_values and divergence.verdict not in (Verdict.METADATA, Verdict.ALIASING):
            return []
        differing = divergence.once(_differing_call)
        if differing is not None:
            return [Suspect(self.name, differing.call.name, finding=differing)]
        branch = divergence.once(branch_taken)
        return [] if branch is None else [doubted(branch)]

    def without(self, suspect: Suspect, how: Compilation) -> Without | None:
        """A compile that breaks the graph at the call."""
        if not isinstance(suspect.finding, _Differing):
            return None
        call = suspect.finding.call
        return Without(
            f"graph break at {call.name}", replace(how, disallowed=(*how.disallowed, call_of(call.function)))
        )

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Shown by a compile that only captures, proved by one that breaks the graph at the call."""
        if not suspects or ablator.attempt(captured_only(ablator.how), "backend=eager")[1]:
            return None
        suspect = suspects[0]
        if isinstance(suspect.finding, Culprit):
            return prove_branch(ablator, suspect.finding)
        without = self.without(suspect, ablator.how)
        if without is not None and ablator.attempt(without.how, without.toggle)[1]:
            return Attribution(replace(self.culprit(suspect), necessary=True))
        return Attribution(replace(self.culprit(suspect), confidence="low"))

    def culprit(self, suspect: Suspect) -> Culprit:
        """The call, with the variable class of dynamo that handles it."""
        if not isinstance(suspect.finding, _Differing):
            return culprit_of(suspect)
        call, nodes = suspect.finding.call, suspect.finding.nodes
        source, line = source_of(handler_of(call.function, call.name))
        details = {"kind": "values" if nodes else "lost", "call": call.name}
        return Culprit(self.name, None, call.name, call.name, nodes, source, line, site=call.line, details=details)


def captured_only(how: Compilation) -> Compilation:
    """The same compile with nothing behind dynamo: its graphs run as they were captured."""
    return replace(how, backend="eager", record=False)


def _differing_call(divergence: Divergence) -> _Differing | None:
    captured = _captured(divergence.trial, divergence.count)
    if not captured:
        return None
    calls = _calls(divergence.experiments)
    at: dict[str, list[_Call]] = defaultdict(list)
    for call in calls:
        at[call.line].append(call)
    lost: _Call | None = None
    seen: dict[str, int] = defaultdict(int)
    for call in calls:
        number, there = seen[call.line], captured.get(call.line)
        seen[call.line] += 1
        if there is None:
            lost = call if call.writes else lost
            continue
        if len(there) == len(at[call.line]):
            node, value = there[number]
        elif number == len(at[call.line]) - 1:
            node, value = there[-1]
        else:
            continue
        if _is_another(call.value, value):
            return _Differing(lost, ()) if lost is not None else _Differing(call, (node,))
    return None


def _captured(trial: Trial, count: ReplayCount) -> dict[str, list[tuple[str, Any]]]:
    """Names and values of the nodes of dynamo's graphs, by the line of the program that they come from.

    A graph that comes back to a line of an earlier one was captured in another call of the program.
    """
    values: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for frame in trial.ledger.frames:
        record = frame.record(stage_names.PRE_GRAD)
        if record is None or not record.snapshots or not frame.dynamo_calls:
            continue
        snapshot = record.snapshots[0]
        inputs = inputs_of(frame, record)
        if inputs is None or random_calls(snapshot):
            return {}
        count.replays += 1
        run = run_plainly(snapshot, inputs, double=False)
        values_here: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for node in snapshot.graph.nodes:
            where = location([node])
            if node.op.startswith("call") and where is not None and run.values.get(node.name) is not None:
                values_here[where].append((node.name, run.values[node.name]))
        if not values.keys() & values_here.keys():
            values.update(values_here)
    return values


def _is_another(eager: torch.Tensor | None, captured: object) -> bool:
    """Return whether one kernel on the same values could not have given both results."""
    if eager is None or not isinstance(captured, torch.Tensor):
        return False
    if eager.shape != captured.shape or eager.dtype != captured.dtype:
        return True
    moved = relative_change(eager, captured)
    return bool(moved) if not eager.is_floating_point() else moved > _ULPS * torch.finfo(eager.dtype).eps


# -- the calls of the program -------------------------------------------------------------------------


def _calls(experiments: Experiments) -> list[_Call]:
    """Record the calls of the program in eager mode, in order, the first time that it runs."""
    watcher = _Watcher()
    program = build(experiments.case, experiments.device)

    def model(*args: Any, **kwargs: Any) -> Any:
        if watcher.done:
            return program.model(*args, **kwargs)
        with watcher:
            result = program.model(*args, **kwargs)
        watcher.done = True
        return result

    runs.observe(experiments.case, program, model)
    return watcher.calls


class _Watcher(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.done = False
        self._kept = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and write it down."""
        result = func(*args, **(kwargs or {}))
        line = next(program_lines(), None)
        # ``x[i] = v`` has no result: what it wrote to is its value.
        value = args[0] if result is None and args else result
        if line is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            self._kept += value.numel() * value.element_size()
            if self._kept <= _KEPT_BYTES:
                self.calls.append(_Call(func, getattr(func, "__name__", str(func)), line, value.detach().clone()))
        return result
