"""Products that autotuning gave to a template of Inductor's: proved by one compile that leaves them to a library."""

from __future__ import annotations

import re

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.stage_names import CODEGEN, SCHEDULER
from fuzzcompile.stages.kernels.bisection import attempt, configured

_TEMPLATE = re.compile(r"CppTemplateBuffer\((\w+)\)")
_LIBRARY: dict[str, object] = {"max_autotune": False, "max_autotune_gemm": False}
_FILES = {"CppGemmTemplate": "cpp_gemm_template", "CppBmmTemplate": "cpp_bmm_template"}


def prove_templates(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """The C++ template whose kernels the divergence needs; None if there is none, or it stays without.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    reached = divergence.trial.ledger.reached
    named = sorted({name for part in reached if part.stage == SCHEDULER for name in _TEMPLATE.findall(part.name)})
    if not named or not attempt(ablator, configured(ablator.how, _LIBRARY))[1]:
        return None
    source, line = _source(named[0])
    family = "+".join(named)
    return Attribution(Culprit(CODEGEN, None, family, family, source=source, line=line, necessary=True))


def _source(template: str) -> tuple[str | None, int | None]:
    module = _FILES.get(template)
    return defined_at(f"torch._inductor.codegen.{module}:{template}.render") if module else (None, None)
