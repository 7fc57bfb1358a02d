"""One wrong rewrite for each hook, planted with nothing but what every torch from 2.11 on has.

All of them multiply sines (or what a frozen weight is) by 1 + ``ERROR``, natively far beyond rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from pattern_tables import restored
from torch import fx, nn
from torch._inductor import constant_folding, freezing  # noqa: F401  (freezing keeps what it imports from folding)
from torch._inductor.fx_passes import freezing_patterns, joint_graph, post_grad
from torch._inductor.pattern_matcher import (
    CallFunction,
    KeywordArg,
    PatternMatcherPass,
    fwd_only,
    register_graph_pattern,
    register_lowering_pattern,
    register_replacement,
)

aten = torch.ops.aten
ERROR = 0.01


def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 1


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((5,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + self.weight


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * (self.weight * 2 + 1)


def uniform(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * (torch.ones(5) * 2)


def waves() -> torch.Tensor:
    return torch.linspace(-1, 1, 15).reshape(3, 5)


# -- what is wrong ------------------------------------------------------------------------------------


def sine_off(match: Any, x: Any) -> None:
    match.replace_by_example(lambda x: torch.sin(x) * (1 + ERROR), [x])


def sine_never(match: Any, x: Any) -> None:
    raise AssertionError("its check refuses every match")


def searched_sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 1


def searched_sine_off(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * (1 + ERROR) + 1


def lowered_sine_off(match: Any, x: Any) -> Any:
    from torch._inductor.lowering import lowerings

    return lowerings[aten.mul](lowerings[aten.sin](x), 1 + ERROR)


def sines_off(graph: fx.Graph) -> None:
    """A pass: every sine, of torch or of ATen."""
    for node in [*graph.nodes]:
        if node.target in (torch.sin, aten.sin.default):
            times = torch.mul if node.target is torch.sin else aten.mul.Tensor
            with graph.inserting_after(node):
                new = graph.call_function(times, (node, 1 + ERROR))
            new.meta.update(node.meta)
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)


def joint_off(module: fx.GraphModule, inputs: Any) -> fx.GraphModule:
    """A pass over the joint graph as functorch's config takes one."""
    sines_off(module.graph)
    return module


# -- how it gets there --------------------------------------------------------------------------------


@contextmanager
def handler(table: PatternMatcherPass, function: Callable[..., None] = sine_off, **more: Any) -> Iterator[None]:
    with restored(table):
        register_graph_pattern(CallFunction(aten.sin.default, KeywordArg("x")), pass_dict=table, **more)(function)
        yield


@contextmanager
def replacement(table: PatternMatcherPass) -> Iterator[None]:
    with restored(table):
        register_replacement(searched_sine, searched_sine_off, [torch.ones(2, 3)], fwd_only, table)
        yield


@contextmanager
def lowering(table: PatternMatcherPass) -> Iterator[None]:
    with restored(table):
        pattern = CallFunction(aten.sin.default, KeywordArg("x"))
        register_lowering_pattern(pattern, pass_dict=table)(lowered_sine_off)
        yield


@contextmanager
def folding_off() -> Iterator[None]:
    """Constant folding of frozen weights that gets every constant that it makes wrong."""
    original = constant_folding.replace_node_with_constant

    def off(module: Any, node: Any, constant: Any = None, *args: Any, **kwargs: Any) -> None:
        plain = constant is not None and constant.layout == torch.strided  # not one packed for a library
        original(module, node, constant * (1 + ERROR) if plain else constant, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constant_folding, "replace_node_with_constant", off)
        yield


@contextmanager
def uniform_folding_off() -> Iterator[None]:
    """Folding of constants with one value, over the joint graph."""
    folder = joint_graph.UniformValueConstantFolder
    original = folder.add_node_replacement

    def off(self: Any, node: Any, tensor: Any) -> None:
        original(self, node, tensor)
        if node in self.node_replacements and isinstance(self.node_replacements[node], float):
            self.node_replacements[node] *= 1 + ERROR

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "add_node_replacement", off)
        yield


@contextmanager
def joint_pass() -> Iterator[None]:
    with torch._functorch.config.patch(joint_custom_pass=joint_off):
        yield


# -- one for each hook --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A wrong rewrite, a program that it makes wrong, and how a ledger names it."""

    name: str
    hook: str
    stage: str
    rewrite: str
    install: Callable[[], AbstractContextManager[None]] = nullcontext
    program: Callable[[], Any] = lambda: sine
    inputs: Callable[[], torch.Tensor] = waves
    config: Mapping[str, Any] = field(default_factory=dict)
    backward: bool = False
    replayable: bool = True
    screens: bool = True

    def __str__(self) -> str:
        return self.name


_JOINT, _EARLY = joint_graph.patterns, joint_graph.early_patterns
_SECOND, _THIRD = post_grad.pass_patterns[1:3]
PLANTED = [
    Planted("pass of pre-grad", "pre-grad stage", "pre_grad", "sines_off", config={"pre_grad_custom_pass": sines_off}),
    Planted("pattern of joint", "joint-graph stage", "joint_graph", "sine_off", lambda: handler(_JOINT)),
    Planted("pattern without a pass", "pattern pass", "joint_graph", "sine_off", lambda: handler(_EARLY)),
    Planted("replacement", "pattern pass", "joint_graph", "searched_sine", lambda: replacement(_JOINT)),
    Planted("pattern of post-grad", "post-grad stage", "post_grad", "sine_off", lambda: handler(_SECOND)),
    Planted(
        "lowering", "pattern pass", "post_grad", "lowered_sine_off", lambda: lowering(_THIRD),
        replayable=False, screens=False,
    ),
    Planted(
        "pass of post-grad", "graph pass", "post_grad", "sines_off",
        config={"post_grad_custom_post_pass": sines_off},
    ),
    Planted(
        "uniform constants", "module pass", "joint_graph", "constant_fold_uniform_value",
        uniform_folding_off, lambda: uniform,
    ),
    Planted("functorch's pass", "backend entry", "joint_graph", "joint_off", joint_pass, Trained, backward=True),
    Planted(
        "pattern of freezing", "freezing stage", "freezing", "sine_off",
        lambda: handler(freezing_patterns.pass_patterns[0]), Frozen, config={"freezing": True},
    ),
    Planted(
        "constants of freezing", "frozen parameters", "freezing", "constant_fold",
        folding_off, Frozen, config={"freezing": True},
    ),
]  # fmt: skip
