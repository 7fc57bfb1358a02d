"""The connection to a Dask scheduler, which is started here with its workers for ``local:N``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing import resource_tracker
from typing import Any

import distributed

from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.errors import EnvironmentUnfit, format_message

_ENDS_WITHIN = 10.0  # seconds that a client or the workers of ``local:N`` have to end


async def connect(address: ClusterAddress, ending: AsyncExitStack, within: float) -> tuple[distributed.Client, str]:
    """Return a client, and the scheduler's address; ``ending`` closes it, and ends what ``local:N`` starts.

    Dask's own configuration decides on certificates, time limits and the like.

    Raises:
        EnvironmentUnfit: no scheduler answers within so many seconds, or the connection is refused.
    """
    # Changes are reported as events, not by Dask's logs. Some of its loggers have levels of their own.
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        scheduler = await _start(address.local, ending) if address.local is not None else address.scheduler()
        options = {"asynchronous": True, "set_as_default": False, "timeout": within}
        client = distributed.Client(scheduler, name="fuzzcompile", **options)
        ending.push_async_callback(_end, functools.partial(client._close, fast=True))
        with warnings.catch_warnings(action="ignore"):  # versions are compared by what matters
            await asyncio.wait_for(client, within)
        return client, scheduler
    except OSError as error:
        why = f" ({said})" if (said := format_message(error, 200)) else ""
        raise EnvironmentUnfit(
            f"No Dask scheduler answers at {address}{why}: start one (`dask scheduler`) and workers (`dask "
            "worker ADDRESS`), or try --cluster local:2, which starts both on this machine."
        ) from error
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        raise EnvironmentUnfit(
            f"Dask cannot connect to {address}: {format_message(error)}. For tls:// its configuration names the "
            "certificates (distributed.comm.tls)."
        ) from error


async def _start(workers: int, ending: AsyncExitStack) -> str:
    # Ctrl-C, which the terminal sends to them too, is left to the main thread: they inherit what this thread blocks.
    resource_tracker.ensure_running()  # it unblocks Ctrl-C when it starts, and goes first
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    cluster: Any = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, asynchronous=True, **local)
    starting = asyncio.ensure_future(cluster)

    async def close() -> None:
        await asyncio.wait([starting])  # if its start is cancelled, Dask leaves the workers running
        await cluster.close()

    ending.push_async_callback(_end, close)
    await asyncio.shield(starting)
    return str(cluster.scheduler_address)


async def _end(close: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(Exception):  # what is gone already need not be closed
        await asyncio.wait_for(close(), _ENDS_WITHIN)
