"""Objects that a script passes to its compiled callable: what they hold is restored, converted and compared."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.oracle.judgement import have_same_bits
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.capture.case_loader import load, submodule_case
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe, run_eager, run_float64

CPU = torch.device("cpu")
Loader = Callable[..., Case]
# A cache as libraries write them, in a library: it is no user's class, and its tensors are made at the first update.
LIBRARY = """
import collections
import torch

class Layer:
    def __init__(self):
        self.keys = None
        self.length = 0

class GrowingLayer(Layer):
    def update(self, new):
        self.keys = new if self.keys is None else torch.cat([self.keys, new], 1)
        self.length += new.shape[1]
        return self.keys

class StaticLayer(Layer):
    def update(self, new):
        if self.keys is None:
            self.keys = torch.zeros(1, 8, 4)
        self.keys[:, self.length : self.length + new.shape[1]] = new
        self.length += new.shape[1]
        return self.keys

class Cache:
    def __init__(self, kind=GrowingLayer):
        self.layers = [kind(), kind()]

class SlottedCache:
    __slots__ = ("layers", "last")
    def __init__(self):
        self.layers = [GrowingLayer(), GrowingLayer()]

class Batch(collections.UserDict):
    pass

class Output(collections.OrderedDict):
    def update(self, *args):
        raise TypeError("read only")
    __delitem__ = update

def decode(x, cache):
    for layer in cache.layers:
        x = torch.tanh(layer.update(x)[:, -x.shape[1]:] * 2 + layer.length)
    return x

def loop(step, cache):
    x = torch.randn(1, 3, 4)
    for _ in range(4):
        x = step(x, cache=cache)[:, -1:]
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Loader]:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "serving_library.py").write_text(LIBRARY)

    def write(text: str, **options: int) -> Case:
        path = tmp_path / "script.py"
        head = f"import sys\nsys.path.insert(0, {str(installed)!r})\nimport torch\nfrom serving_library import *\n"
        path.write_text(head + textwrap.dedent(text), encoding="utf-8")
        return load(path, CPU, **options)

    with isolate_process():
        yield write


def values(seen: Observation) -> dict[str, object]:
    assert seen.failure is None
    return {value.name: value.value for value in seen.values}


CACHES = {
    "growing": "loop(torch.compile(decode), Cache())",
    "static": "loop(torch.compile(decode), Cache(StaticLayer))",
    "in slots": "loop(torch.compile(decode), SlottedCache())",
    "inference mode": "with torch.inference_mode(): loop(torch.compile(decode), Cache())",
    "with a gradient": "w = torch.ones(1, requires_grad=True)\n"
    "loop(torch.compile(lambda x, cache: decode(x * w, cache)), Cache())",
    "closed over": "c = Cache()\nf = torch.compile(lambda x: decode(x, c))\nloop(lambda x, cache: f(x), None)",
    "attribute of a module": "class M(torch.nn.Module):\n  def __init__(self): super().__init__(); self.c = Cache()\n"
    "  def forward(self, x): return decode(x, self.c)\nm = torch.compile(M())\nloop(lambda x, cache: m(x), None)",
}


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("kind", CACHES)
def test_what_objects_hold_is_restored_before_every_run(script: Loader, kind: str, call: int):
    case = script(CACHES[kind], call=call)
    first, (exact, _) = run_eager(case, CPU), run_float64(case, CPU)
    assert have_same_bits(first, run_eager(case, CPU))
    keys = [name for name in values(first) if "keys" in name]
    assert keys
    for name in keys:
        assert exact.index_by_name()[name].value.dtype == torch.float64
        torch.testing.assert_close(values(first)[name].double(), values(exact)[name], rtol=1e-5, atol=1e-6)


def test_what_a_call_writes_into_an_object_is_compared(script: Loader):
    seen = values(run_eager(script("loop(torch.compile(decode), Cache(StaticLayer))"), CPU))
    assert seen["tensor cache.layers.1.keys after the call"].shape == (1, 8, 4)
    assert seen["attribute cache.layers.1.length after the call"] == 3


def test_earlier_calls_begin_in_their_own_state(script: Loader):
    case = script(
        "torch.manual_seed(0)\ncache = Cache()\nstep = torch.compile(decode)\nx = step(torch.randn(1, 3, 4), cache)\n"
        "for layer in cache.layers: layer.keys = layer.keys * 10\nstep(x[:, -1:], cache)",
        call=2,
    )
    seen = values(run_eager(case, CPU))
    after_first, after_second = (seen[f"call{n}.tensor argument1.layers.0.keys after the call"] for n in (0, 1))
    assert after_first.shape[1] == 3
    assert torch.equal(after_second[:, :3], after_first * 10)


def test_calls_of_the_same_kind_are_made_once(script: Loader):
    text = "c = Cache(StaticLayer)\nf = torch.compile(lambda x, cache: x + cache.layers[0].update(x)[:, :1])\n"
    text += "for _ in range(3):\n  c.layers[0].length = 0\n  f(torch.ones(1, 1, 4), c)"
    assert len(build(script(text, call=3), CPU).calls) == 2  # the first one makes the tensor


def test_a_returned_argument_is_that_argument(script: Loader):
    case = script("torch.compile(lambda x, cache: (decode(x, cache), cache))(torch.ones(1, 2, 4), cache=Cache())")
    program = build(case, CPU)
    assert observe(case, program, program.model).index_by_name()["out1"].aliases == ("cache",)
    program = build(case, CPU)
    copied = observe(case, program, lambda x, cache: (program.model(x, cache)[0], type(cache)()))
    assert copied.index_by_name()["out1"].aliases == ()


def test_tensors_of_a_returned_object_are_outputs(script: Loader):
    text = "def prefill(x):\n  cache = Cache()\n  return decode(x, cache), cache\n"
    seen = values(run_eager(script(text + "torch.compile(prefill)(torch.ones(1, 2, 4))"), CPU))
    assert seen["out1.layers.0.keys"].shape == (1, 2, 4)


def test_a_lost_update_of_a_number_shows(script: Loader):
    case = script("loop(torch.compile(decode), Cache())")

    def forgetful(x, cache):
        result = program.model(x, cache=cache)
        cache.layers[0].length = 0
        return result

    name = "attribute cache.layers.0.length after the call"
    assert name in run_eager(case, CPU).index_by_name()
    program = build(case, CPU)
    assert name not in observe(case, program, forgetful).index_by_name()


@pytest.mark.parametrize("made", ["Batch({'x': X})", "Output([('x', X)])"])
def test_entries_of_mappings_are_restored(script: Loader, made: str):
    case = script(
        f"""
        X = torch.ones(2)
        def f(batch):
            batch["x"].mul_(3)
            getattr(batch, "data", {{}})["y"] = 1
            return batch["x"] * len(batch)
        torch.compile(f)({made})
        """
    )
    first = run_eager(case, CPU)
    assert torch.equal(values(first)["out0"], torch.full((2,), 6.0 if "Batch" in made else 3.0))
    assert have_same_bits(first, run_eager(case, CPU))


AWKWARD = """
import threading, typing
from dataclasses import dataclass

class Proxy:
    __slots__ = ("tensor",)
    def __init__(self): self.tensor = torch.ones(2)
    def __getattr__(self, name): raise RuntimeError(name)
    def __eq__(self, other): raise RuntimeError("not comparable")
    def __repr__(self): raise RuntimeError("not printable")
    __hash__ = None

class Node:
    def __init__(self): self.self, self.lock, self.file, self.count = self, threading.Lock(), open("/dev/null"), 0

@dataclass(slots=True)
class Slotted:
    tensor: torch.Tensor

class Pair(typing.NamedTuple):
    node: Node
    slotted: Slotted

def f(x, proxy, pair):
    pair.node.count += 1
    pair.slotted.tensor = pair.slotted.tensor * 2
    object.__getattribute__(proxy, "tensor").add_(1)
    f.calls = getattr(f, "calls", 0) + 1
    return x * pair.node.count + pair.slotted.tensor + object.__getattribute__(proxy, "tensor") + f.calls

step, node = torch.compile(f), Node()
for _ in range(2):
    step(torch.ones(2), Proxy(), pair=Pair(node, Slotted(torch.ones(2))))
"""


@pytest.mark.parametrize("call", [1, 2])
def test_awkward_objects_are_restored_too(script: Loader, call: int):
    case = script(AWKWARD, call=call)
    first = run_eager(case, CPU)
    name = "out0" if call == 1 else "call1.out0"
    assert torch.equal(first.index_by_name()[name].value, torch.full((2,), 4.0 + 2 * call))
    assert have_same_bits(first, run_eager(case, CPU))


LAYERED = """
class Layer(torch.nn.Module):
    def forward(self, x, cache): return torch.tanh(cache.layers[0].update(x)[:, -1:])
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
    def forward(self, x, cache): return self.layer(x, cache)
model = Model()
model.forward = torch.compile(model.forward)
loop(model, Cache())
"""


def test_a_submodule_of_a_method_gets_the_inputs_of_the_call_that_is_named(script: Loader):
    whole = script(LAYERED, call=3)
    case = submodule_case(whole, "layer", CPU)
    name = "layers.0.keys after the call"
    expected = run_eager(whole, CPU).index_by_name()[f"call2.tensor cache.{name}"].value
    assert torch.equal(run_eager(case, CPU).index_by_name()[f"call2.tensor argument1.{name}"].value, expected)


def test_hooks_that_watch_a_run_stay_through_its_calls(script: Loader):
    case = script(LAYERED, call=3)
    program, seen = build(case, CPU), list[int]()
    program.model.__self__.layer.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0].shape[1]))
    observe(case, program, program.model)
    assert seen == [3, 1, 1]
    run_eager(case, CPU)
    assert len(seen) == 3


def test_objects_among_the_inputs_of_a_case_file_are_copied_cast_and_watched(script: Loader):
    made = script("loop(torch.compile(decode), Cache(StaticLayer))", call=2).make()[1].kwargs["cache"]
    made.layers[0].keys = torch.ones(1, 8, 4)

    def program(x, cache):
        return cache.layers[0].update(x) * 2

    template = script("torch.compile(lambda x: x)(torch.ones(1))")
    case = replace(template, make=lambda: (program, (torch.ones(1, 1, 4) * 3, made)), state=None, reseed=None)
    seen, (exact, _) = run_eager(case, CPU), run_float64(case, CPU)
    name = "tensor argument1.layers.0.keys after the call"
    length = made.layers[0].length
    assert values(exact)[name].dtype == torch.float64
    assert torch.equal(values(seen)[name].double(), values(exact)[name])
    assert torch.equal(made.layers[0].keys, torch.ones(1, 8, 4))
    assert made.layers[0].length == length


def test_counters_that_outlive_a_run_of_a_case_file_are_not_compared(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(
        "import torch\nclass Counter:\n  n = 0\nkept = Counter()\nclass Model(torch.nn.Module):\n  calls = 0\n"
        "  def forward(self, x):\n    kept.n, self.calls = kept.n + 1, self.calls + 1\n    return x\n"
        "def make(): return Model(), (torch.ones(1),)\n"
    )
    case = load(path, CPU)
    assert set(values(run_eager(case, CPU))) == {"out0", "attribute calls after the call"}
    assert have_same_bits(run_eager(case, CPU), run_eager(case, CPU))


def test_a_refusal_says_what_differs(script: Loader):
    case = script("kept = iter([1.0, 2.0])\ntorch.compile(lambda x: x * next(kept))(torch.ones(2))")
    with pytest.raises(CannotJudge, match=r"not do the same twice in eager mode \(out0 differs\).*in an iterator"):
        triage(case, CPU)


def test_a_method_of_a_compiled_module_is_not_compiled(script: Loader):
    text = """
        class M(torch.nn.Module):
            def forward(self, x): return x + 1
            def generate(self, x): return self(x)
        torch.compile(M()).eval().generate(torch.ones(1))
        """
    with pytest.raises(CaseError, match=r"generate\(\) runs the module itself.*model.forward = torch.compile"):
        script(text)


def test_the_cause_of_a_failed_import_is_named(script: Loader):
    text = "try: 1 / 0\nexcept ZeroDivisionError as e: raise ModuleNotFoundError('no Model') from e\ntorch.compile"
    with pytest.raises(CaseError, match=r"ModuleNotFoundError: no Model in line .*because of ZeroDivisionError"):
        script(text)


def test_a_modules_own_call_is_the_module(script: Loader):
    case = script("m = torch.nn.Linear(2, 2)\ntorch.compile(m.__call__)(torch.ones(1, 2))")
    assert isinstance(case.make()[0], torch.nn.Linear)
