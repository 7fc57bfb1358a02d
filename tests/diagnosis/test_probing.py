"""What a reduction is locked to: the culprit in its stage, told by one compile and not by the verdict alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import behind_plants as plants
import pytest
import torch
from behind_plants import aten

from fuzzcompile.diagnosis.probe import CaseProbe, SignatureLock, probe_case
from fuzzcompile.diagnosis.stages.ways import Suspect
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case

KNOWN = Path(__file__).parents[1] / "known_issues"
CPU = torch.device("cpu")
SIN, COS = "torch.sin(x)", "torch.cos(x)"
TORCH = ".".join(torch.__version__.split(".")[:2])
of_2_13 = pytest.mark.skipif(TORCH != "2.13", reason="bugs of torch 2.13")


def look(path: Path, target: SignatureLock) -> CaseProbe:
    return probe_case(load_case(path), CPU, target=target)


@of_2_13
@pytest.mark.parametrize(
    "name", ["issue_195422", "issue_195579", "issue_198343b", pytest.param("issue_191499", marks=pytest.mark.slow)]
)
def test_who_is_at_fault_beyond_the_graph_passes_is_told_by_one_compile(name, triaged):
    report = triaged(KNOWN / f"{name}.py")
    target = SignatureLock.of(report)
    seen = look(KNOWN / f"{name}.py", target)
    assert target.suspect_stage == report["culprit"]["stage"] and target.matches(seen)
    assert (seen.compiles, seen.screens) == (1, 0)


@of_2_13
@pytest.mark.parametrize(
    ("wanted", "other"),
    [
        ("issue_198343b", "issue_189518"),  # metadata: a decomposition, a rewrite
        ("issue_189518", "issue_198343b"),
        pytest.param("issue_191499", "issue_195422", marks=pytest.mark.slow),  # values: generated code, a decomposition
        ("issue_195422", "issue_191499"),
    ],
)
def test_another_culprit_behind_the_same_verdict_is_no_match_unless_only_the_verdict_is_kept(wanted, other, triaged):
    report = triaged(KNOWN / f"{wanted}.py")
    locked, loose = SignatureLock.of(report), SignatureLock.of(report, "verdict")
    seen = look(KNOWN / f"{other}.py", locked)
    assert seen.is_bug and not locked.matches(seen)
    assert loose.matches(look(KNOWN / f"{other}.py", loose))


@pytest.fixture
def held(write_case) -> Callable[..., bool]:
    """Whether a program of x fails in the way of a target in that stage, of that family."""

    def check(stage: str, family: str, program: str) -> bool:
        source = f"import torch\ndef make():\n    return (lambda x: {program}), (torch.linspace(0.1, 1.5, 64),)\n"
        target = SignatureLock("miscompile", stage, None, (family,))
        seen = look(write_case(source, f"case_{abs(hash(program))}.py"), target)
        assert seen.is_bug
        return target.matches(seen)

    return check


def test_one_lowering_is_told_from_another(held):
    with plants.lowering(aten.sin.default, plants.scaled), plants.lowering(aten.cos.default, plants.scaled):
        assert held("lowering", "sin", SIN) and held("lowering", "sin", f"{SIN} + {COS}")
        assert not held("lowering", "sin", COS)


def test_one_operator_of_generated_code_is_told_from_another(held):
    with plants.wrong_vector("exp"), plants.wrong_vector("tanh"):
        assert held("codegen", "exp", "torch.exp(x)") and not held("codegen", "exp", "torch.tanh(x)")
        assert not held("lowering", "exp", "torch.exp(x)")


def test_errors_of_nobody_are_told_apart_by_what_they_say():
    report = {
        "verdict": "compile_error",
        "signature": "functionalization:RuntimeError:a view of size N was modified",
        "culprit": {"stage": "functionalization", "rewrite": None, "family": "unknown"},
    }
    target = SignatureLock.of(report)

    def seen(error: str) -> CaseProbe:
        return CaseProbe(Verdict.COMPILE_ERROR, error=error)

    assert target.matches(seen("RuntimeError: a view of size N was modified"))
    assert not target.matches(seen("RuntimeError: no such operator"))
    assert not target.matches(seen("TypeError: a view of size N was modified"))
    assert SignatureLock.of(report, "verdict").matches(seen("TypeError: anything"))


def test_among_rewrites_the_first_suspect_counts():
    target = SignatureLock("miscompile", "joint_graph", "fuse_attention.py", ("sfdp",))
    sfdp, other = (Suspect("joint_graph", name, "fuse_attention.py") for name in ("sfdp", "other"))
    assert target.matches(CaseProbe(Verdict.NONFINITE, (sfdp, other)))
    assert not target.matches(CaseProbe(Verdict.NONFINITE, (other, sfdp)))
    assert not target.matches(CaseProbe(Verdict.METADATA, (sfdp,)))


@pytest.mark.parametrize(("details", "may_raise"), [({}, False), ({"raises": "AssertionError: sizes"}, True)])
def test_a_stale_graph_that_is_silent_is_not_reduced_to_one_that_raises(details: dict[str, str], may_raise: bool):
    culprit = {"stage": "dynamo", "rewrite": "EQUALS_MATCH", "family": "no guard on attribute", "details": details}
    report = {"verdict": "stale", "is_bug": True, "culprit": culprit}
    suspects = (Suspect("dynamo", "no guard on attribute"),)
    lock = SignatureLock.of(report)
    assert lock.matches(CaseProbe(Verdict.STALE, suspects))
    assert lock.matches(CaseProbe(Verdict.STALE, suspects, "AssertionError: sizes")) is may_raise
