"""A change to a compile says what it is, composes with others, and stands for what a user writes."""

import operator

import pytest
import torch
import torch._inductor.config

from fuzzcompile.compiler.compile_changes import (
    Backend,
    CompilePath,
    GraphBreak,
    InductorSettings,
    Lowered,
    MetadataFromKernel,
    OmittedPass,
    TracingSettings,
    Undecomposed,
    Veto,
)
from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.torch_config import preserve_config


def test_changes_of_one_kind_become_one_and_others_stand_beside_each_other():
    how = Compilation().under(Veto(("a",)), InductorSettings({"dce": True, "x": 1}))
    how = how.under(Veto(("b", "a")), InductorSettings({"x": 2}), Backend("aot_eager"), Undecomposed(("aten.silu",)))
    assert how.get(Veto) == Veto(("a", "b"))
    assert how.config == {"dce": True, "x": 2}
    assert how.backend == "aot_eager"
    assert len(how.changes) == 4
    assert how.under(Backend("eager")).backend == "eager", "the later takes the earlier's place"
    assert how.without(Backend).backend is None


def test_a_pass_left_out_is_a_setting_too():
    how = Compilation().under(InductorSettings({"x": 1}), OmittedPass({"post_grad_custom_pre_pass": None}, "mine"))
    assert how.config == {"x": 1, "post_grad_custom_pre_pass": None}


def test_a_change_of_generated_code_alone_is_never_tried_on_interpreted_graphs():
    screened = Compilation(screen=True)
    assert screened.under(InductorSettings({"x": 1})).screen
    assert not screened.under(Lowered(Control(separate=True))).screen
    assert not screened.under(InductorSettings({"x": 1}, needs_code=True)).screen


@pytest.mark.parametrize(
    ("change", "text", "workaround"),
    [
        (Veto(("doubled_sine",)), "veto doubled_sine", None),
        (MetadataFromKernel(("aten.add.Tensor",)), "metadata of aten.add.Tensor from its kernel", None),
        (Backend("aot_eager"), "backend=aot_eager", 'torch.compile(..., backend="aot_eager")'),
        (CompilePath("compile"), "path=compile", "torch.compile(...)"),
        (InductorSettings({"a.b": False}), "a.b=False", "torch._inductor.config.a.b = False"),
        (TracingSettings({"x": 1}), "torch._functorch.config.x = 1", "torch._functorch.config.x = 1"),
        (OmittedPass({"x": None}, "mine"), "mine", "leave the pass mine out: torch._inductor.config.x = None"),
        (
            GraphBreak((("torch.sin", torch.sin),)),
            "graph break at torch.sin",
            "torch._dynamo.disallow_in_graph(torch.sin)",
        ),
        (GraphBreak((("operator.setitem", operator.setitem),)), "graph break at operator.setitem", None),
    ],
)
def test_a_change_says_what_it_is_and_what_a_user_writes_for_it(change, text, workaround):
    assert (change.text, change.workaround) == (text, workaround)


def test_an_entry_of_which_another_config_has_an_alias_is_set_back():
    with preserve_config():
        torch._inductor.config.force_disable_caches = True
    assert torch._inductor.config.force_disable_caches is False
