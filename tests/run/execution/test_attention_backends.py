"""Which kernels of attention take which inputs, and running on one of them alone."""

from __future__ import annotations

import contextlib
import json
import warnings

import pytest
import torch
from attention_math import sdpa_math
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.programs.capture.state import Ambient
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.attention_backends import (
    KERNELS,
    ask_kernels,
    force_kernel,
    force_math_kernel,
    format_kernel_table,
    list_backends,
    list_enabled_kernels,
    record_attention_calls,
    refuse_unless_usable,
    select_reasons,
)
from fuzzcompile.run.case_program import build
from fuzzcompile.run.device import Numerics, apply_numerics

CPU = torch.device("cpu")
FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape or (1, 2, 8, 16), generator=generator).to(dtype).requires_grad_(grad)


def named(backends) -> dict[str, object]:
    return {backend["name"]: backend for backend in backends}


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


# -- which kernels take the inputs ------------------------------------------------------------------


def test_on_the_cpu_flash_is_chosen_and_math_would_do():
    backends = named(list_backends(tensor(), tensor(), tensor()))
    assert [name for name, backend in backends.items() if backend["usable"]] == ["math", "flash"]
    assert [name for name, backend in backends.items() if backend["chosen"]] == ["flash"]
    assert all("no such kernel for tensors on cpu" in backends[name]["reason"] for name in ("efficient", "cudnn"))


REFUSED = {
    "dropout": ((tensor(),) * 3, {"dropout_p": 0.5}, "non-zero dropout"),
    "width of the value": ((tensor(), tensor(), tensor(1, 2, 8, 20)), {}, "same last dimension"),
    "no queries": ((tensor(1, 2, 0, 16), tensor(), tensor()), {}, "zero seq_len"),
    "stride": ((tensor(1, 2, 16, 16).mT,) * 3, {}, "stride 1"),
    "a mask with a gradient": ((tensor(),) * 3, {"attn_mask": tensor(8, 8, grad=True)}, "mask requires a gradient"),
    "integers": ((tensor().int(),) * 3, {}, "dtype"),
}


@pytest.mark.parametrize("inputs, options, words", REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_explained_in_torchs_words(inputs, options, words: str):
    backends = named(list_backends(*inputs, **options))
    assert not backends["flash"]["usable"] and words in backends["flash"]["reason"]
    assert "Triggered internally" not in backends["flash"]["reason"]
    assert backends["math"]["chosen"]


# As torch warns on a CUDA device, where every kernel explains itself.
SECTIONS = [
    "Memory efficient kernel not used because: (Triggered internally at /x/transformers/cuda/sdp_utils.cpp:1.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at /x/sdp_utils_cpp.h:2.)",
    "Flash attention kernel not used because: (Triggered internally at /x/transformers/cuda/sdp_utils.cpp:3.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. (Triggered internally at /x/sdp_utils.h:4.)",
    "CuDNN attention kernel not used because: (Triggered internally at /x/transformers/cuda/sdp_utils.cpp:5.)",
    "cuDNN attention has been runtime disabled. (Triggered internally at /x/transformers/cuda/sdp_utils.cpp:6.)",
]


@pytest.mark.parametrize(
    "name, words",
    [
        ("flash", "Expected query, key and value to all be of dtype: {Half, BFloat16}."),
        ("efficient", "Memory Efficient attention has been runtime disabled."),
        ("cudnn", "cuDNN attention has been runtime disabled."),
    ],
)
def test_each_kernel_has_its_own_section_of_what_torch_says(name: str, words: str):
    assert select_reasons(name, SECTIONS) == [words]


GRID = [
    (inputs, options)
    for inputs in ((tensor(),) * 3, (tensor(dtype=torch.bfloat16),) * 3, (tensor(), tensor(), tensor(1, 2, 8, 20)))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(8, 8).bool()}, {"dropout_p": 0.1}, {"scale": 2.0})
]


@pytest.mark.parametrize("name", KERNELS)
def test_usable_is_what_runs(name: str):
    for inputs, options in GRID:
        usable = named(list_backends(*inputs, **options))[name]["usable"]
        with contextlib.nullcontext() if usable else pytest.raises(EnvironmentUnfit), force_kernel(name):
            attention(*inputs, **options)


@pytest.mark.parametrize("name", ["math", "flash"])
def test_a_kernel_that_is_off_is_never_usable(name: str):
    settings = {"math": "math_sdp", "flash": "flash_sdp"}
    with apply_numerics(Numerics(**{settings[name]: False})):
        for inputs, options in GRID:
            backend = named(list_backends(*inputs, **options))[name]
            assert not backend["usable"] and not backend["chosen"] and "switched off" in backend["reason"]
        assert name not in list_enabled_kernels()
        assert not any(b["usable"] and b["name"] == name for answer in ask_kernels(CPU) for b in answer["backends"])


def test_where_all_refuse_none_is_chosen():
    with apply_numerics(Numerics(math_sdp=False)):
        backends = list_backends(tensor(), tensor(), tensor(), dropout_p=0.5)
    assert not any(backend["usable"] or backend["chosen"] for backend in backends)


def test_asking_changes_no_setting_and_draws_nothing():
    random, order = torch.get_rng_state(), torch._C._get_sdp_priority_order()
    with apply_numerics(Numerics(flash_sdp=False, cudnn_sdp=False)):
        before = Numerics.current()
        list_backends(tensor(), tensor(), tensor(), dropout_p=0.5)
        assert Numerics.current() == before
    assert torch.equal(random, torch.get_rng_state()) and torch._C._get_sdp_priority_order() == order


# -- one kernel alone -------------------------------------------------------------------------------


def test_forcing_math_gives_its_bits_and_forcing_flash_its_operator():
    query = tensor(2, 3, 40, 16)
    with force_kernel("math"), Operators() as ran:
        assert torch.equal(attention(query, query, query), sdpa_math(query, query, query))
    assert FLASH not in ran.names and "bmm" in ran.names
    with force_kernel("flash"), Operators() as ran:
        attention(query, query, query)
    assert FLASH in ran.names and "bmm" not in ran.names


def kernel_of(program, *inputs) -> str:
    """Which of two kernels a call runs; a profile sees into compiled code."""
    with torch.profiler.profile() as profile, torch.no_grad():
        program(*inputs)
    names = {event.name for event in profile.events()}
    return "flash" if f"aten::{FLASH}" in names else "math"


def test_a_program_compiled_before_keeps_its_kernel_and_one_compiled_inside_takes_the_forced_one():
    query = tensor(2, 3, 24, 16)

    def program(query):
        return attention(query, query, query)

    compiled = torch.compile(program)
    assert kernel_of(compiled, query) == "flash"
    with force_kernel("math"):
        assert kernel_of(compiled, query) == "flash", "the docstring asks to compile inside the block"
        torch.compiler.reset()
        compiled = torch.compile(program)  # torch's caches hold the same graph with the flash kernel
        compiled(query)
        assert kernel_of(compiled, query) == "math"
    torch.compiler.reset()


def test_a_refusal_inside_is_one_sentence_with_torchs_reason():
    words = r"flash kernel .* refuses these inputs: .* non-zero dropout"
    with pytest.raises(EnvironmentUnfit, match=words), force_kernel("flash"):
        attention(tensor(), tensor(), tensor(), dropout_p=0.5)
    with pytest.raises(EnvironmentUnfit, match=r"cudnn kernel .* no such kernel"), force_kernel("cudnn"):
        attention(tensor(), tensor(), tensor())
    with pytest.raises(EnvironmentUnfit, match="same last dimension"), force_kernel("flash"):
        torch.compile(attention, backend="eager")(tensor(), tensor(), tensor(1, 2, 8, 20))


def test_errors_and_warnings_of_the_program_pass_through():
    with pytest.raises(RuntimeError, match="mine"), force_kernel("math"):
        raise RuntimeError("mine")
    with pytest.warns(UserWarning, match="mine"), force_kernel("math"):
        warnings.warn("mine", stacklevel=1)


def test_an_unknown_kernel_is_refused_by_name():
    with (
        pytest.raises(UsageError, match="no kernel 'fast'; use one of math, flash, efficient, cudnn"),
        force_kernel("fast"),
    ):
        pass


def test_settings_are_restored_whatever_happens():
    before, tag = Numerics.current(), torch.compiler.config.cache_key_tag
    with pytest.raises(ZeroDivisionError), force_kernel("flash"), force_math_kernel():
        assert list_enabled_kernels() == ("math",)
        raise ZeroDivisionError
    assert Numerics.current() == before and torch.compiler.config.cache_key_tag == tag


def test_what_a_case_sets_does_not_undo_math_only(write_case):
    source = """
import torch

def make():
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.enable_flash_sdp(True)
    return torch.nn.Identity(), (torch.ones(2),)
"""
    with force_math_kernel():
        build(load_case(write_case(source)), CPU)
        made = Numerics.current()
        Numerics(float32_matmul="high").apply()
        applied = Numerics.current()
    for now in (made, applied):
        assert (now.float32_matmul, now.cudnn_tf32) == ("highest", False)
        assert (now.math_sdp, now.flash_sdp, now.mem_efficient_sdp, now.cudnn_sdp) == (True, False, False, False)
    assert list_enabled_kernels() == tuple(KERNELS)


def test_what_surrounded_a_scripts_call_does_not_undo_math_only():
    with apply_numerics(Numerics(float32_matmul="high")):
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        surrounding = Ambient.current()
    with force_math_kernel(), surrounding.enter():
        assert (Numerics.current().float32_matmul, list_enabled_kernels()) == ("highest", ("math",))
        assert torch.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")
    with surrounding.enter():
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"


# -- the calls of a run -----------------------------------------------------------------------------


class Model(nn.Module):
    """Calls attention three times: by a name of its own, through a module of torch, by torch's name."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = attention(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1), is_causal=True).squeeze(1)
        y, _ = self.heads(y, y, y, need_weights=False)
        return functional.scaled_dot_product_attention(y, x, x, attn_mask=torch.ones(8, 8).bool())


def test_every_distinct_call_is_listed_once_with_its_kernels():
    model, x = Model().train(), tensor(2, 8, 32)
    before = functional.scaled_dot_product_attention
    with record_attention_calls() as calls:
        model(x)
        model(x)
    assert functional.scaled_dot_product_attention is before
    assert [(call["query"]["shape"], call["causal"], call["calls"]) for call in calls] == [
        ([2, 1, 8, 32], True, 2),
        ([2, 2, 8, 16], False, 2),
        ([2, 8, 32], False, 2),
    ]
    assert [call["needs_grad"] for call in calls] == [False, True, True]
    assert calls[2]["mask"] == {"shape": [8, 8], "strides": [8, 1], "dtype": "bool"}
    chosen = [backend["name"] for call in calls for backend in call["backends"] if backend["chosen"]]
    assert chosen[:2] == ["flash", "flash"] and json.loads(json.dumps(calls)) == calls


def test_calls_under_other_settings_are_other_calls():
    with record_attention_calls() as calls:
        attention(tensor(), tensor(), tensor())
        with sdpa_kernel(SDPBackend.MATH):
            attention(tensor(), tensor(), tensor())
    assert [call["switched_on"] for call in calls] == [list(KERNELS), ["math"]]


def test_what_torch_cannot_answer_for_is_noted_and_runs():
    with record_attention_calls() as calls, torch.no_grad():
        plain = torch.nested.nested_tensor([torch.ones(2, 4, 16), torch.ones(2, 5, 16)])
        assert attention(plain, plain, plain).is_nested
    assert "nested" in calls[0]["note"] and calls[0]["query"]["shape"] == []


def test_a_program_that_a_kernel_refuses_is_refused_with_the_shapes_and_a_way_out():
    with record_attention_calls() as calls:
        attention(tensor(), tensor(), tensor())
        attention(tensor(), tensor(), tensor(), dropout_p=0.25)
    refuse_unless_usable(calls, "math")
    with pytest.raises(EnvironmentUnfit, match=r"flash .*\[1, 2, 8, 16\].* non-zero dropout\. Use one of math\."):
        refuse_unless_usable(calls, "flash")


# -- the table of doctor ----------------------------------------------------------------------------


def test_the_table_shows_what_is_chosen_first_and_each_reason_once():
    answered = ask_kernels(CPU)
    assert len(answered) == len({(each["inputs"], each["head_dim"], each["dtype"]) for each in answered}) == 45
    text = format_kernel_table(answered)
    assert any(line.startswith("causal") and "64, 80, 256" in line and "flash, math" in line for line in text)
    assert sum("non-zero dropout" in line for line in text) == 1
    with apply_numerics(Numerics(math_sdp=False)):
        assert any(
            line.startswith("training, dropout") and "none" in line for line in format_kernel_table(ask_kernels(CPU))
        )
