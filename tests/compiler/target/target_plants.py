"""Faults planted in what Inductor does for CUDA alone, and programs that meet them; for a worker with a target."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import JudgeTask

aten = torch.ops.aten
DTYPES = ("float32", "float16")
"""Those of the inputs of the programs below."""
OFF = 1.25
"""Factor that most plants make a value wrong by: half precision hides less than 1 %."""


def judge(path: str, plant: str | None, thorough: bool = False) -> ReportJson:
    """Judge a case file in this process, with a plant by its name or with none."""
    with PLANTS[plant].install() if plant is not None else contextlib.nullcontext():
        return judge_file(JudgeTask(path=path, thorough=thorough)).report


# -- the code of operators --------------------------------------------------------------------------


def wrong_code(name: str, *, dtype: str | None = None) -> AbstractContextManager[Any]:
    """Triton code of an operator that is off by a factor; with ``dtype`` only a cast to it."""
    from torch._inductor.codegen.triton import TritonKernelOverrides

    TritonKernelOverrides._setup_libdevice_routing()
    original = getattr(TritonKernelOverrides, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        text = original(*args, **kwargs)
        return f"({text} * {OFF if dtype is None else 2})" if dtype is None or dtype in str(text) else text

    planted.__name__ = name
    return mock.patch.object(TritonKernelOverrides, name, staticmethod(planted))


def wrong_reduction(*kinds: str) -> AbstractContextManager[Any]:
    """Reductions of these kinds give a result that is off by a factor."""
    from torch._inductor.codegen.triton import TritonKernel

    original = TritonKernel.reduction

    def planted(kernel: Any, dtype: Any, src_dtype: Any, kind: str, value: Any) -> Any:
        result = original(kernel, dtype, src_dtype, kind, value)
        if kind not in kinds:
            return result
        first = result[0] if isinstance(result, tuple) else result
        where = kernel.post_loop_combine if not kernel.persistent_reduction else kernel.compute
        wrong = kernel.cse.generate(where, f"{first} * {OFF}", dtype=first.dtype, shape=first.shape)
        return (wrong, *result[1:]) if isinstance(result, tuple) else wrong

    return mock.patch.object(TritonKernel, "reduction", planted)


def wrong_maximum() -> AbstractContextManager[Any]:
    """The combination of a block's maxima is off by a factor."""
    import wrong_helpers
    from torch._inductor.runtime import triton_helpers

    return mock.patch.object(triton_helpers, "max2", wrong_helpers.max2)


def lost_reload() -> AbstractContextManager[Any]:
    """What follows a reduction of several blocks stays in its loop and reads what is not yet finished."""
    from torch._inductor.codegen.simd import DisableReduction, EnableReduction, SIMDScheduling

    original = SIMDScheduling.generate_node_schedule

    def planted(scheduling: Any, nodes: Any, numel: Any, rnumel: Any) -> Any:
        schedule = original(scheduling, nodes, numel, rnumel)
        return [node for node in schedule if node not in (DisableReduction, EnableReduction)]

    return mock.patch.object(SIMDScheduling, "generate_node_schedule", planted)


def fused_anyway() -> AbstractContextManager[Any]:
    """A reduction is fused with what reads other elements of its result."""
    from torch._inductor.scheduler import Scheduler

    original = Scheduler.can_fuse_vertical

    def planted(scheduler: Any, producer: Any, consumer: Any, **kwargs: Any) -> bool:
        return producer.is_reduction() or original(scheduler, producer, consumer, **kwargs)

    return mock.patch.object(Scheduler, "can_fuse_vertical", planted)


def wrong_epilogue() -> AbstractContextManager[Any]:
    """What a matrix template stores, and hands to its epilogue, is off by a factor."""
    from torch._inductor.select_algorithm import TritonTemplateKernel

    original = TritonTemplateKernel.store_output

    def planted(kernel: Any, indices: Any, val: str, *args: Any, **kwargs: Any) -> Any:
        return original(kernel, indices, f"({val} * {OFF})", *args, **kwargs)

    planted.__name__ = original.__name__  # under which templates call it
    return mock.patch.object(TritonTemplateKernel, "store_output", planted)


def overlapping_stores() -> AbstractContextManager[Any]:
    """Each program of a pointwise kernel writes one element of the next program too."""
    from torch._inductor.codegen.triton import TritonKernel

    original = TritonKernel.codegen_kernel

    def planted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        lines = original(kernel, *args, **kwargs).split("\n")
        return "\n".join(line for text in lines for line in (*_beyond(text), text))

    return mock.patch.object(TritonKernel, "codegen_kernel", planted)


def _beyond(line: str) -> Iterator[str]:
    if line.strip().startswith("tl.store(out_ptr0 + (x0)"):
        indent = line[: len(line) - len(line.lstrip())]
        yield f"{indent}beyond = xoffset + XBLOCK + 0 * xindex"
        yield f"{indent}tl.store(out_ptr0 + beyond, 7.0 + 0 * xindex, beyond < xnumel)"


# -- graph passes -----------------------------------------------------------------------------------


def padded_with_ones() -> AbstractContextManager[Any]:
    """Matrices are padded with ones along the summed dimension."""
    from torch._inductor.fx_passes import pad_mm

    def planted(x: Any, padded_length: int, dim: int) -> Any:
        pads = [0] * (2 * x.dim())
        pads[2 * (x.dim() - 1 - dim) + 1] = padded_length
        return aten.constant_pad_nd(x, pads, 1.0) if padded_length else x

    def mat1(x: Any, *, m_padded_length: int, k_padded_length: int, **_: Any) -> Any:
        return planted(planted(x, m_padded_length, x.dim() - 2), k_padded_length, x.dim() - 1)

    def mat2(x: Any, *, k_padded_length: int, n_padded_length: int, **_: Any) -> Any:
        return planted(planted(x, k_padded_length, x.dim() - 2), n_padded_length, x.dim() - 1)

    return mock.patch.multiple(pad_mm, pad_mat1=mat1, pad_mat2=mat2)


def swapped_in_half() -> AbstractContextManager[Any]:
    """In half precision, fused attention is called with keys and values exchanged."""
    from torch._inductor.fx_passes import fuse_attention

    original = fuse_attention._scaled_dot_product_attention

    def planted(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if query.dtype == torch.float16 and query.device.type == "cuda":
            key, value = value, key
        return original(query, key, value, *args, **kwargs)

    return mock.patch.object(fuse_attention, "_scaled_dot_product_attention", planted)


def wrong_unfused_bias() -> AbstractContextManager[Any]:
    """The bias of a linear layer, which only GPUs take out of ``addmm``, is added off by a factor."""
    from torch._inductor.fx_passes import post_grad

    entries = [entry for table in post_grad.pass_patterns for listed in table.patterns.values() for entry in listed]
    entry = next(
        e for e in entries if getattr(getattr(e, "handler", None), "__name__", "") == "unfuse_bias_add_to_pointwise"
    )

    def unfuse_bias_add_to_pointwise(match: Any, mat1: Any, mat2: Any, *, inp: Any, alpha: Any, beta: Any) -> None:
        match.replace_by_example(lambda inp, a, b: OFF * inp + a @ b, [inp, mat1, mat2])

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        original = entry.handler
        object.__setattr__(entry, "handler", unfuse_bias_add_to_pointwise)
        try:
            yield
        finally:
            object.__setattr__(entry, "handler", original)

    return planted()


# -- operators --------------------------------------------------------------------------------------


def wrong_lowering(target: Any) -> AbstractContextManager[Any]:
    """A lowering that is off by a factor for CUDA."""
    from torch._inductor.lowering import lowerings

    original = lowerings[target]

    def planted(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(x, *args, **kwargs)
        return lowerings[aten.mul.Tensor](result, OFF) if x.get_device().type == "cuda" else result

    return mock.patch.dict(lowerings, {target: planted})


def wrong_decomposition(target: Any) -> AbstractContextManager[Any]:
    """A decomposition that is off by a factor for CUDA, and right for the CPU."""
    from torch._inductor.decomposition import decompositions, select_decomp_table

    original = decompositions[target]

    def planted(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(x, *args, **kwargs)
        if x.device.type != "cuda":
            return result
        return (result[0] * OFF, *result[1:]) if isinstance(result, tuple) else result * OFF

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        with mock.patch.dict(decompositions, {target: planted}):
            fresh = getattr(select_decomp_table, "cache_clear", lambda: None)
            fresh()
            try:
                yield
            finally:
                fresh()

    return patched()


# -- the table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plant:
    """A plant, and a program that it makes wrong.

    Attributes:
        install: plants it for the time of a block.
        program: its case file.
        stage: what a report must name.
        names: what a report must name the culprit by: its rewrite or its family.
        source: the end of the file that a report must name.
        slow: takes longer than the tests of every change should.
    """

    install: Callable[[], AbstractContextManager[Any]]
    program: str
    stage: str
    names: str
    source: str
    slow: bool = False


def case(body: str, *inputs: str, settings: str = "") -> str:
    """A case file around an expression over ``x``, ``y`` and ``z``."""
    names = ", ".join("xyz"[: len(inputs)])
    return (
        f"import torch\nimport torch.nn.functional as F\n{settings}\n\ndef program({names}):\n    return {body}\n\n\n"
        f"def make():\n    torch.manual_seed(0)\n    return program, ({', '.join(inputs)},)\n"
    )


def tensor(*shape: int, dtype: str = "float32", grad: bool = False) -> str:
    """The source of a random tensor."""
    made = f"torch.randn({', '.join(map(str, shape))}, dtype=torch.{dtype})"
    return f"{made}.requires_grad_()" if grad else made


POINTWISE = case("torch.tanh(x) * y + torch.sin(x)", tensor(8, 33), tensor(8, 33))
ROOTS = case("torch.rsqrt(x.abs() + 1) - torch.sigmoid(y)", tensor(8, 33), tensor(8, 33))
CASTS = case("(torch.sin(x) * 30).to(torch.int32) + 1", tensor(8, 33))
SOFTMAX = case("torch.softmax(x * 2, -1)", tensor(8, 40, dtype="float16"))
NORM = case("F.layer_norm(x * 2, (64,))", tensor(8, 64))
AMAX = case("(x * 2).amax(-1)", tensor(8, 40))
LONG = case("x / x.abs().sum(-1, keepdim=True)", tensor(3, 5000))
SHIFTED = case("((s := x.sum(-1)) + y, torch.roll(s, 1, 0) * y)", tensor(40, 30), tensor(40))
PRODUCT = case("x @ y", tensor(32, 20, dtype="float16"), tensor(20, 33, dtype="float16"))
LINEAR = case("F.gelu(F.linear(x, y, z))", tensor(16, 32), tensor(48, 32), tensor(48))
TEMPLATE = case("torch.relu(x @ y)", tensor(32, 32), tensor(32, 32), settings='OPTIONS = {"max_autotune_gemm": True}')
ATTENTION = case(
    "torch.softmax(x @ y.transpose(-2, -1) / 4.0, -1) @ z",
    *[tensor(1, 2, 8, 16, dtype="float16") for _ in range(3)],
)
SCAN = case("torch.cumsum(x, -1) * 2", tensor(4, 30))
GRADIENT = case("torch.tanh(x * y)", tensor(8, 33, grad=True), tensor(8, 33, grad=True), settings="BACKWARD = True")
MANY = case("torch.sin(x) + 1", tensor(5000))

SIMD = "torch/_inductor/codegen/simd.py"
TRITON = "torch/_inductor/codegen/triton.py"
HERE = Path(__file__).name

PLANTS = {
    "code of tanh": Plant(
        lambda: wrong_code("tanh"), POINTWISE, "codegen", "TritonKernelOverrides.tanh", HERE, slow=True
    ),
    "code of rsqrt": Plant(
        lambda: wrong_code("rsqrt"), ROOTS, "codegen", "TritonKernelOverrides.rsqrt", HERE, slow=True
    ),
    "code of sigmoid": Plant(
        lambda: wrong_code("sigmoid"), ROOTS, "codegen", "TritonKernelOverrides.sigmoid", HERE, slow=True
    ),
    "cast": Plant(
        lambda: wrong_code("to_dtype", dtype="int32"),
        CASTS,
        "codegen",
        "TritonKernelOverrides.to_dtype",
        HERE,
        slow=True,
    ),
    "sum": Plant(lambda: wrong_reduction("sum"), SOFTMAX, "codegen", "reduction:sum", HERE, slow=True),
    "variance": Plant(
        lambda: wrong_reduction("welford_reduce", "welford_combine"),
        NORM,
        "codegen",
        "reduction:welford_reduce",
        HERE,
        slow=True,
    ),
    "maximum": Plant(wrong_maximum, AMAX, "codegen", "reduction:max", TRITON),
    "loop of a reduction": Plant(lost_reload, LONG, "codegen", "fusion", SIMD, slow=True),
    "fusion": Plant(fused_anyway, SHIFTED, "scheduler", "fusion", "torch/_inductor/scheduler.py"),
    "template": Plant(wrong_epilogue, TEMPLATE, "codegen", "template:mm", "torch/_inductor/select_algorithm.py"),
    "overlapping programs": Plant(overlapping_stores, MANY, "codegen", "race", TRITON),
    "padding": Plant(padded_with_ones, PRODUCT, "joint_graph", "mm_pattern", "torch/_inductor/fx_passes/pad_mm.py"),
    "attention in half": Plant(
        swapped_in_half, ATTENTION, "joint_graph", "sfdp", "torch/_inductor/fx_passes/fuse_attention.py", slow=True
    ),
    "bias": Plant(wrong_unfused_bias, LINEAR, "post_grad", "unfuse_bias_add_to_pointwise", HERE),
    "scan": Plant(lambda: wrong_lowering(aten.cumsum.default), SCAN, "lowering", "aten.cumsum.default", HERE),
    "decomposition": Plant(
        lambda: wrong_decomposition(aten.native_layer_norm.default),
        NORM,
        "decomposition",
        "aten.native_layer_norm.default",
        HERE,
        slow=True,
    ),
    "gradient": Plant(
        lambda: wrong_decomposition(aten.tanh_backward.default),
        GRADIENT,
        "decomposition",
        "aten.tanh_backward.default",
        HERE,
    ),
}
