"""Pattern tables of Inductor that a test registers in and gives back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._inductor.pattern_matcher import PatternMatcherPass

from fuzzcompile.compiler.rule_catalogue import initialise_freezing_patterns, initialise_patterns


@contextmanager
def restored(table: PatternMatcherPass) -> Iterator[PatternMatcherPass]:
    """Take out of a pattern table whatever is registered in it inside the block."""
    # What torch registers lazily inside the block would be taken out with it, and torch registers it once.
    initialise_patterns(torch.device("cpu"))
    initialise_freezing_patterns()
    patterns = {key: list(entries) for key, entries in table.patterns.items()}
    seen = {key: list(graphs) for key, graphs in table.seen_patterns.items()}
    try:
        yield table
    finally:
        table.patterns.clear()
        table.patterns.update(patterns)
        table.seen_patterns.clear()
        table.seen_patterns.update(seen)
