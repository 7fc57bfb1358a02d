"""Recordings: what is written is read, within the budget, whole or not at all; bad files are told apart."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fuzzcompile.analyses.profile.recordings import FileBudget, Leaf, RunFacts, read_recording, write_recording
from fuzzcompile.analyses.profile.taps import SAMPLE, KeptCall, KeptTensor
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.report.output_files import check_writable

safetensors = pytest.importorskip("safetensors")

FACTS = RunFacts(
    "model", "ab" * 32, {"": "Model", "norm": "LayerNorm"}, {"parameter norm.weight": Leaf("cd" * 32, "float32", (4,))},
    {"in0": Leaf("ef" * 32, "bfloat16", (2, 4))}, "inductor", "cpu", "float32", {"torch": "2.13.0", "cuda": None},
)  # fmt: skip


def call(name: str, inputs: Sequence[KeptTensor], outputs: Sequence[KeptTensor] = (), number: int = 0) -> KeptCall:
    return KeptCall(name, number, "Linear", inputs, outputs)


def record(path: Path, *calls: KeptCall) -> Path:
    write_recording(path, FACTS, calls)
    return path


def values(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def same(left: KeptTensor, right: KeptTensor) -> bool:
    bits = [kept.values.reshape(-1).view(torch.uint8) for kept in (left, right)]
    return (left.shape, left.dtype, left.whole, left.values.shape) == (
        right.shape, right.dtype, right.whole, right.values.shape
    ) and torch.equal(*bits)  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record(tmp_path / "run.safetensors", call("norm", [KeptTensor.of(values(8))], [KeptTensor.of(values(8, 1))]))


# -- what is written is read ----------------------------------------------------------------------

ODD = [
    torch.tensor([True, False, True]), torch.tensor(1.5, dtype=torch.bfloat16), torch.empty(0, 3),
    values(6).reshape(2, 3).t(), torch.tensor([1 + 2j, -0.0 + 1j], dtype=torch.complex64),
    torch.tensor([1 + 2j], dtype=torch.complex128), torch.tensor([1.0, -2.0, 3.0]).to(torch.float8_e5m2),
    torch.tensor([7, 9, 11], dtype=torch.uint16), torch.tensor([float("nan"), -float("inf"), -0.0]), torch.tensor([3]),
]  # fmt: skip


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path):
    # In this order, elements of 1 and 2 bytes stand before larger ones and would leave those unaligned.
    kept = [KeptTensor.of(tensor) for tensor in ODD]
    reread = read_recording(
        record(tmp_path / "r.safetensors", call("a.b", kept, kept[:1]), call("a.b", [], kept, number=1))
    )
    calls = reread.calls
    assert list(calls) == [("a.b", 0), ("a.b", 1)] and calls["a.b", 1].label == "a.b#2"
    assert all(same(*pair) for pair in zip(kept, calls["a.b", 0].inputs, strict=True))
    assert all(same(*pair) for pair in zip(kept, calls["a.b", 1].outputs, strict=True))
    assert calls["a.b", 0].kind == "Linear" and reread.facts == FACTS


def test_a_sample_of_a_dtype_that_the_format_lacks_stays_a_sample(tmp_path):
    kept = KeptTensor(torch.tensor([1 + 2j, 3j]), (5, 7), torch.complex64, whole=False)
    assert same(read_recording(record(tmp_path / "r.safetensors", call("a", [kept]))).calls["a", 0].inputs[0], kept)


def test_any_reader_of_the_format_reads_it(recorded):
    with safetensors.safe_open(recorded, framework="np") as file:
        assert file.get_tensor("norm#1.out0").tolist() == values(8, 1).tolist()
        assert "fuzzcompile_recording" in file.metadata()


def test_both_sides_sample_the_same_elements(tmp_path):
    tensor = values(500_000).reshape(100, 5000)
    record(tmp_path / "r.safetensors", call("norm", [FileBudget(2_000_000, FACTS)(tensor)]))
    kept = read_recording(tmp_path / "r.safetensors").calls["norm", 0].inputs[0]
    assert not kept.whole and kept.shape == (100, 5000) and kept.values.shape == (SAMPLE,)
    # The second has another layout of the same values, as another kernel may return it.
    for live in (tensor, tensor.t().contiguous().t()):
        assert torch.equal(*kept.beside(KeptTensor.view(live)))


def test_equal_tensors_are_stored_once(tmp_path):
    tensor = KeptTensor.of(values(10_000))
    copies = [call(f"layer{i}", [tensor], [KeptTensor.of(tensor.values)]) for i in range(20)]
    path = record(tmp_path / "r.safetensors", *copies)
    assert path.stat().st_size < 60_000
    assert all(same(kept.outputs[0], tensor) for kept in read_recording(path).calls.values())


def test_equal_bytes_of_other_dtypes_are_told_apart(tmp_path):
    kept = [
        KeptTensor.of(values(4)),
        KeptTensor.of(values(4).view(torch.int32)),
        KeptTensor.of(values(4).reshape(2, 2)),
    ]
    calls = read_recording(record(tmp_path / "r.safetensors", call("a", kept))).calls
    assert all(same(*pair) for pair in zip(kept, calls["a", 0].inputs, strict=True))


# -- the budget -----------------------------------------------------------------------------------


def written(path: Path, budget: int, sizes: Sequence[int]) -> list[KeptTensor]:
    """Record tensors of these sizes, one a call."""
    keep = FileBudget(budget, FACTS)
    record(path, *(call(f"model.layers.{i}", [keep(values(size, i))]) for i, size in enumerate(sizes)))
    return [kept.inputs[0] for kept in read_recording(path).calls.values()]


@pytest.mark.parametrize(("budget", "size"), [(200_000, 3000), (300_000, 20_000), (2_000_000, 30_000), (90_000, 200)])
def test_the_file_stays_within_the_budget(tmp_path, budget, size):
    path = tmp_path / "r.safetensors"
    kept = written(path, budget, [size] * 60)
    assert len(kept) == 60 and path.stat().st_size <= budget
    assert path.stat().st_size > budget / 2 or all(tensor.whole for tensor in kept)


def test_the_first_tensors_are_whole_and_every_later_one_is_sampled(tmp_path):
    kept = written(tmp_path / "r.safetensors", 8_000_000, [240_000] * 15)
    whole = [tensor.whole for tensor in kept]
    assert whole == sorted(whole, reverse=True) and 4 <= sum(whole) <= 6
    assert {tensor.values.numel() for tensor in kept if not tensor.whole} == {SAMPLE}


def test_without_budget_names_and_shapes_remain(tmp_path):
    kept = written(tmp_path / "r.safetensors", 0, [5000, 5000])
    assert [tensor.values.numel() for tensor in kept] == [0, 0] and kept[1].shape == (5000,)


# -- whole or not at all --------------------------------------------------------------------------


def test_a_recording_is_as_readable_as_any_other_file(tmp_path, recorded):
    (tmp_path / "plain").touch()
    assert recorded.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_full_disk_leaves_what_was_there(recorded, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    before = recorded.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentUnfit, match=r"Cannot write .*run\.safetensors: No space left"):
        record(recorded, call("norm", [KeptTensor.of(values(10))]))
    assert recorded.read_bytes() == before and list(recorded.parent.iterdir()) == [recorded]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    gone = tmp_path / "gone" / "r.safetensors"
    with pytest.raises(UsageError, match=f"Cannot write {gone}: No such file"):  # before the run
        check_writable(gone, "--record")
    with pytest.raises(UsageError, match=f"Cannot write {tmp_path}: Is a directory"):
        record(tmp_path, call("norm", []))
    assert not list(tmp_path.iterdir())


def test_a_tensor_without_elements_is_refused_by_name(tmp_path):
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(UsageError, match=r"norm#1.in0 is a torch.sparse_coo tensor"):
        record(tmp_path / "r.safetensors", call("norm", [KeptTensor(sparse, (3, 3), torch.float32)]))
    assert not list(tmp_path.iterdir())


# -- bad files ------------------------------------------------------------------------------------


def rewritten(path: Path, **metadata: str) -> None:
    """The file with other metadata; an empty text removes an entry."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = {k: v for k, v in {**header["__metadata__"], **metadata}.items() if v}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def said_of(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        read_recording(path)
    text = str(raised.value)
    assert str(path) in text and "\n" not in text and text.endswith(".")
    return text


@pytest.mark.parametrize("kept", [0, 3, 50, -1])
def test_a_truncated_file_is_said(recorded, kept):
    recorded.write_bytes(recorded.read_bytes()[:kept])
    assert "is no whole .safetensors file" in said_of(recorded)


def test_a_file_of_another_kind_is_said(tmp_path):
    path = tmp_path / "weights.safetensors"
    torch.save({"weight": values(9)}, path)
    assert "is no whole .safetensors file" in said_of(path)
    from safetensors.torch import save_file

    save_file({"weight": values(9)}, path)
    assert "is no recording; make one with --record" in said_of(path)


def test_a_newer_recording_is_said(recorded):
    rewritten(recorded, fuzzcompile_recording="2")
    assert "newer fuzzcompile (schema 2, this one reads 1)" in said_of(recorded)


@pytest.mark.parametrize(
    "damage",
    [
        {"facts": ""}, {"facts": "{"}, {"calls": "{}]"}, {"calls": '[{"name": "a"}]'}, {"facts": '{"case": "a"}'},
        {"fuzzcompile_recording": "one"}, {"calls": '[{"name": "a", "number": 0, "kind": "", "inputs": [], "outputs":'
        ' [{"key": "gone", "shape": [], "dtype": "float32", "whole": true}]}]'},
        {"calls": '[{"name": "a", "number": 0, "kind": "", "inputs": [], "outputs":'
         ' [{"key": "norm#1.in0", "shape": [2, 4], "dtype": "float32", "whole": true}]}]'},
        {"calls": '[{"name": "a", "number": 0, "kind": "", "inputs": [], "outputs":'
         ' [{"key": "norm#1.in0", "shape": [8], "dtype": "manual_seed", "whole": true}]}]'},
    ],
)  # fmt: skip
def test_damaged_metadata_are_said(recorded, damage):
    rewritten(recorded, **damage)
    assert "is damaged" in said_of(recorded)


def test_a_file_that_cannot_be_opened_is_said(tmp_path):
    assert "No such file or directory; name a recording" in said_of(tmp_path / "gone.safetensors")
    assert "Is a directory" in said_of(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_said(recorded):
    recorded.chmod(0)
    assert "Permission denied" in said_of(recorded)


def test_without_safetensors_the_reason_is_one_sentence(recorded, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(EnvironmentUnfit, match=r"pip install 'fuzzcompile\[profile\]'"):
        read_recording(recorded)
