"""Python that asks whether it is being compiled: eager mode on the paths that compiled programs take.

``torch.compiler.is_compiling()`` returns a flag of that module. In its place stands an object here whose truth depends
on the code that asks, so that single branches can be switched.

Dynamo also traces every optimizer as if its user had set ``capturable=True``, where the optimizer has that setting:
that is a place of dynamo's own, which counts as asking at each step of such an optimizer.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.run.code_files import shorten_file
from fuzzcompile.run.torch_attributes import ReplacedAttribute

# Functions by whose names the same question is asked, of torch and of libraries: whoever calls them asks.
_QUESTION = re.compile(r"is_(\w+_)?compiling")


class AskingPlace(NamedTuple):
    """A line that branches on whether it is compiled, of torch or of a program.

    The ``file`` of a package stands relative to the folder that holds torch, of any other its name does.
    """

    file: str
    line: int
    function: str

    @property
    def is_of_torch(self) -> bool:
        """Return whether torch itself asks there, and not the program or a library that it uses."""
        return self.file.startswith("torch/")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


class _Asked:
    def __init__(self, only: Collection[AskingPlace] | None) -> None:
        self._only, self.places = only, dict[AskingPlace, None]()

    def __bool__(self) -> bool:
        return self.ask(_find_place(sys._getframe(1)))

    def ask(self, place: AskingPlace | None) -> bool:
        if place is None:
            return False
        self.places.setdefault(place)
        return self._only is None or place in self._only


def _find_place(frame: FrameType | None) -> AskingPlace | None:
    """The place that asks, outside of torch's private packages, which hold the compiler."""
    while frame is not None and _QUESTION.fullmatch(frame.f_code.co_name):
        frame = frame.f_back
    if frame is None:
        return None
    place = AskingPlace(shorten_file(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)
    return None if place.file.startswith("torch/_") else place


@contextlib.contextmanager
def pretend_compiling(only: Collection[AskingPlace] | None = None) -> Iterator[Collection[AskingPlace]]:
    """Let Python take the branches of compiled programs in this block, all of them or only those of places.

    Yields:
        The places that have asked so far, in their order.
    """
    asked = _Asked(only)
    with COMPILING.replace(asked), _set_capturable(asked):
        yield asked.places.keys()


@contextlib.contextmanager
def _set_capturable(asked: _Asked) -> Iterator[None]:
    """Let each step of an optimizer read ``capturable=True``, if asking at dynamo's place says so."""
    handler, changed = getattr(OptimizerVariable, "_set_capturable", None), list[dict[str, Any]]()
    file, line = find_source(handler)
    place = None if file is None or line is None else AskingPlace(file, line, "_set_capturable")

    def enter(optimizer: torch.optim.Optimizer, *_: object) -> None:
        groups = [group for group in optimizer.param_groups if group.get("capturable") is False]
        if groups and asked.ask(place):
            changed.extend(groups)
            for group in groups:
                group["capturable"] = True

    def leave(*_: object) -> None:
        while changed:
            changed.pop()["capturable"] = False

    hooks = register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave)
    try:
        yield
    finally:
        leave()  # a step that raises has no end
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def pretend_tracing() -> Iterator[None]:
    """Let all Python hear that it is compiled, and exported, in this block."""
    with COMPILING.replace(True), EXPORTING.replace(True):
        yield


def _probe_flags() -> str | None:
    with pretend_tracing():
        heard = torch.compiler.is_compiling() and torch.compiler.is_exporting()
    return None if heard else "torch.compiler does not return it"


# What is_compiling() and is_exporting() return.
COMPILING = ReplacedAttribute("torch.compiler", "_is_compiling_flag", probe=_probe_flags)
EXPORTING = ReplacedAttribute("torch.compiler", "_is_exporting_flag", probe=_probe_flags)
