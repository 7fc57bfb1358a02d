"""Connects a campaign to its cluster. Imports nothing of Dask before Dask is known to be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fuzzcompile.cluster.address import ClusterAddress
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.worker.conditions import Conditions

if TYPE_CHECKING:
    from fuzzcompile.cluster.pool import ClusterPool


def join(
    address: ClusterAddress,
    conditions: Conditions,
    *,
    torch: str | None = None,
    most: int | None = None,
    opens: Callable[..., Any] | None = None,
) -> ClusterPool:
    """Return the pool of a cluster's workers (`ClusterPool`), which starts looking for them.

    Raises:
        EnvironmentUnfit: Dask is not installed.
        UsageError: a file that the conditions name cannot be sent.
    """
    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentUnfit("--cluster needs Dask: pip install 'fuzzcompile[cluster]'.")
    from fuzzcompile.cluster.pool import ClusterPool

    return ClusterPool(address, conditions, torch=torch, most=most, opens=opens)
