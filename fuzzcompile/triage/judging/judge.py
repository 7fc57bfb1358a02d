"""How a worker process prepares itself and judges a case. Tasks and results are plain data."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fuzzcompile.compiler.custom_code import apply_backend, install_custom
from fuzzcompile.compiler.graph_text import dump_ledger
from fuzzcompile.compiler.kernel_cache import share_headers
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.rule_watch import watch_focus
from fuzzcompile.compiler.target.target_process import assume_target
from fuzzcompile.compiler.torch_config import compile_in_process, drop_broken_kernels
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.model.contract import read_target
from fuzzcompile.model.errors import EnvironmentUnfit, MachineUnfit
from fuzzcompile.model.signatures import drop_fingerprint
from fuzzcompile.model.targets import find_target
from fuzzcompile.model.tasks import Judged, JudgeTask, WorkerSetup
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.capture.invocation import Invocation
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.run.attention_backends import MATH_ONLY, math_only
from fuzzcompile.run.case import Case
from fuzzcompile.run.device import Numerics, assigned, seed_everything
from fuzzcompile.run.environment import describe
from fuzzcompile.run.footprint import refuse_oversized
from fuzzcompile.run.lost_gpu import lost_gpu
from fuzzcompile.run.plants import run_plants
from fuzzcompile.run.worker import current_device, restore_streams, retire, say, use_device, worker_number
from fuzzcompile.triage.bitwise.execution import apply_contract
from fuzzcompile.triage.engine import triage
from fuzzcompile.triage.judging.progress import Progress
from fuzzcompile.triage.triage_report import Report
from fuzzcompile.triage.worker.isolation import isolated

__all__ = ["JudgeTask", "Judged", "WorkerSetup", "calm_collector", "judge_file", "prepare"]


# Full garbage collections run after a case that took this many seconds, or after this many partial collections.
_LONG = 2.0
_LOADING = {
    "case": "making the model and its inputs",
    "script": "running the script up to its compiled call",
    "notebook": "running the notebook up to its compiled call",
    "call": "receiving the call",
}
_SHORT_COLLECTIONS = 32
_took: list[float] = []  # seconds of processor time that the latest case took, if nothing was collected since


def prepare(setup: WorkerSetup) -> None:
    """Set this process up: target, device, numerics, threads, Inductor's patterns, plants, the user's own passes.

    Raises:
        UsageError: a plant raises, a pass or backend cannot be used, or the device is none.
        EnvironmentUnfit: the machine has no such device.
    """
    if setup.target is not None:
        assume_target(find_target(setup.target))
    device = assigned(current_device(), worker_number())
    use_device(str(device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, setup.threads))
    Numerics().apply()
    compile_in_process(setup.threads if device.type == "cpu" else 1)
    drop_broken_kernels()
    share_headers()
    say("registering the compiler's patterns")
    initialise_patterns(device)
    run_plants([Path(path) for path in setup.plants])
    install_custom(setup.custom)
    seed_everything(0)
    calm_collector()


def calm_collector() -> None:
    """Exempt everything loaded so far from garbage collection, and collect little while a case is judged.

    The compiler allocates millions of objects; scanning torch's own again and again takes a tenth of the time.
    :func:`judge_file` collects what the case before left.
    """
    gc.freeze()  # what is garbage by now (some 20,000 of 700,000 objects) would take 0.4 s to find
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


def _collect_garbage() -> None:
    """Collect what the case before this one has left: its answer need not wait for that.

    The compiler's caches grow, so each full collection takes longer than the last. After a short case only the young
    generations are scanned, unless the last full collection was long ago.
    """
    if _took:
        full = _took.pop() > _LONG or gc.get_count()[2] >= _SHORT_COLLECTIONS
        gc.collect(2 if full else 1)


def judge_file(task: JudgeTask) -> Judged:
    """Judge one case, a file or what the task holds, or a call that another process sent, on this worker's device.

    Raises:
        CaseError: the file is not a case, or the case cannot be run.
        EnvironmentUnfit: the case needs more than ``task.memory``, or the ledger cannot be written.
    """
    _collect_garbage()
    device = torch.device(current_device())
    progress, worked = Progress(task), time.process_time()
    try:
        return _judged(progress, device)
    except Exception as error:  # of any kind: a GPU that is lost fails in whatever comes next
        why = lost_gpu(device)
        if why is None:
            raise
        return progress.without_gpu(why, error)
    finally:
        _took[:] = [time.process_time() - worked]
        if lost_gpu(device) is not None:
            retire()


def _judged(progress: Progress, device: torch.device) -> Judged:
    task = progress.task
    if task.source is None:
        return _judged_file(Path(task.path), progress, device)
    with contextlib.ExitStack() as stack:
        try:
            # The case may remove the folder, or what it may not touch any more.
            made = tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(made), Path(task.path).name)
            path.write_text(task.source, encoding="utf-8")
        except OSError as error:
            raise MachineUnfit(
                f"A case cannot be written to {tempfile.gettempdir()} ({error.strerror}): make room there, or set "
                "TMPDIR."
            ) from error
        return _judged_file(path, progress, device)


def _judged_file(path: Path, progress: Progress, device: torch.device) -> Judged:
    task = progress.task
    deadline = None if task.seconds is None else time.monotonic() + task.seconds
    file = progress.file = read_case_file(path)
    say(_LOADING[file.kind])
    # Outside of the block, so that the modules that a call imports are there for the next one.
    called = _received(file.path, device) if file.kind == "call" else None
    with isolated():
        case = load(file, device, call=task.call, module=task.module) if called is None else called.case()
        case = replace(case, settings=apply_backend(case.settings))
        restore_streams()  # the script may have closed them, and the compiler writes to them
        report = judge_case(case, progress, device, deadline)
    answer = progress.answer(report)
    machine = describe(device, read_target(answer)) if task.describe else None
    return Judged(answer, report.coverage, report.screened, machine, progress.seen)


def _received(path: Path, device: torch.device) -> Invocation:
    from fuzzcompile.programs.capture.call_file import receive  # most workers never need a pickler

    return receive(path, device)


def judge_case(case: Case, progress: Progress, device: torch.device, deadline: float | None) -> Report:
    """Judge a loaded case in this process; of the task, its path is not read.

    Raises:
        CaseError: the case cannot be run.
        EnvironmentUnfit: it needs more than ``task.memory``, or the ledger cannot be written.
    """
    task = progress.task
    with contextlib.ExitStack() as exact:
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        case = replace(case, notes=(*case.notes, *_limits_noted(task)))
        if task.math_only:
            exact.enter_context(math_only())
        seen = exact.enter_context(watch_focus(task.watch))
        bitwise = task.contract == "bitwise"
        judged = apply_contract(case) if bitwise else case

        def looked_into(ledger: Ledger) -> None:
            progress.seen = seen(ledger)
            _dump(task.dump, ledger)

        def triaged(known: Collection[tuple[str, str]]) -> Report:
            return triage(
                judged,
                device,
                against=task.against,
                tolerances=task.tolerances,
                vetoes=task.vetoes,
                known=known,
                deadline=deadline,
                thorough=task.thorough and not bitwise,
                screen=task.screen,
                suspects=task.suspects,
                error_maps=task.error_maps,
                on_eager=progress.eager_finished,
                on_verdict=progress.verdict_reached,
                on_ledger=looked_into,
            )

        report = _of_its_cause(triaged, progress, judged, device, deadline)
        if bitwise:
            from fuzzcompile.triage.bitwise.promises import judge_bitwise

            report = judge_bitwise(judged, device, report, own=case, vetoes=task.vetoes, deadline=deadline)
        elif task.against == "eager":
            from fuzzcompile.triage.bitwise.promises import judge_own_promises

            report = judge_own_promises(case, device, report, vetoes=task.vetoes, deadline=deadline)
    return report


def _of_its_cause(
    triaged: Callable[[Collection[tuple[str, str]]], Report],
    progress: Progress,
    case: Case,
    device: torch.device,
    deadline: float | None,
) -> Report:
    """The report with its cause; what looks like a known bug and has another cause is triaged like any new bug."""
    task = progress.task
    report = triaged(task.known)
    if not report.is_bug:
        return report
    progress.verdict_reached(report)  # the programs that are tried next may take this process down
    from fuzzcompile.triage.causes.cause import add_cause, known_causes  # a third of what fuzzcompile imports

    known = known_causes(report, task.known)
    if report.attribution.known and not known:
        return report  # of the known bug, no cause is known either
    report = add_cause(report, case, device, vetoes=task.vetoes, known=known, deadline=deadline)
    cause = report.cause
    if not report.attribution.known or cause is None or cause["fingerprint"] in known:
        return report
    fresh = triaged(())
    if fresh.attribution.culprit is None or fresh.attribution.culprit.signature != drop_fingerprint(
        report.signature or ""
    ):
        return add_cause(fresh, case, device, vetoes=task.vetoes, deadline=deadline)
    return replace(fresh, cause=cause, program=report.program)


def _limits_noted(task: JudgeTask) -> Iterator[str]:
    """What a reader of the report should know about how it was judged."""
    if task.math_only:
        yield MATH_ONLY
    if task.tolerances is not None:
        yield "limits: from a file of tolerances (--tolerances), not fuzzcompile's own"


def _dump(folder: str | None, ledger: Ledger) -> None:
    """Write the ledger as text into the folder, if there is one."""
    if folder is None:
        return
    try:
        dump_ledger(ledger, Path(folder))
    except OSError as error:
        raise EnvironmentUnfit(
            f"Cannot write the ledger into {folder}: {error.strerror}; name another folder."
        ) from error
