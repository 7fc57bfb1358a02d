"""What tests of a cluster need: Dask, which is an extra."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = ["test_*.py"] if importlib.util.find_spec("distributed") is None else []
