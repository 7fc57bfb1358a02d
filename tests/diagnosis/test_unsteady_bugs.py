"""A bug that a second compile does not show: the compiler's, or as unsteady as eager mode itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.decision import Decision, confirm
from fuzzcompile.model.verdicts import Verdict
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
