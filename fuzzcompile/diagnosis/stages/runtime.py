"""Stages of the generated program at run time: the wrapper and CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.operators.decompositions import find_operator
from fuzzcompile.compiler.operators.fake_tensors import find_fake_function
from fuzzcompile.compiler.session import get_effective_setting
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Attribution, Culprit
from fuzzcompile.diagnosis.kernels.kernel_proofs import list_kernel_suspects
from fuzzcompile.diagnosis.kernels.watched_graph import describe_values, get_first_wrong_kernels, get_watched_graphs
from fuzzcompile.diagnosis.stages.stage import Found, Stage, Suspect
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, CUDAGRAPHS, FAKE_TENSOR, RUNTIME
from fuzzcompile.model.verdicts import Verdict

_WRAPPER = "wrapper"


class Runtime(Stage):
    """Outputs that are wrong, or too few, though all kernels wrote what they should; kernels handed other memory.

    No compile can do without the wrapper, so that nothing here is proved.
    """

    name = RUNTIME
    settings = ({"allow_buffer_reuse": False, "inplace_buffers": False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The kernels that may have been handed wrong memory; the wrapper where no kernel is wrong."""
        failed = divergence.trial.observation.failure is not None
        shown = _find_miscounted(divergence.trial) if failed else []
        if not shown:
            if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or get_first_wrong_kernels(divergence):
                return list_kernel_suspects(self.name, divergence)
            wrong = [each for look in get_watched_graphs(divergence) for each in look.find_wrong_outputs()]
            shown = [{"output": each.buffer, **describe_values(each.comparison)} for each in wrong]
        source, line = find_definition(facts().places.program_results)
        culprit = Culprit(self.name, None, _WRAPPER, _WRAPPER, source=source, line=line, confidence="low")
        return [Suspect(self.name, _WRAPPER, finding=Found(replace(culprit, details=each))) for each in shown]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The wrapper, if outputs are wrong and no kernel is; confidence stays low."""
        shown = (suspect.finding for suspect in suspects if isinstance(suspect.finding, Found))
        return next((Attribution(found.culprit) for found in shown), None)


def _find_miscounted(trial: Trial) -> list[DetailsJson]:
    counts = (
        (len(lowered.snapshot.results), len(call.outputs))
        for lowered in trial.ledger.lowered
        for call in lowered.calls
        if call.outputs is not None
    )
    return [{"finding": "results", "expected": expected, "got": got} for expected, got in counts if expected != got]


# Programs that raise by themselves: a setting that repairs them, or the statement at which they fail.

# A program that reads what it has not, or unpacks other inputs than it gets: no operator of the user's raises these.
_OWN_ERRORS = ("NameError", "UnboundLocalError")
_UNPACKED = "values to unpack"
_ASSERTED = re.compile(r"assert_size_stride\((\w+), .*'torch\.ops\.([\w.]+)'\)")


def prove_flawed_program(ablator: Ablator) -> Attribution | None:
    """Attribute the error of a generated program that raises by itself, or for which no memory could be planned.

    The first decision about memory or order that a setting switches off, and without which the program runs, is proved.
    Else the program is named with the statement at which it fails: which part of the compiler should have written it
    otherwise does not show in its text. None for any other error.
    """
    failure, statement = ablator.trial.observation.failure, _find_statement(ablator.trial)
    if failure is None:
        return None
    unpacks = failure.type_name == "ValueError" and _UNPACKED in failure.message
    if (
        statement is not None
        and failure.type_name not in _OWN_ERRORS
        and not (unpacks and statement.endswith("= args"))
    ):
        statement = None
    # The scheduler's decisions may contradict the planning of memory.
    planning = any(function in facts().errors.planning for _, _, function in failure.raised)
    if statement is None and not planning:
        return None
    for decision in facts().decisions.values():
        if ablator.attempt_under(InductorSettings(decision.without, needs_code=True))[1]:
            source, line = find_definition(decision.place)
            name = decision.name
            details: DetailsJson = {} if statement is None else {"statement": statement}
            return Attribution(
                Culprit(decision.stage, None, name, name, source=source, line=line, necessary=True, details=details)
            )
    if statement is None:
        return None
    return Attribution(Culprit(CODEGEN, None, None, UNKNOWN, confidence="low", details={"statement": statement}))


def _find_statement(trial: Trial) -> str | None:
    place = None if trial.observation.failure is None else trial.observation.failure.generated
    return None if place is None else place.source.splitlines()[place.line - 1].strip()


def with_asserted_layout(attribution: Attribution, trial: Trial) -> Attribution:
    """The attribution with the rule of the operator whose result the program asserts to be laid out in another way.

    The program has the layout from the rule, so that the rule disagrees with the kernel, unless a lowering gave the
    operator other inputs than the rule saw. What puts the operator into the graph is necessary too.
    """
    failure, culprit = trial.observation.failure, attribution.culprit
    statement = _find_statement(trial) or ""
    asserted = _ASSERTED.match(statement)
    if failure is None or failure.type_name != "AssertionError" or asserted is None:
        return attribution
    if culprit is not None and culprit.stage == FAKE_TENSOR:
        return attribution
    name = asserted[2]
    operator = find_operator(name)
    rule = find_fake_function(operator) if operator is not None else None
    source, line = find_source(rule) if rule is not None else (None, None)
    asserting = Culprit.from_operator(
        FAKE_TENSOR, name, source=source, line=line, confidence="low", details={"statement": statement}
    )
    if culprit is not None and culprit.necessary:
        return replace(attribution, contributors=[*attribution.contributors, asserting])
    others = [] if culprit is None else [culprit]
    return replace(attribution, culprit=asserting, contributors=[*others, *attribution.contributors])


# CUDA graphs: a compiled graph recorded once and replayed, its memory in a pool of its own.

_SETTING = "triton.cudagraphs"


class Cudagraphs(Stage):
    """Recording and replaying a compiled graph, where a setting or a mode such as ``reduce-overhead`` asks for it.

    One compile without it decides. Tried on an H100 with torch 2.11, and on CPU builds, where Inductor records nothing,
    with its check of the devices and its recording function replaced.
    """

    name = CUDAGRAPHS
    settings = ({_SETTING: False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The recording, if it was asked for and Inductor found no reason to go without it."""
        experiments, trial = divergence.experiments, divergence.trial
        if get_effective_setting(experiments.case.settings, trial.how, _SETTING) is not True:
            return []
        graphs = trial.ledger.lowered
        # Without watched kernels nothing says what Inductor decided; it never records graphs without a CUDA device.
        recorded = any(lowered.cudagraphs for lowered in graphs) if graphs else experiments.device.type == "cuda"
        source, line = find_definition(facts().places.graph_recording)
        without = InductorSettings({_SETTING: False}, needs_code=True)
        found = Found(Culprit(self.name, None, self.name, self.name, source=source, line=line), without)
        return [Suspect.from_found(found)] if recorded else []
