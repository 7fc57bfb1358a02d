"""From a rule to programs that make it fire: its pattern, or the operators that its code names, filled with values."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.custom_code import PatternExample, find_example
from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.compiler.sdpa_patterns import FAMILY, read_variants
from fuzzcompile.compiler.session import Compilation, check_settings, open_session, silence_torch
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.fuzz.rules.rule_code import CodeMentions, find_mentions, iter_alternatives, list_rule_settings
from fuzzcompile.fuzz.rules.skeleton import (
    ArgumentHole,
    CallSkeleton,
    RuleCall,
    annotate_holes,
    fill_skeleton,
    recast_operands,
    record_calls,
)
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.stages import DECOMPOSITION, FREEZING, LOWERING, PARTITION, PRE_GRAD
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
from fuzzcompile.programs.ir.program import Form, Ref, Statement, map_leaves
from fuzzcompile.programs.ir.tracing import OPERATORS, Untranslatable, find_public_name
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.pool.worker import get_current_device
from fuzzcompile.run.runs import observe

_read_variants = functools.cache(read_variants)
# Of operators on packed weights, and of those that wait for other processes.
_INTERNAL = ("mkldnn", "onednn", "mkl::", "quantized::", "fbgemm", "c10d", "symm_mem")


class PatternReader:
    """Turns one pattern into calls, with choices from ``rng``: of alternative operators, of how often a part repeats.

    In the place of an operator on packed weights it writes what the compiler packs into it.
    """

    def __init__(self, rng: random.Random, skeleton: CallSkeleton | None = None) -> None:
        self.rng, self.skeleton = rng, skeleton or CallSkeleton()
        self._named: dict[str, ArgumentHole] = {}
        self._shared: dict[int, object] = {}
        self._several: set[int] = set()
        self._repeated: int | None = None

    def read_pattern(self, pattern: Any) -> CallSkeleton:
        """The calls that a pattern describes; `Untranslatable` if some part of it cannot be spelled."""
        outputs = getattr(pattern, "outputs", None)
        for part in [pattern] if outputs is None else [part for part in outputs if part is not None]:
            made = self.make_part(part)
            if outputs is not None and isinstance(made, RuleCall) and made not in self.skeleton.returns:
                self.skeleton.returns.append(made)
        if not self.skeleton.calls:
            raise Untranslatable("the pattern calls nothing")
        return self.skeleton.finish()

    def make_part(self, part: Any) -> object:
        """The result, hole or literal that stands for a part of the pattern."""
        if isinstance(part, (list, tuple)):
            return [self.make_part(inner) for inner in part]
        kind = type(part).__name__
        if kind in ("KeywordArg", "ExclusiveKeywordArg"):
            return self._named.setdefault(part.name, ArgumentHole(part.name))
        if kind in ("Arg", "Ignored"):
            return ArgumentHole()
        if kind == "ListOf":
            return self._read_list(part.pattern)
        if kind == "RepeatedExpr":
            return self._read_list(part.inner_pattern)
        if hasattr(part, "fns"):
            return self._read_call(part)
        if hasattr(type(part), "pattern_eq"):
            raise Untranslatable(f"{kind} is no kind of pattern that can be written as a program")
        return part

    def _read_list(self, inner: Any) -> list[object]:
        """Repeated parts; what has several users within them is one node of a graph, and stands once."""
        made, before = [], set(self._shared)
        for index in range(self.rng.choice((2, 3, 4))):
            self._repeated = index
            kept = before | self._several - {id(inner)}
            self._shared = {key: value for key, value in self._shared.items() if key in kept}
            made.append(self.make_part(inner))
        self._repeated = None
        return made

    def _read_call(self, part: Any) -> object:
        key = id(part)
        if key in self._shared:
            return self._shared[key]
        target = self.rng.choice(_select_callable(part.fns))
        if part.op == "call_module":
            raise Untranslatable("dynamo's graphs call no modules")
        repeated, args, kwargs = self._repeated, [], {}
        if hasattr(part, "args"):  # otherwise any arguments will do, which the operator's schema gives
            args = [self.make_part(argument) for argument in part.args]
            kwargs = {name: self.make_part(value) for name, value in part.kwargs.items()}
        if target is operator.getitem and len(args) > 1 and isinstance(args[1], ArgumentHole) and not args[1].name:
            args[1].first = repeated or 0
        if is_internal(target):
            made = self._pack(target, args)
        else:
            made = self.skeleton.append(target, *args, **kwargs)
            made.anything = not hasattr(part, "args")
        self._shared[key] = made
        if part.has_multiple_users() and target is not operator.getitem:
            self._several.add(key)
        return made

    def _pack(self, target: object, args: Sequence[object]) -> RuleCall:
        patterns = _find_packing(get_current_device()).get(str(target), [])
        before = len(self.skeleton.calls)
        made = PatternReader(self.rng, self.skeleton).make_part(self.rng.choice(patterns)) if patterns else None
        if not isinstance(made, RuleCall):
            raise Untranslatable(f"{target} is called by the compiler alone")
        self.skeleton.frozen = True
        packed = self.skeleton.calls[before:]
        tensors = [hole for call in packed for hole in _list_tensor_holes(call, self.rng)]
        moving = min(tensors, key=lambda hole: hole.parameter != "mat1", default=None)  # a bias may come first
        for hole in tensors:
            hole.weight = hole is not moving
        if fed := next((given for given in args if isinstance(given, RuleCall)), None):
            for call in packed:
                call.args = tuple(fed if given is moving else given for given in call.args)
        return made


def _select_callable(functions: Sequence[Any]) -> Sequence[Any]:
    """Those of a pattern's alternatives that take tensors and write to none; operators without an overload first."""

    def is_functional(function: Any) -> bool:
        schema = function._schema if isinstance(function, torch._ops.OpOverload) else None
        return schema is None or (not schema.is_mutable and any("Tensor" in str(a.type) for a in schema.arguments))

    packets = [function for function in functions if isinstance(function, torch._ops.OpOverloadPacket)]
    return packets or list(filter(is_functional, functions)) or functions


def is_internal(target: object) -> bool:
    """Return whether an operator takes what only the compiler makes: wrong arguments may crash the process."""
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else str(target)
    return any(part in name for part in _INTERNAL)


# What stands around the operators that a pass looks for.
_PLAIN = (
    torch.relu, torch.tanh, torch.add, torch.mul, torch.sum, torch.cat, torch.permute, torch.reshape, torch.mm,
    torch.full, torch.ones, torch.zeros, torch.where, torch.clone,
)  # fmt: skip


def draw_skeleton(rule: KnownRule, code: CodeMentions, rng: random.Random) -> CallSkeleton:
    """A skeleton for a rule, drawn with ``rng``; `Untranslatable` if nothing is known that the rule looks for."""
    named = [target for target in code.operators if not is_internal(target)]
    if _has_pattern(rule):
        entries = [part for part in rule.made_of if hasattr(part, "pattern")]
        skeleton = PatternReader(rng).read_pattern(rng.choice(entries).pattern)
        if named and rng.random() < 0.3:
            _put_behind(rng.choice(named), skeleton, rng)
        return skeleton
    if rule.stage in (DECOMPOSITION, LOWERING):
        skeleton = CallSkeleton()
        _append_call(skeleton, functools.reduce(getattr, rule.name.split("."), torch.ops), rng)
        return skeleton.finish()
    # Graphs before autograd call methods.
    methods = filter(_is_method, code.constants if rule.stage == PRE_GRAD else ())
    if not rule.made_of:
        raise Untranslatable("the pass runs rules that are registered apart, or none")
    skeleton = _combine_operators([*named, *methods] or _PLAIN, rng)
    skeleton.backward = rule.stage == PARTITION
    return skeleton


def _is_method(name: object) -> bool:
    if not isinstance(name, str) or name.startswith("_"):
        return False
    return callable(getattr(torch.Tensor, name, None)) and getattr(torch.ops.aten, name, None) is not None


def _has_pattern(rule: KnownRule) -> bool:
    return any(hasattr(part, "pattern") for part in rule.made_of)


def draw_variant(rule: KnownRule, rng: random.Random) -> CallSkeleton | None:
    """A rule's own search function with its example inputs; None where torch lists none such."""
    if not rule.name.startswith(FAMILY):
        return None
    named = [variant for variant in _read_variants(torch.device(get_current_device())) if variant.name == rule.name]
    if not named:
        return None
    variant = rng.choice(named)
    dtype, own = rng.choice(variant.dtypes), variant.inputs[0].dtype
    # A number for an input without dimensions, which is a scale.
    inputs: list[Any] = [
        torch.empty_strided(given.shape, given.stride(), dtype=dtype if given.dtype == own else given.dtype)
        .fill_(1)
        .requires_grad_(given.requires_grad)
        if given.dim()
        else 2.0
        for given in variant.inputs
    ]
    try:
        return record_calls(variant.function, inputs, variant.scalars, training=variant.training)
    except Exception as error:  # of any kind: some functions name a dtype themselves, and take no other
        raise Untranslatable(f"its search function does not take {dtype}") from error


@functools.cache
def _find_packing(device: str) -> dict[str, list[object]]:
    patterns: dict[str, list[object]] = {}
    for row in list_known_rules(torch.device(device)):
        for entry in row.made_of if row.stage == FREEZING else ():
            pattern: Any = getattr(entry, "pattern", None)
            called = [each for some in iter_alternatives(pattern) for each in some]
            if called and not any(map(is_internal, called)):
                for operator_named in filter(is_internal, find_mentions([entry]).operators):
                    patterns.setdefault(str(operator_named), []).append(pattern)
    return patterns


def _list_tensor_holes(call: RuleCall, rng: random.Random) -> list[ArgumentHole]:
    annotate_holes(call, rng)
    return [hole for hole in call.list_holes() if hole.kind in ("Tensor", "Optional[Tensor]")]


def _put_behind(target: object, skeleton: CallSkeleton, rng: random.Random) -> None:
    calls = list(skeleton.calls)
    holes = [hole for call in calls for hole in _list_tensor_holes(call, rng)]
    if holes:
        fed = holes[0] if rng.random() < 0.7 else rng.choice(holes)
        made = _append_call(skeleton, target, rng)
        for call in calls:
            call.replace_leaves(lambda leaf: made if leaf is fed else leaf)
        skeleton.calls = [*skeleton.calls[len(calls) :], *calls]


def _combine_operators(operators: Sequence[object], rng: random.Random) -> CallSkeleton:
    """Calls of operators that a pass names: one behind another, equal ones side by side, or on parts of one tensor."""
    kind = rng.choice((*("chain", "side by side") * 2, "parts"))
    # Those named first are what a pass looks for more often than those that it makes.
    early = operators[: max(2, len(operators) // 2)]
    pools = rng.choices((operators[:1], early, operators), (2, 2, 2), k=3)
    drawn = [rng.choice(pool) if rng.random() < 0.8 else rng.choice(_PLAIN) for pool in pools]
    skeleton, dim = CallSkeleton(), rng.choice((0, 1, -1))
    made: list[RuleCall] = []
    if kind == "chain":
        for target in drawn[: rng.choice((1, 2, 3))]:
            _append_call(skeleton, target, rng, skeleton.calls[-1] if skeleton.calls else None)
    elif kind == "side by side":  # over inputs of one shape or over one input, and perhaps joined
        made, shared = [_append_call(skeleton, drawn[0], rng)], rng.random() < 0.4
        made += [_append_copy(skeleton, made[0], shared) for _ in range(rng.choice((1, 2, 4)))]
        made = made if rng.random() < 0.5 else []
    else:
        whole = skeleton.append(torch.chunk, ArgumentHole("input", "Tensor"), 2, dim=dim)
        parts = [skeleton.append(operator.getitem, whole, index) for index in range(2)]
        made = [_append_call(skeleton, drawn[0], rng, part) for part in parts]
    if made:
        skeleton.append(rng.choice((torch.cat, torch.stack)), made, dim=dim)
    return skeleton.finish()


def _append_call(skeleton: CallSkeleton, target: object, rng: random.Random, fed: RuleCall | None = None) -> RuleCall:
    """Append a call whose first tensor is ``fed``, and take the first of several results."""
    call = skeleton.append(target)
    call.anything = True
    annotate_holes(call, rng)
    hole = next((h for h in call.args if isinstance(h, ArgumentHole) and "Tensor" in h.kind), None)
    if fed is not None and hole is not None:
        given = [fed, ArgumentHole(hole.name, "Tensor")] if hole.kind.startswith("List") else fed
        call.args = tuple(given if value is hole else value for value in call.args)
    return skeleton.append(operator.getitem, call, 0) if _returns_several(target) else call


def _append_copy(skeleton: CallSkeleton, call: RuleCall, shared: bool) -> RuleCall:
    """Append the call on further operands of its own; on the first one's own input where that is ``shared``."""
    copies: dict[ArgumentHole, ArgumentHole] = {}

    def copy(leaf: object) -> object:
        if not isinstance(leaf, ArgumentHole) or "Tensor" not in leaf.kind:
            return leaf
        if shared and not copies:
            copies[leaf] = leaf
        return copies.setdefault(leaf, ArgumentHole(leaf.name, leaf.kind, like=leaf))

    made = skeleton.append(call.target, *call.args, **call.kwargs)
    made.replace_leaves(copy)
    return made


def _returns_several(target: object) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        returns = target._schema.returns
        return len(returns) > 1 or any(str(value.type).startswith("List") for value in returns)
    return getattr(target, "__name__", "") in ("split", "chunk", "unbind", "tensor_split", "split_with_sizes")


# What a program can spell.
_LITERALS = (
    int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def write_statements(filled: CallSkeleton) -> list[str]:
    """One assignment a call, to ``t0``, ``t1`` and so on; `Untranslatable` where something has no text."""
    writer, names = Writer(set()), filled.names

    def fill(leaf: object) -> object:
        if isinstance(leaf, ArgumentHole):
            return map_leaves(fill, filled.values[leaf])
        if isinstance(leaf, (RuleCall, Operand)):
            return Ref(names[leaf] if isinstance(leaf, RuleCall) else leaf.name)
        if not isinstance(leaf, _LITERALS):
            raise Untranslatable(f"a {type(leaf).__name__} has no literal")
        return leaf

    statements = [Statement(names[call], *_spell_target(call.target), call.args, call.kwargs) for call in filled.calls]
    return [writer.line(statement.map_leaves(fill), used=True) for statement in statements]


def _spell_target(target: Any) -> tuple[Form, str]:
    if isinstance(target, str):
        return "method", target
    if target is operator.getitem:
        return "getitem", ""
    name = getattr(target, "__name__", "")
    if name in OPERATORS and getattr(operator, name) is target:
        # An augmented assignment would bind the old name.
        return "operator", OPERATORS[{"iadd": "add", "imul": "mul"}.get(name, name)]
    return "function", find_public_name(target)


def _make_program(
    rule: KnownRule,
    filled: CallSkeleton,
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
        returns=tuple(filled.names[call] for call in filled.returns),
        settings=settings,
        backward=filled.backward,
    )


def _read_example(example: PatternExample) -> CallSkeleton | None:
    """The calls of the search function of a user's own pattern, on the inputs that it was registered with.

    None if the function does not run on such inputs in eager mode.
    """
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
    return recast_operands(filled, dtypes.pop()) if len(dtypes) == 1 else filled


# Whether a program makes its rule fire, seen in a compile without code generation.


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


def compile_program(program: PatternProgram, device: torch.device) -> dict[tuple[str, str], bool]:
    """The rules, as (stage, name), that fire in a compile up to code generation, and whether each changed the graph.

    A handler may run and find nothing to do. Operators that would be lowered are rules; what makes no case fires none.
    """
    random_numbers = bool(program.settings.get("fallback_random", True))
    with silence_torch():
        try:
            _, ledger, _ = screen_source(render_pattern_program(program), device, fallback_random=random_numbers)
        except (CaseError, MemoryError):
            return {}
    changed = {(reached.stage, reached.name) for reached in ledger.reached}
    changed |= {name for _, _, rewrite in ledger.list_rewrites() for name in _label_names(rewrite.label)}
    for frame in ledger.frames:
        last = [record.snapshots[-1] for record in frame.records if record.snapshots]
        changed |= {(LOWERING, call) for snapshot in last for call in snapshot.operator_names}
    fired = [name for label, outcome in ledger.coverage if outcome == "fired" for name in _label_names(label)]
    return dict.fromkeys(fired, False) | dict.fromkeys(changed, True)


def screen_source(
    source: str, device: torch.device, *, fallback_random: bool = True
) -> tuple[Case, Ledger, Observation]:
    """The case of a text, the ledger of a compile up to code generation, and what a run of its graphs shows.

    Raises:
        CaseError, MemoryError: it is no case, or too large.
    """
    how = Compilation((InductorSettings({"fallback_random": fallback_random}),), screen=True)
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "pattern.py")
        path.write_text(source, encoding="utf-8")
        case = load_case(path)
        check_settings(case.settings)
        built = build(case, device)
        with open_session(case.settings, how) as session:
            seen = observe(case, built, session.compile(built.model), describe_failure=session.describe_failure)
            return case, session.ledger, seen


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
    for program in iter_candidates(rule):
        changed = compile_program(program, device).get((rule.stage, rule.name))
        rank = 0 if changed else 1 if changed is not None else 2
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


def iter_candidates(rule: KnownRule) -> Iterator[PatternProgram]:
    """Programs that run and may make a rule fire, without end unless nothing can be written for it."""
    for example in filter(None, map(find_example, rule.made_of)):
        if (searched := _read_example(example)) is not None:
            with contextlib.suppress(Untranslatable):
                yield _make_program(rule, searched.name_operands(), "search function", {})
    code = find_mentions(rule.made_of)
    seen, barren = set[str](), 0
    last: CallSkeleton | None = None
    for number, settings in zip(itertools.count(), itertools.cycle(list_rule_settings(rule)), strict=False):
        if barren > _BARREN:
            return
        barren += 1
        rng = random.Random(f"{rule.stage} {rule.name} {number}")
        with contextlib.suppress(Untranslatable):
            own, dtype = draw_variant(rule, rng), rng.choice(_DTYPES)
            if last is not None and own is None and rng.random() < 0.3:  # which costs no search
                filled = recast_operands(last, dtype)
            else:
                filled = own or fill_skeleton(draw_skeleton(rule, code, rng), rng, dtype, code.constants)
            last = filled or last
            program = None if filled is None else _draw_program(rule, filled.name_operands(), dict(settings), rng)
            if program is not None and (source := render_pattern_program(program)) not in seen:
                seen.add(source)
                barren = 0
                yield program


def _draw_program(
    rule: KnownRule, filled: CallSkeleton, settings: dict[str, object], rng: random.Random
) -> PatternProgram:
    if filled.frozen:
        settings["freezing"] = True
    if filled.draws and rng.random() < 0.5:
        settings["fallback_random"] = False
    origin: Origin = "operator" if rule.kind in ("decomposition", "lowering") else "pass"
    operands = filled.list_operands()
    if settings.get("freezing"):
        weights = {value.name for hole, value in filled.values.items() if isinstance(value, Operand) and hole.weight}
        if not weights or rng.random() < 0.4:
            moving = rng.choice(operands).name if operands and rng.random() < 0.4 else "x0"
            weights = {operand.name for operand in operands} - {moving}
        operands = [replace(each, role="parameter") if each.name in weights else each for each in operands]
    return _make_program(rule, filled, "pattern" if _has_pattern(rule) else origin, settings, operands)
