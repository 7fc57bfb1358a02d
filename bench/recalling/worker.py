"""What a worker does for the bench: judge a case as a campaign's worker does, and say what more the compile showed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.source_probes import LineWatch, watch_lines
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.worker.judge import isolate_process, judge_file
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit
from fuzzcompile.model.focus_plan import Span
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.run.observation import Observation, Value
from recalling.places import stage_of_files

_REPORTED = ("verdict", "is_bug", "confidence", "culprit", "contributors", "signature", "detail", "severity")


@dataclass(frozen=True)
class Shown:
    """What one judged case showed: plain data.

    Attributes:
        report: the parts of the report that the bench reads; None if the case could not be judged.
        refused: why it could not.
        values: a hash of the bytes and layouts of what the first compiled program returned.
        code: a hash of the code generated for it; empty where none was.
        reached: numbers of the probes that were reached; a mutant has the one probe 0.
        seconds: processor time.
        in_float64: where values differ from those expected and no bug is shown: whether the program compiled in
            float64 is right; None if it was not tried or cannot be.
    """

    report: dict[str, Any] | None
    refused: str = ""
    values: str = ""
    code: str = ""
    reached: tuple[int, ...] = ()
    seconds: float = 0.0
    in_float64: bool | None = None


@dataclass
class _Seen:
    """The first compile of a case."""

    experiments: Experiments | None = None
    trial: Trial | None = None
    code: Any = field(default_factory=hashlib.sha256)
    generated: bool = False


_lines: list[LineWatch] = []
_kept = contextlib.ExitStack()


def watch_all_lines() -> None:
    """Put a probe into every function that may be mutated, for the life of this process."""
    _lines.append(_kept.enter_context(watch_lines(Span(file) for file in stage_of_files())))


def probes() -> list[tuple[str, int, int, int, int]]:
    """What each probe stands for: file, start and end."""
    return [(probe.span.file, *probe.start, *probe.end) for probe in _lines[0].probes]


def judge_watched(task: JudgeTask, expected: str | None = None) -> Shown:
    """Judge a case and say what its first compile gave and which probes were reached.

    Args:
        task: the case.
        expected: the hash of the values that the compiler gives without the mutation, if known.
    """
    _clear()
    began = _spent()
    with _first_compile() as seen:
        try:
            report: Any = judge_file(task).report
            refused = ""
        except (CaseError, EnvironmentUnfit) as error:
            report, refused = None, f"{type(error).__name__}: {error}"
        reached = _reached()
    values = _digest(seen.trial.observation) if seen.trial is not None else ""
    in_float64 = None
    if report is not None and not report["is_bug"] and expected and values != expected and reached:
        in_float64 = _right_in_float64(seen.experiments)
    return Shown(
        None if report is None else {name: report.get(name) for name in _REPORTED},
        refused,
        values,
        seen.code.hexdigest() if seen.generated else "",
        reached,
        _spent() - began,
        in_float64,
    )


@contextlib.contextmanager
def _first_compile() -> Iterator[_Seen]:
    """Keep the first compile that is made in the block, and hash the code generated for it."""
    seen, compile_once, write = _Seen(), Experiments.trial, PyCodeCache.write

    def watched(experiments: Experiments, how: Compilation | None = None) -> Trial:
        trial = compile_once(experiments, how)
        if seen.trial is None:
            seen.experiments, seen.trial = experiments, trial
        return trial

    def written(source_code: str, extra: str = "") -> tuple[str, str]:
        if seen.trial is None:
            seen.code.update("\n".join(_statements(source_code)).encode())
            seen.generated = True
        return write(source_code, extra)

    Experiments.trial, PyCodeCache.write = watched, staticmethod(written)  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        Experiments.trial, PyCodeCache.write = compile_once, write  # type: ignore[method-assign]


def _statements(code: str) -> Iterator[str]:
    """Generated code without its comments, which name the case's file."""
    return (line for line in code.splitlines() if not line.lstrip().startswith(("# ", "//")))


def _right_in_float64(experiments: Experiments | None) -> bool | None:
    if experiments is None:
        return None
    try:
        with isolate_process():
            judgement = experiments.in_float64
    except Exception:  # a mutant may raise anything: then nothing is proved
        return None
    return None if judgement is None else not judgement.suspicious


def _digest(observation: Observation) -> str:
    """A hash of everything that a run returned, or of how it failed."""
    hashed = hashlib.sha256()
    if observation.failure is not None:
        hashed.update(observation.failure.type_name.encode())
    for value in observation.values:
        hashed.update(_described(value))
    return hashed.hexdigest()


def _described(value: Value) -> bytes:
    data = value.value
    head = f"{value.name} {value.kind} {value.stride} {value.aliases} {value.form} "
    if not isinstance(data, torch.Tensor):
        return (head + repr(data)[:1000]).encode()
    head += f"{data.dtype} {tuple(data.shape)}"
    if data.layout is not torch.strided or data.is_quantized:
        return (head + str(data)).encode()
    # A single element may keep any stride, which no view of bytes accepts.
    flat = data.detach().contiguous().as_strided((data.numel(),), (1,))
    return head.encode() + flat.view(torch.uint8).numpy().tobytes()


def _plant_list() -> list[int]:
    module = sys.modules.get("fuzzcompile_plant_0")
    reached = getattr(module, "REACHED", None)
    return reached if isinstance(reached, list) else []


def _clear() -> None:
    _plant_list().clear()
    for lines in _lines:
        lines.reached.clear()


def _reached() -> tuple[int, ...]:
    return tuple(sorted(_lines[0].reached)) if _lines else tuple(0 for _ in _plant_list()[:1])


def case_file(folder: Path, sha256: str, source: str) -> Path:
    """Write a case into ``folder``."""
    path = folder / f"case_{sha256[:12]}.py"
    if not path.exists():
        path.write_text(source, encoding="utf-8")
    return path


def _spent() -> float:
    """Processor seconds of this process and of the compilers it ran."""
    return sum(os.times()[:4])
