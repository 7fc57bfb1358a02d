"""A call that runs the graph of an earlier one, though Python state has changed: what changed, and the guard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plants.guards import FAULTS, GuardFault
from torch._dynamo.guards import GuardBuilder

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.scripts.reproducer import choose_script

CPU = torch.device("cpu")
# One of each way in which a change is held and a guard is at fault.
QUICK = ("a float of a module", "a word", "the length of a list", "whether two inputs are one", "the grad mode")


def judge(write_case: Any, source: str) -> dict[str, Any]:
    return triage(load_case(write_case(source)), CPU).to_json()


def two_calls(made: str, change: str, before: str = "") -> str:
    """A case of two calls, with a change in between."""
    return f"""
import torch
from torch._dynamo.guards import GuardBuilder
from torch import nn
{before}

def make():
    {made}

def run(model, inputs):
    first = model(*inputs)
    {change}
    return first, model(*inputs)
"""


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.reads in QUICK], ids=str)
def test_a_guard_that_is_left_out_or_weakened_is_named(write_case, fault: GuardFault):
    source = fault.write_case()
    assert judge(write_case, source)["verdict"] in ("equal", "rounding")
    with fault.plant():
        report = judge(write_case, source)
    culprit = report["culprit"]
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("stale", "compiled", "high")
    assert (culprit["stage"], culprit["necessary"]) == ("dynamo", True) and culprit["rewrite"] in fault.kinds
    assert "reset" in report["workaround"]["how"] and report["workaround"]["verified"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.reads not in QUICK], ids=str)
def test_any_kind_of_guard_is_named(write_case, fault: GuardFault):
    with fault.plant():
        report = judge(write_case, fault.write_case())
    assert report["verdict"] == "stale" and report["culprit"]["rewrite"] in fault.kinds


def test_a_gradient_that_a_parameter_has_by_now_is_a_fact(write_case):
    fault = GuardFault(
        ("NONE_MATCH", "CONSTANT_MATCH"),
        "the gradient of a parameter",
        "self.weight = nn.Parameter(torch.ones(3))",
        "return x + 1 if self.weight.grad is None else x * 3",
        "    self.weight.grad = torch.ones(3)",
    )
    with fault.plant():
        culprit = judge(write_case, fault.write_case())["culprit"]
    assert culprit["rewrite"] in fault.kinds and culprit["necessary"]
    assert culprit["details"]["between_calls"] == ["weight.grad: None, then float32 [3]"]


def test_what_changed_between_the_calls_stands_in_the_answer(write_case):
    fault = next(fault for fault in FAULTS if fault.reads == "a global")
    with fault.plant():
        report = judge(write_case, fault.write_case())
    assert report["culprit"]["details"]["between_calls"] == ["GLOBAL: 2.0, then 3.0"]
    assert "GLOBAL: 2.0, then 3.0" in report["detail"]


@pytest.mark.slow
def test_a_hook_that_dynamo_does_not_guard_on_purpose_is_by_design(write_case):
    source = two_calls(
        "torch.manual_seed(0); return Wrapped(), (torch.ones(2, 4),)",
        "model.act.register_forward_hook(lambda module, given, out: out * 3)",
        "class Wrapped(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.act = nn.GELU()\n"
        "    def forward(self, x):\n        return self.act(x)",
    )
    report = judge(write_case, source)
    assert (report["verdict"], report["is_bug"], report["severity"]) == ("by_design", False, "by_design")
    assert "skip_nnmodule_hook_guards = False" in report["workaround"]["how"]
    assert "_hooks" in report["culprit"]["details"]["between_calls"][0]


@pytest.mark.slow
def test_a_graph_that_is_wrong_once_sizes_are_left_open_is_not_stale(write_case, monkeypatch):
    """It is compiled for the very call that it is wrong in."""
    from torch._inductor import lowering

    def twice(x: Any) -> Any:
        symbolic = not all(size.is_number for size in x.get_size())
        return original(lowering.mul(x, 2) if symbolic else x)

    aten = torch.ops.aten.sin.default
    original = lowering.lowerings[aten]
    monkeypatch.setitem(lowering.lowerings, aten, twice)
    source = "import torch\n\ndef make():\n    return torch.sin, (torch.linspace(0, 1, 6),)\n\n"
    source += "CALLS = [(torch.linspace(0, 1, 9),)]\n"
    report = judge(write_case, source)
    assert report["is_bug"] and report["verdict"] == "miscompile"


def test_a_change_that_the_callable_does_not_reach_is_told_with_low_confidence(write_case):
    """Attributes of modules of Python are not among the state that is looked at."""
    before = "import colorsys\n\ndef scale(x):\n    return x * colorsys.SCALE"
    source = two_calls("colorsys.SCALE = 2.0; return scale, (torch.ones(3),)", "colorsys.SCALE = 5.0", before)
    with FAULTS[0].plant():
        report = judge(write_case, source)
    assert (report["verdict"], report["confidence"]) == ("stale", "low")
    assert report["culprit"]["rewrite"] is None and "nothing that it reaches" in report["detail"]


def test_another_order_of_keys_is_no_matter_of_their_number(write_case):
    """Dynamo guards the length of a dict that a program makes a list of, and not the order of its keys."""
    before = "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.options = {}\n"
    before += "    def forward(self, x):\n        return x.sin() if list(self.options)[0] == 'scale' else x.cos()\n"
    made = "model = Model(); model.options = {'scale': 2.0, 'shift': 0.5}; return model, (torch.ones(3),)"
    report = judge(write_case, two_calls(made, "model.options = {'shift': 0.5, 'scale': 2.0}", before))
    culprit = report["culprit"]
    assert (report["verdict"], culprit["family"]) == ("stale", "no guard on keys of an item")
    assert culprit["details"]["guard"] == "not asked for"


@pytest.mark.slow
def test_the_one_change_that_matters_is_found_among_many(write_case):
    """Every entry of a table changes between the calls; the program reads one of them."""
    before = "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.table = {}\n"
    before += "    def forward(self, x):\n        return x * self.table['k7']\n"
    made = "model = Model(); model.table = {f'k{n}': 2.0 for n in range(16)}; return model, (torch.ones(3),)"
    change = "model.table.update({f'k{n}': 3.0 + n for n in range(16)})"
    with FAULTS[0].plant():
        report = judge(write_case, two_calls(made, change, before))
    assert report["verdict"] == "stale"
    assert report["culprit"]["details"]["between_calls"] == [
        "table['k7']: 2.0, then 10.0 (of 16 changes before that call)"
    ]


@pytest.mark.slow
def test_an_object_that_another_equal_one_replaces_is_told_apart(write_case):
    """Dynamo guards the contents of a list, and not which list it is."""
    before = "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    before += "        self.given, self.kept = [1.0, 2.0], [1.0, 2.0]\n"
    before += "    def forward(self, x):\n        return x.sin() if self.given is self.kept else x.cos()\n"
    report = judge(write_case, two_calls("return Model(), (torch.ones(3),)", "model.kept = model.given", before))
    assert report["verdict"] == "stale"
    (change,) = report["culprit"]["details"]["between_calls"]
    assert change.startswith("kept: [1.0, 2.0], then another that looks the same")


def test_keys_come_before_what_they_hold(write_case):
    """A dict is replaced by one of more keys and other items; the program unpacks it, which dynamo does not guard."""
    before = "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.options = {}\n"
    before += "    def forward(self, x):\n        return x.sin() if [*self.options][-1:] == ['scale'] else x.cos()\n"
    made = "model = Model(); model.options = {'scale': 0.5}; return model, (torch.ones(3),)"
    report = judge(write_case, two_calls(made, "model.options = {'scale': 2.0, 'shift': 0.5}", before))
    assert (report["verdict"], report["culprit"]["family"]) == ("stale", "no guard on keys of an item")


def test_a_number_that_dynamo_leaves_open_is_no_stale_graph(write_case):
    """Where the list's numbers have changed dynamo compiles anew, with numbers left open, and then answers wrongly."""
    before = "class Model(nn.Module):\n    factors = [2.0, 0.5]\n"
    before += "    def forward(self, x):\n        return x.sin() if 0.5 in self.factors else x.cos()\n"
    made = "Model.factors = [2.0, 0.5]; return Model(), (torch.ones(3),)"
    report = judge(write_case, two_calls(made, "Model.factors.reverse()", before))
    assert report["verdict"] == "miscompile"
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("float in list", True)


_FROZEN = """
import torch
from torch._dynamo.guards import GuardBuilder

CONFIG = {"inductor": {"freezing": True}}
GRAD = "no_grad"


def make():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3).eval(), (torch.randn(2, 3),)


def run(model, inputs):
    first = model(*inputs)
    model.weight.mul_(2)
    return first, model(*inputs)
"""


@pytest.mark.slow
def test_a_weight_that_changes_once_it_is_frozen_is_stale_by_design(write_case):
    report = judge(write_case, _FROZEN)
    culprit = report["culprit"]
    assert (report["verdict"], report["is_bug"], report["severity"]) == ("by_design", False, "by_design")
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("freezing", "freezing", True)
    assert "can no longer be updated" in culprit["details"]["design"]


TRACED_AGAIN = """
import torch
from torch._dynamo.guards import GuardBuilder

DYNAMIC = True


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)
        weights = ((q @ k.transpose(-2, -1)) / 1.4142).float().softmax(-1).to(torch.float16)
        return weights @ v.to(weights.dtype)


CALLS = [tuple(torch.randn(*sizes, 4, 2) for _ in range(3)) for sizes in ((2, 1), (4, 18))]


def make():
    torch.manual_seed(0)
    return Attention().eval(), tuple(torch.randn(1, 13, 4, 2) for _ in range(3))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the rewrite is right on others")
def test_a_graph_that_was_traced_for_the_wrong_call_itself_is_not_stale(write_case):
    """What the calls before left open makes it another graph than a fresh compile of that call."""
    report = judge(write_case, TRACED_AGAIN)
    assert (report["verdict"], report["culprit"]["stage"]) == ("metadata", "joint_graph")


IN_A_MODE = """
import torch
from torch._dynamo.guards import GuardBuilder
from torch.overrides import TorchFunctionMode

class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.sin else out

def program(x):
    return torch.sin(x) + 1

def make():
    return program, (torch.ones(3),)

def run(model, inputs):
    first = model(*inputs)
    with Doubled():
        return first, model(*inputs)
"""


@pytest.mark.slow
def test_a_mode_that_no_guard_asks_for_is_what_changed(write_case, monkeypatch):
    monkeypatch.setattr(GuardBuilder, "TORCH_FUNCTION_STATE", lambda self, guard: None)
    report = triage(load_case(write_case(IN_A_MODE)), CPU).to_json()
    assert report["verdict"] == "stale" and "'', then 'Doubled'" in report["detail"]
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("TORCH_FUNCTION_STATE", True)


GIVEN_A_DICT = """
import torch

def program(batch):
    hidden, gate = batch["hidden"], batch.get("gate")
    return hidden.sin() if gate is None else hidden.sin() * gate

def make():
    return program, ({"hidden": torch.ones(3), "labels": torch.ones(3)},)

CALLS = [({"hidden": torch.ones(3), "gate": torch.full((3,), 2.0)},)]
"""


@pytest.mark.slow
def test_the_keys_of_an_argument_are_facts(write_case, monkeypatch):
    monkeypatch.setattr(torch._dynamo.variables.ConstDictVariable, "install_dict_contains_guard", lambda *given: None)
    report = judge(write_case, GIVEN_A_DICT)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("stale", "DICT_KEYS_MATCH")
    changed = report["culprit"]["details"]["between_calls"]
    assert changed[0].startswith("list(batch): ['hidden', 'labels'], then ['hidden', 'gate']")


LISTS_THAT_BECOME_ONE = """
import torch
from torch import nn

DYNAMIC = True

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.given = [1.0, 2.0]
        self.kept = list(self.given)
        self.table = torch.tensor([2.0, 0.5])

    def apply_identity(self, x):
        return x.sin() if self.given is self.kept else x.cos()

    def forward(self, x):
        x = self.apply_identity(x * 1.25)
        return x * self.table.numel()

def run(model, inputs):
    first = model(*inputs)
    model.kept = model.given
    second = model(*inputs)
    model.table = torch.tensor(3.0)
    return first, second, model(*inputs)

def make():
    return Model().eval(), (torch.ones(3),)
"""


@pytest.mark.slow
def test_guards_on_items_of_a_list_are_not_on_the_list(write_case):
    """Dynamo does not ask whether two lists are still two; with open numbers it asks what class their items have."""
    report = judge(write_case, LISTS_THAT_BECOME_ONE)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("stale", "ID_MATCH")
    assert report["culprit"]["details"]["between_calls"][0].startswith("kept: ")


# Two arguments that share memory become one to AOTAutograd, and so does the graph that is left when they no longer do.
APART_AGAIN = """
import torch

def program(a, b):
    b.mul_(2)
    e = a[1:]
    e.lerp_(e, 0.5)
    return e

def run(model, inputs):
    return model(inputs[0], inputs[1]), model(inputs[0], inputs[1].clone())

def make():
    torch.manual_seed(0)
    base = torch.randn(6)
    return program, (base, base.narrow(0, 1, 2))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="whether the graph checks its inputs hangs on it")
def test_a_stale_graph_that_raises_is_an_error_and_its_script_says_which(write_case):
    path = write_case(APART_AGAIN)
    report = triage(load_case(path), CPU).to_json()
    assert (report["verdict"], report["severity"]) == ("stale", "error")
    assert "it raises AssertionError" in report["detail"]
    assert choose_script(path.read_text(), report).form == "raises"


# The third call cannot be compiled anew, as dynamo does not raise what Python does of a tensor and None. The second one
# runs the graph of the first, as no guard asks for the depth.
BESIDE_ANOTHER = """
import torch
from torch._dynamo.guards import GuardBuilder

GuardBuilder.CONSTANT_MATCH = GuardBuilder.EQUALS_MATCH = lambda self, guard, *arguments, **options: None

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(self.depth):
            x = x.tanh() + 0.5
        try:
            return x * self.factor
        except TypeError:
            return x.cos()

def run(model, inputs):
    model.depth, model.factor = 2, 2.0
    first = model(*inputs)
    model.depth = 3
    second = model(*inputs)
    model.factor = None
    return first, second, model(*inputs)

def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(4),)
"""


@pytest.mark.slow
def test_a_graph_is_stale_though_another_call_cannot_be_compiled_anew(write_case, monkeypatch):
    for name in ("CONSTANT_MATCH", "EQUALS_MATCH"):
        monkeypatch.setattr(GuardBuilder, name, getattr(GuardBuilder, name))  # it is put back
    report = triage(load_case(write_case(BESIDE_ANOTHER)), torch.device("cpu")).to_json()
    assert report["verdict"] == "stale"
    assert any("call 3 in eager mode" in each["toggle"] and each["repairs"] for each in report["ablations"])


# The call that is wrong is the one that cannot be compiled anew: nothing says that its graph is stale.
CANNOT_BE_COMPILED_ANEW = """
import torch

compiled = 0

def backend(graph, inputs):
    global compiled
    compiled += 1
    if compiled > 1:
        raise RuntimeError("no memory left")
    return lambda *args: [value * torch.where(value > 5, 2.0, 1.0) for value in graph(*args)]

BACKEND = backend
CALLS = [(torch.full((4,), 9.0),)]

def program(x):
    return x + 1

def make():
    global compiled
    compiled = 0
    return program, (torch.ones(4),)
"""


def test_a_wrong_call_that_cannot_be_compiled_anew_is_not_called_stale(write_case):
    report = triage(load_case(write_case(CANNOT_BE_COMPILED_ANEW)), torch.device("cpu")).to_json()
    assert report["verdict"] == "miscompile"
