"""A bug that a second compile does not show: the compiler's, or as unsteady as eager mode itself."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import behind_plants as plants
import pytest
import torch

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.decision import Decision, confirm
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.observation import Observation, Value


def ran(verdict: Verdict, result: float) -> Any:
    judgement = SimpleNamespace(verdict=verdict, suspicious=())
    return SimpleNamespace(
        judgement=judgement, observation=Observation((Value("out0", torch.tensor(result), "output"),))
    )


@pytest.mark.parametrize(("steady", "verdict"), [(True, Verdict.NONDETERMINISTIC), (False, Verdict.UNSTABLE)])
def test_what_comes_and_goes_is_a_bug_only_where_eager_mode_stays(steady: bool, verdict: Verdict):
    second = ran(Verdict.ROUNDING, 2.0)
    experiments = SimpleNamespace(how=Compilation(), trial=lambda how: second, is_deterministic=steady)
    decision = confirm(cast(Any, experiments), ran(Verdict.MISCOMPILE, 1.0), Decision(Verdict.MISCOMPILE, "high"))
    assert (decision.verdict, decision.confidence) == (verdict, "low")


CASE = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda x, y: torch.exp(x) * y - torch.sin(x)), (torch.randn(8, 33), torch.randn(8, 33))
"""


@pytest.mark.parametrize(("right", "named"), [(1, True), (40, False)])
def test_what_is_wrong_in_some_compiles_is_proved_by_several_without_it(write_case, right: int, named: bool):
    wrong = itertools.cycle([True, *[False] * right])

    def lower(original: Any, *args: Any, **kwargs: Any) -> Any:
        return plants.lowerings[plants.aten.mul.Tensor](original(*args, **kwargs), 3.0 if next(wrong) else 1.0)

    with plants.lowering(plants.aten.exp.default, lower):
        report = triage(load_case(write_case(CASE)), torch.device("cpu"))
    culprit = report.attribution.culprit
    assert (report.verdict, report.confidence) == (Verdict.NONDETERMINISTIC, "low")
    found = None if culprit is None else (culprit.stage, culprit.rewrite, culprit.necessary)
    assert found == (("lowering", "aten.exp.default", True) if named else None)
