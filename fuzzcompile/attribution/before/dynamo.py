"""Faults of the capture: calls of the program beside the nodes that dynamo's graph has for their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.before.lines import program_lines
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.steps import ReplayCount
from fuzzcompile.compiler.capturing import handler_of
from fuzzcompile.compiler.functional import run_plainly
from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.replay import random_calls
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.oracle import metrics
from fuzzcompile.trials.compiles import Experiments, Trial

# The same kernels on the same values: what differs by more than this many units in the last place is another call.
_ULPS = 100.0
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
        """Whether it is there for what it writes, going by its name."""
        dunder = self.name.startswith("__")
        return self.name.startswith("__i") or self.name == "__setitem__" or (self.name.endswith("_") and not dunder)


def dynamo_fault(ablator: Ablator) -> Attribution | None:
    """The first call of the program that gives something else in dynamo's graph; None if none does.

    Found by running the program in eager mode and the captured graphs, and matching their values line by line; shown
    by a compile that only captures, and proved by one that breaks the graph at the call.

    Raises:
        OutOfTime: no compile may be begun any more.
    """
    found = _differing_call(ablator.experiments, ablator.trial, ablator.count)
    if found is None:
        return None
    call, nodes = found
    captured = replace(ablator.how, backend="eager", record=False)
    if ablator.attempt(captured, "backend=eager")[1]:
        return None
    broken = replace(ablator.how, disallowed=(*ablator.how.disallowed, call.function))
    repaired = ablator.attempt(broken, f"graph break at {call.name}")[1]
    source, line = source_of(handler_of(call.function, call.name))
    culprit = Culprit(
        "dynamo",
        None,
        call.name,
        call.name,
        nodes=nodes,
        source=source,
        line=line,
        site=call.line,
        necessary=True if repaired else None,
        confidence="high" if repaired else "low",
        details={"kind": "values" if nodes else "lost", "call": call.name},
    )
    return Attribution(culprit)


def differing_call(experiments: Experiments, trial: Trial, count: ReplayCount) -> str | None:
    """The name of that call, as one compile shows it; None if no call differs."""
    found = _differing_call(experiments, trial, count)
    return None if found is None else found[0].name


def _differing_call(experiments: Experiments, trial: Trial, count: ReplayCount) -> tuple[_Call, tuple[str, ...]] | None:
    captured = _captured(trial, count)
    if not captured:
        return None
    calls = _calls(experiments)
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
        if _differ(call.value, value):
            return (lost, ()) if lost is not None else (call, (node,))
    return None


def _captured(trial: Trial, count: ReplayCount) -> dict[str, list[tuple[str, Any]]]:
    """Names and values of the nodes of dynamo's graphs, by the line of the program that they come from.

    A graph that comes back to a line of an earlier one was captured in another call of the program.
    """
    found: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for frame in trial.ledger.frames:
        record = frame.record("pre_grad")
        if record is None or not record.snapshots or not frame.dynamo_calls:
            continue
        snapshot = record.snapshots[0]
        inputs = inputs_of(frame, record)
        if inputs is None or random_calls(snapshot):
            return {}
        count.replays += 1
        run = run_plainly(snapshot, inputs, double=False)
        here: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for node in snapshot.graph.nodes:
            where = location([node])
            if node.op.startswith("call") and where is not None and run.values.get(node.name) is not None:
                here[where].append((node.name, run.values[node.name]))
        if not found.keys() & here.keys():
            found.update(here)
    return found


def _differ(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    change = metrics.farthest(one, other)
    if not one.is_floating_point():
        return bool(change)
    return change > _ULPS * torch.finfo(one.dtype).eps * max(metrics.rms(one), metrics.rms(other))


# -- the calls of the program -------------------------------------------------------------------------


def _calls(experiments: Experiments) -> list[_Call]:
    """What the program calls in eager mode, in order, the first time that it runs."""
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
