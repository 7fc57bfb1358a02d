"""Generated programs that raise by themselves: the flaw that their text shows, and the decision behind it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.operators.decompositions import find_operator
from fuzzcompile.compiler.operators.fake_tensors import find_fake_function
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.ablation import Ablator
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.kernel_bisection import attempt_ablation, with_config
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import CompilerDecision, facts
from fuzzcompile.model.stages import FAKE_TENSOR
from fuzzcompile.run.observation import GeneratedPlace

# Flaws of a generated program that raises by itself, as far as its own text shows them. Needs no torch.

_NAME = re.compile(r"name '(\w+)' is not defined|(?:local )?variable '(\w+)'")
_ORIGIN = re.compile(r"# .*Original ATen: \[([^\]]*)\]")
_KERNEL = re.compile(r"\b\w+?_fused_(\w+?)_\d+\b")
_ASSERTED = re.compile(r"assert_size_stride\((\w+), .*'torch\.ops\.([\w.]+)'\)")
_TANGENT = "tangents_"


class Flaw(Enum):
    """Flaw of a generated program, in the words of a report."""

    EARLY = "reads a variable before it is assigned"
    FREED = "reads a variable after it was deleted"
    MISSING = "reads a variable that is assigned nowhere"
    INPUTS = "gets another number of inputs than it has"
    LAYOUT = "asserts sizes and strides that the result of an operator has not"


@dataclass(frozen=True)
class ProgramFlaw:
    """The flaw at the line that raised.

    Attributes:
        flaw: its kind.
        variable: the variable that is read; empty for inputs.
        statement: the line that raised.
        elsewhere: the line that assigns the variable later or deleted it; empty where there is none.
        operators: those that the lines of the variable compute, as the program's comments and kernels call them.
        backward: whether this is the program of a backward pass.
        written: whether the line that raised is the one that was to write the variable.
    """

    flaw: Flaw
    variable: str
    statement: str
    elsewhere: str
    operators: tuple[str, ...]
    backward: bool
    written: bool = False

    @property
    def is_reused(self) -> bool:
        """Return whether the memory of the variable was given to another buffer."""
        return "# reuse" in self.elsewhere

    @property
    def is_buffer(self) -> bool:
        """Return whether the variable is a result of the program's own."""
        return self.variable.startswith("buf")


def find_program_flaw(place: GeneratedPlace, error: str) -> ProgramFlaw | None:
    """The flaw of the program at the place where it raised; None if its text does not explain the error.

    Args:
        place: where it raised.
        error: type and message of what was raised.
    """
    try:
        tree = ast.parse(place.source)
    except (SyntaxError, ValueError):
        return None
    function = _find_function(tree, place.line)
    if function is None:
        return None
    lines = place.source.splitlines()
    kind, _, message = error.partition(": ")
    backward = any(name.startswith(_TANGENT) for name in _iter_inputs(function))
    statement = lines[place.line - 1].strip()
    if kind == "ValueError" and "values to unpack" in message and statement.endswith("= args"):
        return ProgramFlaw(Flaw.INPUTS, "", statement, "", (), backward)
    asserted = _ASSERTED.match(statement) if kind == "AssertionError" else None
    if asserted is not None:
        return ProgramFlaw(Flaw.LAYOUT, asserted[1], statement, "", (asserted[2],), backward)
    match = _NAME.search(message) if kind in ("NameError", "UnboundLocalError") else None
    if match is None:
        return None
    variable = match[1] or match[2]
    flaw, number = _find_fate(function, variable, place.line)
    uses = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == variable]
    operators = dict.fromkeys(name for line in sorted({*uses, place.line}) for name in _iter_operators(lines, line))
    elsewhere = lines[number - 1].strip() if number else ""
    written = _is_written(tree, variable, place.line)
    return ProgramFlaw(flaw, variable, statement, elsewhere, tuple(operators), backward, written)


def _find_function(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    """The innermost function around a line."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _iter_inputs(function: ast.FunctionDef) -> Iterator[str]:
    """The variables into which the function unpacks its inputs."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "args":
            yield from (name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _find_fate(function: ast.FunctionDef, variable: str, line: int) -> tuple[Flaw, int]:
    """Return the flaw that leaves a variable without a value at a line, and the line to blame (0: never assigned)."""
    made, freed = list[int](), list[int]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == variable:
            made += [node.lineno] if isinstance(node.ctx, ast.Store) else []
            freed += [node.lineno] if isinstance(node.ctx, ast.Del) and node.lineno <= line else []
    if freed:
        return Flaw.FREED, max(freed)
    return (Flaw.EARLY, min(made)) if made else (Flaw.MISSING, 0)


def _is_written(tree: ast.Module, variable: str, line: int) -> bool:
    """Return whether a call on that line writes to the variable: as its ``out``, or through a C++ pointer."""
    types = _list_pointers(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or call.lineno != line:
            continue
        given = [isinstance(value, ast.Name) and value.id == variable for value in call.args]
        kernel = types.get(call.func.id, ()) if isinstance(call.func, ast.Name) else ()
        as_out = any(word.arg == "out" and variable in ast.unparse(word.value).split() for word in call.keywords)
        if as_out or any(is_it and "const" not in kind for is_it, kind in zip(given, kernel, strict=False)):
            return True
    return False


def _list_pointers(tree: ast.Module) -> dict[str, list[str]]:
    """The types of the arguments of each C++ kernel, by its name."""
    return {
        target.id: [str(kind.value) for kind in node.value.args[0].elts if isinstance(kind, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.args[0], ast.List)
    }


def _iter_operators(lines: Sequence[str], line: int) -> Iterator[str]:
    """The operators of a line: of the comment above it, or in the name of its kernel."""
    above = line - 2
    while above >= 0 and lines[above].lstrip().startswith("#"):
        if match := _ORIGIN.search(lines[above]):
            yield from (name.strip() for name in match[1].split(",") if name.strip())
            return
        above -= 1
    if match := _KERNEL.search(lines[line - 1]):
        yield match[1]


def prove_flawed_program(ablator: Ablator) -> Attribution | None:
    """The decisions behind a generated program that reads what it has not, or gets other inputs; None for any other.

    Where the error rose while memory was planned for the program, they are those about memory that is used again. The
    first that a setting switches off and that repairs the program is proved. Else those that may have written what
    stands there are named, most telling first, with low confidence.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    decisions, flawed = facts().decisions, _find_flaw(ablator.trial)
    if flawed is None:
        return (
            _prove_owner(ablator, (decisions["in_place"], decisions["reuse"]), {})
            if _was_raised_by_planning(ablator.trial)
            else None
        )
    if flawed.flaw is Flaw.LAYOUT:
        return None
    owners, details = list(_iter_owners(flawed)), _describe_flaw(flawed)
    first, *others = (_make_owner_culprit(owner, details) for owner in owners if not owner.without)
    return _prove_owner(ablator, owners, details) or Attribution(first, others)


def _prove_owner(ablator: Ablator, owners: Iterable[CompilerDecision], details: DetailsJson) -> Attribution | None:
    """The first decision without which the program is right."""
    for owner in owners:
        if owner.without and attempt_ablation(ablator, with_config(ablator.how, dict(owner.without)))[1]:
            return Attribution(replace(_make_owner_culprit(owner, details), necessary=True, confidence="high"))
    return None


def _was_raised_by_planning(trial: Trial) -> bool:
    """Return whether the error rose during memory planning, which the scheduler's decisions may contradict."""
    failure = trial.observation.failure
    return failure is not None and any(function in facts().errors.planning for _, _, function in failure.raised)


def with_asserted_layout(attribution: Attribution, trial: Trial) -> Attribution:
    """The attribution with the rule of the operator whose result the program asserts to be laid out in another way.

    The program has the layout from the rule, so that the rule disagrees with the kernel, unless a lowering gave the
    operator other inputs than the rule saw. What puts the operator into the graph is necessary too.
    """
    flawed = _find_flaw(trial)
    culprit = attribution.culprit
    if flawed is None or flawed.flaw is not Flaw.LAYOUT or (culprit is not None and culprit.stage == FAKE_TENSOR):
        return attribution
    name = flawed.operators[0]
    operator = find_operator(name)
    rule = find_fake_function(operator) if operator is not None else None
    source, line = find_source(rule) if rule is not None else (None, None)
    asserting = Culprit.from_operator(
        FAKE_TENSOR, name, source=source, line=line, confidence="low", details=_describe_flaw(flawed)
    )
    if culprit is not None and culprit.necessary:
        return replace(attribution, contributors=[*attribution.contributors, asserting])
    others = [] if culprit is None else [culprit]
    return replace(attribution, culprit=asserting, contributors=[*others, *attribution.contributors])


def _find_flaw(trial: Trial) -> ProgramFlaw | None:
    failure = trial.observation.failure
    return None if failure is None or failure.generated is None else find_program_flaw(failure.generated, str(failure))


def _iter_owners(flawed: ProgramFlaw) -> Iterator[CompilerDecision]:
    """Yield the compiler's decisions that may cause the flaw, strongest evidence first."""
    decisions = facts().decisions
    if flawed.flaw is Flaw.INPUTS:
        yield from (decisions["saved_values"], decisions["call"]) if flawed.backward else (decisions["call"],)
    elif flawed.flaw is Flaw.FREED:
        yield from (decisions["in_place"], decisions["reuse"]) if flawed.is_reused else ()
        yield from (decisions["last_usage"], decisions["freeing"])
    elif flawed.written:
        yield decisions["allocation"]
    elif flawed.flaw is Flaw.EARLY:
        yield from (decisions["peak_memory"], decisions["order_of_kernels"])
    elif flawed.is_buffer:
        yield from (decisions["removal"], decisions["allocation"])
    else:
        yield decisions["inputs"]


def _make_owner_culprit(owner: CompilerDecision, details: DetailsJson) -> Culprit:
    source, line = find_definition(owner.place)
    name = owner.name
    return Culprit(owner.stage, None, name, name, source=source, line=line, confidence="low", details=details)


def _describe_flaw(flawed: ProgramFlaw) -> DetailsJson:
    shown: DetailsJson = {"program": flawed.flaw.value}
    if flawed.variable:
        shown["variable"] = flawed.variable
    shown["statement"] = flawed.statement
    if flawed.elsewhere:
        shown["elsewhere"] = flawed.elsewhere
    if flawed.operators:
        shown["operators"] = list(flawed.operators)
    return shown
