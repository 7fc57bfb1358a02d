"""Torch's caches of compiled graphs on disk, kept in a folder of their own: those of Inductor and of AOTAutograd.

Watched compiles use neither. A user's process does, so that a compile may get the graph of another program whose key is
the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch._dynamo.utils import counters

from fuzzcompile.compiler.torch_config import has_entry, load_config, patch_config
from fuzzcompile.run.torch_attributes import ReplacedAttribute

_FOLDER = "It returns a path and nothing else; where torch has no such function, no cache is used."


@dataclass(frozen=True)
class GraphCache:
    """One cache: the entry of a config that switches it on, its counter of hits, and what makes its keys.

    ``folder`` is the function that says where it lies, ``key`` the place of what makes its keys, ``load`` of what
    restores a graph.
    """

    name: str
    config: str
    entry: str
    hits: tuple[str, str]
    folder: ReplacedAttribute
    key: str
    load: str

    @property
    def is_on(self) -> bool:
        """Return whether compiles of the process use it, as far as this torch has it."""
        forced = getattr(load_config("inductor"), "force_disable_caches", False)
        entries = load_config(self.config)
        known = has_entry(entries, self.entry) and self.folder.check_place() is None
        return known and bool(getattr(entries, self.entry)) and not forced

    def count_hits(self) -> int:
        """How many graphs came out of it, since the process began or dynamo's counters were cleared."""
        kind, name = self.hits
        return int(counters[kind][name])


FX_GRAPHS = GraphCache(
    "the cache of Inductor's graphs",
    "inductor",
    "fx_graph_cache",
    ("inductor", "fxgraph_cache_hit"),
    ReplacedAttribute("torch._inductor.codecache", "FxGraphCache._get_tmp_dir", unprobed=_FOLDER),
    "torch._inductor.codecache:compiled_fx_graph_hash",
    "torch._inductor.codecache:FxGraphCache.load_with_key",
)
TRACED_GRAPHS = GraphCache(
    "the cache of AOTAutograd's graphs",
    "functorch",
    "enable_autograd_cache",
    ("aot_autograd", "autograd_cache_hit"),
    ReplacedAttribute(
        "torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache._get_tmp_dir", unprobed=_FOLDER
    ),
    "torch._functorch._aot_autograd.autograd_cache:autograd_cache_key",
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load",
)
GRAPH_CACHES = (FX_GRAPHS, TRACED_GRAPHS)
"""Those that torch uses without a server; one cannot be used without those before it."""


@contextlib.contextmanager
def keep_graphs(folder: Path, caches: Collection[GraphCache]) -> Iterator[Callable[[], list[GraphCache]]]:
    """Compiles of the block keep their graphs below ``folder`` in these caches, and take them from there.

    What is yielded lists the caches that a graph has come out of since the block began.
    """
    before = {cache.name: cache.count_hits() for cache in caches}
    with contextlib.ExitStack() as stack:
        for number, cache in enumerate(GRAPH_CACHES):
            if cache in caches:
                place = str(folder / str(number))
                stack.enter_context(cache.folder.replace(staticmethod(lambda *of, place=place: place)))
                stack.enter_context(patch_config(cache.config, {cache.entry: True}))
        yield lambda: [cache for cache in caches if cache.count_hits() > before[cache.name]]
