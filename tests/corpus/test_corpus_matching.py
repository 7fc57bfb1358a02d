"""One root cause is one finding: errors that raise alike, of one proved culprit or in what serves every operator."""

from __future__ import annotations

from typing import Any

import pytest
from corpus_examples import ENVIRONMENT, bug, case, reproducer

from fuzzcompile.corpus.records import StoredReproducer
from fuzzcompile.corpus.store import Store

PLACE = "post_grad:torch/_inductor/fx_passes/mine.py:fold_scale"
SIZE, DTYPE = f"{PLACE}:size", f"{PLACE}:dtype"
SAID = "RuntimeError: The expanded size of the tensor ({}) must match the existing size ({})"


def raising(signature: str, detail: str, function: str = "expand", *, proved: bool | None = True) -> dict[str, Any]:
    raised = [{"source": "torch/_inductor/lowering.py", "line": len(detail), "function": function}]
    culprit = {"stage": "post_grad", "rewrite": "fold_scale", "necessary": proved, "details": {"raised": raised}}
    return bug(signature, verdict="compile_error", detail=detail, culprit=culprit)


def hit(store: Store, report: dict[str, Any]) -> str:
    """The public id of the finding that a new case hits."""
    number = store.stats().runs
    return f"F{store.record(None, case(f'{number}'), ENVIRONMENT, report).finding_id}"


def test_errors_at_the_same_frame_of_one_culprit_are_one_finding(store: Store) -> None:
    assert hit(store, raising(SIZE, SAID.format(1, 16))) == "F1"
    assert hit(store, raising(DTYPE, "AssertionError: Broadcast failed")) == "F1", "the same function raises"
    assert hit(store, raising(f"{PLACE}:add(other)", SAID.format(7, 3), "create")) == "F1", "the same message"
    assert hit(store, raising(f"{PLACE}:add(other)", "TypeError: no such operand", "create")) == "F1", "its own name"
    assert store.finding(DTYPE).public_id == "F1" and store.finding("F1").hits == 4


@pytest.mark.parametrize(
    "other",
    [
        raising(DTYPE, "TypeError: no such operand", "create"),
        raising(DTYPE, SAID.format(1, 16), proved=False),
        raising(DTYPE, SAID.format(1, 16), "create", proved=None),
        raising(f"{PLACE}_more:dtype", SAID.format(1, 16)),
        bug(DTYPE, detail=SAID.format(1, 16)),
    ],
    ids=["another error", "refuted", "neither proved nor in the same frame", "another culprit", "wrong values"],
)
def test_other_errors_stay_apart(store: Store, other: dict[str, Any]) -> None:
    assert hit(store, raising(SIZE, SAID.format(1, 16))) == "F1"
    assert hit(store, other) == "F2"


def test_an_error_whose_proof_another_fault_hides_is_the_same_where_frame_and_message_are(store: Store) -> None:
    assert hit(store, raising(SIZE, SAID.format(1, 16))) == "F1"
    assert hit(store, raising(DTYPE, SAID.format(2, 4), proved=None)) == "F1"


def test_a_message_that_says_nothing_decides_nothing(store: Store) -> None:
    assert hit(store, raising(SIZE, "LoweringException: AssertionError: ", "expand")) == "F1"
    assert hit(store, raising(DTYPE, "LoweringException: AssertionError: ", "create")) == "F2"


def test_a_reproducer_that_raises_alike_stays_and_merges(store: Store) -> None:
    hit(store, raising(SIZE, SAID.format(1, 16), "expand"))
    hit(store, raising(DTYPE, "TypeError: no such operand", "create"))
    shown = raising(SIZE, SAID.format(2, 4), "create")
    assert store.add_reproducer("F2", reproducer(report=shown)) == StoredReproducer(1, SIZE, merged=(2,))


def test_errors_without_a_cause_that_have_nothing_in_common_are_kept_apart_until_they_have_one(store: Store) -> None:
    other = raising(PLACE, "IndexError: Dimension out of range", "permute")
    assert hit(store, raising(PLACE, SAID.format(1, 16))) == "F1"
    assert hit(store, other) == "F2", "one culprit, which may be at fault in two ways"
    assert hit(store, other) == "F2", "each has its own hits"
    assert hit(store, raising(PLACE, SAID.format(2, 4), "create")) == "F1"
    assert store.finding(PLACE).public_id == "F1" and store.finding("F2").signature.startswith(f"{PLACE}:program-")
    assert hit(store, raising(SIZE, "TypeError: no such operand", "create")) == "F3", "nor has it F1's or F2's cause"
    shown = raising(SIZE, "IndexError: Dimension out of range", "permute")
    assert store.add_reproducer("F2", reproducer(report=shown)) == StoredReproducer(2, SIZE, merged=(3,))


def test_a_case_of_another_error_that_is_judged_again_is_a_hit_of_its_own_finding(store: Store) -> None:
    hit(store, raising(PLACE, SAID.format(1, 16)))
    unproved = raising(PLACE, "IndexError: Dimension out of range", "permute", proved=None)
    stored = [store.record(None, case("again"), ENVIRONMENT, unproved) for _ in range(2)]
    assert [each.finding_id for each in stored] == [2, 2]


def test_an_unproved_error_of_another_message_is_kept_apart_though_the_same_function_raises(store: Store) -> None:
    assert hit(store, raising(PLACE, SAID.format(1, 16))) == "F1"
    assert hit(store, raising(PLACE, "RuntimeError: derivative is not implemented", proved=None)) == "F2"
    assert hit(store, raising(PLACE, "RuntimeError: derivative is not implemented")) == "F1", "proved, it is one"


def test_an_error_of_the_same_cause_is_one_finding_however_it_raises(store: Store) -> None:
    assert hit(store, raising(SIZE, SAID.format(1, 16))) == "F1"
    assert hit(store, raising(SIZE, "IndexError: Dimension out of range", "permute")) == "F1"


def test_messages_that_an_earlier_version_normalised_match(store: Store) -> None:
    begins = "lowering:LoweringException:AssertionError: Broadcast failed in ExpandView"
    assert hit(store, bug(f"{begins}([sN, sN], [sN, N]) on dimension N", verdict="compile_error")) == "F1"
    assert hit(store, bug(f"{begins}([N], [N]) on dimension N", verdict="compile_error")) == "F1"
    assert store.finding("F1").signature == f"{begins}([N], [N]) on dimension N"


MISSING = "AttributeError: '{}' object has no attribute 'convert' in kernel {}"


def generating(operators: str, detail: str, function: str = "_default", file: str = "codegen/common.py") -> Any:
    """A report on an error of a code generator that blames these operators, none of them with proof."""
    raised = [{"source": f"torch/_inductor/{file}", "line": len(operators), "function": function}]
    culprit = {"stage": "codegen", "rewrite": operators, "necessary": None, "details": {"raised": raised}}
    signature = f"codegen:torch/_inductor/{file}:{operators}"
    return bug(signature, verdict="compile_error", detail=detail, culprit=culprit)


def test_what_a_code_generator_raises_for_many_operators_is_one_finding(store: Store) -> None:
    assert hit(store, generating("add", MISSING.format("super", 1))) == "F1"
    assert hit(store, generating("mean+sub", MISSING.format("super", 22))) == "F1"
    shown = generating("where", MISSING.format("super", 3))
    assert hit(store, generating("where", "AssertionError: ")) == "F2"
    assert store.add_reproducer("F2", reproducer(report=shown)).merged == (2,)


@pytest.mark.parametrize(
    "other",
    [
        generating("sum", MISSING.format("kernel", 1)),
        generating("sum", MISSING.format("super", 1), "store"),
        generating("sum", MISSING.format("super", 1), file="cpp_builder.py"),
    ],
    ids=["another name", "another function", "the C++ compiler, which says the same of much"],
)
def test_another_error_of_a_code_generator_is_another_finding(store: Store, other: dict[str, Any]) -> None:
    assert hit(store, {**generating("add", MISSING.format("super", 1))}) == "F1"
    assert hit(store, other) == "F2"


def test_the_words_of_a_cpp_compiler_join_no_two_operators(store: Store) -> None:
    assert hit(store, generating("add", "CppCompileError: C++ compile error", file="cpp_builder.py")) == "F1"
    assert hit(store, generating("sum", "CppCompileError: C++ compile error", file="cpp_builder.py")) == "F2"


COUNTS = "AssertionError: outs_to_grad length ({}) != tangents length ({})"


def differentiating(culprit: str, detail: str, function: str = "inner_fn") -> Any:
    """A report on an error of AOTAutograd's own, with a proved culprit."""
    raised = [{"source": "torch/_functorch/_aot_autograd/graph_capture_wrappers.py", "line": 7, "function": function}]
    named = {"stage": "functionalization", "rewrite": culprit, "necessary": True, "details": {"raised": raised}}
    signature = f"functionalization:torch/_functorch/_aot_autograd/{culprit}.py:{culprit}"
    return bug(signature, verdict="compile_error", detail=detail, culprit=named)


def test_what_aot_autograd_asserts_is_one_finding_whatever_keeps_a_program_from_it(store: Store) -> None:
    assert hit(store, differentiating("analysis", COUNTS.format(1, 2))) == "F1"
    assert hit(store, differentiating("inner_fn", COUNTS.format(2, 3))) == "F1"
    assert hit(store, differentiating("inner_fn", COUNTS.format(1, 2), "other")) == "F2", "another function"
    assert hit(store, differentiating("calls", "IndexError: index 1 is out of bounds")) == "F3", "nothing is asserted"
    assert hit(store, differentiating("views", "IndexError: index 2 is out of bounds")) == "F4"


def test_an_error_and_wrong_values_without_a_cause_are_apart_and_neither_goes_by_a_former_name(store: Store) -> None:
    raised = raising(PLACE, SAID.format(1, 16))
    assert hit(store, bug(PLACE)) == "F1"
    assert hit(store, raised) == hit(store, raised) == "F2"
    layout = bug(f"{PLACE}:layout", verdict="metadata")
    assert hit(store, bug(PLACE, verdict="metadata")) == "F1"
    kept = store.add_reproducer("F1", reproducer(report=layout))
    assert kept == StoredReproducer(1, f"{PLACE}:layout", merged=())
    left = store.finding(PLACE)
    assert (left.public_id, left.verdict, left.hits) == ("F3", "miscompile", 1), "values are not what strides explain"
    assert hit(store, bug(PLACE)) == "F3"
    assert hit(store, raised) == "F2"
    assert hit(store, bug("functionalization:-:inner_fn")) == "F4"
    error = raising("functionalization:-:inner_fn", SAID.format(1, 16))
    assert hit(store, error) == "F4", "what AOTAutograd does wrong shows in both"
