"""The words of evidence are written and read by one module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzzcompile
from fuzzcompile.model.evidence import (
    ONLY_EAGER,
    AliasDifference,
    EagerRefusal,
    InternalError,
    LeafName,
    ObservableName,
    UnlikeErrors,
    ValuePair,
)

# On a busy machine the first draw may take seconds, which says nothing of these tests.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROOT = Path(fuzzcompile.__file__).parent
WORDS = st.sampled_from(["out0", "input1.key", "argument2", "parameter a.weight", "buffer mean", "attribute steps"])
TEXTS = st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters=",;"), min_size=1).filter(
    lambda text: text.strip() == text and "compiled" not in text and "eager" not in text
)


@patient
@given(WORDS, st.none() | st.integers(0, 99), st.sampled_from([None, "gradient", "tangent"]), st.booleans())
def test_an_observable_is_read_as_it_was_written(what, call, derivative, after):
    observable = ObservableName(what, call, derivative, after)
    assert ObservableName.parse(str(observable)) == observable


def test_leaves_of_calls_are_told_from_parts_of_the_module():
    assert ObservableName.parse("call1.gradient of input0").leaf == LeafName("input", 0)
    assert ObservableName.parse("out2.state.0 after the call").leaf == LeafName("out", 2, ("state", "0"))
    assert ObservableName.parse("parameter out0.weight").leaf is None and ObservableName.parse("").leaf is None


@patient
@given(TEXTS, TEXTS)
def test_pairs_and_refusals_are_read_as_they_were_written(one, other):
    assert ValuePair.parse(str(ValuePair(one, other))) == ValuePair(one, other)
    assert EagerRefusal.parse(str(EagerRefusal(one))) == EagerRefusal(one)


def test_strides_are_numbers_where_both_sides_have_them():
    pair = ValuePair.parse("eager (4, 1), compiled (1, 4)")
    assert pair is not None and pair.strides == ([4, 1], [1, 4])
    forms = ValuePair.parse("eager SparseTensor, compiled (1, 4)")
    assert forms is not None and forms.strides is None and ValuePair.parse(ONLY_EAGER) is None


def test_an_error_has_a_type_and_a_message():
    refusal = EagerRefusal.parse("eager raises torch.Error: bad: size\nof x; compiled runs")
    assert refusal is not None and refusal.parts == ("torch.Error", "bad: size\nof x")
    assert EagerRefusal.parse("eager raises E: x; compiled too") is None
    both = InternalError("KeyError: 'a {b}'\nof c", "E: x")
    assert InternalError.parse(str(both)) == both and InternalError.parse(str(refusal)) is None
    unlike = UnlikeErrors("E: x", "KeyError: 'a {b}'\nof c")
    assert UnlikeErrors.parse(str(unlike)) == unlike and UnlikeErrors.parse(str(both)) is None


PARTNERS = st.lists(st.sampled_from([f"input{number}" for number in range(6)]), unique=True, max_size=6)


@patient
@given(PARTNERS, PARTNERS)
def test_partners_in_memory_are_read_as_far_as_they_were_written(eager, compiled):
    difference = AliasDifference.parse(str(AliasDifference.of("out0", eager, compiled)))
    assert difference is not None
    assert difference.copied_by_eager == (not eager) and difference.copied_when_compiled == (not compiled)
    assert list(difference.lost) == [name for name in eager if name not in compiled][:3]
    assert list(difference.gained) == [name for name in compiled if name not in eager][:3]


# The words by which regular expressions over evidence would begin.
EVIDENCE = re.compile(
    r"eager raises|eager:? \(|compiled:? \(|memory with|gradient of|after the call|call\(\?P<|only eager"
)


@pytest.mark.parametrize(
    "room", ["model", "programs", "triage", "corpus", "report", "analyses", "fuzz", "front", "run"]
)
def test_no_other_module_takes_evidence_apart(room):
    """Reproducers print sentences of their own, which a replay reads: those are no evidence."""
    allowed = {"model/evidence.py", "corpus/replay/replay_engine.py"}
    found = []
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                if any(isinstance(text, str) and EVIDENCE.search(text) for text in texts):
                    found.append(path.relative_to(ROOT).as_posix())
    assert set(found) <= allowed
