"""The pool of cases: each judged once by the compiler as it is, with the lines that its compile reached."""

from __future__ import annotations

import base64
import json
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool
from fuzzcompile.fuzz.campaign.case_sources import GeneratorSource, fit_installed_torch
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.run.pool.worker_pool import WorkerPool
from recalling.worker import Shown, case_file, judge_watched, probes

_WATCHING = "from recalling.worker import watch_all_lines\nwatch_all_lines()\n"
CASE_SECONDS = Limits().seconds
"""Time that one case may take before it counts as hanging: a campaign's."""


@dataclass(frozen=True)
class Pooled:
    """A case of the pool, with what the compiler as it is makes of it."""

    sha256: str
    source: str
    features: tuple[str, ...]
    screen: bool
    shown: Shown

    @property
    def clean(self) -> bool:
        """Whether it shows no bug of the compiler as it is, and could be judged."""
        return self.shown.report is not None and not self.shown.report["is_bug"]

    def to_json(self) -> dict[str, Any]:
        """One line of the file of the pool."""
        return {**asdict(self), "shown": {**asdict(self.shown), "reached": _packed(self.shown.reached)}}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Pooled:
        """Read a line back."""
        shown = Shown(**{**fields["shown"], "reached": _unpacked(fields["shown"]["reached"])})
        return cls(**{**fields, "features": tuple(fields["features"]), "shown": shown})


@dataclass(frozen=True)
class Unjudged:
    """A case to be drawn into the pool."""

    sha256: str
    source: str
    features: tuple[str, ...]


def judge_task(path: Path, *, screen: bool, attribute: bool = True) -> JudgeTask:
    """The task of a campaign's worker for a case; without ``attribute`` no compile is spent on a culprit."""
    seconds = ATTRIBUTION_SHARE * CASE_SECONDS if attribute else 0.0
    return JudgeTask(path=str(path), screen=screen, seconds=seconds)


def pool_with(plant: Path | None, workers: int = 1) -> WorkerPool:
    """Workers as a campaign has them, with a plant."""
    plants = () if plant is None else (plant,)
    conditions = Conditions("cpu", plants=plants, limits=Limits(CASE_SECONDS, 6 * 2**30))
    return open_pool(conditions, workers, least_threads=LEAST_THREADS)


def drawn(seed: int) -> Iterator[Unjudged]:
    """Cases of the generator, in the order of a stream."""
    source, index = GeneratorSource(fit_installed_torch(Profile())), 0
    while True:
        case = source.at(seed, index)
        index += 1
        yield Unjudged(case.sha256, case.source, case.features)


class Survey:
    """The file of the pool; what is in it is not judged again.

    Args:
        folder: holds ``pool.jsonl``, ``probes.json`` and the cases.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._lock = folder, threading.Lock()
        self.cases_folder = folder / "cases"
        self.cases_folder.mkdir(parents=True, exist_ok=True)
        self.probes: list[tuple[str, int, int, int, int]] = []
        self.pool: list[Pooled] = []
        if (folder / "probes.json").exists():
            self.probes = [tuple(row) for row in json.loads((folder / "probes.json").read_text())]
        if (folder / "pool.jsonl").exists():
            lines = (folder / "pool.jsonl").read_text(encoding="utf-8").splitlines()
            self.pool = [Pooled.from_json(json.loads(line)) for line in lines if line.endswith("}")]

    def fill(self, cases: Iterable[Unjudged], workers: int, full: float) -> None:
        """Judge what is not in the pool yet, a share ``full`` of it with generated code."""
        known = {pooled.sha256 for pooled in self.pool}
        new = [case for case in cases if case.sha256 not in known]
        if not new:
            return
        with self.watching(workers) as pool:
            if not self.probes:
                self.probes = pool.submit(probes).result()
                (self.folder / "probes.json").write_text(json.dumps(self.probes), encoding="utf-8")
            futures: dict[Future[Shown], tuple[Unjudged, bool]] = {}
            for case in new:
                screen = int(case.sha256[:6], 16) / 16**6 >= full
                path = case_file(self.cases_folder, case.sha256, case.source)
                futures[pool.submit(judge_watched, judge_task(path, screen=screen))] = (case, screen)
            for number, future in enumerate(as_completed(futures), 1):
                case, screen = futures[future]
                self._add(Pooled(case.sha256, case.source, case.features, screen, _shown(future)))
                print(f"\rsurvey: {number} of {len(new)} cases", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)

    def watching(self, workers: int) -> WorkerPool:
        """Workers with a probe in every function that may be mutated."""
        plant = self.folder / "watching.py"
        plant.write_text(_WATCHING, encoding="utf-8")
        return pool_with(plant, workers)

    def judged(self, workers: WorkerPool, case: Unjudged, screen: bool) -> Pooled:
        """A case judged by such workers, which is in the pool from now on."""
        path = case_file(self.cases_folder, case.sha256, case.source)
        future = workers.submit(judge_watched, judge_task(path, screen=screen))
        pooled = Pooled(case.sha256, case.source, case.features, screen, _shown(future))
        self._add(pooled)
        return pooled

    def _add(self, pooled: Pooled) -> None:
        with self._lock, (self.folder / "pool.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(pooled.to_json()) + "\n")
            self.pool.append(pooled)


def _shown(future: Future[Shown]) -> Shown:
    try:
        return future.result()
    except Exception as error:  # whatever a case raises, the survey goes on without it
        return Shown(None, f"{type(error).__name__}: {error}")


def _packed(numbers: tuple[int, ...]) -> str:
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number // 8] |= 1 << number % 8
    return base64.b85encode(zlib.compress(bytes(bits))).decode()


def _unpacked(text: str) -> tuple[int, ...]:
    bits = zlib.decompress(base64.b85decode(text))
    return tuple(8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1)
