"""Near misses of a pattern program: plain data in, case files out."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.edits.pattern_program import (
    KINDS,
    Operand,
    PatternEdit,
    PatternProgram,
    apply_edit,
    draw_near_miss,
    list_edits,
    render_pattern_program,
)

PROGRAM = PatternProgram(
    stage="post_grad",
    rule="addmm",
    pass_name=None,
    origin="pattern",
    operands=(Operand("x0", (4, 8)), Operand("x1", (8, 4)), Operand("x2", (4, 4)), Operand("x3", (4, 4))),
    statements=("t0 = torch.mm(x0, x1)", "t1 = torch.add(t0, x2, alpha=2)", "t2 = torch.sum(t1 - x3, -1)"),
    returns=("t2",),
)


def loaded(program: PatternProgram, folder):
    path = folder / "case.py"
    path.write_text(render_pattern_program(program))
    return load_case(path)


def outputs(program, folder):
    model, inputs = loaded(program, folder).make()
    result = model(*inputs)
    return result, inputs


def test_a_program_is_a_case_file(tmp_path):
    program = replace(PROGRAM, settings={"dce": True}, dynamic=True)
    case = loaded(program, tmp_path)
    model, inputs = case.make()
    x0, x1, x2, x3 = inputs
    assert torch.equal(model(*inputs), torch.sum(torch.add(x0 @ x1, x2, alpha=2) - x3, -1))
    assert (case.settings.options, case.settings.dynamic, case.grad) == ({"dce": True}, True, "no_grad")


def test_what_freezing_reads_early_is_in_force_around_everything(tmp_path):
    frozen = apply_edit(PROGRAM, PatternEdit("freezing"))
    assert frozen is not None
    case = loaded(frozen, tmp_path)
    model, inputs = case.make()
    assert case.settings.inductor == {"freezing": True} and not case.settings.options
    assert len(inputs) == 1 and {name for name, _ in model.named_parameters()} == {"x1", "x2", "x3"}


def test_a_backward_wants_gradients_of_inputs(tmp_path):
    backward = apply_edit(PROGRAM, PatternEdit("backward"))
    assert backward is not None
    case = loaded(backward, tmp_path)
    assert case.backward and all(x.requires_grad for x in case.make()[1])


def test_every_kind_has_edits_of_a_program_with_something_for_each():
    some = {edit.name for edit in list_edits(PROGRAM)}
    assert some == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_changes_the_program_and_is_named(kind):
    for edit in (edit for edit in list_edits(PROGRAM) if edit.name == kind):
        edited = apply_edit(PROGRAM, edit)
        if edited is not None:
            assert edited.edited == (kind,) and render_pattern_program(edited) != render_pattern_program(
                replace(PROGRAM, edited=(kind,))
            ), edit
            compile(render_pattern_program(edited), "case", "exec")


def test_sizes_change_everywhere_at_once(tmp_path):
    program = replace(PROGRAM, statements=("t0 = x0.reshape(8, 4)", "t2 = t0 + x1"))
    resized = apply_edit(program, PatternEdit("size", (8, 16)))
    assert resized is not None
    assert outputs(resized, tmp_path)[0].shape == (16, 4)


def test_a_result_within_gets_a_second_user(tmp_path):
    program = apply_edit(PROGRAM, PatternEdit("second_user", ("t0",)))
    assert program is not None
    (_, t0), (x0, x1, *_) = outputs(program, tmp_path)
    assert torch.equal(t0, x0 @ x1)


def test_one_tensor_is_passed_for_two_inputs_or_a_view_of_it(tmp_path):
    same, view = (
        apply_edit(PROGRAM, PatternEdit("aliased", given)) for given in (("x2", "x3", ""), ("x0", "x1", ".t()"))
    )
    assert same is not None and view is not None
    _, (_, _, x2, x3) = outputs(same, tmp_path)
    _, (x0, x1, *_) = outputs(view, tmp_path)
    assert x2 is x3 and x1.data_ptr() == x0.data_ptr() and x1.shape == (8, 4)


def test_constants_operands_and_neighbours_are_edited_where_they_stand():
    edits = (
        PatternEdit("constant", (1, 0, -2)),
        PatternEdit("swapped", (0, 0)),
        PatternEdit("between", (2, "t1", "negated")),
    )
    program: PatternProgram | None = PROGRAM
    for edit in edits:
        assert program is not None
        program = apply_edit(program, edit)
    assert program is not None
    assert program.statements == (
        "t0 = torch.mm(x1, x0)",
        "t1 = torch.add(t0, x2, alpha=-2)",
        "t2 = torch.sum(-t1 - x3, -1)",
    )


def test_equal_states_of_a_generator_draw_equal_cases():
    program = replace(PROGRAM, edits=tuple(list_edits(PROGRAM)))
    first, second = ([draw_near_miss(program, rng) for _ in range(60)] for rng in (random.Random(3), random.Random(3)))
    assert first == second
    assert len({render_pattern_program(case) for case in first}) > 40
    assert {len(case.edited) for case in first} == {0, 1, 2, 3}


def test_drawing_imports_no_torch():
    code = "import sys, fuzzcompile.programs.edits.pattern_program; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
