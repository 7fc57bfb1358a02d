"""The attention kernel that torch chooses on a device by ATen's published rules, and what it passes to it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzzcompile.compiler.target import attention_choice
from fuzzcompile.compiler.target.attention_choice import find_release
from fuzzcompile.model.targets import Target, find_target

H100, A100, T4 = (find_target(f"cuda:sm_{arch}") for arch in (90, 80, 75))
MI300 = find_target("rocm:gfx942")
RTX = dataclasses.replace(A100, arch="sm_86", capability=(8, 6))
HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
BASE = (2, 4, 32, 64)


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel that torch chooses, and why each kernel with precedence over it was not chosen."""

    kernel: str
    refused: dict[str, str]


def choose_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    *,
    target: Target,
) -> AttentionChoice:
    call = attention_choice._AttentionCall(query, key, value, mask, dropout_p, is_causal, enable_gqa, target)
    return AttentionChoice(*attention_choice.choose_kernel(call.add_batch()))


def tensor(shape: tuple[int, ...] = BASE, dtype: torch.dtype = HALF, **more: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", **more)


def same(shape: tuple[int, ...] = BASE, dtype: torch.dtype = HALF) -> tuple[torch.Tensor, ...]:
    return tuple(tensor(shape, dtype) for _ in range(3))


def trained(shape: tuple[int, ...], own: int | None = None) -> tuple[torch.Tensor, ...]:
    value = (*shape[:-1], own or shape[-1])
    return tensor(shape, requires_grad=True), tensor(shape), tensor(value)


@pytest.fixture
def as_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Judge by the rules of another version of torch."""
    yield lambda version: monkeypatch.setattr(attention_choice, "find_release", lambda _: find_release(version))


# The rule, torch's version, the device, the inputs, other arguments, the kernel. The rule is a function of ATen.
GROUPED = (tensor(), tensor((2, 2, 32, 64)), tensor((2, 2, 32, 64)))
SINGLE_HEAD = (tensor(), tensor((2, 1, 32, 64)), tensor((2, 1, 32, 64)))
SLICED = tensor((2, 4, 32, 72))[..., 4:68]
SHORT = (tensor((2, 4, 8, 64)), tensor(), tensor())
SQUARE = tensor((32, 32))
LEARNED = tensor((32, 32), requires_grad=True)
DROP = {"dropout_p": 0.1}
OFFSET = (tensor((2, 4, 32, 72), SINGLE)[..., 4:68], tensor(dtype=SINGLE), tensor(dtype=SINGLE))
ROWS: list[tuple[str, str, Any, tuple[torch.Tensor, ...], dict[str, Any], str]] = [
    ("check_prefer_cudnn_attention", "2.13", H100, same(), {}, "cudnn"),
    ("check_prefer_cudnn_attention", "2.13", A100, same(), {}, "flash"),
    ("check_flash_attention_hardware_support", "2.13", T4, same(), {}, "efficient"),
    ("can_use_cudnn_attention, ROCm", "2.13", MI300, same(), {}, "flash"),
    ("check_dtypes_low_precision, bfloat16", "2.13", A100, same(dtype=BFLOAT), {}, "flash"),
    ("less_than_sm80_mem_efficient_dtypes", "2.13", T4, same(dtype=BFLOAT), {}, "math"),
    ("can_use_mem_efficient_attention, float32", "2.13", H100, same(dtype=SINGLE), {}, "efficient"),
    ("can_use_mem_efficient_attention, float64", "2.13", H100, same(dtype=DOUBLE), {}, "math"),
    ("check_tensor_dtype", "2.13", H100, (*same()[:2], tensor(dtype=SINGLE)), {}, "math"),
    ("check_tensor_shapes, 3-D", "2.13", H100, same((4, 32, 64)), {}, "math"),
    ("normalize_unbatched_input", "2.15", H100, same((4, 32, 64)), {}, "cudnn"),
    ("check_tensor_shapes, 5-D", "2.15", H100, same((1, 2, 4, 32, 64)), {}, "math"),
    ("check_cudnn_tensor_shapes, % 8", "2.13", H100, same((2, 4, 32, 60)), {}, "flash"),
    ("check_cudnn_tensor_shapes, one key", "2.13", H100, same((2, 4, 1, 64)), {}, "flash"),
    ("check_cudnn_tensor_shapes, one query", "2.13", H100, (tensor((2, 4, 1, 64)), *same()[:2]), {}, "cudnn"),
    ("check_cudnn_tensor_shapes, 65536", "2.13", H100, same((65536, 1, 4, 64)), {}, "flash"),
    ("check_cudnn_tensor_shapes, 65536", "2.15", H100, same((65536, 1, 4, 64)), {}, "efficient"),
    ("check_cudnn_dropout, 0.1", "2.13", H100, same(), {"dropout_p": 0.1}, "flash"),
    ("check_cudnn_dropout, 1/8", "2.13", H100, same(), {"dropout_p": 0.125}, "cudnn"),
    ("check_cudnn_dropout, before it", "2.11", H100, same(), {"dropout_p": 0.1}, "cudnn"),
    ("check_cudnn_d256_bprop_head_dim", "2.15", H100, trained((2, 4, 32, 192)), {}, "flash"),
    ("check_cudnn_d256_bprop_head_dim", "2.15", H100, trained((2, 4, 32, 192), 128), {}, "cudnn"),
    ("check_cudnn_d256_bprop_head_dim, before it", "2.13", H100, trained((2, 4, 32, 192)), {}, "cudnn"),
    ("check_for_attn_mask", "2.13", A100, same(), {"mask": tensor((32, 32))}, "efficient"),
    ("check_attn_mask_shape, 2-D", "2.13", H100, same(), {"mask": tensor((1, 32), torch.bool)}, "cudnn"),
    ("check_attn_mask_shape, 3-D", "2.13", H100, same(), {"mask": tensor((4, 32, 32))}, "efficient"),
    ("check_attn_mask_shape, grad", "2.13", H100, same(), {"mask": LEARNED}, "efficient"),
    ("check_last_dim_stride_equals_1_dense, mask", "2.13", H100, same(), {"mask": tensor((32, 32)).mT}, "math"),
    ("check_head_dim_size_flash, 256", "2.13", A100, same((2, 4, 32, 256)), {}, "flash"),
    ("check_head_dim_size_flash, 264", "2.13", A100, same((2, 4, 32, 264)), {}, "efficient"),
    ("check_head_dim_size_flash, ROCm", "2.13", MI300, same((2, 4, 32, 512)), {}, "flash"),
    ("check_head_dim_size_flash, V", "2.13", A100, (*same()[:2], tensor((2, 4, 32, 32))), {}, "efficient"),
    ("check_requires_grad_and_head_dim_gt192", "2.13", RTX, trained((2, 4, 32, 200)), {}, "efficient"),
    ("check_requires_grad_and_head_dim_gt192", "2.13", RTX, trained((2, 4, 32, 256)), {}, "flash"),
    ("check_requires_grad_and_head_dim_gt192", "2.13", RTX, trained((2, 4, 32, 256)), DROP, "efficient"),
    ("check_requires_grad_and_head_dim_gt192", "2.13", A100, trained((2, 4, 32, 200)), {}, "flash"),
    ("check_flash_causal_non_square_seqlens", "2.13", A100, same(), {"is_causal": True}, "flash"),
    ("check_flash_causal_non_square_seqlens", "2.13", A100, SHORT, {"is_causal": True}, "efficient"),
    ("check_head_dim_size_mem_efficient, % 4", "2.13", H100, same((2, 4, 32, 60), SINGLE), {}, "efficient"),
    ("check_head_dim_size_mem_efficient, % 4", "2.13", H100, same((2, 4, 32, 62), SINGLE), {}, "math"),
    ("minimum_gemm_alignment, sm_75", "2.13", T4, same((2, 4, 32, 62), SINGLE), {}, "efficient"),
    ("check_data_ptr_alignment_mem_efficient", "2.13", H100, OFFSET, {}, "efficient"),
    ("check_data_ptr_alignment_mem_efficient", "2.13", A100, (SLICED,) * 3, {"mask": SQUARE}, "math"),
    ("check_data_ptr_alignment_mem_efficient, before it", "2.11", A100, (SLICED,) * 3, {"mask": SQUARE}, "efficient"),
    ("check_grouped_query_attention", "2.13", H100, GROUPED, {"enable_gqa": True}, "cudnn"),
    ("check_batch_size_and_num_heads_dense", "2.13", H100, GROUPED, {}, "math"),
    ("supports_gqa, memory efficient", "2.13", T4, GROUPED, {"enable_gqa": True}, "math"),
    ("supports_gqa, memory efficient", "2.15", T4, GROUPED, {"enable_gqa": True}, "efficient"),
    ("supports_mqa", "2.13", H100, SINGLE_HEAD, {}, "math"),
    ("supports_mqa", "2.15", H100, SINGLE_HEAD, {}, "cudnn"),
    ("check_batch_size_and_num_heads_dense, batch", "2.15", H100, (tensor(), *same((1, 4, 32, 64))[:2]), {}, "math"),
    ("check_nonzero_sequence_lengths_dense", "2.13", H100, same((2, 4, 0, 64)), {}, "math"),
    ("check_last_dim_stride_equals_1_dense", "2.13", H100, (tensor((2, 4, 64, 32)).mT, *same()[:2]), {}, "math"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "target", "inputs", "more", "kernel"),
    [row[1:] for row in ROWS],
    ids=[f"{row[0]}: {row[1]}, {row[2].arch}, {row[5]}" for row in ROWS],
)
def test_the_kernel_follows_from_the_published_rules(
    as_release: Any, version: str, target: Any, inputs: Any, more: Any, kernel: str
) -> None:
    as_release(version)
    assert choose_kernel(*inputs, **more, target=target).kernel == kernel


def test_a_choice_says_why_others_were_refused() -> None:
    refused = choose_kernel(*same(), tensor((4, 32, 32)), target=H100).refused
    assert list(refused) == ["cudnn", "flash"]
    assert refused["flash"] == "it takes no mask"


def test_switches_and_priorities_of_the_program_count() -> None:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert choose_kernel(*same(), target=H100).kernel == "efficient"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert choose_kernel(*same(), target=H100).kernel == "efficient"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        switched_off = choose_kernel(*same(dtype=SINGLE), target=H100)
    assert switched_off.kernel == "math"
    assert "math" in switched_off.refused


def test_deterministic_algorithms_exclude_cudnn() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert choose_kernel(*same(), target=H100).kernel == "flash"
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_matter_only_where_they_are_recorded() -> None:
    inputs = trained((2, 4, 32, 200))
    with torch.no_grad():
        assert choose_kernel(*inputs, target=RTX).kernel == "flash"


def test_symbolic_sizes_are_guarded_as_in_cpp() -> None:
    choices: list[AttentionChoice] = []

    def program(query: torch.Tensor) -> torch.Tensor:
        choices.append(choose_kernel(query, query, query, target=A100))
        return query + 1

    make_fx(program, tracing_mode="symbolic")(tensor())
    assert [choice.kernel for choice in choices] == ["flash"]


def test_sizes_that_depend_on_data_take_the_kernel_without_conditions() -> None:
    choices: list[AttentionChoice] = []

    def program(flags: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        chosen = torch.ops.aten.nonzero(flags).size(0)
        picked = query.new_empty((2, 4, chosen, 64))
        choices.append(choose_kernel(picked, picked, picked, target=H100))
        return picked

    make_fx(program, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.ones(3), torch.ones(BASE, dtype=HALF))
    assert [choice.kernel for choice in choices] == ["math"]


SCRIPT = """
import json, sys, torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from fuzzcompile.compiler.target import attention_choice
from fuzzcompile.model.targets import find_target

FakeTensorMode.avoid_device_init = property(lambda self: True)
attention_choice.find_release = lambda version, find=attention_choice.find_release: find("2.13")
choices = []
A100 = find_target("cuda:sm_80")
choose = attention_choice.choose_kernel
attention_choice.choose_kernel = lambda call: choices.append(choose(call)[0]) or choose(call)
attention_choice.install_attention(A100)
mode = FakeTensorMode()
sdpa = torch.nn.functional.scaled_dot_product_attention

class Log(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        shown = [list(value.stride()) if isinstance(value, torch.Tensor) else value for value in args]
        calls.append([str(operator.overloadpacket), shown, kwargs.get("scale") if kwargs else None])
        return operator(*args, **(kwargs or {}))

def made(*shape, dtype=torch.float16):
    return FakeTensor(mode, torch.empty(shape, dtype=dtype, device="meta"), torch.device("cuda", 0))

def traced(*args, **kwargs):
    global calls
    calls = []
    with mode, Log():
        out = sdpa(*args, **kwargs)
    shown = ("attention", "pad", "softmax")
    return [call for call in calls if any(part in call[0] for part in shown)], list(out.shape)

half, narrow, single = made(2, 4, 32, 64), made(2, 4, 32, 60), made(2, 4, 32, 64, dtype=torch.float32)
with torch.inference_mode():
    traced(half, half, half)
inference = choices[-1]
with torch._C._AutoDispatchBelowAutograd():
    # autograd needs a device guard
    sdpa = lambda *args: attention_choice._compute_attention(A100, *args)
    trained = traced(single.detach().requires_grad_(), single, single)
sdpa = torch.nn.functional.scaled_dot_product_attention
cpu = torch.randn(2, 4, 8, 16)
print(json.dumps({
    "plain": traced(half, half, half, is_causal=True),
    "narrow": traced(narrow, narrow, narrow),
    "masked": traced(half, made(2, 4, 33, 64), made(2, 4, 33, 64), attn_mask=made(1, 33, dtype=torch.bool)),
    "double": traced(*[made(2, 4, 32, 64, dtype=torch.float64)] * 3),
    "inference": inference, "trained": trained,
    "cpu": torch.allclose(sdpa(cpu, cpu, cpu), torch.softmax(cpu @ cpu.mT / 4, -1) @ cpu, atol=1e-6),
    "kernels": choices,
}))
"""


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """What the calls of a process with an A100 for its target became."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


def test_flash_gets_what_cpp_passes(installed: dict[str, Any]) -> None:
    calls, shape = installed["plain"]
    assert calls == [["aten._scaled_dot_product_flash_attention", [[8192, 2048, 64, 1]] * 3 + [0.0, True], 0.125]]
    assert shape == list(BASE)


def test_flash_pads_the_head_dimension_and_keeps_its_scale(installed: dict[str, Any]) -> None:
    calls, shape = installed["narrow"]
    assert [name for name, _, _ in calls] == ["aten.constant_pad_nd"] * 3 + ["aten._scaled_dot_product_flash_attention"]
    assert calls[-1][2] == pytest.approx(60**-0.5, rel=1e-15)
    assert shape == [2, 4, 32, 60]


def test_the_bias_of_the_efficient_kernel_is_aligned(installed: dict[str, Any]) -> None:
    calls, _ = installed["masked"]
    assert [name for name, _, _ in calls] == ["aten.constant_pad_nd", "aten._scaled_dot_product_efficient_attention"]
    assert calls[-1][1][3:] == [[0, 0, 0, 1], False]


def test_logsumexp_is_asked_for_in_training(installed: dict[str, Any]) -> None:
    calls, _ = installed["trained"]
    assert calls[-1][0] == "aten._scaled_dot_product_efficient_attention"
    assert calls[-1][1][3:] == [None, True]


def test_float64_takes_the_math_kernel(installed: dict[str, Any]) -> None:
    calls, _ = installed["double"]
    assert [name for name, _, _ in calls] == ["aten._safe_softmax"]


def test_inference_mode_asks_the_same_rules(installed: dict[str, Any]) -> None:
    assert installed["inference"] == "flash"


def test_the_cpu_is_left_alone(installed: dict[str, Any]) -> None:
    assert installed["cpu"]
    assert installed["kernels"].count("efficient") == 2
