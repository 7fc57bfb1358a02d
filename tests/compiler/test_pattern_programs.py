"""Programs made of what the compiler's rules look for."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from torch._inductor import config
from torch._inductor.pattern_matcher import (
    MULTIPLE,
    Arg,
    CallFunction,
    CallFunctionVarArgs,
    Ignored,
    KeywordArg,
    ListOf,
    MultiOutputPattern,
)

from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.fuzz.rules.rule_code import find_mentions, list_rule_settings
from fuzzcompile.fuzz.rules.rule_programs import (
    PatternReader,
    compile_program,
    make_rule_programs,
    runs_in_eager,
    write_statements,
)
from fuzzcompile.fuzz.rules.skeleton import fill_skeleton, record_calls
from fuzzcompile.model.facts import facts
from fuzzcompile.programs.edits.pattern_program import apply_edit
from fuzzcompile.programs.ir.tracing import Untranslatable

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
