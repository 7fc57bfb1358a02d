"""Probes: does each hook hold on to the installed torch? Each is tried on a small planted rewrite.

Three small programs are compiled up to code generation: one trained, one for inference and one whose parameters are
frozen. Each hook is asked for what it alone records of them. A hook that fails its probe is switched off, so that its
stage is not recorded and not wrongly recorded either, and every later ledger says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzzcompile.case import CompileSettings
from fuzzcompile.compiler import hooks
from fuzzcompile.compiler.hooked_passes import FUSION_PASSES
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Ledger
from fuzzcompile.compiler.probed import Frozen, Trained, dead_probe, first_probe, inference, last_probe, pattern_probe
from fuzzcompile.compiler.session import Compilation, compiling
from fuzzcompile.facts import is_in_known_range

_MAX_TEXT = 200


@dataclass
class Findings:
    """What the probes' compiles recorded, or the error with which they ended."""

    trained: Ledger = field(default_factory=Ledger)
    inferred: Ledger = field(default_factory=Ledger)
    frozen: Ledger = field(default_factory=Ledger)
    vetoed: Ledger = field(default_factory=Ledger)
    vetoed_is_right: bool = False


def is_known(version: str = torch.__version__) -> bool:
    """Whether the probes have been seen to pass on this version of torch."""
    return is_in_known_range(version)


def probe() -> dict[str, str]:
    """Try every hook; the name of each that failed, and how. Switches those off for this process."""
    hooks.switched_off.clear()
    missing = dict.fromkeys(hooks.missing_hooks(), "this torch has no place for it")
    findings = _compiled_somehow()
    failed = dict(hooks.switched_off)
    for name, look in _PROBES.items():
        if findings is not None and name not in failed and name not in missing:
            found = _looked(look, findings)
            if found is not None:
                failed[name] = found
    hooks.switched_off.update(failed)
    return {**failed, **missing}


def _compiled_somehow() -> Findings | None:
    """Compile the programs, and switch hooks off until they compile; None if they do not compile without any."""
    while len(hooks.switched_off) < len(hooks.HOOKS):
        try:
            return _compiled()
        except Exception as error:
            cause = _root(error)
            guilty = _hooks_in(cause) - set(hooks.switched_off) or {hook.name for hook in hooks.HOOKS}
            hooks.switched_off.update(dict.fromkeys(guilty, _text(cause)))
    return None


def _root(error: BaseException) -> BaseException:
    """The exception that those of the compiler carry."""
    inner = getattr(error, "inner_exception", None)
    return _root(inner) if isinstance(inner, BaseException) and inner is not error else error


def _hooks_in(error: BaseException) -> set[str]:
    """The hooks whose replacement was called last before the exception rose."""
    frames = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__)]
    for name in reversed(frames):
        found = {hook.name for hook in hooks.HOOKS if name.startswith(f"{hook.wrap.__qualname__}.<locals>")}
        if found:
            return found
    return set()


@functools.cache
def probe_unknown_torch() -> None:
    """Probe once a process where the torch is one that fuzzcompile has not been tried on."""
    if not is_known():
        with contextlib.suppress(Exception):
            probe()


def _looked(look: Callable[[Findings], str | None], findings: Findings) -> str | None:
    try:
        return look(findings)
    except Exception as error:
        return _text(error)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_TEXT]


# -- the compiles ---------------------------------------------------------------------------------------


def _compiled() -> Findings:
    findings = Findings()
    hooks.initialise_patterns(torch.device("cpu"))
    x = torch.linspace(-1, 1, 15).reshape(3, 5)
    marks = {"pre_grad_custom_pass": first_probe, "post_grad_custom_post_pass": last_probe}
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _without_advice():
        torch.manual_seed(0)
        with _screened(findings, "trained", {**marks, "joint_custom_pre_pass": pattern_probe}) as compiled:
            compiled(Trained())(x.clone().requires_grad_()).sum().backward()
        with torch.no_grad():
            with _screened(findings, "inferred", {"joint_custom_post_pass": dead_probe, "dce": True}) as compiled:
                compiled(inference)(x)
            with _screened(findings, "frozen", {"freezing": True}) as compiled:
                compiled(Frozen().eval())(torch.ones(1, 2, 5, 5))
            with _screened(findings, "vetoed", {"joint_custom_pre_pass": pattern_probe}, ("doubled_sine",)) as compiled:
                findings.vetoed_is_right = torch.allclose(compiled(inference)(x), inference(x))
    return findings


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Keep quiet what Inductor would tell the author of a pass about caching."""
    logger = logging.getLogger("torch._inductor.codecache")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _screened(
    findings: Findings, name: str, config: dict[str, Any], vetoes: tuple[str, ...] = ()
) -> Iterator[Callable[..., Any]]:
    how = Compilation(screen=True, config=config, vetoes=vetoes)
    with compiling(CompileSettings(), how) as session:
        yield session.compile
    setattr(findings, name, session.ledger)


# -- what each hook alone records ------------------------------------------------------------------------


def _frame(ledger: Ledger) -> Frame:
    if len(ledger.frames) != 1:
        raise LookupError(f"{len(ledger.frames)} graphs recorded instead of one")
    return ledger.frames[0]


def _record(ledger: Ledger, stage: str, direction: str | None = None) -> GraphRecord:
    record = _frame(ledger).record(stage, direction)
    if record is None or not record.snapshots:
        raise LookupError(f"no {direction or ''} graph of stage {stage} was recorded".replace("  ", " "))
    return record


def _entry(findings: Findings) -> str | None:
    frame = _frame(findings.trained)
    calls = (len(frame.dynamo_calls), len(frame.forward_calls), len(frame.backward_calls))
    return None if calls == (1, 1, 1) else f"calls recorded: {calls} instead of (1, 1, 1)"


def _has(ledger: Ledger, rewrite: str, stage: str, direction: str | None = None) -> str | None:
    record = _record(ledger, stage, direction)
    seen = [rewrite.label.rewrite for rewrite in record.rewrites]
    return (
        None if rewrite in seen else f"planted {rewrite} is not in the record of {stage}: {', '.join(seen) or 'empty'}"
    )


def _fired(ledger: Ledger, rewrite: str) -> str | None:
    seen = [rewrite.label.rewrite for _, _, rewrite in ledger.rewrites()]
    return None if rewrite in seen else f"{rewrite} was not recorded"


def _pattern(findings: Findings) -> str | None:
    if (wrong := _fired(findings.trained, "doubled_sine")) is not None:
        return wrong
    if not findings.vetoed_is_right or _fired(findings.vetoed, "doubled_sine") is None:
        return "a veto of the planted pattern had no effect"
    return None


def _stage(stage: str, direction: str) -> Callable[[Findings], str | None]:
    def look(findings: Findings) -> str | None:
        _record(findings.trained, stage, direction)
        return None

    return look


def _partition(findings: Findings) -> str | None:
    cut = _frame(findings.trained).partitions
    return None if len(cut) == 1 and cut[0].backward.calls else "the partition of the joint graph was not recorded"


def _freezing(findings: Findings) -> str | None:
    _record(findings.frozen, "freezing")
    return _fired(findings.frozen, "constant_fold")


def _frozen_inputs(findings: Findings) -> str | None:
    graphs = [record.snapshots[-1].graph for record in _frame(findings.frozen).records if record.stage == "freezing"]
    inputs = [len(graph.find_nodes(op="placeholder")) for graph in graphs]
    return None if inputs and inputs[-1] == 1 < inputs[0] else f"inputs of the graphs recorded: {inputs}"


def _weights_layout(findings: Findings) -> str | None:
    records = [record for record in _frame(findings.frozen).records if record.stage == "freezing"]
    return None if len(records) > 2 else "no record of its own"


def _fusion(findings: Findings) -> str | None:
    hook = next(hook for hook in hooks.HOOKS if hook.name == "fusion passes")
    parameters = list(inspect.signature(hook.find()[2]).parameters)
    config = importlib.import_module("torch._inductor.config")
    if parameters[:2] != ["self", "nodes"]:
        return f"takes {', '.join(parameters)}"
    lacking = [name for name in FUSION_PASSES if not hasattr(config, name)]
    return f"the config has no {', '.join(lacking)}" if lacking else None


_PROBES: dict[str, Callable[[Findings], str | None]] = {
    "backend entry": _entry,
    "pre-grad stage": _stage("pre_grad", "inference"),
    "joint-graph stage": _stage("joint_graph", "joint"),
    "post-grad stage": _stage("post_grad", "backward"),
    "partition": _partition,
    "freezing stage": _freezing,
    "frozen parameters": _frozen_inputs,
    "layout of frozen weights": _weights_layout,
    "dead code": lambda findings: _fired(findings.inferred, "eliminate_dead_code"),
    "graph pass": lambda findings: _has(findings.trained, "last_probe", "post_grad", "forward"),
    "module pass": lambda findings: _fired(findings.inferred, "constant_fold_uniform_value"),
    "pattern pass": _pattern,
    "fusion passes": _fusion,
}
