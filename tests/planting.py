"""Planted bugs: wrong rewrites put into the installed torch for the time of a block, one of each kind.

Every plant makes a result wrong by a relative ``ERROR``, too large for rounding.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import programs
import pytest
import torch
from pattern_tables import restored
from torch._inductor.fx_passes import fuse_attention, joint_graph, post_grad
from torch._inductor.pattern_matcher import (
    CallFunction,
    Ignored,
    KeywordArg,
    PatternMatcherPass,
    fwd_only,
    joint_fwd_bwd,
    register_graph_pattern,
    register_lowering_pattern,
    register_replacement,
)

from fuzzcompile.run.code_files import get_module_file

aten = torch.ops.aten
ERROR = 0.01
SMALL_ERROR = 1e-5


nothing = contextlib.nullcontext


# -- entries of pattern tables ------------------------------------------------------------------------


def sin_off(match: Any, x: Any) -> None:
    match.replace_by_example(lambda x: torch.sin(x) * (1 + ERROR), [x])


def cos_off(match: Any, x: Any) -> None:
    match.replace_by_example(lambda x: torch.cos(x) * (1 + ERROR), [x])


def shift_off(match: Any, x: Any) -> None:
    match.replace_by_example(lambda x: x + 1 + ERROR, [x])


def erf_off(match: Any, x: Any) -> Any:
    from torch._inductor.lowering import lowerings

    return lowerings[aten.mul](lowerings[aten.erf](x), 1 + ERROR)


def add_ignoring(match: Any, x: Any) -> Any:
    from torch._inductor.lowering import lowerings

    return lowerings[aten.add](x, 1)


def exp_times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * y


def exp_times_off(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * y * (1 + ERROR)


def raise_in_handler(match: Any, x: Any) -> None:
    raise ValueError("planted in a handler")


def raise_in_check(match: Any) -> bool:
    raise ValueError("planted in a check")


@contextmanager
def handler(
    table: PatternMatcherPass,
    operator: Any,
    function: Callable[..., None],
    extra_check: Callable[[Any], bool] = lambda match: True,
) -> Iterator[None]:
    """A GraphPatternEntry that runs ``function`` on every call of ``operator`` (of one tensor, or with a one)."""
    with restored(table):
        more = (1,) if operator is aten.add.Tensor else ()
        pattern = CallFunction(operator, KeywordArg("x"), *more)
        register_graph_pattern(pattern, extra_check=extra_check, pass_dict=table)(function)
        yield


@contextmanager
def replacement(table: PatternMatcherPass, *, training: bool = False, name: str | None = None) -> Iterator[None]:
    """A ReplacementPatternEntry for ``exp(x) * y``."""
    with restored(table):
        register_replacement(
            exp_times,
            exp_times_off,
            [torch.ones(2, 3, requires_grad=training), torch.ones(2, 3, requires_grad=training)],
            joint_fwd_bwd if training else fwd_only,
            table,
            pattern_name=name,
        )
        yield


@contextmanager
def lowering(table: PatternMatcherPass) -> Iterator[None]:
    """A LoweringPatternEntry for erf."""
    with restored(table):
        register_lowering_pattern(CallFunction(aten.erf.default, KeywordArg("x")), pass_dict=table)(erf_off)
        yield


@contextmanager
def unreplayable_lowering(table: PatternMatcherPass) -> Iterator[None]:
    """A LoweringPatternEntry whose match uses a value that is no argument of it."""
    with restored(table):
        inner = CallFunction(aten.erf.default, Ignored())
        pattern = CallFunction(aten.add.Tensor, inner, KeywordArg("x"))
        register_lowering_pattern(pattern, pass_dict=table)(add_ignoring)
        yield


@contextmanager
def attention_scale(error: float) -> Iterator[None]:
    """Every SDPA replacement scales the scores by 1 + ``error`` too much."""
    original = fuse_attention._scaled_dot_product_attention

    def off(query: Any, *args: Any, **kwargs: Any) -> Any:
        scale = kwargs.get("scale")
        kwargs["scale"] = (query.shape[-1] ** -0.5 if scale is None else scale) * (1 + error)
        return original(query, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_attention, "_scaled_dot_product_attention", off)
        yield


# -- whole passes -------------------------------------------------------------------------------------


def logs_off(graph: torch.fx.Graph) -> None:
    """A pass: every log, of torch or of ATen, is computed as log · (1 + ERROR)."""
    for node in [*graph.nodes]:
        if node.target in (aten.log.default, torch.log) or (node.op, node.target) == ("call_method", "log"):
            with graph.inserting_after(node):
                times = torch.mul if node.target is not aten.log.default else aten.mul.Tensor
                scaled = graph.call_function(times, (node, 1 + ERROR))
            scaled.meta.update(node.meta)
            node.replace_all_uses_with(scaled, delete_user_cb=lambda user, new=scaled: user is not new)


def noops_and_logs_off(graph: torch.fx.Graph) -> None:
    logs_off(graph)


@contextmanager
def pass_function() -> Iterator[None]:
    """The function behind ``remove_noop_ops``, which the joint-graph and the post-grad stage share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(post_grad, "remove_noop_ops", noops_and_logs_off)
        yield


# -- one of each kind ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plant:
    """A plant, a program that it makes wrong, and what a ledger should say of it."""

    name: str
    install: Callable[[], AbstractContextManager[None]]
    program: Callable[[], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]
    stage: str
    direction: str
    pass_name: str | None
    rewrite: str
    function: Callable[..., Any]
    site: str | None = None  # a piece of the line of the program that it rewrites; None for whole passes
    backward: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    siblings: tuple[str, ...] = ()  # rules that take its place where it is vetoed, just as wrong
    nodes: tuple[str, ...] = ()
    replayable: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def location(self) -> str | None:
        """``file.py:line`` of the site."""
        return None if self.site is None else programs.location_of(self.site)

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Names that switch the bug off."""
        return (self.rewrite, *self.siblings)

    @property
    def source(self) -> str:
        """The file of the function at fault, as labels give it."""
        torch_function = self.function.__module__.startswith("torch.")
        return get_module_file(self.function.__module__) if torch_function else "planting.py"

    @property
    def line(self) -> int:
        """First line of the function at fault."""
        return inspect.unwrap(self.function).__code__.co_firstlineno


def _plants() -> list[Plant]:
    joint, early = joint_graph.patterns, joint_graph.early_patterns
    _, second, third = post_grad.pass_patterns
    return [
        Plant(
            "graph handler, joint stage",
            lambda: handler(joint, aten.sin.default, sin_off),
            programs.sine,
            "joint_graph",
            "inference",
            "pass_pattern_0",
            "sin_off",
            sin_off,
            site="torch.sin(x) * 2",
            nodes=("sin",),
        ),
        Plant(
            "graph handler, table without a pass of its own",
            lambda: handler(early, aten.sin.default, sin_off),
            programs.sine,
            "joint_graph",
            "inference",
            None,
            "sin_off",
            sin_off,
            site="torch.sin(x) * 2",
            nodes=("sin",),
        ),
        Plant(
            "graph handler, post-grad stage",
            lambda: handler(second, aten.sin.default, sin_off),
            programs.sine,
            "post_grad",
            "inference",
            "pass_pattern_1",
            "sin_off",
            sin_off,
            site="torch.sin(x) * 2",
            nodes=("sin",),
        ),
        Plant(
            "replacement",
            lambda: replacement(joint),
            programs.exponential,
            "joint_graph",
            "inference",
            "pass_pattern_0",
            "exp_times",
            exp_times,
            site="torch.exp(x)",
            nodes=("exp", "mul"),
        ),
        Plant(
            "named replacement",
            lambda: replacement(third, name="_planted_pattern_3_inference"),
            programs.exponential,
            "post_grad",
            "inference",
            "pass_pattern_2",
            "_planted_pattern_3_inference",
            exp_times,
            site="torch.exp(x)",
            nodes=("exp", "mul"),
        ),
        Plant(
            "replacement in a joint graph with gradients",
            lambda: replacement(joint, training=True),
            programs.exponential_trained,
            "joint_graph",
            "joint",
            "pass_pattern_0",
            "exp_times",
            exp_times,
            site="torch.exp(x)",
            backward=True,
        ),
        Plant(
            "lowering",
            lambda: lowering(third),
            programs.error_function,
            "post_grad",
            "inference",
            "pass_pattern_2",
            "erf_off",
            erf_off,
            site="torch.erf(x)",
            nodes=("erf",),
            replayable=False,
        ),
        Plant(
            "pass before the gradients",
            nothing,
            programs.logarithm,
            "pre_grad",
            "inference",
            "pre_grad_custom_pass",
            "logs_off",
            logs_off,
            config={"pre_grad_custom_pass": logs_off},
        ),
        Plant(
            "pass over the joint graph",
            nothing,
            programs.logarithm_trained,
            "joint_graph",
            "joint",
            "joint_custom_pre_pass",
            "logs_off",
            logs_off,
            backward=True,
            config={"joint_custom_pre_pass": logs_off},
        ),
        Plant(
            "pass after the gradients",
            nothing,
            programs.logarithm,
            "post_grad",
            "inference",
            "post_grad_custom_post_pass",
            "logs_off",
            logs_off,
            config={"post_grad_custom_post_pass": logs_off},
        ),
        Plant(
            "function of a pass of torch",
            pass_function,
            programs.logarithm,
            "joint_graph",
            "inference",
            "remove_noop_ops",
            "remove_noop_ops",
            noops_and_logs_off,
        ),
        Plant(
            "SDPA replacement",
            lambda: attention_scale(ERROR),
            programs.attention,
            "joint_graph",
            "inference",
            "pass_pattern_0",
            "_sfdp_pattern_1_inference",
            fuse_attention._sfdp_pattern_1,
            site="weights @ v",
            siblings=("_sfdp_pattern_3_inference",),
        ),
        Plant(
            "handler in a joint graph",
            lambda: handler(joint, aten.cos.default, cos_off),
            programs.sine_trained,
            "joint_graph",
            "joint",
            "pass_pattern_0",
            "cos_off",
            cos_off,
            site="torch.sin(x) + b",
            nodes=("cos",),
            backward=True,
        ),
        Plant(
            "handler in a backward graph",
            lambda: handler(second, aten.cos.default, cos_off),
            programs.sine_trained,
            "post_grad",
            "backward",
            "pass_pattern_1",
            "cos_off",
            cos_off,
            site="torch.sin(x) + b",
            nodes=("cos",),
            backward=True,
        ),
    ]


PLANTS = {plant.name: plant for plant in _plants()}
