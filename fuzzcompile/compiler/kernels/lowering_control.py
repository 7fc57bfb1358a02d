"""Names of lowered operators, and the changes to lowering and code generation that prove a fault there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from fuzzcompile.compiler.operators.decompositions import find_operator, is_view
from fuzzcompile.compiler.operators.operator_application import is_drawing
from fuzzcompile.compiler.watch.ledger import LoweredGraph, is_lowering_handler
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source


def label_operators(graph: fx.Graph, direction: str) -> dict[str, str]:
    """A label for each call that means the same in the next compile: ``forward:aten.gelu.default@m.py:14#1``."""
    seen: Counter[str] = Counter()
    labels = {}
    for node in graph.nodes:
        if node.op == "call_function":
            label = f"{direction}:{get_operator_name(find_call(node).target)}@{find_location([node]) or '?'}"
            seen[label] += 1
            labels[node.name] = f"{label}#{seen[label]}"
    return labels


def find_call(node: fx.Node) -> fx.Node:
    """The call that a node makes: of one that waits for others by ``control_deps``, the call in its body."""
    body = node.args[1] if getattr(node.target, "__name__", "") == "control_deps" and len(node.args) > 1 else None
    owner = node.graph.owning_module
    if not isinstance(body, fx.Node) or owner is None or not hasattr(owner, str(body.target)):
        return node
    calls = [each for each in getattr(owner, str(body.target)).graph.nodes if each.op == "call_function"]
    return calls[0] if len(calls) == 1 else node


def parse_operator(label: str) -> str:
    """The operator's name in a label."""
    return label.partition(":")[2].partition("@")[0]


def get_operator_name(target: object) -> str:
    """The name that a reader knows: ``aten.gelu.default``."""
    if is_lowering_handler(target):
        return str(getattr(getattr(target, "func", None), "__name__", target))
    return str(target) if isinstance(target, torch._ops.OpOverload) else str(getattr(target, "__name__", target))


def can_fall_back(lowered: LoweredGraph, node: fx.Node) -> bool:
    """Return whether ATen can compute the node instead of its lowering, a view as a copy: no write to an argument."""
    target = _find_lowered_operator(lowered, node)
    if node.op != "call_function" or target is None or find_computing(target) is None:
        return False
    # ATen has none for sizes that are symbols, and what makes constants has nothing to compute.
    if torch.Tag.nondeterministic_seeded in target.tags and not node.all_input_nodes:
        return True
    return any(isinstance(argument.meta.get("val"), torch.Tensor) for argument in node.all_input_nodes)


def lowers_draw(lowered: LoweredGraph, node: fx.Node) -> bool:
    """Return whether what a node lowers draws random numbers, be it the call of its body."""
    operator = _find_lowered_operator(lowered, node)
    if operator is None or operator is not node.target:
        return operator is not None and torch.Tag.nondeterministic_seeded in operator.tags
    return is_drawing(operator, node.args, node.kwargs)


def _find_lowered_operator(lowered: LoweredGraph, node: fx.Node) -> torch._ops.OpOverload | None:
    target: object = node.target
    if not isinstance(target, torch._ops.OpOverload):  # its body calls an operator
        target = find_operator(parse_operator(lowered.labels.get(node.name, "")))
    return target if isinstance(target, torch._ops.OpOverload) else None


def find_computing(target: object) -> torch._ops.OpOverload | None:
    """The operator whose kernel computes what another one does, into memory of its own; None where there is none."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if not any(value.alias_info for value in (*target._schema.arguments, *target._schema.returns)):
        return target
    if not is_view(target) or target.namespace != "aten":
        return None
    name = target._schema.name.partition("::")[2]
    packets = (getattr(torch.ops.aten, form, None) for form in (f"{name}_copy", f"_{name}_copy"))
    found = (getattr(packet, target._overloadname, None) for packet in packets if packet is not None)
    return next((each for each in found if each is not None), None)


def find_lowering_source(target: Callable[..., object] | str) -> tuple[str | None, int | None]:
    """File and line of the function that lowers an operator (None, None where there is none)."""
    if is_lowering_handler(target):
        return find_source(target)
    from torch._inductor.lowering import lowerings

    return find_source(lowerings.get(target))


EVERYTHING = "*"


@dataclass(frozen=True)
class Control:
    """Changes to a compile, each by operator label, operator name, or ``*`` for all.

    ATen computes ``fallbacks``, or all that it can but ``lowered``. Operators that are ``realised`` get a buffer of
    their own (a view is copied), those ``apart`` are fused with nothing, those of vectorised C++ that are
    ``scalarised`` are computed element by element. ``selected``: what Triton masks is selected by its mask once more,
    which changes nothing in right code. ``separate``: every loop nest is a kernel, where C++ writes several into one.
    ``stored``: so is what one kernel reads. ``flat``: loops are fused as a whole, and none because their outer loops
    alone are the same. ``unsplit``: no loop is made two where an index divides its variable. ``strided``: outputs have
    the strides that the graph says, views too.
    """

    fallbacks: tuple[str, ...] = ()
    lowered: tuple[str, ...] | None = None
    realised: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    scalarised: tuple[str, ...] = ()
    selected: bool = False
    separate: bool = False
    stored: bool = False
    flat: bool = False
    unsplit: bool = False
    strided: bool = False

    def __bool__(self) -> bool:
        return self != UNCHANGED


UNCHANGED = Control()


def is_chosen(chosen: Sequence[str], label: str | None) -> bool:
    """Return whether ``chosen`` has an operator: by its label, by its name, or because it has all."""
    if EVERYTHING in chosen:
        return True
    return label is not None and (label in chosen or parse_operator(label) in chosen)


def should_fall_back(control: Control, lowered: LoweredGraph, node: fx.Node) -> bool:
    """Return whether ATen is to compute a node, and can."""
    label = lowered.labels.get(node.name)
    chosen = is_chosen(control.fallbacks, label)
    if control.lowered is not None:
        chosen = chosen or not is_chosen(control.lowered, label)
    return chosen and can_fall_back(lowered, node)
