"""What a report says of a target: the device that the compiler was told, while the case ran on the CPU.

A verdict for a target claims what was seen of the graphs and kernels made for it, and nothing of a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fuzzcompile.model.contract import ReportJson, read_target
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.stages import CODEGEN, LOWERING, SCHEDULER

_NOT_LOOKED_AT = "not looked at"
_CLEAN = ("equal", "rounding")
_VALUES = ("miscompile", "wrong_gradient", "nonfinite", "precision_loss")
_KERNELS = (LOWERING, SCHEDULER, CODEGEN)


def meaning_for(report: ReportJson, plain: str) -> str:
    """What a verdict for a target means, in a few words; ``plain`` is what it means for the device that runs."""
    target, verdict = read_target(report), report["verdict"]
    if verdict in _CLEAN:
        return f"nothing found in the stages looked at for {target}"
    if verdict not in _VALUES:
        return f"{plain}, compiled for {target}" if report["is_bug"] else plain
    culprit = report.get("culprit")
    if culprit is None:
        return f"what is made of the program for {target} computes other values than the program"
    stage = culprit.get("stage") or ""
    if stage in _KERNELS:
        return f"a kernel generated for {target} computes other values than its graph, interpreted"
    what = "this rewrite" if culprit.get("rewrite") else f"the stage {stage}"
    return f"{what}, applied for {target}, changes the meaning in float64"


def advice_for(report: ReportJson, name: str | CommandSubject) -> str:
    """What to do about a bug for a target; ``name`` is how the case is named on a command line."""
    subject = CommandSubject.from_name(name).with_options(device=None, target=read_target(report))
    return (
        f"confirm it on a GPU: `{subject.format_command('minimize')}` makes the reproducer to run there, "
        f"`{subject.format_command('issue')}` the draft"
    )


def stages_looked_at(report: ReportJson) -> Iterator[str]:
    """How the stages were looked at for a target: a heading, then a line each way; nothing without a target."""
    target = report.get("target")
    if target is None:
        return
    ways = defaultdict[str, list[str]](list)
    for stage, way in target["stages"].items():
        ways[way].append(stage)
    seen = "seen on such a device too" if target["confirmed_on_device"] else "with no GPU"
    if not ways:
        yield f"for {target['device']}, {seen}: no stage was looked at to its end"
        return
    yield f"stages for {target['device']}, {seen}:"
    for way in sorted(ways, key=lambda way: way.startswith(_NOT_LOOKED_AT)):
        yield f"  {way}: {', '.join(ways[way])}"
