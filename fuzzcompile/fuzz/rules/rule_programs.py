"""From a rule to programs that make it fire."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import math
import operator
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.custom_imports import PatternExample, find_example
from fuzzcompile.compiler.rule_catalogue import KnownRule
from fuzzcompile.compiler.session import Compilation, check_settings, open_session, silence_torch
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.fuzz.rules.code_mentions import CodeMentions, find_mentions, list_rule_settings
from fuzzcompile.fuzz.rules.hole_values import FilledSkeleton, fill_skeleton, name_operands, recast_operands
from fuzzcompile.fuzz.rules.skeleton import ArgumentHole, CallResult, CallSkeleton, RuleCall
from fuzzcompile.fuzz.rules.skeleton_sources import Unwritable, draw_skeleton, draw_variant, has_pattern
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.stages import LOWERING
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.edits.near_miss_edits import apply_edit, list_edits
from fuzzcompile.programs.edits.pattern_program import (
    Operand,
    Origin,
    PatternEdit,
    PatternProgram,
    render_pattern_program,
)
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import observe

__all__ = ["make_rule_programs"]


# Calls as lines of Python.

_SIGNS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.matmul: "@", operator.pow: "**", operator.mod: "%", operator.and_: "&", operator.or_: "|",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.iadd: "+", operator.imul: "*",
}  # fmt: skip


def write_statements(filled: FilledSkeleton) -> Iterator[str]:
    """One assignment a call; results are named ``t0``, ``t1`` and so on.

    Raises:
        Unwritable: a function has no name under torch.
    """
    for index, call in enumerate(filled.skeleton.calls):
        yield f"t{index} = {_write_call(call, filled)}"


def list_operands(filled: FilledSkeleton) -> list[Operand]:
    """The operands of the program, in the order of their names, each once."""
    found: dict[str, Operand] = {}

    def collect(value: object) -> None:
        if isinstance(value, Operand):
            found[value.name] = value
        elif isinstance(value, (list, tuple)):
            for inner in value:
                collect(inner)

    for call in filled.skeleton.calls:
        for hole in call.list_holes():
            collect(filled.values[hole])
    return sorted(found.values(), key=lambda operand: int(operand.name[1:]))


def _write_call(call: RuleCall, filled: FilledSkeleton) -> str:
    args = [_write_value(argument, filled) for argument in call.args]
    kwargs = [f"{name}={_write_value(value, filled)}" for name, value in call.kwargs.items()]
    if isinstance(call.target, str):
        return f"{args[0]}.{call.target}({', '.join([*args[1:], *kwargs])})"
    if call.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if call.target in _SIGNS and len(args) == 2:
        return f"{args[0]} {_SIGNS[call.target]} {args[1]}"
    return f"{write_function_name(call.target)}({', '.join([*args, *kwargs])})"


def _write_value(value: Any, filled: FilledSkeleton) -> str:
    if isinstance(value, ArgumentHole):
        return _write_value(filled.values[value], filled)
    if isinstance(value, CallResult):
        return f"t{value.index}"
    if isinstance(value, Operand):
        return value.name
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_write_value(part, filled) for part in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return write_literal(value)


def write_literal(value: Any) -> str:
    """A value as an expression.

    Raises:
        Unwritable: it has none.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    if isinstance(value, complex):
        return repr(value)
    raise Unwritable(f"a {type(value).__name__} has no literal")


def write_function_name(target: Any) -> str:
    """An expression that names a function where ``torch`` and ``F`` are known.

    Raises:
        Unwritable: it is none of torch's.
    """
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return f"torch.ops.{namespace}.{name}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{target._qualified_op_name.replace('::', '.')}"
    name = getattr(target, "__name__", "")
    for owner, prefix in ((torch, "torch."), (functional, "F."), (builtins, "")):
        if getattr(owner, name, None) is target:
            return f"{prefix}{name}"
    if getattr(torch.functional, name, None) is target:
        return f"torch.functional.{name}"
    module = str(getattr(target, "__module__", "") or "")
    for prefix in ("torch._C._nn", "torch.special", "torch.linalg", "torch.fft"):
        owner = _resolve_path(prefix)
        if getattr(owner, name, None) is target:
            return f"{prefix}.{name}"
    raise Unwritable(f"{module}.{name} is no function of torch")


def _resolve_path(path: str) -> Any:
    value: Any = torch
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value


# Programs that a user's own replacement patterns search for: the search function over its example inputs.


def iter_searched_programs(rule: KnownRule) -> Iterator[PatternProgram]:
    """The programs of a rule's search functions, as they were registered.

    Functions that cannot be written out, or do not run on such inputs in eager mode, give none.
    """
    for example in filter(None, map(find_example, rule.made_of)):
        filled = _fill_example(example)
        if filled is not None:
            with contextlib.suppress(Unwritable):
                yield PatternProgram(
                    stage=rule.stage,
                    rule=rule.name,
                    pass_name=rule.pass_name,
                    origin="search function",
                    operands=tuple(list_operands(filled)),
                    statements=tuple(write_statements(filled)),
                    returns=tuple(f"t{index}" for index in filled.skeleton.returns),
                    settings={},
                )


def _fill_example(example: PatternExample) -> FilledSkeleton | None:
    try:
        skeleton, holes = _make_skeleton(_trace_example(example))
    except Exception:  # user code, traced in two ways: what it raises says only that no program comes of it
        return None
    tensors = [value for value in example.inputs if isinstance(value, torch.Tensor)]
    if len(tensors) != len(holes):
        return None
    values: dict[ArgumentHole, object] = {
        hole: Operand("", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for hole, tensor in zip(holes, tensors, strict=True)
    }
    filled = FilledSkeleton(skeleton, values)
    floating = [value for value in values.values() if isinstance(value, Operand) and value.floating]
    same = {value.dtype for value in floating}
    # As it is registered, if that runs; a mixture of dtypes is left as it is.
    runs = recast_operands(filled, same.pop()) if len(same) == 1 else filled
    return None if runs is None else name_operands(runs)


def _trace_example(example: PatternExample) -> fx.GraphModule:
    """The search function as a graph over its tensors: of torch's functions, or of operators where that fails."""
    if all(map(torch.is_tensor, example.inputs)) and not example.scalars:
        with contextlib.suppress(Exception):  # it looks at sizes, say
            return fx.symbolic_trace(example.function)

    def over_tensors(*tensors: torch.Tensor) -> object:
        given = iter(tensors)
        arguments = [next(given) if isinstance(value, torch.Tensor) else value for value in example.inputs]
        return example.function(*arguments, **example.scalars)

    tensors = [value for value in example.inputs if isinstance(value, torch.Tensor)]
    return make_fx(over_tensors)(*(torch.zeros(value.shape, dtype=value.dtype) for value in tensors))


def _make_skeleton(module: fx.GraphModule) -> tuple[CallSkeleton, list[ArgumentHole]]:
    """The calls of a graph, and a hole for each of its inputs."""
    skeleton, values = CallSkeleton(), dict[fx.Node, ArgumentHole | CallResult]()

    def resolve(arguments: Any) -> Any:
        return pytree.tree_map(lambda leaf: values[leaf] if isinstance(leaf, fx.Node) else leaf, arguments)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = ArgumentHole(node.name, "Tensor")
        elif node.op in ("call_function", "call_method"):
            values[node] = skeleton.append(RuleCall(node.target, resolve(tuple(node.args)), resolve(dict(node.kwargs))))
        elif node.op == "output":
            skeleton.returns = _list_returned(resolve(node.args))
        else:
            raise Unwritable(f"the search function holds a {node.op}")
    return skeleton.finish(), [hole for hole in values.values() if isinstance(hole, ArgumentHole)]


def _list_returned(returned: Sequence[object]) -> list[int]:
    return list(dict.fromkeys(leaf.index for leaf in pytree.tree_leaves(returned) if isinstance(leaf, CallResult)))


# Whether a program makes its rule fire, seen in a compile without code generation.


@dataclass(frozen=True)
class RuleTrial:
    """One program compiled: what became of each rule, by stage and name, and which operators would be lowered.

    ``changed`` are the rules that left another graph behind: a handler may run and find nothing to do.
    """

    fired: frozenset[tuple[str, str]]
    refused: frozenset[tuple[str, str]]
    changed: frozenset[tuple[str, str]] = frozenset()
    trouble: str | None = None


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
    """Compile a program up to code generation, as a screened case is."""
    with _load_as_case(program) as case, silence_torch():
        try:
            check_settings(case.settings)
            built = build(case, device)
        except (CaseError, MemoryError) as error:
            return RuleTrial(frozenset(), frozenset(), trouble=str(error))
        how = Compilation(
            (InductorSettings({"fallback_random": bool(program.settings.get("fallback_random", True))}),), screen=True
        )
        with open_session(case.settings, how) as session:
            observed = observe(case, built, session.compile(built.model), describe_failure=session.describe_failure)
            failure = observed.failure
            return _make_trial(session.ledger, None if failure is None else str(failure))


def _make_trial(ledger: Ledger, trouble: str | None) -> RuleTrial:
    outcomes: dict[str, set[tuple[str, str]]] = {"fired": set(), "refused": set(), "vetoed": set()}
    for label, outcome in ledger.coverage:
        outcomes[outcome] |= _label_names(label)
    behind = {(reached.stage, reached.name) for reached in ledger.reached}
    for frame in ledger.frames:
        last = [record.snapshots[-1] for record in frame.records if record.snapshots]
        behind |= {(LOWERING, call) for snapshot in last for call in snapshot.operator_names}
    changed = {name for _, _, rewrite in ledger.list_rewrites() for name in _label_names(rewrite.label)}
    return RuleTrial(
        frozenset(outcomes["fired"] | changed | behind),
        frozenset(outcomes["refused"]),
        frozenset(changed | behind),
        trouble,
    )


def _label_names(label: Label) -> set[tuple[str, str]]:
    """A rule, and the pass that runs it."""
    return {(label.stage, label.rewrite), (label.stage, label.pass_name or label.rewrite)}


@contextlib.contextmanager
def _load_as_case(program: PatternProgram) -> Iterator[Case]:
    """The program as a loaded case."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "pattern.py")
        path.write_text(render_pattern_program(program), encoding="utf-8")
        yield load_case(path)


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

    Args:
        rule: a pattern, a pass, an operator with a decomposition or a lowering, as the catalogue lists it.
        device: where the programs run.
        seconds: how long to look; two thirds for programs that the rule changes, the rest for near misses of them.
        enough: how many such programs to look for.
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
        with contextlib.suppress(Unwritable):
            filled = _draw_filling(rule, code, rng, last)
            last = filled or last
            program = None if filled is None else _make_program(rule, name_operands(filled), dict(settings), rng)
            if program is not None and (source := render_pattern_program(program)) not in seen:
                seen.add(source)
                barren = 0
                yield program


def _draw_filling(
    rule: KnownRule, code: CodeMentions, rng: random.Random, last: FilledSkeleton | None
) -> FilledSkeleton | None:
    """Another filling; in a third of the draws the last one in another dtype, which costs no search."""
    own, dtype = draw_variant(rule, rng), rng.choice(_DTYPES)
    if last is not None and own is None and rng.random() < 0.3:
        return recast_operands(last, dtype)
    return own or fill_skeleton(draw_skeleton(rule, code, rng), rng, dtype, code.constants)


def _make_program(
    rule: KnownRule, filled: FilledSkeleton, settings: dict[str, object], rng: random.Random
) -> PatternProgram:
    if filled.skeleton.frozen:
        settings["freezing"] = True
    if filled.skeleton.draws and rng.random() < 0.5:
        settings["fallback_random"] = False
    return PatternProgram(
        stage=rule.stage,
        rule=rule.name,
        pass_name=rule.pass_name,
        origin=_make_origin(rule),
        operands=tuple(_assign_roles(filled, rng) if settings.get("freezing") else list_operands(filled)),
        statements=tuple(write_statements(filled)),
        returns=tuple(f"t{index}" for index in filled.skeleton.returns),
        settings=settings,
        backward=filled.skeleton.backward,
    )


def _make_origin(rule: KnownRule) -> Origin:
    if rule.kind in ("decomposition", "lowering"):
        return "operator"
    return "pattern" if has_pattern(rule) else "pass"


def _assign_roles(filled: FilledSkeleton, rng: random.Random) -> list[Operand]:
    """The operands, those that a rule knows as weights as parameters; or all but one."""
    tensors = list_operands(filled)
    weights = {value.name for hole, value in filled.values.items() if isinstance(value, Operand) and hole.weight}
    if not weights or rng.random() < 0.4:
        moving = rng.choice(tensors).name if tensors and rng.random() < 0.4 else "x0"
        weights = {operand.name for operand in tensors} - {moving}
    return [replace(operand, role="parameter") if operand.name in weights else operand for operand in tensors]
