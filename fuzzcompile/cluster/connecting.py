"""The connection to a scheduler, and the scheduler and workers of ``local:N``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import distributed

from fuzzcompile.cluster.address import ClusterAddress
from fuzzcompile.errors import EnvironmentUnfit, message_of

ANSWERS_WITHIN = 8.0
"""Seconds that a scheduler has to answer."""
ENDS_WITHIN = 10.0
"""Seconds that a client or the workers of ``local:N`` have to end."""


@dataclass
class Connection:
    """A client of a scheduler, and with ``local:N`` the scheduler and the Dask workers, which end with it."""

    client: distributed.Client
    scheduler: str
    cluster: distributed.LocalCluster | None = None

    @classmethod
    async def open(cls, address: ClusterAddress, within: float = ANSWERS_WITHIN) -> Connection:
        """Connect, for ``local:N`` to a scheduler and workers that are started for it.

        Dask's own configuration decides on certificates, time limits and the like.

        Raises:
            EnvironmentUnfit: no scheduler answers within so many seconds, or the connection is refused.
        """
        _silence()
        cluster: Any = None
        try:
            async with contextlib.AsyncExitStack() as undo:  # what has begun ends if the rest fails or is cancelled
                if address.local is not None:
                    _leave_interrupts_to_the_main_thread()
                    cluster = distributed.LocalCluster(
                        n_workers=address.local,
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        silence_logs=logging.CRITICAL,
                        asynchronous=True,
                    )
                    starting = asyncio.ensure_future(cluster)
                    undo.push_async_callback(_end, functools.partial(_close_started, cluster, starting))
                    await asyncio.shield(starting)
                scheduler = cluster.scheduler_address if cluster is not None else address.scheduler()
                client = distributed.Client(
                    scheduler, name="fuzzcompile", asynchronous=True, set_as_default=False, timeout=within
                )
                undo.push_async_callback(_end, functools.partial(client._close, fast=True))
                with warnings.catch_warnings(action="ignore"):  # versions are compared by what matters (`fitness`)
                    await asyncio.wait_for(client, within)
                undo.pop_all()
        except (OSError, TimeoutError) as error:
            raise EnvironmentUnfit(
                f"No Dask scheduler answers at {address}{_why(error)}: start one (`dask scheduler`) and workers (`dask "
                "worker ADDRESS`), or try --cluster local:2, which starts both on this machine."
            ) from error
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            raise EnvironmentUnfit(
                f"Dask cannot connect to {address}: {message_of(error)}. For tls:// its configuration names the "
                "certificates (distributed.comm.tls)."
            ) from error
        return cls(client, scheduler, cluster)

    @property
    def dashboard(self) -> str:
        """The URL of Dask's dashboard; empty if the scheduler has none."""
        with contextlib.suppress(Exception):
            return str(self.client.dashboard_link or "")
        return ""

    async def close(self) -> None:
        """Disconnect, and end the workers of ``local:N``."""
        for part in filter(None, (self.client, self.cluster)):
            await _end(part.close)


async def _close_started(cluster: Any, starting: asyncio.Future[Any]) -> None:
    """Close a cluster once it has started: if its start is cancelled, Dask leaves the workers running."""
    await asyncio.wait([starting])
    await cluster.close()


async def _end(close: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(Exception):  # what is gone already need not be closed
        await asyncio.wait_for(close(), ENDS_WITHIN)


def _leave_interrupts_to_the_main_thread() -> None:
    """Keep Ctrl-C from the processes that this thread starts, which the terminal sends it to as well.

    They inherit what the thread blocks. The tracker of multiprocessing unblocks it when it starts, and goes first.
    """
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _silence() -> None:
    """Silence Dask's logs: changes of the workers and the scheduler are reported as events.

    Its configuration gives some of its loggers levels of their own, ``distributed.client`` for one.
    """
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _why(error: BaseException) -> str:
    said = message_of(error, 200)
    return f" ({said})" if said else ""
