"""The host on a Dask worker: for each campaign, a pool of worker processes that runs its tasks.

A crash, a hang, too much memory or ``os._exit`` costs such a process, and the Dask worker itself goes on. The processes
end with the campaign, when no message of the campaign has come for a while, and with the Dask worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from fuzzcompile.diagnosis.worker.local_pool import may_have_gpu, open_pool
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.fuzz.cluster.cluster_messages import (
    ClusterCall,
    ClusterReply,
    HostCharter,
    WorkerOffer,
    compute_code_digest,
    name_topic,
    unpack,
)
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, MachineUnfit, format_message
from fuzzcompile.model.judge_task import DESCRIBE, WorkerDescription
from fuzzcompile.model.versions import __version__, installed_torch
from fuzzcompile.run.pool.worker import WorkerFailed, WorkerStartFailed, WorkerStopped, pickle_error
from fuzzcompile.run.pool.worker_pool import TaskPool

SILENCE = 45.0
"""Seconds without a message of its campaign after which a host closes: the campaign is gone, or cut off."""

# So many full compiles in a row that this machine could not do: it is refused, and the case runs elsewhere.
_MOST_UNFIT = 2
# A Dask worker may be started with `--resources "fuzzcompile=N"`, to take fewer cases than it has threads.
_RESOURCE = "fuzzcompile"


class CampaignHost:
    """The pool of one campaign on one Dask worker."""

    def __init__(self, charter: HostCharter) -> None:
        self._closing, self._closed = threading.Event(), threading.Lock()
        self._running: set[int] = set()
        self._unfit = 0  # full compiles in a row that failed for want of a disk or a compiler
        self._left: defaultdict[int, dict[str, str]] = defaultdict(dict)
        opened: tuple[TaskPool, WorkerDescription]
        with ExitStack() as stack:
            opened = charter.opens(charter, stack)
            self._pool, self.surroundings = opened
            self._stack = stack.pop_all()  # what ends with the host
        self._last_message = time.monotonic()  # from now on: opening may take minutes, in which it is asked nothing
        threading.Thread(target=self._watch, name="fuzzcompile-host", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """True if it takes tasks."""
        return not self._closing.is_set()

    def is_fresh(self) -> bool:
        """Return whether it is open and runs nothing; the call shows that the campaign is alive."""
        self._last_message = time.monotonic()
        return self.is_open and not self._running

    def run(self, call: ClusterCall) -> ClusterReply:
        """Run a task in the pool, and return its result or error."""
        self._last_message = time.monotonic()
        self._running.add(call.number)

        def keep(name: str, text: str) -> None:
            self._left[call.number][name] = text

        try:
            function, args, kwargs = unpack(call.call)
            task: Future[object] = self._pool.schedule(function, args, kwargs, on_left=keep, **call.options)
            value = task.result()
            if not getattr(value, "screened", False):  # a screen needs neither a compiler nor much of a disk
                self._unfit = 0
            return ClusterReply(value)
        except WorkerStopped:
            return ClusterReply(unhosted=True)
        except MachineUnfit as error:  # a full disk here must not swallow the campaign's cases, nor end it
            self._unfit += 1
            return ClusterReply.of(error, unhosted=self._unfit >= _MOST_UNFIT)
        except Exception as error:  # whatever a task raises is the campaign's to judge
            return ClusterReply.of(error) if self.is_open else ClusterReply(unhosted=True)
        finally:
            self._running.discard(call.number)
            self._left.pop(call.number, None)

    def take_left(self) -> dict[int, dict[str, str]]:
        """Return new intermediate results of the tasks, by number; the call shows that the campaign is alive."""
        self._last_message = time.monotonic()
        left, self._left = self._left, defaultdict(dict)
        return dict(left)

    def close(self) -> None:
        """End the processes, and what they run."""
        with self._closed:
            if self.is_open:
                self._closing.set()
                self._pool.kill_workers()
                self._stack.close()

    def _watch(self) -> None:
        while not self._closing.wait(1.0):
            if time.monotonic() - self._last_message > SILENCE:
                self.close()


def open_local(charter: HostCharter, stack: ExitStack) -> tuple[TaskPool, WorkerDescription]:
    """Open worker processes for a charter, and let the first one describe its surroundings.

    ``stack`` gets the clean-up for when the processes have ended.

    Raises:
        FuzzcompileError: no process can be started under its conditions; the message says why.
    """
    conditions = charter.packed.conditions
    if charter.packed.texts:
        folder = tempfile.TemporaryDirectory(prefix="fuzzcompile-host-", ignore_cleanup_errors=True)
        conditions = charter.packed.unpack(Path(stack.enter_context(folder)))
    pool = open_pool(conditions, charter.slots, share=charter.share)
    with ExitStack() as undo:
        undo.callback(pool.kill_workers)
        try:
            described = pool.schedule(DESCRIBE, (conditions.target,), label="describe the machine").result()
        except WorkerStartFailed as error:
            raise make_start_error(error) from error
        except WorkerFailed as error:
            raise EnvironmentUnfit(f"its first worker process {error}") from error
        undo.pop_all()
    return pool, described


class HostPlugin(WorkerPlugin):  # type: ignore[misc]
    """Opens a campaign's host on a Dask worker; closes it when its campaign ends, and when the Dask worker closes."""

    def __init__(self, charter: HostCharter) -> None:
        self.opening = asyncio.ensure_future(asyncio.to_thread(CampaignHost, charter))

    @property
    def host(self) -> CampaignHost | None:
        """The host, if it is open."""
        opened = self.opening.done() and not self.opening.cancelled() and self.opening.exception() is None
        return self.opening.result() if opened and self.opening.result().is_open else None

    async def teardown(self, worker: Worker) -> None:
        """Close the host."""
        with contextlib.suppress(Exception):  # it could not be opened, and its campaign knows
            await asyncio.to_thread((await self.opening).close)


# -- what a campaign has a Dask worker do; each is pickled by its name ------------------------------------------------


def offer(dask_worker: Worker) -> bytes:
    """Return the pickled `WorkerOffer` of this Dask worker."""
    threads = dask_worker.state.nthreads
    slots = int(dask_worker.state.total_resources.get(_RESOURCE, threads))
    here = (__version__, compute_code_digest(), installed_torch())
    return pickle.dumps(WorkerOffer(*here, gpu=may_have_gpu(), slots=min(slots, threads)))


async def open_host(charter: HostCharter, dask_worker: Worker) -> bytes:
    """Open the host of a charter, unless it is open; return the pickled `WorkerDescription` or error.

    A host that still runs a task is replaced: its campaign had lost this worker, and runs the task elsewhere.
    """
    name = name_topic(charter.campaign)
    plugin = dask_worker.plugins.get(name)
    if plugin is None or (plugin.opening.done() and not ((host := plugin.host) is not None and host.is_fresh())):
        plugin = HostPlugin(charter)
        await dask_worker.plugin_add(plugin, name=name)  # in place of an earlier one, which it closes
    try:
        return pickle.dumps((await asyncio.shield(plugin.opening)).surroundings)
    except FuzzcompileError as error:
        return pickle_error(error)
    except Exception as error:  # the campaign goes on without this worker, and says why
        return pickle_error(EnvironmentUnfit(f"{type(error).__name__}: {format_message(error)}"))


def pulse(campaign: str, dask_worker: Worker) -> bytes:
    """Return, pickled, what a campaign's host here has left (`CampaignHost.take_left`); None if there is no host."""
    host = find_host(campaign, dask_worker)
    return pickle.dumps(None if host is None else host.take_left())


async def close_host(campaign: str, dask_worker: Worker) -> None:
    """Close a campaign's host here, if there is one."""
    if (name := name_topic(campaign)) in dask_worker.plugins:
        await dask_worker.plugin_remove(name)


def answer(*call: Any) -> bytes:
    """Run a `ClusterCall` on the Dask worker that this is called on, and return the pickled `ClusterReply`."""
    worker, task = get_worker(), ClusterCall(*call)
    # What waits on this Dask worker has not begun: if the worker is lost, it is not to blame.
    worker.log_event(name_topic(task.campaign), {"begun": task.number, "worker": worker.address})
    host = find_host(task.campaign, worker)
    return pickle.dumps(host.run(task) if host is not None else ClusterReply(unhosted=True), pickle.HIGHEST_PROTOCOL)


def find_host(campaign: str, dask_worker: Worker) -> CampaignHost | None:
    """Return a campaign's host here, if it is open."""
    plugin = dask_worker.plugins.get(name_topic(campaign))
    return None if plugin is None else plugin.host
