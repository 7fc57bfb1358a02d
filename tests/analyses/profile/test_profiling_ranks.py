"""Profiles of programs that several processes run together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calling import call, sentence

from fuzzcompile.analyses.profile.taps import find_layers
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case_program import build

FOLDER = Path(__file__).parents[2] / "distributed"
# Layers that give parts of a whole, terms of a sum, and a layer that takes these.
PARTS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

NPROC = 2


class Gather(nn.Module):
    def forward(self, x):
        return x.redistribute(placements=[Replicate()]).to_local()


class Block(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim, bias=False)
        self.gather = Gather()

    def forward(self, x):
        return x + self.gather(self.down(torch.relu(self.up(x))))


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    up = ColwiseParallel(use_local_output=False)
    down = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
    model = parallelize_module(Block(), init_device_mesh("cpu", (2,)), {"up": up, "down": down})
    return model, (torch.randn(4, 16),)
"""
RAISES_IN_RANK_1 = """
import torch
import torch.distributed as dist

NPROC = 2


def program(x):
    if dist.get_rank() == 1:
        raise ValueError("not here")
    y = x + 1
    dist.all_reduce(y)
    return y


def make():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return program, (torch.ones(4),)
"""
WRAPPED = """
import torch
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def make():
    return Wrapper(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), (torch.ones(2, 4),)
"""
RELU = """
import torch
from torch._inductor.lowering import lowerings

right = lowerings[torch.ops.aten.relu.default]
lowerings[torch.ops.aten.relu.default] = lambda value: lowerings[torch.ops.aten.mul.Tensor](right(value), 1.01)
"""

Profile = Callable[..., tuple[int, Any]]


@pytest.fixture
def profile(capsys: pytest.CaptureFixture[str]) -> Profile:
    """Profile a case: the exit status, and the answer."""

    def answer(*asked: object) -> tuple[int, Any]:
        status = call("profile", *asked, "--device", "cpu", "--json")
        return status, json.loads(capsys.readouterr().out)

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("script", ["fsdp2_blocks", "ddp", "two_d"])
def test_layers_of_a_right_script_are_run_again_on_all_ranks(profile: Profile, script: str) -> None:
    status, answer = profile(FOLDER / "scripts" / f"{script}.py", "--nproc", 2)
    assert (status, answer["layer"]) == (0, None), answer["rule"]
    rows = {layer["name"]: layer for layer in answer["layers"] if layer["kind"] not in ("program", "gradient")}
    assert {name.partition(".")[0] == "rank1" for name in rows} == {True, False}
    for row in rows.values():
        assert None not in (row["made"], row["noise"], row["made_in_float64"]), row


@pytest.mark.slow
@pytest.mark.parametrize(("everywhere", "layer"), [(False, "rank1.blocks.1"), (True, "blocks.1")])
def test_the_layer_that_is_wrong_is_named_with_its_rank(
    profile: Profile, tmp_path: Path, everywhere: bool, layer: str
) -> None:
    plant = FOLDER / "plants" / "rank_1.py"
    if everywhere:
        plant = tmp_path / "relu.py"
        plant.write_text(RELU)
    status, answer = profile(FOLDER / "scripts" / "fsdp2_blocks.py", "--nproc", 2, "--plant", plant)
    assert (status, answer["verdict"], answer["layer"]) == (1, "jump", layer)
    assert answer["rule"].startswith("blocks.1 makes" if everywhere else "on rank 1, blocks.1 makes")
    assert answer["triage"]["culprit"]["rewrite"] == "aten.relu.default"


@pytest.mark.slow
def test_a_parameter_that_a_layer_is_given_is_not_read_once_fsdp_has_freed_it(profile: Profile) -> None:
    script = FOLDER / "scripts" / "fsdp2_blocks.py"
    status, answer = profile(script, "--nproc", 2, "--against", "eager", "--reference", "sdpa:math")
    assert (status, answer["verdict"]) == (0, "equal")
    assert {layer["name"] for layer in answer["layers"]} >= {"head", "rank1.head"}


@pytest.mark.slow
def test_of_a_distributed_tensor_the_parts_are_compared(profile: Profile, write_case: Callable[[str], Path]) -> None:
    status, answer = profile(write_case(PARTS), "--depth", 1)
    assert (status, answer["layer"]) == (0, None), answer["rule"]
    rows = {layer["name"]: layer for layer in answer["layers"]}
    assert [name for name in rows if name.startswith("rank1.")][:3] == ["rank1.up", "rank1.down", "rank1.gather"]
    assert not any("note" in row for row in rows.values())
    for name in ("up", "down", "gather"):
        assert rows[name]["made"] <= rows[name]["noise"], name


@pytest.mark.slow
def test_an_error_of_one_rank_is_said_with_the_rank(
    write_case: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("profile", write_case(RAISES_IN_RANK_1), "--device", "cpu", "--timeout", 60) == 3
    said = sentence(capsys)
    assert "On rank 1, " in said and "ValueError: not here" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--against", "eager", "--ops"], "leave out --record and --ops"),
        (["--record", "run.safetensors"], "leave out --record and --ops"),
        (["--against", "dtype:bfloat16"], "Several processes cannot run as dtype:bfloat16"),
        (["--reference", "float64"], "Several processes cannot run as float64"),
    ],
)
def test_what_several_processes_cannot_do_is_one_sentence(
    write_case: Callable[[str], Path], capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert call("profile", write_case(PARTS), "--device", "cpu", *options) == 2
    assert says in sentence(capsys)


def test_a_command_that_torchrun_starts_says_what_to_run(
    write_case: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert call("profile", write_case(PARTS)) == 2
    assert "`fuzzcompile profile SCRIPT --nproc 4`" in sentence(capsys)


def test_a_module_that_only_passes_on_to_another_is_looked_through(write_case: Callable[[str], Path]) -> None:
    import torch

    program = build(load_case(write_case(WRAPPED)), torch.device("cpu"))
    assert list(find_layers(program, None)) == ["module.0", "module.1"]
