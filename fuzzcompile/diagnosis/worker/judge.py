"""The judge in a worker process: its preparation, and the judging of a case. Tasks and results are plain data."""

from __future__ import annotations

import contextlib
import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client
from pathlib import Path

import torch

from fuzzcompile.compiler.custom_code import apply_backend, install_custom
from fuzzcompile.compiler.kernel_cache import share_headers
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.source_probes import watch_focus
from fuzzcompile.compiler.target.target_process import assume_target, current_target, interpret_own_kernels
from fuzzcompile.compiler.torch_config import compile_in_process, drop_broken_kernels, preserve_config
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.diagnosis.bitwise.execution import apply_contract
from fuzzcompile.diagnosis.engine import TriageProgress, triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.diagnosis.worker.ledger_files import dump_ledger
from fuzzcompile.diagnosis.worker.rank_processes import seat_ranks
from fuzzcompile.diagnosis.worker.worker_loss import leave_eager, leave_report
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import EAGER, WHOLE, LaterCallJson, ReportJson, read_target
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, MachineUnfit, format_message
from fuzzcompile.model.focus_plan import FocusObservation
from fuzzcompile.model.judge_task import JudgeResult, JudgeTask
from fuzzcompile.model.signatures import drop_fingerprint
from fuzzcompile.model.targets import find_target
from fuzzcompile.model.verdicts import HARMLESS, Verdict
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.capture.script_process import preserve_process
from fuzzcompile.programs.capture.script_text import makes_one_call, tests_results
from fuzzcompile.programs.capture.whole_script import (
    MOST_SECONDS,
    find_ending,
    load_later_call,
    make_whole_case,
)
from fuzzcompile.programs.casefiles.case_file import CaseFile, count_processes, read_case_file
from fuzzcompile.run.attention_backends import MATH_ONLY, force_math_kernel
from fuzzcompile.run.call_state import preserve_modes
from fuzzcompile.run.case import Case
from fuzzcompile.run.device import (
    AUTOCAST_DEVICES,
    Numerics,
    assign_device,
    describe_environment,
    find_gpu_error,
    seed_everything,
)
from fuzzcompile.run.footprint import refuse_oversized
from fuzzcompile.run.plants import run_plants
from fuzzcompile.run.pool.worker import get_current_device, get_worker_number, restore_streams, retire, say, use_device
from fuzzcompile.run.pool.worker_pool import WorkerPool
from fuzzcompile.run.ranks import NotOnAllRanks, RankLost, follow, leave_group, take_seat, tells_of_waiting
from fuzzcompile.run.seats import Seat
from fuzzcompile.run.transforms import leave_transforms

# Process-wide state that a case may change, restored after the case.


@contextlib.contextmanager
def isolate_process() -> Iterator[None]:
    """Restore threads, dtypes, grad and autocast modes, configs and the like after the block.

    In a process that compiles for a target, Triton kernels of the case are interpreted in it.
    """
    try:
        with preserve_modes(), preserve_config(), preserve_process(), leave_transforms(), interpret_own_kernels():
            yield
    finally:
        torch.set_default_device(None)
        for device in AUTOCAST_DEVICES:
            torch.set_autocast_enabled(device, False)
        torch.autograd.set_detect_anomaly(False)
        torch.compiler.set_stance("default")
        Numerics().apply()
        share_headers()


# Progress of a case, kept in case its worker or its GPU is lost.


@dataclass
class CaseProgress(TriageProgress):
    """Progress of a case, left for the case that its worker is lost.

    ``file`` is what the case was loaded from, once that was read, ``report`` the latest one, and ``seen`` what the
    judged compile showed of the task's focus, which ``watched`` reads from a ledger.
    """

    task: JudgeTask
    file: CaseFile | None = None
    eager_done: bool = False
    report: TriageReport | None = None
    seen: FocusObservation = field(default_factory=FocusObservation)
    watched: Callable[[Ledger], FocusObservation] = lambda ledger: FocusObservation()

    def note_eager(self) -> None:
        """Note that eager mode has finished."""
        self.eager_done = True
        leave_eager()

    def note_verdict(self, report: TriageReport) -> None:
        """Note the verdict; the answer of a contract is not known yet."""
        self.report = report
        if self.task.contract == "bitwise":
            from fuzzcompile.diagnosis.bitwise.promises import make_unjudged_contract

            report = replace(report, confidence="low", contract=make_unjudged_contract("the worker was lost"))
        leave_report(self.answer(report))

    def note_ledger(self, ledger: Ledger) -> None:
        """Note what the compile showed of the focus, and write the ledger into the task's folder, if it has one."""
        self.seen = self.watched(ledger)
        if self.task.dump is None:
            return
        try:
            dump_ledger(ledger, Path(self.task.dump))
        except OSError as error:
            raise EnvironmentUnfit(
                f"Cannot write the ledger into {self.task.dump}: {error.strerror}; name another folder."
            ) from error

    def answer(self, report: TriageReport) -> ReportJson:
        """The report in its JSON form, with places as a user knows them."""
        plain = report.to_json()
        return plain if self.file is None else self.file.locate(plain)

    def answer_as_reached(self, why: str) -> JudgeResult | None:
        """The verdict that was reached before what the case needs was lost; None if there was none."""
        if self.report is None:
            return None
        detail = "; ".join(part for part in (self.report.detail, f"what came after the verdict: {why}") if part)
        report = replace(self.report, confidence="low", detail=detail)
        return JudgeResult(self.answer(report), report.coverage, report.screened, seen=self.seen)

    def answer_without_gpu(self, why: str, error: Exception) -> JudgeResult:
        """The verdict that was reached before the GPU was lost.

        Raises:
            EnvironmentUnfit: there was none.
        """
        if (reached := self.answer_as_reached(why)) is not None:
            return reached
        when = "while it was judged" if self.eager_done else "in eager mode"
        raise EnvironmentUnfit(
            f"{self.task.path} could not be judged: {why}, {when}, and no run can follow in that process; mend the "
            "program (an index out of range?), or run it with CUDA_LAUNCH_BLOCKING=1 to see where."
        ) from error


# Full garbage collections run after a case that took this many seconds, or after this many partial collections.
_LONG = 2.0
_LOADING = {
    "case": "making the model and its inputs",
    "script": "running the script up to its compiled call",
    "notebook": "running the notebook up to its compiled call",
    "call": "receiving the call",
}
_SHORT_COLLECTIONS = 32
_OWN_LIMITS = "limits: from a file of tolerances (--tolerances), not fuzzcompile's own"
_opens_more: list[Callable[[int], WorkerPool]] = []  # starts workers under this one's conditions, if it may
_took: list[float] = []  # seconds of processor time that the latest case took, if nothing was collected since


def prepare(conditions: Conditions, threads: int = 1, open_more: Callable[[int], WorkerPool] | None = None) -> None:
    """Set this process up: target, device, numerics, torch's threads, patterns, plants, the user's own passes.

    ``open_more`` starts workers under the same conditions, for cases that run in several processes.

    Raises:
        UsageError: a plant raises, a pass or backend cannot be used, or the device is none.
        EnvironmentUnfit: the machine has no such device.
    """
    if conditions.target is not None:
        assume_target(find_target(conditions.target))
    _opens_more[:] = [] if open_more is None else [open_more]
    device = assign_device(get_current_device(), get_worker_number())
    use_device(str(device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, threads))
    Numerics().apply()
    compile_in_process(threads if device.type == "cpu" else 1)
    drop_broken_kernels()
    share_headers()
    say("registering the compiler's patterns")
    initialise_patterns(device)
    run_plants(conditions.plants)
    install_custom(conditions.custom)
    seed_everything(0)
    # Exempt everything loaded so far from garbage collection, and collect little while a case is judged: the compiler
    # allocates millions of objects, and scanning torch's own again and again takes a tenth of the time. `judge_file`
    # collects what the case before left.
    gc.freeze()  # what is garbage by now (some 20,000 of 700,000 objects) would take 0.4 s to find
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


def judge_file(task: JudgeTask) -> JudgeResult:
    """Judge one case, a file or what the task holds, or a call that another process sent, on this worker's device.

    Raises:
        CaseError: the file is not a case, or the case cannot be run.
        EnvironmentUnfit: the case needs more than ``task.memory``, or the ledger cannot be written.
    """
    if _took:  # collect what the case before this one has left: its answer need not wait for that
        # The compiler's caches grow, so each full collection takes longer than the last. After a short case only the
        # young generations are scanned, unless the last full collection was long ago.
        full = _took.pop() > _LONG or gc.get_count()[2] >= _SHORT_COLLECTIONS
        gc.collect(2 if full else 1)
    device = torch.device(get_current_device())
    progress, worked = CaseProgress(task), time.process_time()
    try:
        return _judge_task(progress, device)
    except (RankLost, NotOnAllRanks) as error:
        reached = progress.answer_as_reached(format_message(error))
        if reached is None:
            raise
        return reached
    except Exception as error:  # of any kind: a GPU that is lost fails in whatever comes next
        why = find_gpu_error(device)
        if why is None:
            raise
        return progress.answer_without_gpu(why, error)
    finally:
        _took[:] = [time.process_time() - worked]
        if find_gpu_error(device) is not None:
            retire()


def _judge_task(progress: CaseProgress, device: torch.device) -> JudgeResult:
    task = progress.task = ask_for_processes(progress.task)
    deadline = None if task.seconds is None else time.monotonic() + task.seconds
    report, parting = _judge_together(progress, device, deadline)
    if task.nproc is not None and tells_of_waiting(str(report.failure)):  # a slow machine does it once
        first, (report, parting) = report.failure, _judge_together(progress, device, deadline)
        if not tells_of_waiting(str(report.failure)):
            report = replace(report, notes=(*report.notes, f"judged twice: the first time compiled raised {first}"))
    for number in parting[:_MOST_JUDGED]:
        later, _ = _judge_together(progress, device, deadline, call=number)
        if later.is_bug:
            report = replace(later, call={"number": number, "dynamic": False})
            break
        right = f"call {number} differs from eager mode behind the calls before it, and is right compiled alone"
        report = replace(report, notes=(*report.notes, right))
    answer = progress.answer(report)
    machine = describe_environment(device, read_target(answer)) if task.describe else None
    return JudgeResult(answer, report.coverage, report.screened, machine, progress.seen)


def _judge_together(
    progress: CaseProgress, device: torch.device, deadline: float | None, *, call: int | None = None
) -> tuple[TriageReport, tuple[int, ...]]:
    """The report on a case, loaded here and in the other processes that run it, or on one call of a script.

    Returns:
        The report, and of a script that several processes run the calls that part from eager mode and are to be judged.
    """
    task = progress.task if call is None else replace(progress.task, call=call)
    with seat_ranks(task, open_more) as lead, open_case(task, device) as (file, case):
        progress.file = file
        with lead():
            report = judge_case(case, progress, device, deadline)
            if call is not None or report.is_bug or not _asks_for_whole_script(file, task):
                return report, ()
            if task.nproc is not None:
                return _look_together(report, file, case, device, deadline) if _has_later_calls(file) else (report, ())
            if _has_later_calls(file):
                report = _judge_later_calls(report, file, progress, device, deadline)
            return report if report.is_bug else _judge_ending(report, file, case, progress, device, deadline), ()


def ask_for_processes(task: JudgeTask) -> JudgeTask:
    """The task, with as many processes as its case file asks for where the task does not say.

    Raises:
        CaseError: it asks for several, and they cannot be had for this target or contract.
    """
    if task.nproc is not None:
        return task
    path = Path(task.path)
    count = count_processes(read_case_file(path).source if task.source is None else task.source)
    if count is None:
        return task
    if current_target() is not None or task.contract == "bitwise":
        raise CaseError(f"{path.name} asks for {count} processes: leave out --target and --contract, or its NPROC.")
    return replace(task, nproc=count)


@contextlib.contextmanager
def open_case(task: JudgeTask, device: torch.device) -> Iterator[tuple[CaseFile, Case]]:
    """The case of a task, loaded, and its file; what it changes in this process is undone after the block.

    Raises:
        CaseError: the file is not a case, or the case cannot be made.
        MachineUnfit: a case cannot be written to the disk.
    """
    with contextlib.ExitStack() as stack:
        path = Path(task.path)
        if task.source is not None:
            try:
                # The case may remove the folder, or what it may not touch any more.
                made = tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True)
                path = Path(stack.enter_context(made), path.name)
                path.write_text(task.source, encoding="utf-8")
            except OSError as error:
                raise MachineUnfit(
                    f"A case cannot be written to {tempfile.gettempdir()} ({error.strerror}): make room there, or set "
                    "TMPDIR."
                ) from error
        file = replace(read_case_file(path), arguments=task.arguments)
        say(_LOADING[file.kind])
        # Outside of the isolation, so that the modules that a call imports are there for the next one.
        called = None
        if file.kind == "call":
            from fuzzcompile.programs.capture.invocation import receive  # most workers never need a pickler

            called = receive(file.path, device)
        stack.enter_context(isolate_process())
        stack.callback(leave_group)
        case = load(file, device, call=task.call, module=task.module) if called is None else called.case()
        case = replace(case, settings=apply_backend(case.settings))
        restore_streams()  # the script may have closed them, and the compiler writes to them
        yield file, case


# Seconds for a look at a script's later calls, at most, and the calls that are judged in full.
_LOOKING_SECONDS = MOST_SECONDS
_MOST_JUDGED = 3
# The least seconds that are left for a look in several processes, one of which may wait for another in vain.
_LEAST_SECONDS = 40.0


def _end_look(deadline: float | None) -> float:
    """The moment at which a look at a script that begins now is over."""
    ends = time.monotonic() + _LOOKING_SECONDS
    return ends if deadline is None else min(ends, deadline)


def _asks_for_whole_script(file: CaseFile, task: JudgeTask) -> bool:
    """Return whether the answer on a task is to be about what a script does behind its first call, too."""
    asked = task.call is None and task.module is None and task.against == "eager" and task.contract != "bitwise"
    return asked and file.kind in ("script", "notebook") and current_target() is None


def _has_later_calls(file: CaseFile) -> bool:
    """Return whether there may be compiled calls behind a script's first."""
    return not makes_one_call(file.source)


def _look_together(
    first: TriageReport, file: CaseFile, case: Case, device: torch.device, deadline: float | None
) -> tuple[TriageReport, tuple[int, ...]]:
    """The answer on a script's first call in several processes, and the later ones that part from eager mode."""
    from fuzzcompile.diagnosis.script_calls import answer_with_later_calls, look_on_all_ranks

    left = math.inf if deadline is None else deadline - time.monotonic()
    if left < _LEAST_SECONDS:
        return replace(first, notes=(*first.notes, "no time was left for later calls of the script")), ()
    say("looking at the script's later calls")
    try:
        looked = look_on_all_ranks(case, device, file, min(_LOOKING_SECONDS, left / 2))
    except RankLost as error:
        return replace(first, notes=(*first.notes, f"later calls of the script were not looked at: {error}")), ()
    return answer_with_later_calls(first, looked), tuple(number for number in looked.parting if number > 1)


def _judge_later_calls(
    first: TriageReport, file: CaseFile, progress: CaseProgress, device: torch.device, deadline: float | None
) -> TriageReport:
    """The answer on a script: on its first call, or on a later one that is wrong where the first is right.

    Each is held against eager mode as the script makes it, and judged in full only where the two part.
    """
    from fuzzcompile.diagnosis.script_calls import answer_with_later_calls, look_at_calls

    ends, ignored = _end_look(deadline), list[int]()
    while True:
        say("looking at the script's later calls")
        looked = look_at_calls(file, device, ends, ignored)
        shown = looked.unexplained
        if looked.parts is None or looked.report is not None or len(ignored) == _MOST_JUDGED:
            return shown or answer_with_later_calls(first, looked)
        # A call that is right alone and wrong behind others may be so with the sizes that dynamo then leaves open.
        call: LaterCallJson = {"number": looked.parts, "dynamic": shown is not None}
        later = judge_case(load_later_call(file, device, call), progress, device, deadline)
        # With everything open, a call may show a bug that the script never meets.
        if later.is_bug and (shown is None or later.verdict.kind == shown.verdict.kind):
            return replace(later, call=call)
        if shown is not None and (later.is_bug or later.verdict in HARMLESS):
            return shown  # else what it shows is no bug where it is judged in full
        ignored.append(looked.parts)


def _judge_ending(
    first: TriageReport,
    file: CaseFile,
    case: Case,
    progress: CaseProgress,
    device: torch.device,
    deadline: float | None,
) -> TriageReport:
    """The answer on a script whose calls are right: on the exception that it raises with their results, if it does.

    A check of the script's own that fails compiled alone is no bug by itself, and is told.
    """
    if not tests_results(file.source):
        return first
    say("running the script to its end")
    ending = find_ending(file, device, _end_look(deadline))
    if ending is None:
        return replace(first, notes=(*first.notes, "the script was not run to its end: that took too long"))
    if ending.parting is not None:
        try:
            whole = judge_case(make_whole_case(case, file, device, ending.parting), progress, device, deadline)
        except CannotJudge as error:
            return replace(first, notes=(*first.notes, f"to its end, {error}"))
        if whole.is_bug:
            return replace(whole, call={"number": WHOLE, "dynamic": False})
        said = f"to its end, the script is {whole.verdict}: {whole.detail or whole.failure}"
        return replace(first, notes=(*first.notes, said))
    if ending.check is not None:
        place = file.place(ending.check.line)
        said = f"compiled, the script's own check fails at {place} ({ending.check.kind}), and in eager mode it does not"
        # Of one that asks for equal bits, rounding is all that there need be.
        confidence = first.confidence if first.verdict is Verdict.ROUNDING else "low"
        return replace(first, confidence=confidence, notes=(*first.notes, said))
    return first


def open_more(workers: int) -> WorkerPool:
    """Start workers under this one's conditions, for a case that runs in several processes.

    Raises:
        EnvironmentUnfit: this process may start none.
    """
    if not _opens_more:
        raise EnvironmentUnfit("This process may start no others: leave out --nproc.")
    return _opens_more[0](workers)


def join_ranks(task: JudgeTask, seat: Seat, address: str) -> None:
    """Run a case in this worker as one of several processes, as the first of them says over the line at ``address``.

    Raises:
        CaseError: the file is not a case, or does not come as far as a compiled call here.
    """
    device = torch.device(get_current_device())
    with take_seat(seat), open_case(task, device) as (_, case), Client(address, family="AF_UNIX") as line:
        line.send_bytes(str(seat.rank).encode())
        follow(line, case, device)


def judge_case(case: Case, progress: CaseProgress, device: torch.device, deadline: float | None) -> TriageReport:
    """Judge a loaded case in this process; of the task, its path is not read.

    Raises:
        CaseError: the case cannot be run.
        EnvironmentUnfit: it needs more than ``task.memory``, or the ledger cannot be written.
    """
    task = progress.task
    bitwise = task.contract == "bitwise"
    with contextlib.ExitStack() as exact:
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        if task.math_only:
            case = replace(case, notes=(*case.notes, MATH_ONLY))
            exact.enter_context(force_math_kernel())
        if task.tolerances is not None:
            case = replace(case, notes=(*case.notes, _OWN_LIMITS))
        progress.watched = exact.enter_context(watch_focus(task.watch))
        judged = apply_contract(case) if bitwise else case
        asked = replace(task, thorough=task.thorough and not bitwise)
        report = _triage_with_cause(judged, device, asked, deadline, progress)
        if bitwise:
            from fuzzcompile.diagnosis.bitwise.promises import judge_bitwise

            report = judge_bitwise(judged, device, report, own=case, vetoes=task.vetoes, deadline=deadline)
        elif task.against == "eager" and case.settings.path != EAGER:
            from fuzzcompile.diagnosis.bitwise.promises import judge_own_promises

            report = judge_own_promises(case, device, report, vetoes=task.vetoes, deadline=deadline)
    return report


def _triage_with_cause(
    case: Case, device: torch.device, task: JudgeTask, deadline: float | None, progress: CaseProgress
) -> TriageReport:
    """The report with its cause; what looks like a known bug and has another cause is triaged like any new bug."""
    report = triage(case, device, task, deadline=deadline, progress=progress)
    if not report.is_bug:
        return report
    progress.note_verdict(report)  # the programs that are tried next may take this process down
    from fuzzcompile.diagnosis.causes.search import add_cause, known_causes  # a third of what fuzzcompile imports

    known = known_causes(report, task.known)
    if report.attribution.known and not known:
        return report  # of the known bug, no cause is known either
    if report.attribution.known and report.symptom in known:
        return report
    report = add_cause(report, case, device, vetoes=task.vetoes, known=known, deadline=deadline)
    cause = report.cause
    if not report.attribution.known or cause is None or cause["fingerprint"] in known:
        return report
    fresh = triage(case, device, replace(task, known=()), deadline=deadline, progress=progress)
    culprit = fresh.attribution.culprit
    if culprit is None or culprit.signature != drop_fingerprint(report.signature or ""):
        return add_cause(fresh, case, device, vetoes=task.vetoes, deadline=deadline)
    return replace(fresh, cause=cause, program=report.program)
