"""Scripts that need no compiler: an ATen kernel that is wrong on the inputs that compiled programs give it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import fuzzcompile
from fuzzcompile.contract import ReportJson, RungJson
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.alone import Ran, run_alone
from fuzzcompile.reduction.plain.ladder import Clock
from fuzzcompile.reduction.plain.rungs import split_error

_VALUES = (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT, Verdict.NONFINITE, Verdict.RUNTIME_ERROR, Verdict.CRASH)


def eager_only(source: str, report: ReportJson, ladder: Sequence[RungJson], clock: Clock) -> Ran | None:
    """A script that shows the fault of a kernel in eager mode, and what it printed; None if no kernel is at fault.

    It is looked for where a backend that only runs ATen operators differs from eager already, or where the culprit of
    ``report`` says that a kernel is at fault. The kernel may be the one that eager mode calls: then the compiled
    program is right.

    Args:
        source: the case.
        report: the report on it.
        ladder: what each backend showed.
        clock: bounds the processes; what there is no time for is not looked at.
    """
    kernel = ((report.get("culprit") or {}).get("details") or {}).get("aten_kernel")
    named = str(kernel.get("operator")) if isinstance(kernel, dict) else None
    early = any(rung["result"] in ("wrong", "raises") for rung in ladder[1:3])
    limit = clock.limit
    if report.get("verdict") not in _VALUES or not (early or named) or limit is None:
        return None
    named_too = [named] if named else []
    package = {"PYTHONPATH": str(Path(fuzzcompile.__file__).parents[1])}
    command = ("-m", "fuzzcompile.reduction.plain.kernels")
    ran = run_alone(source, command=command, arguments=named_too, environment=package, timeout=limit)
    line = next((line for line in ran.output.splitlines() if line.startswith('{"operator"')), None)
    for script in json.loads(line)["scripts"] if line is not None else ():
        alone = run_alone(script, timeout=clock.limit or 1)
        if split_error(alone.output)[2] or alone.status not in (0, 1):
            return Ran(alone.status, alone.output, {"script": script})
    return None
