"""How a campaign comes to its cluster. Imports nothing of Dask before it is sure that there is one."""

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
    """The pool of a cluster's workers (`ClusterPool`), which looks for them from now on.

    Raises:
        EnvironmentUnfit: Dask is not installed.
        UsageError: a file that the conditions name cannot be sent.
    """
    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentUnfit("--cluster needs Dask: pip install 'fuzzcompile[cluster]'.")
    from fuzzcompile.cluster.pool import ClusterPool

    return ClusterPool(address, conditions, torch=torch, most=most, opens=opens)
