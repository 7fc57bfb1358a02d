"""Python that dynamo runs otherwise than eager mode does: the instruction behind which both part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.compiler.compile_changes import CAPTURE_ONLY, InstructionLeftOut, WatchedInstructions
from fuzzcompile.compiler.instructions import (
    InstructionTrace,
    PartedInstruction,
    find_partings,
    list_settings,
    record_instructions,
)
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence
from fuzzcompile.diagnosis.stages.tracing_ways import run_calls_eagerly
from fuzzcompile.diagnosis.stages.ways import Suspect, iter_captured
from fuzzcompile.diagnosis.trials.experiments import run_compiled
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DYNAMO
from fuzzcompile.run.code_files import get_module_file, shorten_file

_TRIED = 5
_SETTINGS = 2  # of these, where later calls are tried too


def prove_instruction(ablator: Ablator, *, doubts: bool, own_errors: bool = False) -> Attribution | None:
    """The instruction behind which dynamo's tracing parts from eager mode, if the program is right with it there.

    None where the program is right with dynamo alone, which needs no look at its tracing. One that is not proved is
    named if ``doubts``; an error of dynamo's own is looked at with ``own_errors``.
    """
    failure = ablator.trial.observation.failure
    # Of an error of dynamo's own, an operator that raises by itself says more: it comes first.
    observed = failure is None or failure.message.startswith(facts().dynamo.observed)
    if own_errors:
        observed = failure is not None and failure.stage == DYNAMO
    if not observed or ablator.is_repaired_by(CAPTURE_ONLY, record=False):
        return None
    raised = () if failure is None else failure.raised
    partings, alone, cleared = _find_partings(ablator)[:_TRIED], list[PartedInstruction](), list[PartedInstruction]()
    for parted in partings:
        trial, is_right = ablator.attempt_under(InstructionLeftOut(parted.instructions))
        if is_right and trial.ledger.frames and not trial.ledger.given_up:
            return Attribution(replace(_make_culprit(parted, raised), necessary=True, confidence="high"))
        if is_right:  # dynamo could not break the graph there, and left the whole frame to eager mode
            alone.append(parted)
        elif parted.is_of_tensor and trial.ledger.frames and not trial.ledger.given_up:  # eager mode ran it in vain
            cleared.append(parted)
    seen = [parted for parted in partings if parted.kind != "setting"]
    if not alone and seen and seen[0] not in cleared:
        whole = InstructionLeftOut(seen[0].instructions, whole=True)
        alone = seen[:1] if ablator.attempt_under(whole)[1] else []
    if alone:
        # Eager mode with the whole frame is right whatever is at fault in it: what was seen to part says more.
        is_seen = alone[0].kind != "setting"
        sure = is_seen and len(seen) == 1
        culprit = replace(_make_culprit(alone[0], raised), necessary=True if is_seen else None)
        return Attribution(replace(culprit, confidence="high" if sure else "low"))
    return Attribution(replace(_make_culprit(seen[0], raised), confidence="low")) if doubts and seen else None


def list_instruction_suspects(divergence: Divergence) -> list[Suspect]:
    """List the instructions behind which dynamo's tracing parts from eager mode; it traces the program once more."""
    failure = divergence.trial.observation.failure
    raised = () if failure is None else failure.raised
    culprits = (_make_culprit(parted, raised) for parted in _find_partings(divergence)[:_TRIED])
    return [Suspect(DYNAMO, culprit.family, culprit.source) for culprit in culprits]


def _find_partings(divergence: Divergence) -> list[PartedInstruction]:
    trace = InstructionTrace(divergence.trial.ledger)
    how = replace(divergence.how.under(CAPTURE_ONLY, WatchedInstructions(trace)), record=False)
    run = run_compiled(divergence.experiments.runs, how, divergence.experiments.counts)
    captured = [(record.snapshots[0], inputs) for _, record, inputs in iter_captured(divergence.trial.ledger)]
    raised = run.failure.message if run.failure is not None else ""
    # Recorded is what dynamo traced last: in the first call, or in a later one, the last before all others. A later
    # call may also part for what an earlier one has left undone.
    sums = not divergence.experiments.runs.draws
    calls = run_calls_eagerly(divergence.experiments, record_instructions)
    # Several graphs are of later calls where there are any, else behind graph breaks of the first.
    of_later = len(captured) > 1 and len(calls) > 1
    if not of_later:
        trace.tensors.replay(captured, sums=sums)
    first = [parted for eager in calls[:1] for parted in find_partings(eager, trace, raised)]
    if of_later or not first:  # beside a trace of the first call, tensors of a later one may be others, for its state
        trace.tensors.replay(captured, sums=sums and of_later)
    later = [find_partings(eager, trace, raised) for eager in reversed(calls[1:])]
    # Against a trace of a later call, the first one may part for what has changed in between.
    found = list(itertools.chain(*later[:1], first, *later[1:])) if of_later else first or list(itertools.chain(*later))
    # What requires a gradient hangs on what was set.
    if first and found[0].kind != "gradient":
        return found
    return [*list_settings(trace)[: _SETTINGS if found else None], *found]


def _make_culprit(parted: PartedInstruction, raised: Sequence[tuple[str, int, str]]) -> Culprit:
    instruction = parted.instruction
    site = f"{shorten_file(instruction.code.co_filename)}:{instruction.line} #1"
    details: DetailsJson = {"kind": parted.kind, "expected": parted.expected, "got": parted.got}
    if raised and parted.kind == "error":  # what it met with in dynamo is one bug in whatever program
        file, line, function = raised[0]
        return Culprit(DYNAMO, None, function, function, source=file, line=line, site=site, details=details)
    module = getattr(instruction.handler, "__module__", None)
    source = get_module_file(module) if module is not None else None
    name = parted.expected if parted.kind == "call" else instruction.does
    return Culprit(DYNAMO, None, name, name, source=source, site=site, details=details)
