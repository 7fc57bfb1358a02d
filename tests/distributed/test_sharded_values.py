"""Parts of the judge that know of ranks: tensors in parts, collectives that are imitated, names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fuzzcompile.compiler import collectives
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.run.ranks import name_on_rank
from fuzzcompile.run.sharded_tensors import (
    describe_placements,
    divide_like,
    drop_meshes,
    is_sharded,
    read_part,
    read_values,
)
from fuzzcompile.run.tensors import name_collective

OPERATORS = torch.ops._c10d_functional
RANK, SIZE = 1, 4


@pytest.fixture(scope="module")
def mesh() -> Iterator[dist.DeviceMesh]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("placement", [Replicate(), Shard(1), Partial()])
def test_a_dtensor_is_read_by_the_part_that_this_process_has(mesh: dist.DeviceMesh, placement: Placement) -> None:
    part = torch.randn(3, 4)
    whole = DTensor.from_local(part, mesh, [placement])
    assert is_sharded(whole)
    assert not is_sharded(part)
    assert not is_sharded(read_values(whole))
    assert torch.equal(read_values(whole), part)
    assert read_part(whole).data_ptr() == part.data_ptr()
    assert describe_placements(whole) == f"DTensor {placement!r}"


def test_what_is_no_dtensor_is_its_own_part_and_has_no_placements() -> None:
    value = torch.randn(3)
    assert read_part(value) is value
    assert read_values(value) is value
    assert describe_placements(value) == ""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.Tensor]:
    """A tensor of the second of four ranks, in a block in which the others do not run what it runs."""
    monkeypatch.setattr(collectives, "is_apart", lambda: True)
    monkeypatch.setattr(collectives, "_find_place", lambda group: (RANK, SIZE))
    value = torch.randn(8, 3)
    with collectives.imitate_ranks():
        yield value


def test_reductions_are_those_of_what_each_rank_is_taken_to_hold(apart: torch.Tensor) -> None:
    held = torch.stack([apart * ((1 + rank) / (1 + RANK)) for rank in range(SIZE)])
    for name, expected in {
        "sum": held.sum(0),
        "avg": held.mean(0),
        "max": held.max(0).values,
        "min": held.min(0).values,
        "product": held.prod(0),
    }.items():
        assert torch.allclose(OPERATORS.all_reduce(apart, name, "0"), expected), name
        assert torch.allclose(OPERATORS.reduce_scatter_tensor(apart, name, SIZE, "0"), expected[2:4]), name
    assert torch.equal(OPERATORS.wait_tensor(apart), apart)


def test_a_reduction_in_place_writes_into_its_argument(apart: torch.Tensor) -> None:
    before = apart.clone()
    made = OPERATORS.all_reduce_(apart, "sum", "0")
    assert made.data_ptr() == apart.data_ptr()
    assert torch.allclose(apart, before * 5)  # halves: 1 + 2 + 3 + 4


def test_what_is_gathered_lies_in_the_order_of_the_ranks(apart: torch.Tensor) -> None:
    expected = torch.cat([apart * 0.5, apart, apart * 1.5, apart * 2])
    assert torch.allclose(OPERATORS.all_gather_into_tensor(apart, SIZE, "0"), expected)
    for made in OPERATORS.all_gather_into_tensor_coalesced([apart, apart], SIZE, "0"):
        assert torch.allclose(made, expected)
    out = torch.empty(32, 3)
    OPERATORS.all_gather_into_tensor_out(apart, SIZE, "0", out=out)
    assert torch.allclose(out, expected)
    assert torch.allclose(OPERATORS.broadcast(apart, 3, "0"), apart * 2)
    exchanged = OPERATORS.all_to_all_single(apart, [2] * SIZE, [2] * SIZE, "0")
    assert torch.allclose(exchanged, torch.cat([apart[2:4] * (1 + rank) / 2 for rank in range(SIZE)]))


def test_an_uneven_exchange_is_refused(apart: torch.Tensor) -> None:
    with pytest.raises(NotImplementedError, match="uneven"):
        OPERATORS.all_to_all_single(apart, [1, 3, 2, 2], [1, 3, 2, 2], "0")


@pytest.mark.parametrize("name", ["out0", "call2.gradient of parameter w", "buffer mean after the call", "input1.key"])
def test_the_name_of_an_observable_keeps_its_rank(name: str) -> None:
    named = name_on_rank(name, 3)
    assert named == f"rank3.{name}"
    parsed, alone = ObservableName.parse(named), ObservableName.parse(name)
    assert parsed.rank == 3
    assert alone.rank is None
    assert (parsed.what, parsed.call, parsed.derivative, parsed.after) == (
        alone.what,
        alone.call,
        alone.derivative,
        alone.after,
    )
    assert str(parsed) == named


def test_collectives_are_known_by_their_namespaces() -> None:
    assert name_collective(OPERATORS.all_reduce.default) == "all_reduce"
    assert name_collective(torch.ops._c10d_functional_autograd.all_gather_into_tensor.default) == (
        "all_gather_into_tensor"
    )
    assert name_collective(torch.ops.c10d.allreduce_.default) == "allreduce_"
    assert name_collective(torch.ops.aten.add.Tensor) is None
    assert name_collective(torch.add) is None


def test_meshes_behind_parts_are_left_out(mesh: dist.DeviceMesh) -> None:
    part = torch.randn(3)
    assert drop_meshes([part, mesh, None, mesh]) == [part, None]


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Partial()])
def test_what_is_laid_out_as_a_dtensor_has_a_part_of_its_size(mesh: dist.DeviceMesh, placement: Placement) -> None:
    whole = DTensor.from_local(torch.randn(3, 4), mesh, [placement])
    drawn = torch.randn(3, 4)
    assert torch.equal(divide_like(drawn, whole), drawn)  # of one process, the part is the whole
