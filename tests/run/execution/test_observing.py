"""What is observed of a call: aliases by element address, values in containers of every kind, warnings."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.run import runs
from fuzzcompile.run.case import Case, CompileSettings
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.tensors import copy_tree, describe_structure, find_aliases

CPU = torch.device("cpu")


def case(make, *, backward: bool = False, calls=None) -> Case:
    grad = "enabled" if backward else "no_grad"
    return Case("case", Path("case.py"), "", make, grad, backward, CompileSettings(), calls, None)


def observed(function, *inputs, backward: bool = False, calls=None) -> Observation:
    observation = runs.run_eager(case(lambda: (function, inputs), backward=backward, calls=calls), CPU)
    assert observation.failure is None, observation.failure
    return observation


def aliases_of(observation: Observation) -> dict[str, tuple[str, ...]]:
    return {value.name: value.aliases for value in observation.values}


# -- memory -------------------------------------------------------------------------------------------


BASE = torch.arange(24.0)
SHARING = {
    "the same": (BASE, BASE),
    "detached": (BASE, BASE.detach()),
    "part": (BASE, BASE[5:7]),
    "transposed": (BASE.view(4, 6), BASE.view(4, 6).t()),
    "expanded": (BASE[3:4].expand(5), BASE),
    "crossing": (BASE[::3], BASE[::2]),
    "one element": (BASE[:13], BASE[12:]),
    "one byte": (BASE.view(torch.uint8)[3:4], BASE[:1]),
    "another dtype": (BASE.view(torch.int32), BASE[20:]),
    "real part": (torch.view_as_complex(BASE.view(12, 2)), BASE.view(12, 2)[:, 1]),
    "no dimensions": (BASE[7], BASE[6:8]),
    "NumPy": (BASE, BASE.numpy()),
    "NumPy backwards": (BASE[4:], BASE.numpy()[::-1][18:]),
}
APART = {
    "halves of one storage": (BASE[:12], BASE[12:]),
    "odd and even": (BASE[::2], BASE[1::2]),
    "columns": (BASE.view(4, 6)[:, :2], BASE.view(4, 6)[:, 2:]),
    "strides that never meet": (BASE[0:24:4], BASE[2:24:6][::2]),
    "empty": (BASE, BASE[3:3]),
    "expanded to nothing": (BASE[:1].expand(0), BASE),
    "another byte": (BASE.view(torch.uint8)[4:8], BASE[:1]),
    "real and imaginary part": (BASE.view(12, 2)[:, 0], BASE.view(12, 2)[:, 1]),
    "copies": (BASE, BASE.clone()),
    "no tensor": (BASE, 3),
    "meta": (BASE, torch.empty(3, device="meta")),
}


def overlapping(first: object, second: object) -> bool:
    return bool(find_aliases({"first": first, "second": second}))


@pytest.mark.parametrize("name", SHARING)
def test_what_shares_an_element_overlaps(name: str):
    first, second = SHARING[name]
    assert overlapping(first, second)
    assert overlapping(second, first)


@pytest.mark.parametrize("name", APART)
def test_what_shares_none_does_not(name: str):
    first, second = APART[name]
    assert not overlapping(first, second)
    assert not overlapping(second, first)


def test_overlap_is_what_a_write_shows():
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    for _ in range(300):
        base = torch.zeros(40)
        one, other = (base.as_strided((draw(1, 4), draw(1, 4)), (draw(0, 7), draw(0, 7)), draw(0, 19)) for _ in "ab")
        one.fill_(1)
        assert overlapping(one, other) == bool((other != 0).any())


def test_sparse_values_have_memory():
    x = torch.eye(4).to_sparse()
    assert overlapping(x, x.detach())
    assert overlapping(x, x._values())
    assert not overlapping(x, x.clone())


def test_large_tensors_cost_nothing():
    base = torch.empty(2**24).view(4096, 4096)
    named = {f"row{i}": base[i] for i in range(1000)} | {f"column{i}": base[:, i] for i in range(3)}
    found = find_aliases(named)
    assert set(found) == {"column0", "column1", "column2"}
    assert len(found["column1"]) == 1000


def test_aliases_of_outputs_are_named():
    seen = aliases_of(observed(lambda x, y: (x.t(), x[1:], y * 2, x[0], {"last": y}), torch.ones(3, 3), torch.ones(3)))
    assert seen == {
        "out0": ("input0",),
        "out1": ("input0", "out0"),
        "out2": (),
        "out3": ("input0", "out0"),
        "out4": ("input1",),
    }


def test_aliases_of_parameters_and_buffers_are_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2))
            self.register_buffer("cache", torch.zeros(4))

        def forward(self, x):
            return self.weight.t(), self.cache[:2], x + 1

    seen = aliases_of(runs.run_eager(case(lambda: (Model(), (torch.ones(2),))), CPU))
    assert seen == {"out0": ("parameter weight",), "out1": ("buffer cache",), "out2": ()}


def test_a_buffer_that_comes_to_share_memory_has_changed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.ones(2))

        def forward(self, x):
            self.cache = x
            return x + 1

    seen = aliases_of(runs.run_eager(case(lambda: (Model(), (torch.ones(2),))), CPU))
    assert seen == {"out0": (), "buffer cache after the call": ("input0",)}


def test_memory_that_two_calls_hand_out_is_shared():
    kept = torch.ones(3)
    seen = aliases_of(observed(lambda x: kept, torch.ones(1), calls=[(torch.ones(1),)]))
    assert "call0.out0" in seen["call1.out0"]
    seen = aliases_of(observed(lambda x: kept + x, torch.ones(1), calls=[(torch.ones(1),)]))
    assert seen == {"call0.out0": (), "call1.out0": ()}


def test_numpy_outputs_have_aliases():
    assert aliases_of(observed(lambda x: (x.numpy(), x.numpy().copy()), torch.ones(3))) == {
        "out0": ("input0",),
        "out1": (),
    }


# -- containers -----------------------------------------------------------------------------------------


@dataclass
class Batch:
    tokens: torch.Tensor
    mask: torch.Tensor | None = None
    more: list = field(default_factory=list)
    name: str = "batch"


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


@dataclass(slots=True)
class Slots:
    x: torch.Tensor
    y: int = 1


class Named(dict):
    """A dictionary of a class of its own."""


class Row(list):
    """A list of a class of its own."""


Pair = namedtuple("Pair", "first second")


@dataclass
class ModelOutput(OrderedDict):
    """What Hugging Face returns: fields that are entries as well, unless they are None."""

    logits: torch.Tensor | None = None
    states: tuple | None = None

    def __post_init__(self):
        for entry in fields(self):
            if getattr(self, entry.name) is not None:
                OrderedDict.__setitem__(self, entry.name, getattr(self, entry.name))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


CONTAINERS = {
    "dataclass": lambda x: Batch(x, x > 0, [x[0], {"a": x}]),
    "frozen dataclass": Frozen,
    "dataclass with slots": Slots,
    "subclass of dict": lambda x: Named(x=x, y=[x + 1]),
    "subclass of list": lambda x: Row([x, x + 1]),
    "named tuple": lambda x: Pair(x, {"a": [x]}),
    "model output": lambda x: ModelOutput(x, (x, x + 1)),
    "nested": lambda x: {"a": [Frozen(Batch(x)), (Named(b=Slots(x)),)]},
}


def tensors_in(value) -> list[torch.Tensor]:
    """All that hang below an object, by looking at everything it holds."""
    if isinstance(value, torch.Tensor):
        return [value]
    held = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list | tuple) else []
    held += vars(value).values() if hasattr(value, "__dict__") else []
    held += [getattr(value, name) for name in getattr(value, "__slots__", ())]
    return [tensor for inner in held for tensor in tensors_in(inner)]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", CONTAINERS)
def test_inputs_in_containers_are_copied_and_cast(name: str, double: bool):
    x = torch.ones(2, 3)
    made = CONTAINERS[name](x)
    (built,) = build(case(lambda: (lambda y: y, (made,))), CPU, double=double).calls[0]
    assert type(built) is type(made)
    assert len(tensors_in(built)) == len(tensors_in(made))
    wanted = torch.float64 if double else torch.float32
    assert all(t.dtype == wanted for t in tensors_in(built) if t.is_floating_point())
    assert not any(overlapping(t, x) for t in tensors_in(built))
    assert all(t.dtype == torch.float32 for t in tensors_in(made) if t.is_floating_point())


@pytest.mark.parametrize("name", CONTAINERS)
def test_inputs_in_containers_are_watched(name: str):
    def program(batch):
        tensors_in(batch)[0].mul_(2)
        return tensors_in(batch)[0] + 1

    names = {value.name for value in observed(program, CONTAINERS[name](torch.ones(2, 3))).values}
    assert "out0" in names
    assert any(name.endswith("after the call") for name in names)


def test_gradients_of_inputs_in_containers_are_seen():
    x = torch.ones(3, requires_grad=True)
    names = {value.name for value in observed(lambda b: b.tokens * 2, Batch(x), backward=True).values}
    assert names == {"out0", "gradient of argument0.tokens"}


def test_what_is_one_object_stays_one():
    x = torch.ones(3)
    batch = Batch(x, x)
    first, second, other = build(case(lambda: (lambda *y: y, (batch, batch, x))), CPU).calls[0]
    assert first is second
    assert first.tokens is first.mask is other
    assert first.name == "batch"


def test_containers_without_tensors_stay_themselves():
    plain = Batch(tokens=None)
    (built,) = build(case(lambda: (lambda y: y, (plain,))), CPU).calls[0]
    assert built is plain


def test_a_model_output_keeps_entries_and_fields_together():
    (built,) = build(case(lambda: (lambda y: y, (ModelOutput(torch.ones(2)),))), CPU, double=True).calls[0]
    assert list(built) == ["logits"]
    assert built["logits"] is built.logits
    assert built.states is None


@pytest.mark.parametrize("name", CONTAINERS)
def test_outputs_in_containers_are_seen(name: str):
    values = observed(CONTAINERS[name], torch.ones(2, 3)).values
    assert sum(value.is_tensor for value in values) >= 1
    assert len({value.name for value in values}) == len(values)
    assert not any(isinstance(value.value, dict | list | tuple) for value in values)


def test_the_leaves_of_a_model_output_are_its_fields():
    values = observed(lambda x: ModelOutput(x, (x, x + 1)), torch.ones(2)).index_by_name()
    assert list(values) == ["out0.logits", "out0.states0", "out0.states1"]


def test_an_object_that_holds_itself_ends():
    def program(x):
        made = Batch(x)
        made.more = [made]
        return made

    assert "out0.tokens" in observed(program, torch.ones(2)).index_by_name()


def test_structures_tell_containers_apart():
    x = torch.ones(2)
    shown = [describe_structure(made(x)) for made in CONTAINERS.values()]
    shown += [
        describe_structure(Batch(x, x, [x])),
        describe_structure(Batch(x, x, (x,))),
        describe_structure(Named(x=x)),
        describe_structure(Row([x])),
    ]
    assert len(set(shown)) == len(shown)
    assert describe_structure(Batch(x)) == describe_structure(Batch(x + 1))
    assert describe_structure(ModelOutput(x)) == describe_structure(ModelOutput(x))


# -- warnings -------------------------------------------------------------------------------------------


def test_warnings_are_recorded_once_with_their_category():
    def program(x):
        for _ in range(3):
            warnings.warn("odd  input\nat 0x7f00", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        warnings.warn("soon", FutureWarning, stacklevel=1)
        return x

    for _ in range(2):  # not only in the first run
        assert observed(program, torch.ones(2)).warnings == ("UserWarning: odd input at ADDR",)


def test_warnings_that_torch_gives_once_are_given_in_every_run():
    def program(z):
        return z.to(torch.float32)

    always = torch.is_warn_always_enabled()
    for _ in range(2):
        (text,) = observed(program, torch.ones(2, dtype=torch.complex64)).warnings
        assert text.startswith("UserWarning: Casting complex values to real discards the imaginary part")
        assert "Triggered internally" not in text
    assert torch.is_warn_always_enabled() == always


def test_warnings_before_an_exception_are_kept():
    def program(x):
        warnings.warn("first", RuntimeWarning, stacklevel=1)
        raise ValueError("then")

    observation = runs.run_eager(case(lambda: (program, (torch.ones(1),))), CPU)
    assert observation.warnings == ("RuntimeWarning: first",)
    assert observation.failure.type_name == "ValueError"


def test_numpy_scalars_are_values():
    values = observed(lambda x: (numpy.float32(2), x.numpy().sum()), torch.ones(3)).values
    assert [value.form for value in values] == ["NumPy array", "NumPy array"]


class Scaled(torch.Tensor):
    """A class whose sums are doubled."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.add else result


def test_tensors_of_a_class_of_their_own_stay_of_it_in_copies_and_say_so_in_results():
    scaled = torch.ones(3).as_subclass(Scaled)
    scaled.unit = "mm"
    copied = copy_tree([scaled, scaled])
    assert type(copied[0]) is Scaled
    assert copied[0] is copied[1]
    assert copied[0].unit == "mm"
    assert copied[0].data_ptr() != scaled.data_ptr()
    values = observed(lambda x: (torch.add(x, 1), x.as_subclass(torch.Tensor)), scaled).values
    assert [(value.form, type(value.value), value.value.tolist()) for value in values] == [
        ("Scaled", torch.Tensor, [4.0, 4.0, 4.0]),
        ("", torch.Tensor, [1.0, 1.0, 1.0]),
    ]


def test_a_leaf_of_a_class_of_its_own_is_copied_as_a_leaf():
    leaf = torch.ones(3).as_subclass(Scaled).requires_grad_()
    copied = copy_tree([leaf])[0]
    assert copied.is_leaf
    assert copied.requires_grad


class ScaledPair(torch.Tensor):
    """A tensor that is made of two."""

    @staticmethod
    def __new__(cls, held: torch.Tensor, scale: torch.Tensor) -> ScaledPair:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: torch.Tensor, scale: torch.Tensor) -> None:
        self.held, self.scale = held, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: None, size: object, stride: object) -> ScaledPair:
        return ScaledPair(inner["held"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.relu.default:
            return ScaledPair(function(args[0].held), args[0].scale.clone())
        plain = pytree.tree_map(
            lambda value: value.held * value.scale if isinstance(value, ScaledPair) else value, args
        )
        return function(*plain, **(kwargs or {}))


def test_a_wrapper_stays_one_and_what_it_is_made_of_is_compared():
    observation = observed(torch.relu, ScaledPair(torch.tensor([-1.0, 3.0]), torch.tensor([2.0, 2.0])))
    values = observation.index_by_name()
    shown = {name: value.value.tolist() for name, value in values.items()}
    assert shown == {"out0": [0, 6], "out0.held": [0, 3], "out0.scale": [2, 2]}
    assert values["out0"].form == "ScaledPair"
