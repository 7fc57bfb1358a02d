"""The rewrites and passes that can be vetoed, as a worker knows them."""

from __future__ import annotations

import torch

from fuzzcompile.compiler.catalogue import known_to
from fuzzcompile.compiler.labels import base_name
from fuzzcompile.compiler.plain import plain_passes
from fuzzcompile.execution.worker import current_device, say

Rule = tuple[str, str, str]


def rules_here() -> list[Rule]:
    """Stage, name and name without variant of all that the compiler registers for this worker's device.

    The stage of a function that any stage may call is an empty string.
    """
    say("looking up what can be vetoed")
    rows = [row for row in known_to(torch.device(current_device())) if row.kind in ("pass", "pattern")]
    named = {(row.stage, row.name) for row in rows} | {("", name) for name in plain_passes()}
    return sorted((stage, name, base_name(name)) for stage, name in named)
