"""Compiles small programs for a target and runs their kernels; prints one JSON object with what came of each.

A script: a process compiles for one target for the rest of its life.
"""

import contextlib
import json
import sys
import time
import warnings
from unittest import mock

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch._inductor import compile_fx
from torch._inductor import config as inductor
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.target import kernel_log, target_process
from fuzzcompile.compiler.target.graph_placement import move_graph
from fuzzcompile.model.targets import find_target

TARGET = find_target("cuda:sm_90")
TEMPLATES = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON,ATEN"}
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


def compiled(function, inputs, log, *, config=None, programs=2**17, **options):
    """What the compiled function returns, its kernels interpreted."""
    told = {"force_disable_caches": True, **(config or {})}

    @contextlib.contextmanager
    def in_force():
        with (
            target_process.describe_target(),
            inductor.patch(told),
            target_process.interpret_triton(TARGET, log, **options),
            mock.patch("fuzzcompile.compiler.target.kernel_execution.MOST_PROGRAMS", programs),
        ):
            yield

    def backend(module, values):
        with in_force():
            made = compile_fx.compile_fx(module, move_graph(module, values))

        def call(*given):
            with in_force():
                return made(*given)

        return call

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend=backend)(*inputs)


def outcome(function, inputs, **options):
    """Errors against float64 of the compiled function and of eager, and the log of its kernels."""
    log, start = kernel_log.KernelLog(), time.monotonic()
    result = {}
    try:
        outputs = pytree.tree_leaves(compiled(function, inputs, log, **options))
    except Exception as error:
        while getattr(error, "inner_exception", None) is not None:
            error = error.inner_exception
        result["raised"] = f"{type(error).__name__}: {error}"
    else:
        wide = [value.double() if value.is_floating_point() else value for value in inputs]
        expected, eager = pytree.tree_leaves(function(*wide)), pytree.tree_leaves(function(*inputs))
        result["error"] = farthest(outputs, expected)
        result["eager"] = farthest(eager, expected)
        result["dtypes"] = [value.dtype for value in outputs] == [value.dtype for value in eager]
    return result | {
        "seconds": time.monotonic() - start,
        "launches": [[launch.kernel, launch.grid, launch.configs] for launch in log.launches],
        "sources": list(log.sources),
        "source": "".join(log.sources.values()),
        "notes": log.notes,
        "undecided": list(log.undecided),
        "summary": log.summarise(),
    }


def farthest(values, expected):
    """The largest difference, relative to the largest expected number."""
    return max(
        float((value.double() - right.double()).abs().nan_to_num(1e9).max() / (right.double().abs().max() + 1e-30))
        for value, right in zip(values, expected, strict=True)
    )


def normal(dtype, *shape):
    return torch.randn(*shape).to(dtype)


def cases():
    """Programs by name: function, inputs, options."""
    index = torch.randint(0, 10, (100,))
    for dtype in (SINGLE, HALF, BRAIN):
        name = str(dtype).removeprefix("torch.")
        x = normal(dtype, 16, 200)
        yield f"pointwise {name}", lambda x: torch.sigmoid(x) * x + 1, [x], {}
        yield f"layer_norm {name}", lambda x: F.layer_norm(x, (200,)), [x], {}
        yield f"softmax {name}", lambda x: torch.softmax(x * 3, -1), [x], {}
        yield f"gelu {name}", lambda x, w: F.gelu(x @ w), [x, normal(dtype, 200, 24)], {}
        yield (
            f"template {name}",
            lambda a, b: torch.relu(a @ b) + 1,
            [normal(dtype, 50, 72), normal(dtype, 72, 40)],
            {
                "config": TEMPLATES,
                "templates": True,
            },
        )
        zeros = torch.zeros(10, dtype=dtype)
        yield f"scatter {name}", lambda x, z, i: z.scatter_add(0, i, x), [normal(dtype, 100), zeros, index], {}
    x = normal(SINGLE, 16, 200)
    yield "group_norm", lambda x: F.group_norm(x, 4), [normal(SINGLE, 2, 16, 5, 5)], {}
    yield "split sum", lambda x: (x * 2).sum(), [normal(SINGLE, 300, 301)], {}
    yield "amax", lambda x: (x.amax(), x.amin(0)), [normal(SINGLE, 300, 64)], {}
    yield "variance", lambda x: x.var(-1), [normal(SINGLE, 4, 5000)], {}
    yield "cumsum", lambda x: x.cumsum(-1), [x], {}
    yield "logcumsumexp", lambda x: x.logcumsumexp(-1), [x], {}
    yield "split scan", lambda x: x.cumsum(-1), [normal(SINGLE, 2, 9000)], {}
    yield "sort", lambda x: torch.sort(x, stable=True), [normal(SINGLE, 2, 64)], {}
    yield "argmax", lambda x: (x.argmax(-1), x.argmin()), [x], {}
    yield (
        "convolution",
        lambda x, w: F.relu(F.conv2d(x, w)),
        [normal(SINGLE, 1, 2, 9, 9), normal(SINGLE, 4, 2, 3, 3)],
        {},
    )
    embedding = torch.ops.aten.embedding_dense_backward
    yield "embedding", lambda g, i: embedding(g, i, 10, -1, False), [normal(SINGLE, 100, 8), index], {}
    yield "backwards", lambda x: torch.softmax(x, 0), [x], {"order": kernel_log.ProgramOrder.BACKWARD}
    yield "too many programs", lambda x: x + 1, [x], {"programs": 2}
    yield (
        "barrier",
        lambda x: x.sum(-1),
        [normal(SINGLE, 2, 5000)],
        {"config": {"triton.cooperative_reductions": True, "triton.force_cooperative_reductions": True}},
    )


def planted():
    """A wrong operator in Inductor's Triton code generator."""
    from torch._inductor.codegen.triton import TritonKernelOverrides

    owner = next(kind for kind in TritonKernelOverrides.__mro__ if "exp" in vars(kind))
    original = vars(owner)["exp"]
    owner.exp = staticmethod(lambda x: f"(1.001 * libdevice.exp({x}))")
    try:
        return outcome(lambda x: x.exp() + 1, [normal(SINGLE, 16, 200)])
    finally:
        owner.exp = original


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def add_twice(x, y, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(out + index, tl.load(x + index, mask=mask) + 2 * tl.load(y + index, mask=mask), mask=mask)


def written_by_hand():
    """A program that launches a Triton kernel of its own, eager and compiled."""

    def function(x, y):
        out = torch.empty_like(x)
        add_twice[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out * 3

    x, y, log = normal(SINGLE, 100), normal(SINGLE, 100), kernel_log.KernelLog()
    with target_process.interpret_triton(TARGET, log):
        eager, result = function(x, y), compiled(function, [x, y], log)
    kernels = [launch.kernel for launch in log.launches]
    return {"error": farthest([eager, result], [(x + 2 * y) * 3] * 2), "kernels": kernels}


def drawn():
    """How often dropout keeps an element, and the factor of those that it keeps."""
    log, ones = kernel_log.KernelLog(), torch.ones(64, 64)
    (kept,) = pytree.tree_leaves(compiled(lambda x: F.dropout(x, 0.25), [ones], log))
    return {"kept": float((kept != 0).float().mean()), "factor": float(kept.max()), "launches": len(log.launches)}


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    target_process.assume_target(TARGET)
    wanted = sys.argv[1:]
    results = {
        name: outcome(function, inputs, **options)
        for name, function, inputs, options in cases()
        if not wanted or name in wanted
    }
    print(json.dumps(results | {"planted": planted(), "by hand": written_by_hand(), "dropout": drawn()}))


if __name__ == "__main__":
    main()
