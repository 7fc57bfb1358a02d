"""Devices, numeric settings and seeds, on a machine that may have no GPU."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.run.device import (
    Numerics,
    apply_numerics,
    assign_device,
    resolve_device,
    seed_everything,
    shorten_message,
)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

Gpus = Callable[[int], None]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


@pytest.fixture(autouse=True)
def leave_settings_as_they_were() -> Iterator[None]:
    with apply_numerics(Numerics()):
        yield


# Resolving.


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_cpu_is_always_there(gpus: Gpus, count: int) -> None:
    gpus(count)
    assert resolve_device("cpu") == torch.device("cpu")


def test_auto_takes_cuda_where_there_is_one(gpus: Gpus) -> None:
    gpus(2)
    assert resolve_device("auto") == torch.device("cuda", 0)
    gpus(0)
    assert resolve_device("auto") == torch.device("cpu")


def test_cuda_is_resolved_to_an_index(gpus: Gpus) -> None:
    gpus(2)
    assert resolve_device("cuda") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("option", ["cuda", "cuda:0"])
def test_cuda_without_a_gpu_says_what_to_do(gpus: Gpus, option: str) -> None:
    gpus(0)
    with pytest.raises(EnvironmentUnfit, match=r"no CUDA device.*--device cpu") as raised:
        resolve_device(option)
    assert raised.value.exit_status == 3


def test_an_index_out_of_range_names_what_there_is(gpus: Gpus) -> None:
    gpus(2)
    with pytest.raises(EnvironmentUnfit, match=r"no cuda:2.*2 CUDA device\(s\), cuda:0 to cuda:1"):
        resolve_device("cuda:2")
    gpus(1)
    with pytest.raises(EnvironmentUnfit, match=r"1 CUDA device\(s\), cuda:0\."):
        resolve_device("cuda:1")


@pytest.mark.parametrize("option", ["", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "mps", " cpu"])
def test_another_spelling_is_wrong_usage(gpus: Gpus, option: str) -> None:
    gpus(1)
    with pytest.raises(UsageError, match="cuda:N") as raised:
        resolve_device(option)
    assert raised.value.exit_status == 2


# Assigning.


def assign_devices(option: str, workers: int) -> tuple[str, ...]:
    return tuple(str(assign_device(option, number)) for number in range(workers))


@pytest.mark.parametrize("option", ["cuda", "auto"])
def test_workers_are_spread_over_all_gpus(gpus: Gpus, option: str) -> None:
    gpus(2)
    assert tuple(str(assign_device(option, number)) for number in range(5)) == (
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:1",
        "cuda:0",
    )
    assert [str(assign_device(option, number)) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_named_gpu_gets_every_worker(gpus: Gpus) -> None:
    gpus(2)
    assert assign_devices("cuda:1", 3) == ("cuda:1",) * 3


def test_on_the_cpu_every_worker_has_it(gpus: Gpus) -> None:
    gpus(0)
    assert assign_devices("auto", 2) == assign_devices("cpu", 2) == ("cpu", "cpu")


def test_assigning_fails_as_resolving_does(gpus: Gpus) -> None:
    gpus(0)
    with pytest.raises(EnvironmentUnfit):
        assign_devices("cuda", 2)
    with pytest.raises(UsageError):
        assign_devices("tpu", 2)


# Numeric settings.


def opposite(numerics: Numerics) -> Numerics:
    values = {
        field.name: "high" if field.name == "float32_matmul" else not getattr(numerics, field.name)
        for field in dataclasses.fields(numerics)
    }
    return Numerics(**values)


def test_every_setting_is_applied_and_read_back() -> None:
    for numerics in (Numerics(), opposite(Numerics())):
        numerics.apply()
        assert Numerics.current() == numerics


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Numerics)])
def test_each_setting_stands_for_itself(field: str) -> None:
    changed = dataclasses.replace(Numerics(), **{field: getattr(opposite(Numerics()), field)})
    changed.apply()
    assert Numerics.current() == changed


def test_the_default_has_no_tf32_and_torchs_own_value_for_the_rest() -> None:
    Numerics().apply()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled()


def test_pinned_restores_what_was_before_even_after_an_error() -> None:
    before = opposite(Numerics())
    before.apply()
    with pytest.raises(ZeroDivisionError), apply_numerics(Numerics()):
        assert Numerics.current() == Numerics()
        raise ZeroDivisionError
    assert Numerics.current() == before


def test_both_of_torchs_tf32_interfaces_can_be_read_afterwards() -> None:
    # Inductor and dynamo read both, and torch raises when the two disagree.
    for numerics in (Numerics(), Numerics(float32_matmul="high", cudnn_tf32=True)):
        numerics.apply()
        tf32 = numerics.cudnn_tf32
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
        assert torch.backends.cudnn.allow_tf32 is tf32
        assert (torch.backends.cuda.matmul.fp32_precision == "tf32") is tf32
        assert torch.get_float32_matmul_precision() == numerics.float32_matmul


def test_a_case_that_used_the_new_tf32_interface_leaves_no_trace() -> None:
    torch.backends.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    assert Numerics.current().float32_matmul == "high"
    Numerics().apply()
    assert Numerics.current() == Numerics()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.mkldnn.conv.fp32_precision == "none"
    assert torch.backends.cudnn.rnn.fp32_precision == "none"


def test_settings_are_json() -> None:
    written = json.loads(json.dumps(Numerics().to_json()))
    assert Numerics(**written) == Numerics()


# Seeds.


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_one_seed_gives_one_sequence() -> None:
    seed_everything(7)
    first = draw()
    assert draw() != first
    seed_everything(7)
    assert draw() == first


def test_different_seeds_differ_everywhere() -> None:
    seed_everything(1)
    first = draw()
    seed_everything(2)
    assert all(one != other for one, other in zip(first, draw(), strict=True))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_large_seeds_are_taken(seed: int) -> None:
    seed_everything(seed)
    first = draw()
    seed_everything(seed)
    assert draw() == first


# On a GPU.


@needs_cuda
@pytest.mark.cuda
def test_auto_is_a_gpu_that_computes() -> None:
    assert torch.ones(3, device=resolve_device("auto")).sum().item() == 3


@needs_cuda
@pytest.mark.cuda
def test_the_seed_reaches_every_gpu() -> None:
    for index in range(torch.cuda.device_count()):
        seed_everything(3)
        first = torch.rand(8, device=f"cuda:{index}")
        seed_everything(3)
        assert torch.equal(first, torch.rand(8, device=f"cuda:{index}"))


@needs_cuda
@pytest.mark.cuda
def test_tf32_is_off_and_can_be_switched_on() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32 before Ampere")
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(512, 512, generator=generator)
    right = torch.randn(512, 512, generator=generator)
    exact = left.double() @ right.double()

    def error() -> float:
        return float(((left.cuda() @ right.cuda()).cpu() - exact).abs().max())

    with apply_numerics(Numerics()):
        precise = error()
    with apply_numerics(Numerics(float32_matmul="high")):
        assert error() > 10 * precise


def test_a_message_names_the_first_error_of_a_cpp_compiler():
    """`CppCompileError` has a headline of its own for whatever a compiler says."""
    log = "k.cpp: In function 'void kernel()':\nk.cpp:3:5: error: 'ks13' was not declared\nk.cpp:4:1: error: also"
    said = shorten_message(RuntimeError(f"C++ compile error\n\nCommand:\ng++ k.cpp\n\nOutput:\n{log}"))
    assert said == "C++ compile error: 'ks13' was not declared"
    assert shorten_message(RuntimeError("k.cpp:3:5: error: no such file")) == "k.cpp:3:5: error: no such file"
    assert shorten_message(RuntimeError("refused\nerror: see above")) == "refused"
