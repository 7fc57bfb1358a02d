"""Kernels because of which eager mode differs from run to run, although it draws no random numbers.

A kernel that reads memory beside its arguments gives what happens to lie there; the float64 reference reads memory of
its own, so that no value of either run says anything. On contiguous copies such a kernel is steady.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fuzzcompile.compiler.functional_run import OperatorMode
from fuzzcompile.compiler.operators.second_reference import ContestedCall
from fuzzcompile.compiler.operators.surroundings import ContiguousFloat64, SurroundingsCheck, call_on_copies
from fuzzcompile.diagnosis.oracle.judgement import Judgement, Observations, have_same_bits, judge, reshape_like_eager
from fuzzcompile.diagnosis.trials.case_runs import CaseRuns
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation


@dataclass(frozen=True)
class UnsteadyKernel:
    """A call whose arguments' copies make eager mode repeat itself, and the runs on these: in float64, and eager's."""

    call: ContestedCall
    exact: Observation
    repaired: Observation

    def judge(self, made: CaseRuns, run: Observation) -> Judgement:
        """The judgement on a run beside those on copies; what else rounding does shows in how far these are apart."""
        right = reshape_like_eager(made.eager, self.exact)
        return judge(Observations(right, right, self.exact, (self.repaired,), run))


def find_unsteady_kernel(made: CaseRuns) -> UnsteadyKernel | None:
    """The kernel on copies of whose arguments eager mode repeats itself; None if no kernel alone is why it does not.

    Two runs may show the same by chance: what lies beside the arguments is chosen here.
    """
    if made.draws:
        return None
    mode = SurroundingsCheck()
    program = build(made.case, made.device, streamed=True)
    runs.observe(made.case, program, program.model, around=mode)
    for call in sorted(mode.contested, key=lambda call: -call.opinion.step):
        repaired = [_run_repaired(made, call) for _ in range(2)]
        exact = _run_exact(made, call)
        if exact.failure is None and repaired[0].failure is None and have_same_bits(*repaired):
            return UnsteadyKernel(call, exact, repaired[0])
    return None


def _run_repaired(made: CaseRuns, call: ContestedCall) -> Observation:
    program = build(made.case, made.device, streamed=True)
    mode = OperatorMode(functools.partial(call_on_copies, call))
    return runs.observe(made.case, program, program.model, around=mode)


def _run_exact(made: CaseRuns, call: ContestedCall) -> Observation:
    program = build(made.case, made.device, double=True, streamed=True)
    return runs.observe(made.case, program, program.model, around=ContiguousFloat64(call, native=program.dtype))
