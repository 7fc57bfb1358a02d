"""Bugs in the passes over graphs: patterns, plain passes, the user's own, reinplacing, constant folding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import planting
import torch
from pattern_tables import restored
from planting import PLANTS, Plant
from torch._inductor.fx_passes import joint_graph, post_grad, reinplace

from plants import Expected, Planted, nothing, patched

aten = torch.ops.aten
ERROR = planting.ERROR


def plants() -> list[Planted]:
    """The plants of the tests, and further ones."""
    return [*(_of_test(plant) for plant in PLANTS.values()), *_raising(), *_passes()]


# -- what the tests plant -----------------------------------------------------------------------------


def _of_test(plant: Plant) -> Planted:
    entries = {name: f"planting.{function.__name__}" for name, function in plant.config.items()}
    options = ", ".join(f"{name!r}: {function}" for name, function in entries.items())
    case = f"import planting, programs\nmake = programs.{plant.program.__name__}\nBACKWARD = {plant.backward}\n"
    if options:
        case += f"OPTIONS = {{{options}}}\n"
    names: tuple[str, ...] = (plant.rewrite,)
    if plant.site is None and plant.pass_name is not None:  # a whole pass, which its setting names as well
        names = (plant.rewrite, plant.pass_name)
    return Planted(plant.name, plant.install, case, Expected((plant.stage,), names, plant.pass_name))


# -- what raises --------------------------------------------------------------------------------------


def _raising() -> list[Planted]:
    joint, last = joint_graph.patterns, post_grad.pass_patterns[2]

    def check() -> AbstractContextManager[None]:
        return planting.handler(last, aten.sin.default, planting.sin_off, planting.raise_in_check)

    def handler() -> AbstractContextManager[None]:
        return planting.handler(joint, aten.sin.default, planting.raise_in_handler)

    return [
        Planted(
            "handler that raises",
            handler,
            _SINE,
            Expected(("joint_graph",), ("raise_in_handler",), "pass_pattern_0"),
        ),
        Planted("check that raises", check, _SINE, Expected(("post_grad",), ("sin_off",), "pass_pattern_2")),
        Planted(
            "pass that raises",
            lambda: patched(reinplace, "reinplace_inplaceable_ops_core", _raising_core),
            _SINE,
            Expected(("post_grad",), ("reinplace_inplaceable_ops",)),
        ),
    ]


def _raising_core(core: Callable[..., None]) -> Callable[..., None]:
    def raising(graph: torch.fx.Graph) -> None:
        raise ValueError("planted in a pass")

    return raising


_SINE = "import programs\nmake = programs.sine\n"


# -- plain passes of torch ----------------------------------------------------------------------------


def _passes() -> list[Planted]:
    return [
        Planted(
            "constant folding",
            constant_folding,
            _CONSTANT,
            Expected(("joint_graph",), ("constant_fold_uniform_value",)),
        ),
        Planted(
            "reinplaced though used later",
            lambda: patched(reinplace, "reinplace_inplaceable_ops_core", _always_in_place),
            _INDEX_PUT,
            Expected(("post_grad",), ("reinplace_inplaceable_ops",)),
        ),
        Planted(
            "mutation lost",
            lambda: patched(reinplace, "reinplace_inplaceable_ops_core", _copy_lost),
            _MUTATED,
            Expected(("post_grad",), ("reinplace_inplaceable_ops",)),
        ),
        Planted(
            "lost check of an index",
            index_clamped,
            _INDEX,
            Expected(("post_grad",), ("index_clamp",), "pass_pattern_1"),
        ),
        Planted(
            "user's pass over the joint graph of inference",
            nothing,
            "import planting, programs\nmake = programs.logarithm\n"
            "OPTIONS = {'joint_custom_post_pass': planting.logs_off}\n",
            Expected(("joint_graph",), ("logs_off", "joint_custom_post_pass")),
        ),
        Planted(
            "two wrong patterns",
            two_patterns,
            "import programs\nmake = programs.sine_and_exponential\n",
            Expected(("post_grad",), ("sin_off", "exp_times"), "pass_pattern_0", ("sin_off", "exp_times")),
        ),
    ]


@contextlib.contextmanager
def constant_folding() -> Iterator[None]:
    """A uniform value is folded to one that is off."""

    def off(folded: Callable[..., None]) -> Callable[..., None]:
        def add(self: Any, node: torch.fx.Node, tensor: torch.Tensor) -> None:
            folded(self, node, tensor)
            if node.target is aten.exp.default:
                self.node_replacements[node] *= 1 + ERROR

        return add

    with patched(joint_graph.UniformValueConstantFolder, "add_node_replacement", off):
        yield


def _always_in_place(core: Callable[..., None]) -> Callable[..., None]:
    def wrong(graph: torch.fx.Graph) -> None:
        core(graph)
        for node in graph.find_nodes(op="call_function", target=aten.index_put.default):
            node.target = aten.index_put_.default

    return wrong


def _copy_lost(core: Callable[..., None]) -> Callable[..., None]:
    def wrong(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
            graph.erase_node(node)
        core(graph)

    return wrong


def index_clamp(match: Any, x: Any, i: Any) -> None:
    """The index is brought into range before it is used."""
    match.replace_by_example(lambda x, i: torch.index_select(x, 0, i.clamp(0, 3)), [x, i])


@contextlib.contextmanager
def index_clamped() -> Iterator[None]:
    """A pattern that makes every index valid."""
    table = post_grad.pass_patterns[1]
    with restored(table):
        from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

        pattern = CallFunction(aten.embedding.default, KeywordArg("x"), KeywordArg("i"))
        register_graph_pattern(pattern, pass_dict=table)(index_clamp)
        yield


@contextlib.contextmanager
def two_patterns() -> Iterator[None]:
    """Two patterns, each of them wrong on its own."""
    first, second, _ = post_grad.pass_patterns
    with planting.handler(first, aten.sin.default, planting.sin_off), planting.replacement(second):
        yield


_CONSTANT = """
import torch
def f(x):
    return x * torch.exp(torch.full((3, 5), 0.5)) + 1
def make():
    torch.manual_seed(0)
    return f, (torch.randn(3, 5),)
"""
_INDEX_PUT = """
import torch
def f(x, i, v):
    y = torch.sin(x)
    z = torch.index_put(y, (i,), v)
    return z * 2, y + 1
def make():
    torch.manual_seed(0)
    return f, (torch.randn(8, 16), torch.tensor([1, 3]), torch.randn(2, 16))
"""
_MUTATED = """
import torch
def f(x, y):
    x.mul_(2).add_(y)
    return x.sum(-1)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(8, 16), torch.randn(8, 16))
"""
_INDEX = """
import torch
import torch.nn.functional as F
def f(i, w):
    return F.embedding(i, w) * 2
def make():
    torch.manual_seed(0)
    return f, (torch.tensor([0, 3, 7]), torch.randn(4, 8))
"""
