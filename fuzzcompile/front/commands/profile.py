"""``profile`` apart from the terminal: the profile of a case, and of a jump the triage of its layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fuzzcompile.analyses.profile.layer_profile import ProfileOptions
from fuzzcompile.analyses.profile.profile_task import ProfileTask, profile_file, record_file
from fuzzcompile.analyses.profile.recordings import RecordedRun
from fuzzcompile.diagnosis.worker.local_pool import LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.front.commands.triage import FileAnswer, triage_files
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.model.profile_contract import ProfileJson
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker import RemoteError, WorkerFailed, WorkerOutOfMemory, WorkerStartFailed, WorkerTimeout

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProfileRequest:
    """A case to profile: a file, and for a script which call, or a submodule of it."""

    path: Path
    asked: ProfileOptions
    call: int | None = None
    module: str | None = None


def profile_case(
    request: ProfileRequest, conditions: Conditions, *, progress: Callable[[str], None] = lambda said: None
) -> ProfileJson:
    """Profile the case, and triage the layer of a jump that Inductor makes.

    Args:
        request: what to compare.
        conditions: where and under which limits. Its vetoes hold in every compile.
        progress: is told in a few words what is being done.

    Raises:
        FuzzcompileError: the case cannot be profiled; the message says why.
    """
    check_plants(conditions.plants)
    request.asked.check()
    asked = _with_vetoes(request.asked, conditions)
    progress(f"running {request.path.name} as {asked.against} and as {asked.reference}, layer by layer")
    profiled = _run_in_worker(profile_file, replace(request, asked=asked), conditions)
    if profiled["verdict"] != "jump" or asked.against.kind != "inductor":
        return profiled
    return profiled | _triage_layer(profiled, request, conditions, progress)


def _with_vetoes(asked: ProfileOptions, conditions: Conditions) -> ProfileOptions:
    return replace(asked, look=replace(asked.look, vetoes=conditions.vetoes))


def record_case(request: ProfileRequest, conditions: Conditions, recording: Path) -> RecordedRun:
    """Run the case as ``request.asked.against`` says, and record it.

    Args:
        request: what to run.
        conditions: where and under which limits.
        recording: the file to write.

    Raises:
        FuzzcompileError: the case cannot be recorded; the message says why.
    """
    check_plants(conditions.plants)
    asked = _with_vetoes(request.asked, conditions)
    return _run_in_worker(record_file, replace(request, asked=asked), conditions, recording=str(recording.resolve()))


def _run_in_worker(
    function: Callable[[ProfileTask], Result], request: ProfileRequest, conditions: Conditions, *, recording: str = ""
) -> Result:
    """Return the result of ``function`` for the request in a worker.

    Raises:
        FuzzcompileError: of the case, or because the worker was lost.
    """
    path = request.path
    task = ProfileTask(str(path), request.asked, request.call, request.module, conditions.limits.memory, recording)
    with open_pool(conditions, 1, least_threads=LEAST_THREADS) as pool:
        try:
            return pool.schedule(function, (task,), label=f"profile {path.name}").result()
        except FuzzcompileError:
            raise
        except WorkerStartFailed as error:
            raise make_start_error(error) from error
        except (WorkerFailed, MemoryError, RemoteError) as error:
            raise EnvironmentUnfit(f"{path} could not be profiled: {_explain_failure(error)}.") from error


def _explain_failure(error: Exception) -> str:
    text = " ".join(str(error).split())[:400]
    if isinstance(error, WorkerTimeout):
        return f"it was {text}; raise --timeout, or profile a part with --module"
    if isinstance(error, WorkerOutOfMemory | MemoryError):
        return f"memory ran out ({text}); raise --max-memory, or profile a part with --module"
    return f"{text}; triage {'may say more' if isinstance(error, RemoteError) else 'judges crashes'}"


def _triage_layer(
    profiled: ProfileJson, request: ProfileRequest, conditions: Conditions, progress: Callable[[str], None]
) -> ProfileJson:
    """The reports on the layer alone and, if that shows nothing, on the whole."""
    layer = profiled["layer"]
    path, notes = request.path, list(profiled["notes"])
    of_layer: ReportJson | None = None
    if layer is not None:
        name = layer.partition("#")[0]
        module = f"{request.module}.{name}" if request.module else name
        progress(f"triaging {name} alone, on its own inputs")
        answer = _triage_part(path, Question(call=request.call, module=module, thorough=True), conditions)
        of_layer = answer.report
        if of_layer is None:
            notes.append(f"{name} could not be triaged alone: {answer.error}")
        elif of_layer["is_bug"]:
            return {"triage": of_layer, "notes": notes}
        else:
            notes.append(f"{name} alone shows no bug ({of_layer['verdict']}): the whole program was triaged as well")
    progress("triaging the whole program")
    answer = _triage_part(path, Question(call=request.call, module=request.module, thorough=True), conditions)
    if answer.report is None:
        notes.append(f"the whole program could not be triaged: {answer.error}")
    return {"triage": of_layer, "triage_whole": answer.report, "notes": notes}


def _triage_part(path: Path, question: Question, conditions: Conditions) -> FileAnswer:
    (answer,) = triage_files([path], conditions, question)
    return answer
