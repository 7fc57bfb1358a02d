"""From a rule to programs that make it fire."""

from __future__ import annotations

import contextlib
import itertools
import operator
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.custom_code import PatternExample, find_example
from fuzzcompile.compiler.rule_catalogue import KnownRule
from fuzzcompile.compiler.session import Compilation, check_settings, open_session, silence_torch
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.fuzz.rules.code_mentions import CodeMentions, find_mentions, list_rule_settings
from fuzzcompile.fuzz.rules.skeleton import (
    ArgumentHole,
    CallResult,
    FilledSkeleton,
    RuleCall,
    fill_skeleton,
    recast_operands,
)
from fuzzcompile.fuzz.rules.skeleton_sources import draw_skeleton, draw_variant, has_pattern, record_calls
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.stages import LOWERING
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.edits.pattern_program import (
    Operand,
    Origin,
    PatternEdit,
    PatternProgram,
    apply_edit,
    list_edits,
    render_pattern_program,
)
from fuzzcompile.programs.ir.case_source import Writer
from fuzzcompile.programs.ir.program import Ref, Statement, map_leaves
from fuzzcompile.programs.ir.tracing import OPERATORS, Untranslatable, find_public_name
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import observe

__all__ = ["make_rule_programs"]


# What a program can spell.
_LITERALS = (
    int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def write_statements(filled: FilledSkeleton) -> list[str]:
    """One assignment a call; results are named ``t0``, ``t1`` and so on.

    Raises:
        Untranslatable: a function has no name under torch, or a value no literal.
    """
    writer = Writer(set())
    calls = enumerate(filled.skeleton.calls)
    return [writer.line(_make_statement(f"t{index}", call, filled), used=True) for index, call in calls]


def _make_statement(name: str, call: RuleCall, filled: FilledSkeleton) -> Statement:
    def fill(leaf: object) -> object:
        if isinstance(leaf, ArgumentHole):
            return map_leaves(fill, filled.values[leaf])
        if isinstance(leaf, CallResult):
            return Ref(f"t{leaf.index}")
        if isinstance(leaf, Operand):
            return Ref(leaf.name)
        if not isinstance(leaf, _LITERALS):
            raise Untranslatable(f"a {type(leaf).__name__} has no literal")
        return leaf

    args, kwargs = map_leaves(fill, (call.args, call.kwargs))
    target: Any = call.target
    if isinstance(target, str):
        return Statement(name, "method", target, args, kwargs)
    if target is operator.getitem:
        return Statement(name, "getitem", "", args)
    own = getattr(target, "__name__", "")
    if own in OPERATORS and getattr(operator, own) is target:
        # An augmented assignment would bind the old name.
        return Statement(name, "operator", OPERATORS[{"iadd": "add", "imul": "mul"}.get(own, own)], args)
    return Statement(name, "function", find_public_name(target), args, kwargs)


def _make_program(
    rule: KnownRule,
    filled: FilledSkeleton,
    origin: Origin,
    settings: Mapping[str, object],
    operands: Sequence[Operand] | None = None,
) -> PatternProgram:
    return PatternProgram(
        stage=rule.stage,
        rule=rule.name,
        pass_name=rule.pass_name,
        origin=origin,
        operands=tuple(filled.list_operands() if operands is None else operands),
        statements=tuple(write_statements(filled)),
        returns=tuple(f"t{index}" for index in filled.skeleton.returns),
        settings=settings,
        backward=filled.skeleton.backward,
    )


def iter_searched_programs(rule: KnownRule) -> Iterator[PatternProgram]:
    """The programs of the search functions of a user's own patterns, as they were registered.

    Functions that cannot be written out, or do not run on such inputs in eager mode, give none.
    """
    for example in filter(None, map(find_example, rule.made_of)):
        filled = _fill_example(example)
        if filled is not None:
            with contextlib.suppress(Untranslatable):
                yield _make_program(rule, filled, "search function", {})


def _fill_example(example: PatternExample) -> FilledSkeleton | None:
    inputs: list[Any] = [
        torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value
        for value in example.inputs
    ]
    try:
        filled = record_calls(example.function, inputs, example.scalars, training=False)
    except Exception:  # user code: what it raises says only that no program comes of it
        return None
    dtypes = {value.dtype for value in filled.values.values() if isinstance(value, Operand) and value.floating}
    # As it is registered, if that runs; a mixture of dtypes is left as it is.
    runs = recast_operands(filled, dtypes.pop()) if len(dtypes) == 1 else filled
    return None if runs is None else runs.name_operands()


# Whether a program makes its rule fire, seen in a compile without code generation.


@dataclass(frozen=True)
class RuleTrial:
    """The rules that fired in a compile of one program, by stage and name; operators that would be lowered are rules.

    ``changed`` are those that left another graph behind: a handler may run and find nothing to do.
    """

    fired: set[tuple[str, str]] = field(default_factory=set)
    changed: set[tuple[str, str]] = field(default_factory=set)


def runs_in_eager(program: PatternProgram) -> bool:
    """Return whether the forward of a program runs in eager mode on the CPU."""
    namespace: dict[str, Any] = {}
    with silence_torch(), torch.no_grad():
        try:
            exec(render_pattern_program(program), namespace)
            model, inputs = namespace["make"]()
            model(*inputs)
        except Exception:  # of any kind: it is asked whether there is one
            return False
    return True


def compile_program(program: PatternProgram, device: torch.device) -> RuleTrial:
    """Compile a program up to code generation, as a screened case is; what makes no case makes no rule fire."""
    how = Compilation(
        (InductorSettings({"fallback_random": bool(program.settings.get("fallback_random", True))}),), screen=True
    )
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder, silence_torch():
        path = Path(folder, "pattern.py")
        path.write_text(render_pattern_program(program), encoding="utf-8")
        try:
            case = load_case(path)
            check_settings(case.settings)
            built = build(case, device)
        except (CaseError, MemoryError):
            return RuleTrial()
        with open_session(case.settings, how) as session:
            observe(case, built, session.compile(built.model), describe_failure=session.describe_failure)
            return _make_trial(session.ledger)


def _make_trial(ledger: Ledger) -> RuleTrial:
    changed = {(reached.stage, reached.name) for reached in ledger.reached}
    changed |= {name for _, _, rewrite in ledger.list_rewrites() for name in _label_names(rewrite.label)}
    for frame in ledger.frames:
        last = [record.snapshots[-1] for record in frame.records if record.snapshots]
        changed |= {(LOWERING, call) for snapshot in last for call in snapshot.operator_names}
    fired = {name for label, outcome in ledger.coverage if outcome == "fired" for name in _label_names(label)}
    return RuleTrial(fired | changed, changed)


def _label_names(label: Label) -> set[tuple[str, str]]:
    return {(label.stage, label.rewrite), (label.stage, label.pass_name or label.rewrite)}


# Draws in a row without a new program, after which there is taken to be none.
_BARREN = 30
# The share of the time for a rule in which programs are looked for.
_LOOKING = 2 / 3
# Near misses of one kind that are worked out for a program.
_EDITS_OF_A_KIND = 16
_DTYPES = ("float32", "float32", "bfloat16", "float16", "float32", "float64")


def make_rule_programs(
    rule: KnownRule, device: torch.device, seconds: float, *, enough: int = 2
) -> list[PatternProgram]:
    """Programs for one rule: those that it changed, else those in which it fired, else those that may come near it.

    Looks for ``enough`` of them for two thirds of the ``seconds``, and then for near misses of them.
    """
    begun = time.monotonic()
    ranked: tuple[list[PatternProgram], ...] = ([], [], [])
    name = (rule.stage, rule.name)
    for program in iter_candidates(rule, device):
        tried = compile_program(program, device)
        rank = 0 if name in tried.changed else 1 if name in tried.fired else 2
        ranked[rank].append(replace(program, fires=rank < 2))
        if len(ranked[0]) >= enough or time.monotonic() - begun > _LOOKING * seconds:
            break
    best = next((programs for programs in ranked if programs), [])[:enough]
    ends = [begun + seconds * (_LOOKING + (1 - _LOOKING) * (at + 1) / len(best)) for at in range(len(best))]
    return [add_edits(program, random.Random(program.label), until) for program, until in zip(best, ends, strict=True)]


def add_edits(program: PatternProgram, rng: random.Random, until: float) -> PatternProgram:
    """The program with near misses that leave it running, each by itself; of each kind some, drawn with ``rng``.

    Those that there was no time for until ``until``, of ``time.monotonic``, are left out.
    """
    by_kind: dict[str, list[PatternEdit]] = {}
    for edit in list_edits(program):
        by_kind.setdefault(edit.name, []).append(edit)
    tried = [edit for edits in by_kind.values() for edit in rng.sample(edits, min(len(edits), _EDITS_OF_A_KIND))]
    rng.shuffle(tried)
    running: list[PatternEdit] = []
    for edit in tried:
        edited = apply_edit(program, edit)
        if edited is not None and runs_in_eager(edited):
            running.append(edit)
        if time.monotonic() > until:
            break
    return replace(program, edits=tuple(running))


def iter_candidates(rule: KnownRule, device: torch.device) -> Iterator[PatternProgram]:
    """Programs that run and may make a rule fire, without end unless nothing can be written for it."""
    yield from iter_searched_programs(rule)
    code = find_mentions(rule.made_of)
    seen, barren, last = set[str](), 0, None
    for number, settings in zip(itertools.count(), itertools.cycle(list_rule_settings(rule)), strict=False):
        if barren > _BARREN:
            return
        barren += 1
        rng = random.Random(f"{rule.stage} {rule.name} {number}")
        with contextlib.suppress(Untranslatable):
            filled = _draw_filling(rule, code, rng, last)
            last = filled or last
            program = None if filled is None else _draw_program(rule, filled.name_operands(), dict(settings), rng)
            if program is not None and (source := render_pattern_program(program)) not in seen:
                seen.add(source)
                barren = 0
                yield program


def _draw_filling(
    rule: KnownRule, code: CodeMentions, rng: random.Random, last: FilledSkeleton | None
) -> FilledSkeleton | None:
    """Another filling; in some draws the last one in another dtype, which costs no search."""
    own, dtype = draw_variant(rule, rng), rng.choice(_DTYPES)
    if last is not None and own is None and rng.random() < 0.3:
        return recast_operands(last, dtype)
    return own or fill_skeleton(draw_skeleton(rule, code, rng), rng, dtype, code.constants)


def _draw_program(
    rule: KnownRule, filled: FilledSkeleton, settings: dict[str, object], rng: random.Random
) -> PatternProgram:
    if filled.skeleton.frozen:
        settings["freezing"] = True
    if filled.skeleton.draws and rng.random() < 0.5:
        settings["fallback_random"] = False
    origin: Origin = "operator" if rule.kind in ("decomposition", "lowering") else "pass"
    operands = filled.list_operands()
    if settings.get("freezing"):
        weights = {value.name for hole, value in filled.values.items() if isinstance(value, Operand) and hole.weight}
        if not weights or rng.random() < 0.4:
            moving = rng.choice(operands).name if operands and rng.random() < 0.4 else "x0"
            weights = {operand.name for operand in operands} - {moving}
        operands = [replace(each, role="parameter") if each.name in weights else each for each in operands]
    return _make_program(rule, filled, "pattern" if has_pattern(rule) else origin, settings, operands)
