"""Screening: all of Inductor's graph passes, and an interpreter in place of its code generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.ledger import Opaque, take_snapshot
from fuzzcompile.compiler.replay import interpret


def screened(
    module: fx.GraphModule, example_inputs: Sequence[torch.Tensor], *, opaque: Mapping[int, Opaque], **kwargs: object
) -> object:
    """An ``inner_compile`` that stops after the post-grad passes and returns a boxed interpreter.

    ``opaque`` is what lowering patterns replaced: it is run in the place of their lowerings.
    """
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
    from torch._inductor.debug import DebugContext

    with _disable_current_modes(), DebugContext():
        _run_passes(module, example_inputs, is_inference=bool(kwargs.get("is_inference")))
    snapshot = take_snapshot(module, opaque)
    return make_boxed_func(lambda *inputs: interpret(snapshot, inputs))


def _run_passes(module: fx.GraphModule, example_inputs: Sequence[torch.Tensor], *, is_inference: bool) -> None:
    """Do the work of ``torch._inductor.compile_fx`` up to there: views become reshapes, fake tensors are propagated.

    The passes run under the graph's fake mode and no other: under AOTAutograd's own, which is active when it calls the
    compiler, what a pass computes for itself would be fake too.
    """
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    compile_fx.view_to_reshape(module)  # type: ignore[attr-defined, no-untyped-call]
    with torch.no_grad():
        fake_mode = compile_fx.fake_tensor_prop(module, list(example_inputs))
    with V.set_fake_mode(fake_mode):
        compile_fx._recursive_post_grad_passes(module, is_inference=is_inference)
