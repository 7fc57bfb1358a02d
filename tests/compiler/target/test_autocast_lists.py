"""CUDA's published autocast lists on tensors of the CPU, and that fake tensors of CUDA follow torch's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzcompile.compiler.target import cuda_dispatch

SCRIPT = """
import json, torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from fuzzcompile.compiler.target.cuda_dispatch import install_autocast

half, single, double = (torch.rand(2, 4, 4).to(dtype) for dtype in (torch.float16, torch.float32, torch.float64))
weight = torch.rand(4, 4, requires_grad=True)
logits, targets = torch.rand(3, 5, dtype=torch.float16), torch.tensor([0, 1, 2])
vector, cube = half[0, 0], torch.rand(1, 1, 4, 4, 4, dtype=torch.float16)
CALLS = {
    # lower precision
    "matmul": lambda x: x @ x, "linear": lambda x: F.linear(x, weight), "bmm": lambda x: torch.bmm(x, x),
    "einsum": lambda x: torch.einsum("bij,bjk->bik", x, x), "mv": lambda x: torch.mv(x[0], x[0, 0]),
    "addr": lambda x: torch.addr(x[0], x[0, 0], x[0, 1]), "conv1d": lambda x: F.conv1d(x, x),
    "prelu": lambda x: F.prelu(x, torch.rand(1)), "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
    # float32
    "exp": torch.exp, "log": torch.log, "rsqrt": torch.rsqrt, "pow": lambda x: x ** 2.5, "softplus": F.softplus,
    "layer_norm": lambda x: F.layer_norm(x, [4]), "rms_norm": lambda x: F.rms_norm(x, [4]),
    "group_norm": lambda x: F.group_norm(x, 2), "mse_loss": lambda x: F.mse_loss(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "logsumexp": lambda x: torch.logsumexp(x, -1), "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "cross_entropy": lambda x: F.cross_entropy(x[0], targets[[0, 1, 2, 0]]),
    # float32 unless a dtype is named
    "softmax": lambda x: torch.softmax(x, -1), "log_softmax": lambda x: torch.log_softmax(x, -1), "sum": torch.sum,
    "sum dim": lambda x: x.sum(-1), "cumsum": lambda x: x.cumsum(-1), "prod": torch.prod,
    "vector_norm": torch.linalg.vector_norm, "norm": lambda x: torch.ops.aten.norm.Scalar(x, 2),
    "norm dim": lambda x: torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1]),
    "softmax named": lambda x: torch.softmax(x, -1, dtype=torch.float64),
    # the widest
    "addcmul": lambda x: torch.addcmul(x, x, x), "addcmul mixed": lambda x: torch.addcmul(x, x, single),
    "atan2 mixed": lambda x: torch.atan2(x, single), "dot": lambda x: torch.dot(x[0, 0], x[0, 1]),
    # in no list of CUDA, though some in the CPU's
    "relu": torch.relu, "add": lambda x: x + x, "cat": lambda x: torch.cat([x, x]), "mean": torch.mean,
    "avg_pool3d": lambda x: F.avg_pool3d(x[None, None], 2), "trace": lambda x: torch.trace(x[0]),
    "reflection_pad1d": lambda x: F.pad(x, (1, 1), "reflect"), "gelu": F.gelu,
}
def dtypes(value):
    out = {}
    for name, call in CALLS.items():
        try:
            out[name] = str(call(value).dtype).removeprefix("torch.")
        except Exception as error:
            out[name] = str(error)
    return out

with torch.autocast("cpu", dtype=torch.float16):
    before = dtypes(half)["softmax"]
install_autocast()
result = {"before": before}
with torch.autocast("cpu"):
    result |= {"half": dtypes(half), "single": dtypes(single), "double": dtypes(double)}
    result["default"] = str((single @ single).dtype)
    with torch.autocast("cpu", enabled=False):
        result["nested"] = str((single @ single).dtype) + " " + str(torch.softmax(half, -1).dtype)
    try:
        F.binary_cross_entropy(half.clamp(0.1, 0.9), half)
        result["banned"] = False
    except RuntimeError as error:
        result["banned"] = "unsafe to autocast" in str(error)
result["outside"] = str(torch.softmax(half, -1).dtype)
grads = {}
for cached in (True, False):
    weight.grad = None
    with torch.autocast("cpu", cache_enabled=cached):
        torch.log_softmax(F.linear(F.linear(single, weight), weight), -1).exp().sum(0).norm().backward()
    grads[str(cached)] = [str(weight.grad.dtype), weight.grad.tolist()]
result["grads"] = grads
with torch.autocast("cpu"):
    result["values"] = torch.allclose(torch.softmax(half, -1), torch.softmax(half.float(), -1))

# Fake tensors of CUDA follow torch's own lists, which are compiled into every build.
torch.cuda.is_available = lambda: True
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
FakeTensorMode.avoid_device_init = property(lambda self: True)
mode = FakeTensorMode()
def fake(value):
    return FakeTensor(mode, value.detach().to("meta"), torch.device("cuda", 0))
inputs = fake(half), fake(torch.rand(2, 4, 4))
weight, single, targets = fake(weight), fake(single), fake(targets)
# Some mix in tensors of the CPU, some ask for a device guard, which a build without CUDA does not have.
LEFT_OUT = ("prelu", "sdpa", "cross_entropy", "mv", "addr", "dot", "avg_pool3d", "trace")
CALLS = {name: call for name, call in CALLS.items() if name not in LEFT_OUT}
with mode, torch.autocast("cuda", dtype=torch.float16):
    result["cuda half"], result["cuda single"] = (dtypes(value) for value in inputs)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The dtypes of results in a process with CUDA's lists."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


HALF, SINGLE = "float16", "float32"
LOW = ["matmul", "linear", "bmm", "einsum", "mv", "addr", "conv1d", "prelu", "sdpa"]
HIGH = ["exp", "log", "rsqrt", "pow", "softplus", "layer_norm", "rms_norm", "group_norm", "mse_loss", "cdist"]
HIGH += ["logsumexp", "interpolate", "cross_entropy", "softmax", "log_softmax", "sum", "sum dim", "cumsum", "prod"]
HIGH += ["vector_norm", "norm", "norm dim", "addcmul mixed", "atan2 mixed"]
AS_IS = ["relu", "add", "cat", "mean", "avg_pool3d", "trace", "reflection_pad1d", "gelu", "addcmul", "dot"]


@pytest.mark.parametrize("name", LOW)
def test_products_run_in_lower_precision(seen: dict[str, Any], name: str) -> None:
    assert seen["half"][name] == seen["single"][name] == HALF


@pytest.mark.parametrize("name", HIGH)
def test_what_needs_range_runs_in_float32(seen: dict[str, Any], name: str) -> None:
    assert seen["half"][name] == seen["single"][name] == SINGLE


@pytest.mark.parametrize("name", AS_IS)
def test_what_is_in_no_list_keeps_its_dtype(seen: dict[str, Any], name: str) -> None:
    assert (seen["half"][name], seen["single"][name]) == (HALF, SINGLE)


@pytest.mark.parametrize("name", ["matmul", "exp", "softmax", "addcmul", "relu", "norm", "sdpa"])
def test_float64_is_left_alone(seen: dict[str, Any], name: str) -> None:
    assert seen["double"][name] == "float64"


def test_a_dtype_that_the_program_names_stays(seen: dict[str, Any]) -> None:
    assert seen["half"]["softmax named"] == "float64"


def test_the_policy_holds_inside_autocast_alone(seen: dict[str, Any]) -> None:
    assert seen["before"] == HALF  # the CPU's own policy
    assert seen["default"] == "torch.float16"
    assert seen["nested"] == "torch.float32 torch.float16"
    assert seen["outside"] == "torch.float16"


def test_binary_cross_entropy_is_refused_as_on_cuda(seen: dict[str, Any]) -> None:
    assert seen["banned"]


def test_gradients_have_the_dtype_of_the_parameters_with_and_without_the_cache(seen: dict[str, Any]) -> None:
    (cached_dtype, cached), (dtype, uncached) = seen["grads"]["True"], seen["grads"]["False"]
    assert cached_dtype == dtype == "torch.float32"
    torch.testing.assert_close(torch.tensor(cached), torch.tensor(uncached), rtol=1e-2, atol=1e-2)
    assert seen["values"]


def test_fake_tensors_of_cuda_follow_the_same_policy(seen: dict[str, Any]) -> None:
    for dtype in ("half", "single"):
        compiled = seen[f"cuda {dtype}"]
        assert len(compiled) > 30
        assert {name: seen[dtype][name] for name in compiled} == compiled


def test_every_operator_that_torch_casts_on_cuda_has_a_policy() -> None:
    lists = ("low_precision", "single", "single_result", "widest", "device_only")
    listed = set[str]().union(*map(cuda_dispatch.list_operators, lists))
    listed |= {*cuda_dispatch._SINGLE_NORMS, cuda_dispatch._BANNED}
    assert cuda_dispatch.list_with_kernel("AutocastCUDA") - listed == set()


def test_the_lists_are_those_of_the_installed_torch() -> None:
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch comes without its headers")
    lists = {
        "AT_FORALL_LOWER_PRECISION_FP": cuda_dispatch.list_operators("low_precision")
        | cuda_dispatch.list_operators("device_only"),
        "AT_FORALL_FP32": cuda_dispatch.list_operators("single"),
        "AT_FORALL_FP32_SET_OPT_DTYPE": cuda_dispatch.list_operators("single_result"),
        "AT_FORALL_PROMOTE": cuda_dispatch.list_operators("widest"),
    }
    for macro, ours in lists.items():
        body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", header.read_text())
        assert body is not None
        published = {".".join(re.split(r",\s*", entry)) for entry in re.findall(r"_\((\w+(?:,\s*\w+)?)\)", body[1])}
        assert published <= ours
