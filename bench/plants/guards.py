"""Guards of dynamo that are left out or weakened, by kind, each with a program whose second call should notice.

A guard that is left out is asked for as ever, and no check is made of it; one that is weakened checks the type alone.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch._dynamo.variables  # noqa: F401 - they hold makers of guards
from torch._dynamo.guards import GuardBuilder


class GuardFault(NamedTuple):
    """A kind of guard that is left out (``kinds``, any of which may be named), and a program that shows it.

    ``body`` is the code of ``forward`` or of a function, ``state`` what it reads, set before the first call, and
    ``change`` what happens between two calls, both code on ``self``. ``arguments`` are those of each call.
    """

    kinds: tuple[str, ...]
    reads: str
    state: str
    body: str
    change: str
    weakened: bool = False
    arguments: tuple[str, str] = ("x", "x")
    names: str = "x"
    settings: str = ""

    def __str__(self) -> str:
        return f"{self.kinds[0]}, {'weakened' if self.weakened else 'left out'}: {self.reads}"

    def write_case(self) -> str:
        """The program as a case file, whose ``run`` makes two calls."""
        return _SOURCE.format(
            state=textwrap.indent(self.state, " " * 8),
            body=textwrap.indent(self.body, " " * 8),
            change=textwrap.indent(self.change, " " * 4),
            first=self.arguments[0],
            second=self.arguments[1],
            names=self.names,
            settings=self.settings,
        )

    @contextlib.contextmanager
    def plant(self) -> Iterator[None]:
        """Leave the guards out, or weaken them, in the block."""
        with contextlib.ExitStack() as stack:
            for kind in self.kinds:
                for owner, name in _list_places(getattr(GuardBuilder, kind, None)):
                    stack.enter_context(mock.patch.object(owner, name, _make(kind, weakened=self.weakened)))
            yield


def _list_places(made: object) -> list[tuple[type, str]]:
    """Where a maker of guards is held: by the builder, and by variables that keep it as their own."""
    modules = [module for name, module in sys.modules.items() if name.startswith("torch._dynamo.variables.")]
    classes = {held for module in modules for held in vars(module).values() if isinstance(held, type)}
    found = [(owner, name) for owner in (GuardBuilder, *classes) for name, held in vars(owner).items() if held is made]
    return found if made is not None else []


def _make(kind: str, *, weakened: bool) -> Callable[..., Any]:
    original, of_type = getattr(GuardBuilder, kind), GuardBuilder.TYPE_MATCH

    @functools.wraps(original)
    def make(self: Any, guard: Any, *args: object, **kwargs: object) -> None:
        if weakened:
            of_type(self, guard)

    return make


_SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

{settings}
GLOBAL = 2.0


class Config:
    kind = 2.0


class Other(Config):
    pass


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{state}

    def forward(self, {names}):
{body}


def scaled(x, by=2.0):
    return x * by


def make():
    global GLOBAL
    GLOBAL, Config.kind, scaled.__defaults__ = 2.0, 2.0, (2.0,)
    torch.manual_seed(0)
    return Model(), (torch.linspace(-1, 1, 12).reshape(3, 4),)


def run(model, inputs):
    global GLOBAL
    self, (x,) = getattr(model, "_orig_mod", model), inputs
    with torch.enable_grad():
        first = model({first})
{change}
        return first, model({second})
"""


def _change(code: str) -> str:
    return textwrap.indent(code, " " * 4)


FAULTS = (
    GuardFault(("EQUALS_MATCH",), "a float of a module", "self.scale = 2.0", "return x * self.scale",
               _change("self.scale = 3.0")),
    GuardFault(("EQUALS_MATCH",), "a number of loops", "self.steps = 1",
               "for _ in range(self.steps):\n    x = torch.sin(x)\nreturn x", _change("self.steps = 3")),
    GuardFault(("EQUALS_MATCH",), "a word", "self.act = 'gelu'",
               "return F.gelu(x) if self.act == 'gelu' else F.relu(x)", _change("self.act = 'relu'")),
    GuardFault(("EQUALS_MATCH",), "a float of a module", "self.scale = 2.0", "return x * self.scale",
               _change("self.scale = 3.0"), weakened=True),
    GuardFault(("EQUALS_MATCH",), "a word", "self.act = 'gelu'",
               "return F.gelu(x) if self.act == 'gelu' else F.relu(x)", _change("self.act = 'relu'"), weakened=True),
    GuardFault(("EQUALS_MATCH",), "a global", "pass", "return x * GLOBAL", _change("GLOBAL = 3.0")),
    GuardFault(("EQUALS_MATCH",), "a class attribute", "self.config = Config()", "return x * self.config.kind",
               _change("Config.kind = 3.0")),
    GuardFault(("EQUALS_MATCH",), "a default argument", "pass", "return scaled(x)",
               _change("scaled.__defaults__ = (3.0,)")),
    GuardFault(("EQUALS_MATCH",), "an attribute of a function", "scaled.by = 2.0", "return x * scaled.by",
               _change("scaled.by = 3.0")),
    GuardFault(("EQUALS_MATCH",), "an item of a list", "self.scales = [2.0, 3.0]",
               "return x * self.scales[0] + self.scales[1]", _change("self.scales[1] = 5.0")),
    GuardFault(("EQUALS_MATCH",), "an item of a dict", "self.sizes = {'eps': 1.0}",
               "return x / self.sizes['eps']", _change("self.sizes['eps'] = 4.0")),
    GuardFault(("BOOL_MATCH", "CONSTANT_MATCH"), "a flag", "self.flip = False", "return -x if self.flip else x + 1",
               _change("self.flip = True")),
    GuardFault(("BOOL_MATCH", "CONSTANT_MATCH"), "the mode of a module", "pass",
               "return x * 2 if self.training else x * 3", _change("self.eval()")),
    GuardFault(("NONE_MATCH", "CONSTANT_MATCH"), "an option that is None", "self.shift = None",
               "return x + 1 if self.shift is None else x + self.shift", _change("self.shift = 5.0")),
    GuardFault(("SEQUENCE_LENGTH",), "the length of a list", "self.scales = [2.0, 3.0]",
               "for scale in self.scales:\n    x = x * scale\nreturn x", _change("self.scales.append(7.0)")),
    GuardFault(("DICT_CONTAINS", "DICT_NOT_CONTAINS", "DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"), "a key of a dict",
               "self.extra = {'gain': 1}", "return x * 3 if 'bias' in self.extra else x + 1",
               _change("del self.extra['gain']\nself.extra['bias'] = 1")),
    GuardFault(("EQUALS_MATCH", "SET_CONTAINS", "SET_NOT_CONTAINS"), "a member of a set", "self.kept = {'a', 'b'}",
               "return x * 3 if 'c' in self.kept else x + 1", _change("self.kept.remove('b')\nself.kept.add('c')")),
    GuardFault(("TYPE_MATCH", "ID_MATCH", "CLASS_MATCH"), "the class of an object", "self.config = Config()",
               "return x * 2 if isinstance(self.config, Other) else x * 5", _change("self.config = Other()")),
    GuardFault(("ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "TYPE_MATCH"),
               "a function of a module", "self.act = torch.sin", "return self.act(x)", _change("self.act = torch.cos")),
    GuardFault(("HASATTR", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "NOT_PRESENT_IN_GENERIC_DICT", "DICT_KEYS_MATCH"),
               "whether there is an attribute", "self.config = Config()",
               "return x * 3 if hasattr(self.config, 'extra') else x + 1", _change("self.config.extra = 1")),
    GuardFault(("TENSOR_MATCH",), "the dtype of an input", "pass",
               "return x * 2 if x.dtype == torch.float32 else x * 3",
               "    pass", arguments=("x", "x.to(torch.bfloat16)")),
    GuardFault(("TENSOR_MATCH",), "whether an input requires a gradient", "pass",
               "return x * 2 if x.requires_grad else x * 3", "    pass",
               arguments=("x", "x.clone().requires_grad_()")),
    GuardFault(("GLOBAL_STATE", "GRAD_MODE"), "the grad mode", "pass",
               "return x * 2 if torch.is_grad_enabled() else x * 3", "    torch.set_grad_enabled(False)"),
    GuardFault(("DUPLICATE_INPUT",), "whether two inputs are one", "pass",
               "return x * 2 if x is y else x + y", "    pass", arguments=("x, x", "x, x + 1"), names="x, y"),
    GuardFault(("SHAPE_ENV",), "a branch on a size", "pass", "return x * 2 if x.shape[0] > 4 else x * 3", "    pass",
               arguments=("x", "torch.cat((x, x))"), settings="DYNAMIC = True"),
)  # fmt: skip
