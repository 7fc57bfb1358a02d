"""Programs made of what the compiler's rules look for."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from pattern_tables import restored
from torch._inductor import config, decomposition
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import (
    MULTIPLE,
    Arg,
    CallFunction,
    CallFunctionVarArgs,
    Ignored,
    KeywordArg,
    ListOf,
    MultiOutputPattern,
    register_graph_pattern,
)

from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.compiler.torch_config import preserve_config
from fuzzcompile.fuzz.rules.guard_trials import try_guards
from fuzzcompile.fuzz.rules.rule_code import find_mentions, list_rule_settings
from fuzzcompile.fuzz.rules.rule_programs import (
    PatternReader,
    compile_program,
    make_rule_programs,
    runs_in_eager,
    screen_source,
    write_statements,
)
from fuzzcompile.fuzz.rules.skeleton import fill_skeleton, record_calls
from fuzzcompile.model.facts import facts
from fuzzcompile.programs.edits.pattern_program import apply_edit
from fuzzcompile.programs.ir.tracing import Untranslatable
from fuzzcompile.run.runs import run_eager

aten = torch.ops.aten
CPU = torch.device("cpu")


def written(pattern, seed=0):
    """The lines of a program for a pattern, and its operands."""
    for attempt in range(seed, seed + 20):
        rng = random.Random(attempt)
        filled = fill_skeleton(PatternReader(rng).read_pattern(pattern), rng, "float32")
        if filled is not None:
            filled = filled.name_operands()
            return write_statements(filled), filled.list_operands()
    raise AssertionError("no values were found")


def test_calls_become_statements_over_operands_that_fit():
    lines, given = written(CallFunction(aten.relu.default, CallFunction(aten.mm.default, Arg(), KeywordArg("weight"))))
    assert lines == ["t0 = torch.ops.aten.mm.default(x0, x1)", "t1 = torch.ops.aten.relu.default(t0)"]
    assert [len(operand.shape) for operand in given] == [2, 2] and given[0].shape[1] == given[1].shape[0]


def test_literals_stay_and_equal_names_are_one_value():
    pattern = CallFunction(aten.add.Tensor, KeywordArg("x"), CallFunction(aten.mul.Tensor, KeywordArg("x"), 0.5))
    lines, given = written(pattern)
    assert lines == ["t0 = torch.ops.aten.mul.Tensor(x0, 0.5)", "t1 = torch.ops.aten.add.Tensor(x0, t0)"]
    assert len(given) == 1


def test_parts_of_one_split_are_taken_apart_once():
    split = CallFunction(torch.split, KeywordArg("x"), KeywordArg("sections"), dim=KeywordArg("dim"), _users=MULTIPLE)
    lines, _ = written(CallFunction(torch.cat, ListOf(CallFunction(operator.getitem, split, Ignored())), dim=Ignored()))
    assert sum("torch.split" in line for line in lines) == 1
    assert lines[1:3] == ["t1 = t0[0]", "t2 = t0[1]"] and lines[-1].startswith("t") and "torch.cat([t1, t2" in lines[-1]


def test_of_several_outputs_all_are_returned():
    total = CallFunction(aten.sum.default, KeywordArg("x"))
    skeleton = PatternReader(random.Random(0)).read_pattern(
        MultiOutputPattern([total, CallFunction(aten.exp.default, KeywordArg("x"))])
    )
    assert skeleton.returns == skeleton.calls and len(skeleton.calls) == 2


def test_any_arguments_are_those_of_the_schema():
    lines, given = written(CallFunctionVarArgs(torch.nn.functional.layer_norm))
    assert "F.layer_norm(x0, [" in lines[0] and given


def test_operators_on_packed_weights_are_what_the_compiler_packs_and_others_of_its_own_are_not_called():
    pattern = CallFunction(torch.ops.mkldnn._linear_pointwise.default, *(Arg() for _ in range(6)))
    packed = PatternReader(random.Random(0)).read_pattern(pattern)
    assert packed.frozen and packed.calls and not any("mkldnn" in str(call.target) for call in packed.calls)
    with pytest.raises(Untranslatable, match="called by the compiler alone"):
        PatternReader(random.Random(0)).read_pattern(
            CallFunction(torch.ops._c10d_functional.wait_tensor.default, Arg())
        )


def test_a_search_function_is_recorded_call_by_call():
    def search(q, k, scale):
        return (q @ k.transpose(-2, -1) / scale).softmax(-1)

    tensors = torch.rand(2, 3), torch.rand(2, 3)
    filled = record_calls(search, tensors, {"scale": 2.0}, training=False).name_operands()
    values = dict(zip(("x0", "x1"), tensors, strict=True))
    for line in write_statements(filled):
        exec(line, {"torch": torch}, values)
    assert [operand.name for operand in filled.list_operands()] == ["x0", "x1"]
    assert any(torch.equal(value, search(*tensors, 2.0)) for value in values.values())


def test_the_code_of_a_rule_names_settings_operators_and_constants():
    check = lambda match: config.cpp.enable_concat_linear and not config.freezing  # noqa: E731
    code = find_mentions([check, handler])
    assert set(code.settings) >= {"cpp.enable_concat_linear", "freezing"}
    assert aten.mm.default in code.operators and torch.bfloat16 in code.constants


def handler(match):
    return match.target is aten.mm.default and match.dtype == torch.bfloat16


def test_settings_are_those_of_the_condition():
    condition = "config.b2b_gemm_pass and 'split_cat_pass' in config.pre_grad_fusion_options"
    rule = KnownRule("pre_grad", "pass", "planted", when=condition)
    assert list_rule_settings(rule)[0] == {
        "b2b_gemm_pass": True,
        "pre_grad_fusion_options": {"normalization_pass": {}, "split_cat_pass": {}},
    }


@pytest.mark.parametrize("condition", ["", "with gradients", "count", "is_inference and config.reorder_for_locality"])
def test_a_condition_that_no_setting_decides_asks_for_none(condition):
    assert list_rule_settings(KnownRule("post_grad", "pass", "planted", when=condition)) == [{}]


def test_a_program_of_a_rule_makes_it_fire_and_its_near_misses_run():
    rule = next(
        row for row in list_known_rules(CPU) if (row.stage, row.name) == ("joint_graph", "pointless_permute_pair")
    )
    (program,) = make_rule_programs(rule, CPU, seconds=6.0, enough=1)
    assert program.fires and len({edit.name for edit in program.edits}) > 5
    near = [edited for edit in program.edits if (edited := apply_edit(program, edit)) is not None]
    assert all(map(runs_in_eager, near))


@pytest.mark.slow
def test_most_patterns_that_can_fire_do_in_a_program_of_their_own():
    patterns = [row for row in list_known_rules(CPU) if row.kind == "pattern" and not row.name.startswith("_sfdp")]
    rules = [row for row in patterns if facts().find_reason(row.stage, row.name, "cpu") is None]
    fired = {row.name: any(p.fires for p in make_rule_programs(row, CPU, 10.0, enough=1)) for row in rules}
    assert sum(fired.values()) > 0.7 * len(fired), [name for name, fires in fired.items() if not fires]


@pytest.mark.slow
def test_a_rule_that_is_off_fires_under_the_setting_that_turns_it_on():
    rule = next(row for row in list_known_rules(CPU) if row.name == "matmul_fuse_pattern")
    (program, *_) = make_rule_programs(rule, CPU, seconds=20.0, enough=1)
    assert program.settings == {"freezing": True, "cpp.enable_concat_linear": True}
    assert compile_program(program, CPU)[rule.stage, rule.name]


# Guards that are tried on planted rules.

CASE = """
import torch

def program(x):
    return {}

def make():
    torch.manual_seed(0)
    return program, ({},)
"""
SQUARE = "torch.randn(3, 3)"


def finding(stage, rewrite, neighbour, **cause):
    culprit = {"stage": stage, "rewrite": rewrite, "necessary": True}
    return {"verdict": "miscompile", "culprit": culprit, "cause": {"neighbour": neighbour, **cause}}


def last_least(match, x, dims):
    match.replace_by_example(lambda x: torch.amin(x, [-1]), [x])


def step_of_large(match, x, by):
    match.replace_by_example(lambda x: torch.fmod(x, by) + (x > 9).to(x.dtype), [x])


@pytest.fixture
def plant():
    """Registers a rule for calls of an operator for the time of a test."""
    with restored(post_grad.pass_patterns[1]) as table:

        def register(target, name, handler):
            pattern = CallFunction(target, KeywordArg("x"), KeywordArg(name))
            register_graph_pattern(pattern, pass_dict=table)(handler)

        yield register


def test_a_guard_asks_what_the_neighbour_has_and_leaves_the_rule_where_it_is_right(plant):
    plant(aten.amin.default, "dims", last_least)
    right, wrong = (CASE.format(f"x.amin({dim})", SQUARE) for dim in (-1, 0))
    (first, *_) = try_guards(wrong, finding("post_grad", "last_least", right, fingerprint="amin(dim)", kind="argument"))
    assert first["guard"] == (
        "let the check of `last_least` refuse a match in which `dim` of `aten.amin` is not `[-1]`"
    )
    assert first["known"] == first["fires"] > 0 and first["wrong"] == first["stopped"] > 0 and "why_not" not in first
    with preserve_config():
        exec(first["patch"], {})
    for source, fires in ((wrong, False), (right, True)):
        case, ledger, seen = screen_source(source, CPU)
        assert any(label.rewrite == "last_least" and how == "fired" for label, how in ledger.coverage) is fires
        assert torch.equal(seen.values[0].value, run_eager(case, CPU).values[0].value)


@pytest.mark.slow
def test_a_guard_that_takes_known_cases_from_the_rule_is_not_offered(plant):
    plant(aten.fmod.Scalar, "by", step_of_large)
    right, wrong = CASE.format("torch.fmod(x, 0.7)", SQUARE), CASE.format("torch.fmod(x, 0.3)", f"10 + {SQUARE} ** 2")
    (only,) = try_guards(wrong, finding("post_grad", "step_of_large", right, fingerprint="fmod(other)"))
    assert "patch" not in only and only["fires"] < only["known"]
    assert only["why_not"].startswith("it does not apply any more to ")


def test_a_decomposition_steps_aside_where_its_argument_is_another(monkeypatch):
    operator = aten.huber_loss.default
    decompose = decomposition.decompositions[operator]
    monkeypatch.setitem(
        decomposition.decompositions, operator, lambda x, y, reduction=1, delta=1.0: decompose(x, y, 1, delta)
    )
    loss = "torch.nn.functional.huber_loss(x, x.t(), reduction={!r})"
    right, wrong = (CASE.format(loss.format(reduction), SQUARE) for reduction in ("mean", "sum"))
    tried = finding("decomposition", str(operator), right, fingerprint="huber_loss(reduction)", kind="argument")
    (first, *_) = try_guards(wrong, tried)
    assert first["guard"] == (
        "let the decomposition of `aten.huber_loss.default` step aside where "
        "`reduction` of `aten.huber_loss` is not `1`"
    )
    assert first["fires"] == first["known"] > 0 and "why_not" not in first
    assert decomposition.decompositions[operator](torch.ones(2), torch.ones(2)) is not NotImplemented


@pytest.mark.parametrize(
    ("stage", "rewrite", "neighbour", "why"),
    [
        ("post_grad", "addmm", "", "no program close to this one is known that passes"),
        (
            "lowering",
            "aten.amin.default",
            "",
            "`aten.amin.default` is neither a pattern with a check nor a decomposition",
        ),
        ("post_grad", "addmm", CASE.format("x.amin(0)", SQUARE), "`addmm` does not apply to the script here"),
    ],
)
def test_where_no_guard_can_be_tried_the_reason_is_given(stage, rewrite, neighbour, why):
    (only,) = try_guards(CASE.format("x.amin(1)", SQUARE), finding(stage, rewrite, neighbour))
    assert only.keys() == {"why_not"} and only["why_not"].startswith(why)
