"""From a rule to programs that make it fire."""

from __future__ import annotations

import torch

from fuzzcompile.generation.patterned import PatternProgram


def programs_of(stage: str, rule: str, device: torch.device, seconds: float) -> list[PatternProgram]:
    """Programs for one rule, those first whose compile made it fire.

    Args:
        stage: the rule's stage.
        rule: its name in the catalogue: a pattern, a pass, an operator with a decomposition or a lowering.
        device: where the programs run.
        seconds: how long to look for one that fires.
    """
    return []
