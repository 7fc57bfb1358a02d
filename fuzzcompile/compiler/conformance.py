"""Conformance of the patches with the installed torch: each is tried on a few small compiles.

Four programs are compiled up to code generation, with planted rewrites, and one twice up to C++ (whose kernels stay in
the kernel cache). Each patch is asked for what it alone records of them. One that fails its probe is switched off, so
that nothing wrong is recorded, and every later ledger says what was not seen.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import traceback
from collections.abc import Callable, Iterator

import torch

from fuzzcompile.case import CompileSettings
from fuzzcompile.compiler import fake, patches, probed
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.kernels.control import EVERYTHING, Control
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.patches import AnyPatch
from fuzzcompile.compiler.patching import installed, switched_off
from fuzzcompile.compiler.probes import Findings
from fuzzcompile.compiler.session import Compilation, compiling
from fuzzcompile.compiler.unseen import reason
from fuzzcompile.facts import is_in_known_range

_CHANGES = Control(
    fallbacks=("aten.cos.default",),
    apart=(EVERYTHING,),
    realised=("aten.exp.default",),
    scalarised=("exp",),
    separate=True,
)


def is_known(version: str = torch.__version__) -> bool:
    """Return whether the probes are known to pass on this version of torch."""
    return is_in_known_range(version)


def missing_patches() -> dict[str, str]:
    """Names of the patches that the installed torch has no place for, and why."""
    return {patch.name: why for patch in patches.PATCHES if (why := patch.missing()) is not None}


def probe() -> dict[str, str]:
    """Try every patch; the name of each that failed, and how. Switches those off for this process."""
    switched_off.clear()
    missing = missing_patches()
    findings = _compiled_somehow()
    failed = dict(switched_off)
    for patch in patches.PATCHES:
        if patch.name not in failed and patch.name not in missing:
            wrong = _tried(patch, findings)
            if wrong is not None:
                failed[patch.name] = wrong
    switched_off.update(failed)
    return {**failed, **missing}


def _tried(patch: AnyPatch, findings: Findings | None) -> str | None:
    """Return the fault of a patch that this torch has a place for; None if it holds."""
    try:
        wrong = patch.misfit()
        if wrong is not None or findings is None:
            return wrong
        trouble = (unseen.why for ledger in findings.ledgers() for unseen in ledger.unseen if unseen.what == patch.name)
        return next(trouble, None) or (patch.probe(findings) if patch.probe is not None else None)
    except Exception as error:  # whatever a probe stumbles over says that its patch does not hold
        return reason(error)


def _compiled_somehow() -> Findings | None:
    """Compile the programs, and switch patches off until they compile; None if they do not compile without any."""
    while len(switched_off) < len(patches.PATCHES):
        try:
            return _compiled()
        except Exception as error:  # of any kind: the compiler passes on what rises in a patch
            cause = _root(error)
            guilty = _patches_in(cause) - set(switched_off) or {patch.name for patch in patches.PATCHES}
            switched_off.update(dict.fromkeys(guilty, reason(cause)))
    return None


def _root(error: BaseException) -> BaseException:
    """The exception that those of the compiler carry."""
    inner = getattr(error, "inner_exception", None)
    return _root(inner) if isinstance(inner, BaseException) and inner is not error else error


def _patches_in(error: BaseException) -> set[str]:
    """The patches whose replacement was called last before the exception rose."""
    frames = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__)]
    for name in reversed(frames):
        guilty = {patch.name for patch in patches.PATCHES if name.startswith(_replacement_of(patch))}
        if guilty:
            return guilty
    return set()


def _replacement_of(patch: AnyPatch) -> str:
    return f"{patch.wrap.__qualname__}.<locals>"


@functools.cache
def probe_unknown_torch() -> None:
    """Probe once a process where the torch is one that fuzzcompile has not been tried on."""
    if not is_known():
        probe()


# -- the compiles ---------------------------------------------------------------------------------------


def _compiled() -> Findings:
    findings = Findings()
    initialise_patterns(torch.device("cpu"))
    x = torch.linspace(-1, 1, 15).reshape(3, 5)
    marks = {"pre_grad_custom_pass": probed.first_probe, "post_grad_custom_post_pass": probed.last_probe}
    pattern = {"joint_custom_pre_pass": probed.pattern_probe}
    joint = CompileSettings(functorch={"joint_custom_pass": probed.joint_probe})
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _without_advice():
        torch.manual_seed(0)
        how = Compilation(screen=True, config={**marks, **pattern})
        with _recording(findings, "trained", how, joint) as compiled:
            torch.autograd.backward(compiled(probed.Trained())(x.clone().requires_grad_()).sum())
        with torch.no_grad():
            how = Compilation(screen=True, config={"joint_custom_post_pass": probed.dead_probe, "dce": True})
            with _recording(findings, "inferred", how) as compiled:
                compiled(probed.inference)(x)
            how = Compilation(screen=True, config={"freezing": True})
            with _recording(findings, "frozen", how) as compiled:
                compiled(probed.Frozen().eval())(torch.ones(1, 2, 5, 5))
            how = Compilation(
                screen=True, config=pattern, vetoes=("doubled_sine",), without_decompositions=("aten.silu.default",)
            )
            with _recording(findings, "vetoed", how) as compiled:
                findings.vetoed_is_right = torch.allclose(compiled(probed.activated)(x), probed.activated(x))
            _generate(findings)
    findings.metadata = _metadata(findings.vetoed)
    return findings


def _generate(findings: Findings) -> None:
    """The compiles up to C++."""
    x = torch.linspace(-1, 1, 256).reshape(16, 16)
    fusion = {"_post_fusion_custom_pass": probed.fusion_probe}
    for name, control, config in (("generated", Control(), fusion), ("changed", _CHANGES, {})):
        with _recording(findings, name, Compilation(kernels=True, control=control, config=config)) as compiled:
            compiled(probed.several_kernels)(x)


def _metadata(ledger: Ledger) -> tuple[int, ...]:
    """The shape that a fake tensor has for a result of two elements, where the operator's description says three."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.library._scoped_library("fuzzcompile_probe", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: x.new_empty(3), "Meta")
        metadata = fake.Metadata(("fuzzcompile_probe.twice.default",), ledger)
        with installed(metadata, patches.METADATA), fake.forgetting_metadata(), FakeTensorMode() as mode:
            result = torch.ops.fuzzcompile_probe.twice(mode.from_tensor(torch.zeros(2)))
    return tuple(result.shape)


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
def _recording(
    findings: Findings, name: str, how: Compilation, settings: CompileSettings | None = None
) -> Iterator[Callable[..., Callable[..., torch.Tensor]]]:
    with compiling(settings or CompileSettings(), how) as session:
        yield session.compile
    setattr(findings, name, session.ledger)
