"""Changes of a cluster during a campaign, each formatted as one sentence. Imports nothing of Dask."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerJoined:
    """A Dask worker was admitted: it runs ``slots`` cases at once on ``device`` under ``torch``."""

    worker: str
    machine: str
    slots: int
    torch: str
    device: str

    def __str__(self) -> str:
        cases = "1 case at a time" if self.slots == 1 else f"{self.slots} cases at a time"
        return f"Worker {self.worker} joins: {cases} on {self.device}, torch {self.torch}, machine {self.machine}"


@dataclass(frozen=True)
class WorkerLost:
    """An admitted Dask worker is gone, or answers no more; what it ran, ``tasks``, runs again elsewhere."""

    worker: str
    machine: str
    tasks: int
    why: str = "it is gone"

    def __str__(self) -> str:
        again = f"; {self.tasks} running there {'begins' if self.tasks == 1 else 'begin'} anew" if self.tasks else ""
        return f"Worker {self.worker} on machine {self.machine} is lost: {self.why}{again}"


@dataclass(frozen=True)
class WorkerRefused:
    """A Dask worker gets no case of this campaign."""

    worker: str
    why: str

    def __str__(self) -> str:
        return f"Worker {self.worker} is refused: {self.why}"


@dataclass(frozen=True)
class SchedulerLost:
    """The scheduler answers no more; the campaign waits for it for ``patience`` seconds."""

    scheduler: str
    patience: float

    def __str__(self) -> str:
        return f"The Dask scheduler at {self.scheduler} is lost; the campaign waits {self.patience:.0f} s for it"


@dataclass(frozen=True)
class SchedulerBack:
    """The scheduler answers again; what had been running begins anew."""

    scheduler: str
    tasks: int

    def __str__(self) -> str:
        return f"The Dask scheduler at {self.scheduler} is back; {self.tasks} running cases begin anew"


Change = WorkerJoined | WorkerLost | WorkerRefused | SchedulerLost | SchedulerBack


@dataclass(frozen=True)
class ClusterState:
    """The state of a cluster: ``busy`` of ``slots`` run a case, on so many Dask ``workers`` and ``machines``."""

    scheduler: str
    dashboard: str
    workers: int = 0
    machines: int = 0
    slots: int = 0
    busy: int = 0
    connected: bool = True

    def __str__(self) -> str:
        if not self.connected:
            return f"waiting for the Dask scheduler at {self.scheduler}"
        workers = "1 Dask worker" if self.workers == 1 else f"{self.workers} Dask workers"
        machines = "1 machine" if self.machines == 1 else f"{self.machines} machines"
        return f"{workers} on {machines}, {self.busy} of {self.slots} slots busy"
