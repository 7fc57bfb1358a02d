"""Operators that the scheduler kept and that the generated program never computes."""

from __future__ import annotations

import re
from typing import Any

from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.codegen.table import generator_of
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.compiler.kernels.kernel_watch import operators_of
from fuzzcompile.compiler.kernels.lowered import Lowered, class_names
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.stage_names import CODEGEN, SCHEDULER
from fuzzcompile.stages.kernels.wrong import family_of_node

_LOOPS = ("SchedulerNode", "FusedSchedulerNode")
_LIBRARY = "ExternKernelSchedulerNode"
_LOST = "lost kernel"
_LIBRARY_CALLS = "torch._inductor.scheduler:Scheduler.codegen_extern_call"
_WRITTEN_CALLS = "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_extern_kernel_out"
# What stands between the call-backs around a kernel.
_AROUND = re.compile(r"before_kernel\(\d+, (\d+), locals\(\)\)\n((?:.*\n)*?).*after_kernel\(\d+, \1, locals\(\)\)")
_NO_CALL = re.compile(r"\s*(#.*|\w+ = empty_strided.*|del .*)?")


def lost_kernel(ledger: Ledger) -> Attribution | None:
    """Find what dropped a kernel of a watched compile; None if the program computes every scheduled operator."""
    for lowered in ledger.lowered:
        if lowered.program and (named := _without_kernel(lowered) or _without_call(lowered)) is not None:
            return named
    return None


def _without_kernel(lowered: Lowered) -> Attribution | None:
    """Scheduled nodes for which nothing was generated."""
    written = {buffer for kernel in lowered.kernels for buffer in kernel.writes}
    nodes: list[Any] = list(getattr(lowered.scheduler, "nodes", ()))
    for kind in (*_LOOPS, _LIBRARY):
        for node in nodes:
            buffers = set(node.get_buffer_names()) - lowered.graph.removed_buffers
            if class_names(node)[0] != kind or not buffers or buffers & written:
                continue
            names = operators_of([node])
            if kind == _LIBRARY:
                return Attribution(_culprit(lowered, names, SCHEDULER, *defined_at(_LIBRARY_CALLS)))
            code = generator_of(lowered).fused_loops()
            return Attribution(_culprit(lowered, names, CODEGEN, code.source, code.line))
    return None


def _without_call(lowered: Lowered) -> Attribution | None:
    """A library's kernel that the program does not call."""
    for match in _AROUND.finditer(lowered.program):
        kernel = lowered.kernels[int(match[1])]
        if kernel.extern and kernel.writes and all(_NO_CALL.fullmatch(line) for line in match[2].splitlines()):
            return Attribution(_culprit(lowered, kernel.nodes, CODEGEN, *defined_at(_WRITTEN_CALLS)))
    return None


def _culprit(lowered: Lowered, nodes: tuple[str, ...], stage: str, source: str | None, line: int | None) -> Culprit:
    families = sorted({family_of_node(lowered, name) for name in nodes})
    details = {"program": "computes these operators nowhere", "operators": families}
    family = "+".join(families) or _LOST
    return Culprit(stage, None, _LOST, family, nodes, source, line, confidence="low", details=details)
