"""Faults planted behind the graph passes: in lowerings, in the scheduler, in generated code, in the wrapper."""

from __future__ import annotations

import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import sympy
import torch
from torch._inductor import cpp_builder, index_propagation, ir
from torch._inductor import lowering as lowering_module
from torch._inductor.codegen import cpp
from torch._inductor.codegen.common import CSE
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import lowerings
from torch._inductor.scheduler import Scheduler

from fuzzcompile.compiler.operators.decompositions import is_mutating

aten = torch.ops.aten


@torch.library.custom_op("fuzzcompile_tests::twice", mutates_args={"y"})
def twice(y: torch.Tensor) -> None:
    y.mul_(2)


@contextlib.contextmanager
def lowering(target: Any, wrong: Callable[..., Any]) -> Iterator[None]:
    """Lower ``target`` by ``wrong(original, *args, **kwargs)``."""
    original = lowerings[target]

    def planted(*args: Any, **kwargs: Any) -> Any:
        return wrong(original, *args, **kwargs)

    with mock.patch.dict(lowerings, {target: planted}):
        yield


def scaled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return lowerings[aten.mul.Tensor](original(*args, **kwargs), 1.01)


def first_result_scaled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    first, *rest = original(*args, **kwargs)
    return (lowerings[aten.mul.Tensor](first, 1.05), *rest)


def dimension_dropped(original: Callable[..., Any], x: Any, axis: Any, keepdims: bool = False, **kwargs: Any) -> Any:
    return original(x, axis, False, **kwargs)


def expanded(original: Callable[..., Any], x: Any, repeats: Any) -> Any:
    return lowerings[aten.expand.default](x, repeats)


def of_magnitudes(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    return original(lowerings[aten.abs.default](x), *args, **kwargs)


def last_negated(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    return original([*tensors[:-1], lowerings[aten.neg.default](tensors[-1])], *args, **kwargs)


def neighbours(original: Callable[..., Any], x: Any, dim: int, index: Any, *args: Any, **kwargs: Any) -> Any:
    return original(x, dim, lowerings[aten.add.Tensor](index, 1), *args, **kwargs)


def out_of_bounds(original: Callable[..., Any], x: Any, dim: int, index: Any, *args: Any, **kwargs: Any) -> Any:
    return original(x, dim, lowerings[aten.add.Tensor](index, 1000), *args, **kwargs)


def in_backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from torch._inductor.virtualized import V

    backward = any("tangents" in name for name in V.graph.graph_input_names)
    result = original(*args, **kwargs)
    return lowerings[aten.add.Tensor](result, 0.01) if backward else result


def raising(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise ValueError("planted")


def called_otherwise(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "scale": 0.5})


def no_such_dimension(original: Callable[..., Any], x: Any, dims: Any = (), *args: Any, **kwargs: Any) -> Any:
    return original(x, [7], *args, **kwargs)


@contextlib.contextmanager
def lowerings_of(*targets: Any) -> Iterator[None]:
    """Lower several operators wrongly, each for a reason of its own."""
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.enter_context(lowering(target, scaled))
        yield


def code(owner: Any, name: str, wrong: Callable[..., str]) -> contextlib.AbstractContextManager[Any]:
    """Generate the code of operator ``name`` by ``wrong``."""
    wrong.__name__ = name
    return mock.patch.object(owner, name, staticmethod(wrong))


def wrong_vector(name: str) -> contextlib.AbstractContextManager[Any]:
    return code(cpp.CppVecOverrides, name, lambda x: f"({x}.{name}() * at::vec::Vectorized<float>(1.01))")


def rounded_vector(name: str) -> contextlib.AbstractContextManager[Any]:
    """Two units in the last place off, as another library's function may be."""
    return code(cpp.CppVecOverrides, name, lambda x: f"({x}.{name}() * at::vec::Vectorized<float>(1.0000002f))")


def wrong_difference() -> contextlib.AbstractContextManager[Any]:
    return code(cpp.CppVecOverrides, "sub", lambda a, b: f"({a} - {b} * at::vec::Vectorized<float>(1.01))")


def no_remainder() -> contextlib.AbstractContextManager[Any]:
    return code(cpp.CppVecOverrides, "remainder", lambda a, b: f"({a} + {b})")


def wrong_scalar() -> contextlib.AbstractContextManager[Any]:
    return code(cpp.CppOverrides, "exp", lambda x: f"std::exp({x}) * 1.01")


def no_such_vector() -> contextlib.AbstractContextManager[Any]:
    return code(cpp.CppVecOverrides, "sin", lambda x: f"{x}.no_such_function()")


def no_such_scalar() -> contextlib.AbstractContextManager[Any]:
    return code(cpp.CppOverrides, "sin", lambda x: f"std::no_such_function({x})")


def wrong_vector_sum() -> contextlib.AbstractContextManager[Any]:
    original = cpp.CppVecKernel.reduction_combine_vec

    def planted(kernel: Any, kind: str, var: Any, next_value: Any, *args: Any, **kwargs: Any) -> Any:
        line = original(kernel, kind, var, next_value, *args, **kwargs)
        wrong = f"({next_value} * at::vec::Vectorized<float>(1.01))"
        return line.replace(str(next_value), wrong) if kind == "sum" else line

    return mock.patch.object(cpp.CppVecKernel, "reduction_combine_vec", planted)


def no_second_vector_sum() -> contextlib.AbstractContextManager[Any]:
    """The second sum of a kernel does not compile."""
    original = cpp.CppVecKernel.reduction_combine_vec

    def planted(kernel: Any, kind: str, var: Any, *args: Any, **kwargs: Any) -> Any:
        line = original(kernel, kind, var, *args, **kwargs)
        return f"no_such_function({line})" if kind == "sum" and "tmp_acc1" in str(var) else line

    return mock.patch.object(cpp.CppVecKernel, "reduction_combine_vec", planted)


def differences_confused() -> contextlib.AbstractContextManager[Any]:
    """Take ``b - a`` for ``a - b`` where both are computed in one kernel."""
    original = CSE.augment_key

    def planted(cse: Any, key: Any) -> Any:
        terms = re.fullmatch(r"(tmp\d+) - (tmp\d+)", key) if isinstance(key, str) else None
        return " - ".join(sorted(terms.groups())) if terms else original(cse, key)

    return mock.patch.object(CSE, "augment_key", planted)


def always_fused() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(Scheduler, "can_fuse_vertical", lambda scheduler, one, other, **kwargs: True)


def local_buffers_shared() -> contextlib.AbstractContextManager[Any]:
    """Two values that loops under one outer loop need at the same time are kept in one buffer."""
    return rewritten(
        cpp.CppScheduling, "codegen_outer_loop_node", "user.node.get_name() in visited_scheduler_nodes", "True"
    )


def loops_cut_short() -> contextlib.AbstractContextManager[Any]:
    """Of a loop that is made two for a division in an index, the last part is left out."""
    right = "index_size[split_idx] // split_number"
    return rewritten(cpp.CppScheduling, "try_loop_split", right, f"{right} - 1")


def rewritten(owner: Any, name: str, right: str, wrong: str) -> contextlib.AbstractContextManager[Any]:
    """A function of a class or module, with other text in its source."""
    function = getattr(owner, name)
    source, scope = textwrap.dedent(inspect.getsource(function)), dict[str, Any]()
    exec(compile(source.replace(right, wrong), __file__, "exec"), function.__globals__, scope)
    return mock.patch.object(owner, name, scope[name])


def readers_forgotten() -> contextlib.AbstractContextManager[Any]:
    """What was read of a buffer is not computed before the buffer is written to."""
    return mock.patch.object(GraphLowering, "mark_buffer_mutated", lambda graph, name: graph.mutated_buffers.add(name))


def contracted() -> contextlib.AbstractContextManager[Any]:
    """The C++ compiler makes one operation, rounded once, of a product and a difference."""
    flags = [*cpp_builder._get_ffast_math_flags(), "ffp-contract=fast"]
    return mock.patch.object(cpp_builder, "_get_ffast_math_flags", lambda: flags)


def folded_without_width() -> contextlib.AbstractContextManager[Any]:
    """Integer constants are computed while loops are built, as numbers of any size."""

    def as_number(expression: Any) -> None:
        if expression.is_constant():
            expression.expr = index_propagation.dtype_to_type(expression.dtype)(expression.expr)

    return mock.patch.object(index_propagation.TypedExpr, "__post_init__", as_number)


def remainders_as_in_c() -> contextlib.AbstractContextManager[Any]:
    """What is left of a negative index is negative, once it is a part of a larger index."""

    def remainder(x: Any, y: Any) -> Any:
        dtype = torch.promote_types(x.dtype, y.dtype)
        return index_propagation.TypedExpr(index_propagation.ModularIndexing(x.expr, sympy.S.One, y.expr), dtype)

    return mock.patch.object(index_propagation.SymPyOps, "remainder", staticmethod(remainder))


def permutation_not_inverted() -> contextlib.AbstractContextManager[Any]:
    """Elements of a permuted view are looked up by the permutation itself."""

    def make_reindexer(view: Any) -> Callable[[Any], list[Any]]:
        return lambda index: [index[dim] for dim in view.dims]

    return mock.patch.object(ir.PermuteView, "make_reindexer", make_reindexer)


def values_unrealized() -> contextlib.AbstractContextManager[Any]:
    """What is written by index is computed while it is written."""
    return rewritten(lowering_module, "index_put_impl_", "values.realize()", "pass")


def first_output_twice() -> contextlib.AbstractContextManager[Any]:
    original = PythonWrapperCodegen.generate_return

    def planted(wrapper: Any, outputs: list[str]) -> Any:
        return original(wrapper, [outputs[0]] * len(outputs))

    return mock.patch.object(PythonWrapperCodegen, "generate_return", planted)


def offsets_of_views_lost() -> contextlib.AbstractContextManager[Any]:
    """What the generated program hands on of a part of a tensor begins where the tensor does."""
    original = PythonWrapperCodegen.codegen_reinterpret_view

    def planted(wrapper: Any, data: Any, size: Any, stride: Any, offset: Any, *args: Any, **kwargs: Any) -> str:
        return original(wrapper, data, size, stride, offset * 0, *args, **kwargs)

    return mock.patch.object(PythonWrapperCodegen, "codegen_reinterpret_view", planted)


def copies_written() -> contextlib.AbstractContextManager[Any]:
    """Operators that Inductor does not know write to copies of their arguments."""
    original = ir.FallbackKernel.create

    def planted(kind: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if is_mutating(kernel):
            args = tuple(ir.ExternKernel.copy_input(arg) if isinstance(arg, ir.TensorBox) else arg for arg in args)
        return original.__func__(kind, kernel, *args, **kwargs)

    return mock.patch.object(ir.FallbackKernel, "create", classmethod(planted))


def writes_forgotten() -> contextlib.AbstractContextManager[Any]:
    """What an operator writes to the copy that it was given for its strides is not written back."""
    return mock.patch.object(GraphLowering, "propagate_mutation", lambda *arguments: None)


def unmoved(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


@contextlib.contextmanager
def copies_left_out() -> Iterator[None]:
    """Have the pass that finds arguments to write in place find that none of a custom operator's needs a copy."""
    from torch._inductor.fx_passes import reinplace

    original = reinplace.reinplace_inplaceable_ops_core

    def without_copies(graph: torch.fx.Graph) -> None:
        original(graph)
        for node in graph.nodes:
            if "only_clone_these_tensors" in node.meta:
                node.meta["only_clone_these_tensors"] = []

    with mock.patch.object(reinplace, "reinplace_inplaceable_ops_core", without_copies):
        yield
