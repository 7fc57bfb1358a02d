"""Which modules of a model are its layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fuzzcompile.run.building import Program
from fuzzcompile.run.reachable import Reached

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def layers_of(program: Program, depth: int | None) -> dict[str, nn.Module]:
    """The modules to watch, by qualified name, outermost first.

    Args:
        program: what is run.
        depth: levels of the module tree, lists of modules not counted: 1 is the children of the root, 0 none. By
            default, the elements of each list of modules that holds a stack, and whatever stands beside such lists.
    """
    chosen: dict[str, nn.Module] = {}
    for name, root in roots_of(program).items():
        if depth is None:
            chosen |= _beside_stacks(root, name)
        else:
            chosen |= _down_to(root, name, depth)
    return chosen


def roots_of(program: Program) -> Mapping[str, nn.Module]:
    """The outermost modules that the program reaches, by name; a program that is a module has one, named ``""``."""
    if isinstance(program.model, nn.Module):
        return {"": program.model}
    reached = [value for value in Reached({"": program.model}).objects if isinstance(value, nn.Module)]
    inner = {id(child) for module in reached for child in module.modules() if child is not module}
    outer = [module for module in reached if id(module) not in inner]
    return {_root_name(module, index, len(outer)): module for index, module in enumerate(outer)}


def _root_name(module: nn.Module, index: int, count: int) -> str:
    return "" if count == 1 else f"{type(module).__name__.lower()}{index}"


def _down_to(module: nn.Module, name: str, depth: int) -> dict[str, nn.Module]:
    if depth == 0:
        return {}
    chosen: dict[str, nn.Module] = {}
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if isinstance(child, _CONTAINERS):
            chosen |= _down_to(child, path, depth)
        else:
            chosen[path] = child
            chosen |= _down_to(child, path, depth - 1)
    return chosen


def _beside_stacks(module: nn.Module, name: str) -> dict[str, nn.Module]:
    chosen: dict[str, nn.Module] = {}
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if _is_stack(child) and isinstance(child, _CONTAINERS):
            chosen |= {f"{path}.{key}": element for key, element in child.named_children()}
        elif isinstance(child, _CONTAINERS) or _holds_stack(child):
            chosen |= _beside_stacks(child, path)
        else:
            chosen[path] = child
    return chosen


def _holds_stack(module: nn.Module) -> bool:
    return any(_is_stack(inner) for inner in module.modules())


def _is_stack(module: nn.Module) -> bool:
    """Whether it lists blocks: two modules or more with parts of their own."""
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    return sum(any(True for _ in child.children()) for child in module.children()) > 1
