"""Where a bug sits: the component that triages it, the code at fault, and what proves it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.stages import (
    CODEGEN,
    CUDAGRAPHS,
    DECOMPOSITION,
    DYNAMO,
    FAKE_TENSOR,
    FREEZING,
    FUNCTIONALIZATION,
    JOINT_GRAPH,
    LOWERING,
    PARTITION,
    POST_GRAD,
    PRE_GRAD,
    RUNTIME,
    SCHEDULER,
)
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.proof import NEEDED, plain_toggle, role_of_contributor

_REPOSITORY = "https://github.com/pytorch/pytorch/blob"
_INDUCTOR, _DISPATCHER = "module: inductor", "module: pt2-dispatcher"
# What each stage is called in PyTorch, and its label (.claude/skills/triaging-issues/pt2-triage-rubric.md).
_COMPONENTS = {
    DYNAMO: ("Dynamo", "module: dynamo"),
    PRE_GRAD: ("Inductor's pre-grad passes", _INDUCTOR),
    FUNCTIONALIZATION: ("functionalization (AOTAutograd)", "module: functionalization"),
    DECOMPOSITION: ("a decomposition", "module: decompositions"),
    FAKE_TENSOR: ("a fake tensor rule", "module: fakeTensor"),
    JOINT_GRAPH: ("Inductor's joint-graph passes", _INDUCTOR),
    PARTITION: ("the partitioner (AOTAutograd)", _DISPATCHER),
    FREEZING: ("Inductor's freezing passes", _INDUCTOR),
    POST_GRAD: ("Inductor's post-grad passes", _INDUCTOR),
    LOWERING: ("an Inductor lowering", _INDUCTOR),
    SCHEDULER: ("Inductor's scheduler", _INDUCTOR),
    CODEGEN: ("Inductor's code generation", _INDUCTOR),
    CUDAGRAPHS: ("CUDA graphs", "module: cuda graphs"),
    RUNTIME: ("Inductor's runtime", _INDUCTOR),
}
# The first rung of the ladder of backends that is not right tells the component (section 2 of the rubric).
_RUNGS = {
    "eager": ("Dynamo", "module: dynamo"),
    "aot_eager": ("AOTAutograd", _DISPATCHER),
    "aot_eager_decomp_partition": ("decompositions or the partitioner", _DISPATCHER),
    "inductor": ("Inductor", _INDUCTOR),
}


def component_of(facts: IssueFacts) -> tuple[str, str] | None:
    """The component and its label in PyTorch's issues: the culprit's, else that of the first backend that is wrong."""
    if facts.without_compiler:
        return None
    if facts.proved and facts.culprit is not None and facts.culprit.get("stage") in _COMPONENTS:
        stage = str(facts.culprit["stage"])
        generated = stage == CODEGEN and (facts.device or "").startswith("cpu") and facts.target is None
        return ("Inductor's C++ code generation", "oncall: cpu inductor") if generated else _COMPONENTS[stage]
    wrong = (rung["backend"] for rung in facts.shown.get("ladder") or () if rung["result"] in ("wrong", "raises"))
    return _RUNGS.get(next(wrong, ""))


def labels(facts: IssueFacts) -> list[str]:
    """The labels to ask for; those of the component only where it is known."""
    component = component_of(facts)
    own = [] if facts.without_compiler else ["oncall: pt2"]
    own += ["module: correctness (silent)"] if facts.severity is Severity.SILENT else []
    return [*own, *([component[1]] if component else []), "topic: fuzzer"]


def paths(facts: IssueFacts) -> str:
    """What a composite operator calls in eager mode and as it is traced; empty where no such operator is at fault."""
    composite = ((facts.culprit or {}).get("details") or {}).get("composite")
    if not isinstance(composite, dict):
        return ""
    eager, compiled = (", ".join(f"`{name}`" for name in composite.get(side) or ()) for side in ("eager", "compiled"))
    return f"eager mode calls {eager or 'nothing'}; traced for the compiler it becomes {compiled or 'nothing'}"


def culprit_line(facts: IssueFacts) -> str:
    """The code at fault, with a link; that of a suspect says that it is one. Empty where there is neither."""
    culprit = facts.culprit
    if culprit is None:
        return ""
    kernel = facts.kernel
    name = kernel or culprit.get("rewrite") or culprit.get("pass") or culprit.get("family") or "?"
    stage = str(culprit.get("stage"))
    component = "an ATen kernel" if kernel else _COMPONENTS.get(stage, (stage,))[0]
    within = culprit.get("pass")
    inside = f" in `{within}`" if within and not kernel and within != name else ""
    place = "" if kernel else source_link(facts)
    # "an Inductor lowering" is one of many: of which operator says more.
    article, _, kind = component.partition(" ")
    named = f"`{scrub(str(name))}`{inside}"
    what = f"the {kind} of {named}" if article in ("a", "an") else f"{named}, {component}"
    return what + (f": {place}" if place else "")


def source_link(facts: IssueFacts) -> str:
    """The culprit's file and line as Markdown: a permalink if it is torch's own at a known commit."""
    source, line = (facts.culprit or {}).get("source"), (facts.culprit or {}).get("line")
    if not source:
        return ""
    text = scrub(source) + (f":{line}" if line is not None else "")
    commit = str(facts.environment.get("torch_git") or "")
    known = re.fullmatch(r"[0-9a-f]{7,40}", commit) and facts.environment.get("torch") == facts.torch
    if not known or not source.startswith("torch/"):
        return f"`{text}`"
    return f"[{text}]({_REPOSITORY}/{commit}/{source}" + (f"#L{line})" if line is not None else ")")


def proof(facts: IssueFacts) -> str:
    """What was run to prove the culprit, in one line; empty where nothing proves it."""
    culprit = facts.culprit
    if facts.without_compiler:
        return "the script above calls the operator in eager mode, on equal values in two layouts."
    if culprit is None or not facts.proved:
        return ""
    return "; ".join(_proved(facts)) + "."


def _proved(facts: IssueFacts) -> Iterator[str]:
    culprit = facts.culprit or {}
    siblings = ", ".join(f"`{name}`" for name in culprit.get("siblings") or ())
    what = f"switching off this and {siblings}, which takes its place," if siblings else "switching off this alone"
    repairing = next((entry for entry in facts.report.get("ablations") or () if entry.get("repairs")), None)
    how = f" ({plain_toggle(str(repairing['toggle']))})" if repairing else ""
    yield f"the bug is gone after {what.removesuffix(',')}{how}"
    if culprit.get("sufficient"):
        yield "it stays with every other optional rewrite off"
    if contributors := [
        entry for entry in facts.report.get("contributors") or () if role_of_contributor(entry) == NEEDED
    ]:
        names = ", ".join(f"`{entry.get('rewrite') or entry.get('family')}`" for entry in contributors)
        yield f"the bug also needs {names}"
