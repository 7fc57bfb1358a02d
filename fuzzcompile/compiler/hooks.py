"""Inductor's lazily registered patterns."""

from __future__ import annotations

import inspect

import torch

from fuzzcompile.compiler.target.process import assumed, described


def initialise_patterns(device: torch.device) -> None:
    """Register Inductor's lazily registered patterns now.

    A ledger, plant or veto that comes first would see the tracing of the patterns themselves. Called as
    the compiler calls it, because the registration is cached by its arguments: in a process that compiles for a
    target, with that target's device.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    target = assumed()
    if target is not None:
        device = torch.device(target.device_type, 0)
    with described():
        for module, argument in ((joint_graph, device), (post_grad, None), (pre_grad, None)):
            lazy_init = getattr(module, "lazy_init", None)
            if lazy_init is None:
                continue
            if argument is not None and inspect.signature(lazy_init).parameters:
                lazy_init(argument)
            else:
                lazy_init()
