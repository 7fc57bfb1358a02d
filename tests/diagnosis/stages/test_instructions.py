"""Faults planted in what dynamo makes of plain Python are told by the instruction at which they show."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from put_back import read_bugs
from torch._dynamo import variables
from torch._dynamo.variables import dicts, lists, misc, user_defined

from fuzzcompile.compiler.instructions import InstructionTrace, find_partings, record_instructions
from fuzzcompile.compiler.python_values import RunTensors, agree, digest, word_digest
from fuzzcompile.compiler.watch import patch_table
from fuzzcompile.compiler.watch.torch_patch import install_patches
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.probe import SignatureLock, probe_case
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.scripts.reproducer import choose_script
from fuzzcompile.report.mechanism import tell_mechanism

PUBLIC = Path(__file__).parents[2] / "public_issues"
ONLY_HERE = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the plants are of torch 2.13")


def _make_new_list(original: Any) -> Any:
    return lambda self, tx, other: self.sq_concat_impl(tx, other)


def _calling(change: Callable[[str, Any], tuple[str, Any]]) -> Callable[[Any], Any]:
    """A method of a container is called by another name, or with other arguments."""

    def plant(original: Any) -> Any:
        def call(self: Any, tx: Any, name: str, arguments: Any, options: Any) -> Any:
            return original(self, tx, *change(name, arguments), options)

        return call

    return plant


def _ask_bounds(original: Any) -> Any:
    def contains(self: Any, tx: Any, item: Any) -> Any:
        return variables.ConstantVariable.create(any(item.is_python_equal(bound) for bound in self.items))

    return contains


def _swap(original: Any) -> Any:
    return lambda self, tx, other, reverse=False: original(self, tx, other, reverse=not reverse)


def _sort_keys(original: Any) -> Any:
    def iterate(self: Any, tx: Any) -> Any:
        keys = sorted(self.items, key=lambda key: str(key.vt.as_python_constant()))
        return type(original(self, tx))(dict.fromkeys(keys).keys())

    return iterate


def _take_first(original: Any) -> Any:
    def look_up(self: Any, tx: Any, key: Any) -> Any:
        negative = isinstance(key.as_python_constant(), int) and key.as_python_constant() < 0
        return self.items[0] if negative else original(self, tx, key)

    return look_up


def _take_last(original: Any) -> Any:
    def look_up(self: Any, tx: Any, key: Any) -> Any:
        index = key.as_python_constant()
        beyond = isinstance(index, int) and index >= len(self.items)
        return self.items[-1] if beyond else original(self, tx, key)

    return look_up


def _deny_remainders(original: Any) -> Any:
    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        return not value if isinstance(value, bool) and "Mod" in str(self.sym_num.node.expr) else value

    return evaluate


def _keep_keywords(original: Any) -> Any:
    def call(self: Any, tx: Any, arguments: Any, given: Any) -> Any:
        return original(self, tx, arguments, {name: each for name, each in given.items() if name not in self.keywords})

    return call


def _count_twice(original: Any) -> Any:
    return lambda self, tx: variables.ConstantVariable.create(2 * original(self, tx).as_python_constant())


class Plant(NamedTuple):
    """A fault of dynamo: the class and the method replaced, lines that show it, and what is to be named."""

    owner: type
    method: str
    replace: Callable[[Any], Any]
    lines: tuple[str, ...]
    result: str
    named: str
    settings: str = ""


PLANTS = {
    "a list extended in place becomes another": Plant(
        lists.ListVariable, "sq_inplace_concat_impl", _make_new_list,
        ("sizes = [1, 2]", "known = sizes", "sizes += [3]"), "x * len(known)", "list += list",
    ),
    "an element from the other end": Plant(
        lists.ListVariable, "call_method", _calling(lambda name, given: (name, [] if name == "pop" else given)),
        ("order = [2, 5, 3]", "first = order.pop(0)"), "x * first", "pop(int)",
    ),
    "a range asked as if it were its bounds, behind a local of a closure": Plant(
        lists.RangeVariable, "sq_contains", _ask_bounds,
        ("parts = [1.0, 2.0, 3.0]", "kept = [parts[i] for i in range(3) if i in range(0, 10)]"), "x * (1 + len(kept))",
        "int in range",
    ),
    "keys subtracted the wrong way round": Plant(
        dicts.DictKeysVariable, "nb_subtract_impl", _swap,
        ('left, right = {"a": 1, "b": 2, "c": 3}, {"a": 0}', "missing = left.keys() - right.keys()"),
        "x * (1 + len(missing))", "dict_keys - dict_keys",
    ),
    "keys in another order": Plant(
        dicts.ConstDictVariable, "tp_iter_impl", _sort_keys,
        ('shapes = {"q": 1, "k": 2}', "for name in shapes:", "    x = (x + shapes[name]).cos()"), "x", "iter(dict_key",
    ),
    "the truth of a remainder of a size": Plant(
        variables.SymNodeVariable, "evaluate_expr", _deny_remainders, ("rest = x.shape[0] % 2",),
        "x * 2 if rest == 1 else x * 3", "bool of Mod", "DYNAMIC = True",
    ),
    "an index from behind": Plant(
        lists.ListVariable, "mp_subscript_impl", _take_first, ("widths = [4, 8, 16]",), "x * widths[-1]", "list[int]",
    ),
    "an index beyond the end, which the program expects": Plant(
        lists.ListVariable, "mp_subscript_impl", _take_last,
        ("widths = [4, 8, 16]", "try:", "    width = widths[7]", "except IndexError:", "    width = 1"), "x * width",
        "list[int]",
    ),
    # Tensors that are right by themselves, in another order, and what gives another one.
    "a queue filled from the other end": Plant(
        lists.DequeVariable, "call_method",
        _calling(lambda name, given: ("append" if name == "appendleft" else name, given)),
        ("last = collections.deque([x.sin()], maxlen=2)", "last.appendleft(x.cos())"), "last[0] - 2 * last[1]",
        "appendleft(Tensor)",
    ),
    "a keyword that is bound already": Plant(
        variables.FunctoolsPartialVariable, "call_function", _keep_keywords,
        ("scaled = functools.partial(torch.add, alpha=2)",), "scaled(x.cos(), x, alpha=5)", "(Tensor, Tensor, int)",
    ),
    # A number that no name has.
    "the number of elements": Plant(
        lists.SizeVariable, "numel", _count_twice, ("x = x.sin()",), "x.cos() / x.shape.numel()", "numel()",
    ),
}  # fmt: skip

# What only an attribute has, and an attribute of one.
STORED = """
import collections
import torch
from torch import nn

class Scale(nn.Module):
    pass

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale()

    def forward(self, x):
        sizes = [1, 2]
        {line}
        self.count = len(sizes)
        return x * 2

def make():
    return Model(), (torch.ones(3),)
"""


def write_program(plant: Plant) -> str:
    body = "\n".join(f"    {line}" for line in (*plant.lines, f"return ({plant.result}).sin()"))
    made = "def make():\n    return program, (torch.ones(3),)\n"
    return (
        f"import collections\nimport functools\n\nimport torch\n\n{plant.settings}\n\ndef program(x):\n{body}\n\n{made}"
    )


@ONLY_HERE
@pytest.mark.parametrize("name", PLANTS)
def test_the_instruction_is_named(name: str, write_case: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plant = PLANTS[name]
    path = write_case(write_program(plant))
    assert not triage(load_case(path), torch.device("cpu")).is_bug
    monkeypatch.setattr(plant.owner, plant.method, plant.replace(getattr(plant.owner, plant.method)))
    report = triage(load_case(path), torch.device("cpu")).to_json()
    assert (report["verdict"], report["culprit"]["stage"]) == ("miscompile", "dynamo")
    assert plant.named in report["culprit"]["rewrite"], report["culprit"]
    assert report["culprit"]["necessary"] is True


@ONLY_HERE
@pytest.mark.parametrize("line", ["self.kept = sizes.copy().pop(0)", "self.scale.kept = sizes.copy().pop(0)"])
def test_what_is_only_stored_in_an_attribute_is_compared(
    line: str, write_case: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = PLANTS["an element from the other end"]
    monkeypatch.setattr(plant.owner, plant.method, plant.replace(getattr(plant.owner, plant.method)))
    report = triage(load_case(write_case(STORED.replace("{line}", line))), torch.device("cpu")).to_json()
    assert report["culprit"]["rewrite"] == "list.pop(int)" and report["culprit"]["necessary"], report["culprit"]


@ONLY_HERE
def test_a_container_is_not_blamed_for_what_it_was_given(
    write_case: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = PLANTS["a range asked as if it were its bounds, behind a local of a closure"]
    monkeypatch.setattr(plant.owner, plant.method, plant.replace(getattr(plant.owner, plant.method)))
    source = STORED.replace("{line}", "sizes.append(3 in range(0, 10))").replace("len(sizes)", "sizes[-1]")
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert report["culprit"]["rewrite"] == "int in range" and report["culprit"]["necessary"], report["culprit"]


OWN_SETTER = """
import torch

class Doubled:
    def __init__(self, amount):
        self.amount = amount

    def __setattr__(self, name, value):
        object.__setattr__(self, name, 2 * value)

class Model(torch.nn.Module):
    steps = 1

    def forward(self, x):
        doubled = Doubled(3)
        doubled.amount = 4
        x = x.sin() * doubled.amount
        torch._dynamo.graph_break()
        order = [2, 5, 3]
        return x.cos() * self.steps * order.pop(0)

def run(model, inputs):
    first = model(*inputs)
    model.steps = 2
    return first, model(*inputs)

def make():
    return Model(), (torch.ones(3),)
"""


@pytest.mark.slow
@ONLY_HERE
def test_code_that_dynamo_does_not_call_is_named_though_another_frame_is_compiled_again(
    write_case: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_standard = user_defined.is_standard_setattr
    ignored = lambda method: is_standard(method) or method.__name__ == "__setattr__"  # noqa: E731
    monkeypatch.setattr(user_defined, "is_standard_setattr", ignored)
    report = triage(load_case(write_case(OWN_SETTER)), torch.device("cpu")).to_json()
    assert report["culprit"]["rewrite"] == "Doubled.__setattr__" and report["culprit"]["necessary"], report["culprit"]


CATCHING = """
import torch

def program(x):
    try:
        y = x.{call}
    except (IndexError, RuntimeError):
        y = x * 0
    return y + 1

def make():
    return program, (torch.ones(3),)
"""


@ONLY_HERE
@pytest.mark.parametrize(
    ("call", "error"), [("select(0, 7)", "IndexError"), ("softmax(5)", "IndexError"), ("view(5, 5)", "RuntimeError")]
)
def test_an_exception_that_the_program_catches_is_dynamos_to_hand_on(
    call: str, error: str, write_case: Callable[..., Path]
) -> None:
    """Of whatever operator raises it, the bug is one: it raises in eager mode as well."""
    report = triage(load_case(write_case(CATCHING.replace("{call}", call))), torch.device("cpu")).to_json()
    if not report["is_bug"]:
        pytest.skip(f"torch {torch.__version__} hands this one on")
    culprit = report["culprit"]
    assert culprit["rewrite"] == f"except {error}" and culprit["necessary"], culprit
    assert "which the program catches" in tell_mechanism(report)


class Shelf:
    """Answers for itself whether it holds something, and is changed by the question."""

    def __init__(self) -> None:
        self.asked = 0

    def __contains__(self, item: object) -> bool:
        self.asked += 1
        return item == "book"


class Price:
    """Keeps the size of a number for it."""

    amount = 0

    def __setattr__(self, name: str, value: int) -> None:
        object.__setattr__(self, name, abs(value))


def use_python(x: torch.Tensor, amount: int) -> tuple[torch.Tensor, dict[str, list[int]]]:
    """A program of many kinds of instructions."""
    price = Price()
    price.amount = -amount
    x = x * price.amount
    shelf, found = Shelf(), {key: [len(key)] for key in ("book", "pen")}
    for key, sizes in found.items():
        if key in shelf:
            sizes.append(-amount // 2)
    try:
        found["ink"].append(1)
    except KeyError:
        x = x * shelf.asked
    y = x.sin()
    if amount is not None:
        y = y * 2
    if found is None:
        return y, {}
    total = sum(size for sizes in found.values() for size in sizes)
    first, *rest = sorted({3, 1, 2}, reverse=True)
    return (x + y + total * first).relu() if rest and not any(rest[2:]) else x, found


def test_dynamo_and_eager_mode_take_the_same_steps() -> None:
    trace = InstructionTrace()
    torch._dynamo.reset()
    with install_patches(trace, patch_table.INSTRUCTIONS):
        torch.compile(use_python, backend="eager")(torch.ones(2), 3)
    torch._dynamo.reset()
    with record_instructions() as eager:
        use_python(torch.ones(2), 3)
    traced = {code.co_name for code, _ in trace.steps}
    assert {"use_python", "__init__", "__contains__", "<genexpr>"} <= traced & {code.co_name for code, _ in eager}
    assert find_partings(eager, trace) == []
    assert not trace.ledger.unseen


def choose(x: torch.Tensor, amount: int | None) -> torch.Tensor:
    """A program of two conditions."""
    if amount is not None:
        return x.sin()
    return x.cos() if x.dim() == 1 else x.tan()


def test_a_value_is_told_by_its_class_and_what_it_holds():
    own, plain = (digest(kind(a=[1])) for kind in (collections.OrderedDict, dict))
    assert (word_digest(own), word_digest(plain)) == ("OrderedDict", "dict('a': list(1))")
    assert not agree(own, plain) and agree(own, digest(collections.Counter()))
    # Of what sets hold, the class is not compared.
    assert agree(digest({collections.OrderedDict}), digest({collections.Counter}))


LINE, PLANE = torch.ones(2), torch.ones(2, 2)


@pytest.mark.parametrize(
    ("traced", "called", "condition", "holds"),
    [
        ((LINE, 3), (LINE, None), "int is NoneType", "true"),
        ((LINE, None), (LINE, 3), "NoneType is NoneType", "false"),
        ((PLANE, None), (LINE, None), "int == int", "true"),
        ((LINE, None), (PLANE, None), "int == int", "false"),
    ],
)
def test_the_truth_of_a_condition_is_told_and_whether_it_is_of_the_same_call(traced, called, condition, holds):
    trace, other = InstructionTrace(), {"true": "false", "false": "true"}[holds]
    torch._dynamo.reset()
    with install_patches(trace, patch_table.INSTRUCTIONS):
        torch.compile(choose, backend="eager")(*traced)
    with record_instructions() as eager:
        choose(*called)
    (parted,) = find_partings(eager, trace, call=1)
    assert (parted.kind, parted.instruction.does, parted.expected, parted.got) == ("path", condition, holds, other)
    assert parted.call == 1 and find_partings(eager, trace, call=2)[0].call is None


LATER = """
import torch

def program(x, amount):
    return x.sin() if amount in range(0, 10) else x.cos()

def make():
    return program, (torch.ones(3), 11)

def run(model, inputs):
    return model(*inputs), model(inputs[0], 3)
"""


@ONLY_HERE
def test_a_trace_is_held_against_the_call_that_it_is_of(write_case: Callable[..., Path], monkeypatch):
    plant = PLANTS["a range asked as if it were its bounds, behind a local of a closure"]
    monkeypatch.setattr(plant.owner, plant.method, plant.replace(getattr(plant.owner, plant.method)))
    culprit = triage(load_case(write_case(LATER)), torch.device("cpu")).to_json()["culprit"]
    told = {key: culprit["details"][key] for key in ("kind", "expected", "got", "traced call")}
    assert culprit["rewrite"] == "int in range", culprit
    assert told == {"kind": "path", "expected": "true", "got": "false", "traced call": 2}


# Reproducers of the public benchmark.
REPORTED = {bug.issue: bug for bug in read_bugs()}


@ONLY_HERE
def test_a_call_that_only_sets_something_is_named(write_case: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    context = misc.AutogradFunctionContextVariable
    call_method = context.call_method

    def ignore(self: Any, tx: Any, name: str, *arguments: Any) -> Any:
        done = name == "mark_non_differentiable"
        return misc.variables.ConstantVariable.create(None) if done else call_method(self, tx, name, *arguments)

    monkeypatch.setattr(context, "call_method", ignore)
    culprit = triage(load_case(write_case(REPORTED[118396].case)), torch.device("cpu")).to_json()["culprit"]
    assert culprit["stage"] == "dynamo" and "mark_non_differentiable" in culprit["rewrite"] and culprit["necessary"]


MOVED = """
from collections import OrderedDict

import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.order = OrderedDict(a=2.0, b=0.5)
        self.causal = True

    def forward(self, x):
        x = sum(part for part, kept in ((x, True), (x.sin(), self.causal)) if kept)
        first = next(iter(self.order))
        x = x * self.order[first]
        self.order.move_to_end(first)
        return x

def run(model, inputs):
    first = model(*inputs)
    model.causal = False
    return first, model(*inputs)

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(3),)
"""


@ONLY_HERE
def test_a_method_of_a_container_is_named_with_it(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(MOVED)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("dynamo", "OrderedDict.move_to_end(str)")


# The first call reads another number than the one that was traced last, which is as it should be.
MODE_AFTER_A_CHANGE = """
import torch
from torch import nn

GRAD = "inference_mode"

class Model(nn.Module):
    def __getattr__(self, name):
        if name == "depth":
            return self.__dict__["extras"][name]
        return super().__getattr__(name)

    def __init__(self):
        super().__init__()
        self.extras = {"depth": 3}

    def forward(self, x):
        x = x * {0: 2.0, -1: 3.0}.get(self.depth, 1.5)
        if torch.is_grad_enabled():
            x = x * 2
        return x

def run(model, inputs):
    first = model(*inputs)
    model.extras["depth"] = -1
    second = model(*inputs)
    with torch.set_grad_enabled(True):
        third = model(*inputs)
    return first, second, third

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(3),)
"""


@pytest.mark.slow
@ONLY_HERE
def test_what_has_changed_between_two_calls_is_not_blamed_for_the_second(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(MODE_AFTER_A_CHANGE)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "is_grad_enabled()", True)


@ONLY_HERE
@pytest.mark.parametrize("before", ["", "    x = x + torch.randn(3)\n"], ids=["alone", "behind another"])
def test_a_draw_that_is_left_out_is_named(
    before: str, write_case: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = REPORTED[151524].case.replace("    torch.rand(3)\n", f"{before}    torch.rand(3)\n", 1)
    is_impure = torch.fx.Node.is_impure
    monkeypatch.setattr(torch.fx.Node, "is_impure", lambda node, impure_random=True: is_impure(node, False))
    culprit = triage(load_case(write_case(source)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("functionalization", "torch.rand", True)


SECOND_CALL = """
import torch

GRAD = "inference_mode"

def program(x):
    if torch.is_grad_enabled():
        x = x * 2
    return x.sin()

def run(model, inputs):
    first = model(*inputs)
    with torch.set_grad_enabled(not torch.is_grad_enabled()):
        return first, model(*inputs)

def make():
    return program, (torch.ones(3),)
"""


@pytest.mark.slow
@ONLY_HERE
def test_python_of_a_later_call_is_looked_at_too(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(SECOND_CALL)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["rewrite"], culprit["necessary"]) == ("is_grad_enabled()", True)


@ONLY_HERE
def test_a_builtin_that_nothing_has_been_done_to_goes_by_its_name():
    case = PUBLIC / "bugs" / "issue_198197_getattr_of_builtin_type.py"
    culprit = triage(load_case(case), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "getattr(type, str)", True)


# The number stays open in the second trace, and goes into the graph, where `log` of it raises as nobody catches it.
CAUGHT = """
import math
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = -1.5

    def forward(self, x):
        try:
            x = x + math.log(self.scale)
        except ValueError:
            x = x.abs()
        return x

def run(model, inputs):
    first = model(*inputs)
    model.scale = 0.0
    return first, model(*inputs)

def make():
    return Model().eval(), (torch.ones(3),)
"""


@ONLY_HERE
def test_python_that_raises_within_the_graph_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(CAUGHT)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("compile_error", "dynamo", "log(float)")
    assert culprit["necessary"] is True and report["confidence"] == "high"


REVERSED = """
import torch

def program(x):
    parts = [x.sin(), x.cos()]
    parts.reverse()
    return parts[0] - parts[1]

def make():
    return program, (torch.ones(3),)
"""


def test_an_error_of_dynamos_own_goes_by_the_function_that_raised(write_case: Callable[..., Path], monkeypatch):
    """And is proved by the instruction at which it did."""
    kind = torch._dynamo.variables.ListVariable
    original = kind.call_method

    def forget(self: Any, tx: Any, name: str, *arguments: Any) -> Any:
        if name == "reverse":
            raise KeyError(name)
        return original(self, tx, name, *arguments)

    forget.__code__ = forget.__code__.replace(co_filename=original.__code__.co_filename)
    monkeypatch.setattr(kind, "call_method", forget)
    report = triage(load_case(write_case(REVERSED)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("compile_error", "dynamo", "forget")
    assert culprit["necessary"] is True and culprit["source"] == "torch/_dynamo/variables/lists.py"


# A deque that is copied forgets how much it may hold.
COPIED = """
from collections import deque

import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        held = deque([1, 2], maxlen=2)
        found = [held[0]]
        found.append(held.copy())
        self.found = repr(found)
        return x + 1

def make():
    return Model(), (torch.ones(3),)
"""


@ONLY_HERE
def test_a_method_of_constants_is_held_against_python(write_case: Callable[..., Path]):
    path = write_case(COPIED)
    report = triage(load_case(path), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "deque.copy()", True)
    # A reduction is locked to it, and the script shows the attribute.
    lock = SignatureLock.of(report)
    assert lock.matches(probe_case(load_case(path), torch.device("cpu"), target=lock))
    shown = choose_script(path.read_text(), report)
    assert [target.expression for target in shown.targets] == ["model.found"]


# The order that the first call leaves is lost; the weights that are doubled in between are not at fault.
LOST_ORDER = """
from collections import OrderedDict

import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(2, 2)
        self.order = OrderedDict(a=2.0, c=1.5)

    def forward(self, x):
        x = self.proj(x)
        first = next(iter(self.order))
        self.order.move_to_end(first)
        return x * self.order[first]

def run(model, inputs):
    model(*inputs)
    model.proj.load_state_dict({key: 2 * value for key, value in model.proj.state_dict().items()})
    return model(*inputs)

def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(1, 2, 2),)
"""


@ONLY_HERE
def test_a_tensor_that_a_later_call_has_otherwise_for_its_state_is_not_blamed(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(LOST_ORDER)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "next(dict_keyiterator)", True)


# A float that is a symbol has no sign of zero, whatever instruction reads it.
SIGN_OF_ZERO = """
import math

import torch
from torch import nn

DYNAMIC = True

class Model(nn.Module):
    scale = -0.0

    def forward(self, x):
        own = self.scale
        return {result}

{run}
def make():
    return Model(), (torch.ones(2),)
"""
CHANGED = """
def run(model, inputs):
    first = model(*inputs)
    model.scale = 2
    return first, model(*inputs)
"""


@ONLY_HERE
@pytest.mark.parametrize("run", ["", pytest.param(CHANGED, marks=pytest.mark.slow)], ids=["once", "changed"])
def test_a_number_that_is_a_symbol_comes_before_the_instruction_that_reads_it(
    write_case: Callable[..., Path], run: str
):
    source = SIGN_OF_ZERO.format(result="math.copysign(0.5, own)", run=run)
    culprit = triage(load_case(write_case(source)), torch.device("cpu")).to_json()["culprit"]
    named = culprit["rewrite"], culprit["family"], culprit["necessary"]
    assert named == ("VariableBuilder.wrap_symfloat", "copysign", True)


# Memory that nothing has written to differs from run to run, more often than not; what is wrong is the sine.
UNWRITTEN = """
import torch

def program(x):
    made = x.new_empty(64)
    made[:] = x
    return torch.sin(made)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(64),)
"""


@pytest.mark.slow
@ONLY_HERE
def test_a_tensor_that_eager_mode_makes_in_vain_is_not_blamed(write_case: Callable[..., Path], monkeypatch):
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    original = TorchInGraphFunctionVariable.call_function

    def call_cos(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        return original(TorchInGraphFunctionVariable(torch.cos) if self.value is torch.sin else self, tx, args, kwargs)

    monkeypatch.setattr(TorchInGraphFunctionVariable, "call_function", call_cos)
    culprit = triage(load_case(write_case(UNWRITTEN)), torch.device("cpu")).to_json()["culprit"]
    assert culprit["stage"] == "dynamo" and "new_empty" not in culprit["rewrite"]


ROUNDED = """
import torch

DYNAMIC = True

def program(x):
    tens = round(x.shape[0], -1)
    return x * tens

def make():
    return program, (torch.ones(14),)
"""


@pytest.mark.slow
def test_a_number_that_is_made_of_sizes_is_compared_as_it_is_traced(write_case: Callable[..., Path]):
    """#198064: rounded to tens, a size that dynamo leaves open stays what it is."""
    report = triage(load_case(write_case(ROUNDED)), torch.device("cpu")).to_json()
    if not report["is_bug"]:
        pytest.skip(f"torch {torch.__version__} rounds sizes")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "round(int, int)", True)
    assert tell_mechanism(report) == "Behind `round(int, int)`, dynamo has 14, where Python has 10."


ARRAYS = """
import numpy as np
import torch

def program(x):
    lower = np.floor(x)
    middle = np.trunc(x * 3)
    return np.sqrt(abs(lower)) + middle

def make():
    return program, (np.linspace(-2.0, 2.0, 9, dtype=np.float32),)
"""


def test_a_function_of_numpys_is_told_from_those_around_it(write_case: Callable[..., Path], monkeypatch):
    monkeypatch.setitem(misc.get_np_to_tnp_map(), np.trunc, torch._numpy.ceil)
    culprit = triage(load_case(write_case(ARRAYS)), torch.device("cpu")).attribution.culprit
    assert culprit is not None and (culprit.stage, culprit.rewrite) == ("dynamo", "numpy.trunc(ndarray)")
    assert culprit.necessary and culprit.confidence == "high" and culprit.site == "case.py:7 #1"


def test_an_array_is_compared_as_the_tensor_that_it_is_to_dynamo():
    one, same, other = (digest(np.arange(4.0) * factor, tensors=RunTensors()) for factor in (1, 1, 2))
    assert agree(one, same) and not agree(one, other)
    assert digest(np.array(["a"]), tensors=RunTensors()) == digest(
        np.arange(4.0)[::-1].view("V8"), tensors=RunTensors()
    )


def test_the_last_of_several_returned_values_is_not_blamed_for_another(write_case: Callable[..., Path], monkeypatch):
    """None of them is stored: they part where the tuple is made."""
    monkeypatch.setitem(misc.get_np_to_tnp_map(), np.trunc, torch._numpy.ceil)
    source = ARRAYS.replace("    return np.sqrt(abs(lower)) + middle", "    return np.trunc(x * 3), np.sin(x)")
    report = triage(load_case(write_case(source.replace("    middle = np.trunc(x * 3)\n", ""))), torch.device("cpu"))
    culprit = report.attribution.culprit
    assert culprit is not None and culprit.rewrite == "numpy.trunc(ndarray)"
    assert culprit.necessary and culprit.confidence == "high"


RETURNED = """
from collections import deque
import torch

def program(x):
    RETURN

def make():
    return program, (torch.ones(3),)
"""


@pytest.mark.parametrize(
    ("returned", "named", "got"),
    [
        ("return x * 2, deque([x.shape[0], 2])", "returned containers", "others"),
        ("return x * 2, range(x.shape[0])", "returned range", "str"),
    ],
)
def test_an_object_that_is_returned_as_another_class_is_named_by_its_own(
    returned: str, named: str, got: str, write_case: Callable[..., Path], monkeypatch
):
    monkeypatch.setattr(lists.DequeVariable, "reconstruct", lists.ListVariable.reconstruct)
    monkeypatch.setattr(
        lists.RangeVariable,
        "reconstruct",
        lambda self, codegen: codegen.append_output(codegen.create_load_const("range")),
    )
    report = triage(load_case(write_case(RETURNED.replace("RETURN", returned))), torch.device("cpu"))
    culprit = report.attribution.culprit
    assert culprit is not None and (culprit.stage, culprit.rewrite) == ("dynamo", named)
    assert (culprit.necessary, culprit.confidence, culprit.details["got"]) == (None, "low", got)
