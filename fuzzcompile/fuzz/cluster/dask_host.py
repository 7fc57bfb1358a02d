"""The host on a Dask worker: for each campaign, a pool of worker processes that runs its tasks.

A crash, a hang, too much memory or ``os._exit`` costs such a process, and the Dask worker itself goes on.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from distributed import Status, Worker, WorkerPlugin, get_worker

from fuzzcompile.diagnosis.worker.local_pool import may_have_gpu, open_pool
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.fuzz.cluster.cluster_messages import (
    HostCharter,
    Unhosted,
    WorkerOffer,
    compute_code_digest,
    make_portable,
)
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, MachineUnfit, describe_error
from fuzzcompile.model.judge_task import DESCRIBE, WorkerDescription
from fuzzcompile.model.versions import __version__, installed_torch
from fuzzcompile.run.pool.worker import WorkerFailed, WorkerStartFailed, WorkerStopped
from fuzzcompile.run.pool.worker_pool import TaskPool

SILENCE = 45.0
"""Seconds without a message of its campaign after which a host closes: the campaign is gone, or cut off."""

# So many full compiles in a row that this machine could not do: it is refused, and the case runs elsewhere.
_MOST_UNFIT = 2
# A Dask worker may be started with `--resources "fuzzcompile=N"`, to take fewer cases than it has threads.
_RESOURCE = "fuzzcompile"


class CampaignHost(WorkerPlugin):  # type: ignore[misc]
    """The pool of one campaign on one Dask worker; it ends with the campaign, with word of it, and with the worker."""

    def __init__(self, charter: HostCharter) -> None:
        self._charter = charter
        self.opening: asyncio.Task[bytes] | None = None  # which asks that come meanwhile wait for
        self._pool: TaskPool | None = None
        self._stack = ExitStack()  # what ends with the host
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._unfit = 0  # full compiles in a row that failed for want of a disk or a compiler
        self._left: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self._last_message = 0.0

    def open(self) -> WorkerDescription:
        """Open the pool, which may take minutes, and return where it runs."""
        with ExitStack() as stack:
            pool, surroundings = self._charter.opens(self._charter, stack)
            stack.callback(pool.kill_workers)
            with self._lock:
                if not self._closing.is_set():
                    self._last_message, self._pool, self._stack = time.monotonic(), pool, stack.pop_all()
        threading.Thread(target=self._watch, name="fuzzcompile-host", daemon=True).start()
        return cast(WorkerDescription, surroundings)

    @property
    def is_open(self) -> bool:
        """True if it takes tasks."""
        return self._pool is not None and not self._closing.is_set()

    def run(self, number: int, function: Callable[..., object], *call: Any) -> object:
        """Run a call in the pool; raise Unhosted if the host has closed, or its machine can compile no more."""
        self._last_message = time.monotonic()

        def keep(name: str, text: str) -> None:
            self._left[number][name] = text

        try:
            if self._pool is None or not self.is_open:
                raise Unhosted
            args, kwargs, options = call
            value = self._pool.schedule(function, args, kwargs, on_left=keep, **options).result()
            if not getattr(value, "screened", False):  # a screen needs neither a compiler nor much of a disk
                self._unfit = 0
            return value
        except MachineUnfit as error:  # a full disk here must not swallow the campaign's cases, nor end it
            self._unfit += 1
            if self._unfit < _MOST_UNFIT:
                raise
            raise Unhosted from error
        except Exception as error:
            if self.is_open and not isinstance(error, WorkerStopped):
                raise
            raise Unhosted from None
        finally:
            self._left.pop(number, None)

    def take_left(self) -> dict[int, dict[str, str]] | None:
        """Return what tasks have left anew, by number, to a campaign that is alive; None if the host is closed."""
        self._last_message = time.monotonic()
        left, self._left = self._left, defaultdict(dict)
        return dict(left) if self.is_open else None

    def close(self) -> None:
        """End the processes, and what they run."""
        with self._lock:
            self._closing.set()
            self._stack.close()

    async def teardown(self, worker: Worker) -> None:
        """Close the host: its campaign has left, or the Dask worker ends."""
        del worker
        await asyncio.to_thread(self.close)

    def _watch(self) -> None:
        while not self._closing.wait(1.0):
            if time.monotonic() - self._last_message > SILENCE:
                self.close()


def open_local(charter: HostCharter, stack: ExitStack) -> tuple[TaskPool, WorkerDescription]:
    """Open worker processes for a charter, and let the first one describe its surroundings; ``stack`` ends them."""
    folder = tempfile.TemporaryDirectory(prefix="fuzzcompile-host-", ignore_cleanup_errors=True)
    conditions = charter.unpack(Path(stack.enter_context(folder)))
    pool = open_pool(conditions, charter.slots, share=charter.share)
    stack.callback(pool.kill_workers)
    try:
        return pool, pool.schedule(DESCRIBE, (conditions.target,), label="describe the machine").result()
    except WorkerStartFailed as error:
        raise make_start_error(error) from error
    except WorkerFailed as error:
        raise EnvironmentUnfit(f"its first worker process {error}") from error


# -- what a campaign has a Dask worker do; each is pickled by its name ------------------------------------------------


def offer(dask_worker: Worker) -> bytes:
    """Return the pickled `WorkerOffer` of this Dask worker; raise OSError if it is closing."""
    if dask_worker.status not in (Status.running, Status.paused):
        raise OSError("it is closing")
    threads = dask_worker.state.nthreads
    slots = int(dask_worker.state.total_resources.get(_RESOURCE, threads))
    here = (__version__, compute_code_digest(), installed_torch())
    return pickle.dumps(WorkerOffer(*here, gpu=may_have_gpu(), slots=min(slots, threads)))


async def open_host(charter: HostCharter, dask_worker: Worker) -> bytes:
    """Open the host of a charter, and return the pickled `WorkerDescription` or error.

    One that opens already, for a campaign that has asked before and waited too short, is waited for. An earlier one is
    closed: its campaign had lost this worker, and what that runs has begun anew elsewhere.
    """
    host = dask_worker.plugins.get(charter.campaign)
    if host is None or host.opening is None or host.opening.done():
        host = CampaignHost(charter)
        await dask_worker.plugin_add(host, name=charter.campaign)
        host.opening = asyncio.create_task(_describe_opened(host))
    return await asyncio.shield(host.opening)


async def _describe_opened(host: CampaignHost) -> bytes:
    try:
        return pickle.dumps(await asyncio.to_thread(host.open))
    except FuzzcompileError as error:
        return pickle.dumps(make_portable(error))
    except Exception as error:  # the campaign goes on without this worker, and says why
        return pickle.dumps(EnvironmentUnfit(describe_error(error)))


def pulse(campaign: str, dask_worker: Worker) -> bytes:
    """Return, pickled, what a campaign's host here has left (`CampaignHost.take_left`); None if there is no host."""
    host = dask_worker.plugins.get(campaign)
    return pickle.dumps(None if host is None else host.take_left())


async def close_host(campaign: str, dask_worker: Worker) -> None:
    """Close a campaign's host here, if there is one."""
    if campaign in dask_worker.plugins:
        await dask_worker.plugin_remove(campaign)


def answer(campaign: str, number: int, packed: bytes) -> bytes:
    """Run a call, packed by a `ClusterTask`, on this Dask worker; return its pickled value, error and its cause."""
    worker = get_worker()
    # What waits on this Dask worker has not begun: if the worker is lost, it is not to blame.
    worker.log_event(campaign, {"begun": number, "worker": worker.address})
    try:
        if campaign not in worker.plugins:
            raise Unhosted
        value = worker.plugins[campaign].run(number, *pickle.loads(zlib.decompress(packed)))
        return pickle.dumps((value, None, None), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever a task raises is the campaign's to judge
        cause = None if error.__cause__ is None else make_portable(error.__cause__)
        return pickle.dumps((None, make_portable(error), cause))
