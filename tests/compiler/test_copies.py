"""Copies of inputs keep what a compiler can see of them, natively and in float64."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.run.tensors import copy_tree, find_aliases

BOTH = pytest.mark.parametrize("double", [False, True], ids=["native", "float64"])


def layouts() -> dict[str, torch.Tensor]:
    base = torch.arange(60.0).reshape(3, 4, 5)
    return {
        "contiguous": base,
        "transposed": base.transpose(0, 2),
        "strided": base[:, ::2, 1::3],
        "offset": base[1, 2:, 3:],
        "expanded": torch.arange(4.0).view(4, 1).expand(4, 6),
        "overlapping": torch.arange(10.0).as_strided((4, 4), (2, 1)),
        "broadcast scalar": torch.tensor(2.5).expand(3, 3),
        "empty": torch.empty(0, 3),
        "empty slice": base[3:],
        "scalar": torch.tensor(3.0),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "bfloat16": base.to(torch.bfloat16)[:, 1:],
        "float16": base.to(torch.float16).t() if base.dim() == 2 else base.to(torch.float16).mT,
        "int64": torch.arange(12).view(3, 4).T,
        "int8": torch.arange(12, dtype=torch.int8)[3::2],
        "bool": torch.arange(12).view(3, 4).T % 2 == 0,
        "complex": torch.complex(base, -base)[:, ::2],
        "infinite": torch.tensor([float("inf"), float("nan"), -0.0, float("-inf")]),
    }


def doubled(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


@BOTH
@pytest.mark.parametrize("name", layouts())
def test_layout_and_values_are_kept(name: str, double: bool):
    tensor = layouts()[name]
    (copy,) = copy_tree([tensor], double=double)
    assert (copy.size(), copy.stride()) == (tensor.size(), tensor.stride())
    assert copy.storage_offset() == tensor.storage_offset()
    assert copy.dtype == (doubled(tensor.dtype) if double else tensor.dtype)
    assert torch.equal(torch.nan_to_num(copy), torch.nan_to_num(tensor.to(copy.dtype)))
    assert torch.equal(torch.isnan(copy), torch.isnan(tensor))


@BOTH
def test_writes_to_a_copy_do_not_reach_the_original(double: bool):
    tensor = torch.zeros(3, 4).t()
    (copy,) = copy_tree([tensor], double=double)
    copy.add_(1)
    assert not tensor.any()


@BOTH
def test_views_of_one_buffer_stay_views_of_one_buffer(double: bool):
    base = torch.arange(6.0)
    whole, half, other = copy_tree({"whole": base, "half": base[3:], "other": torch.zeros(3)}, double=double).values()
    assert find_aliases({"whole": whole, "half": half, "other": other}) == {"half": ("whole",)}
    half.fill_(9)
    assert whole.tolist() == [0, 1, 2, 9, 9, 9]


@BOTH
def test_one_tensor_given_twice_is_copied_once(double: bool):
    tensor = torch.zeros(3)
    first, second = copy_tree([tensor, tensor], double=double)
    first.add_(1)
    assert second.tolist() == [1, 1, 1]


@BOTH
def test_expanded_copy_is_still_one_row(double: bool):
    (copy,) = copy_tree([torch.zeros(1, 4).expand(3, 4)], double=double)
    copy[0, 0] = 7
    assert copy[:, 0].tolist() == [7, 7, 7]


@BOTH
def test_gradients_are_asked_for_where_they_were(double: bool):
    leaf, plain = torch.zeros(3, requires_grad=True), torch.zeros(3)
    made = leaf * 2
    copies = copy_tree([leaf, plain, made, torch.arange(3)], double=double)
    assert [copy.requires_grad for copy in copies] == [True, False, True, False]
    assert all(copy.is_leaf for copy in copies)


def test_other_leaves_stay_as_they_are():
    marker = object()
    assert copy_tree({"a": [1, None, "x", marker]}) == {"a": [1, None, "x", marker]}


@BOTH
def test_lazy_conjugates_and_negatives_are_what_they_stand_for(double: bool):
    z = torch.complex(torch.arange(3.0), torch.ones(3))
    (conjugate, imaginary) = copy_tree([z.conj(), z.conj().imag], double=double)
    assert torch.equal(conjugate, z.conj().to(conjugate.dtype))
    assert torch.equal(imaginary, -torch.ones(3, dtype=imaginary.dtype))


@BOTH
def test_copies_on_another_device_keep_layout_and_shared_storage(double: bool):
    base = torch.arange(6.0)
    tree = [base, base[3:], base.view(6, 1).expand(6, 4), torch.eye(3).to_sparse()]
    whole, half, wide, sparse = copy_tree(tree, double=double, device=torch.device("meta"))
    assert {t.device.type for t in (whole, half, wide, sparse)} == {"meta"}
    assert (wide.stride(), half.storage_offset()) == ((1, 0), 3)
    assert half.untyped_storage()._cdata == whole.untyped_storage()._cdata == wide.untyped_storage()._cdata


def test_sparse_tensors_are_doubled():
    (copy,) = copy_tree([torch.eye(3).to_sparse()], double=True)
    assert copy.dtype == torch.float64
    assert copy.layout == torch.sparse_coo
