"""Where fuzzcompile holds on to Inductor: the functions it replaces while a compile is watched.

Each hook is named, so that a torch whose internals moved can be told apart by the hook it lacks
(:func:`missing_hooks`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.compiler import hooked_passes, hooked_stages, plain
from fuzzcompile.compiler.hooked_stages import COMPILE_FX
from fuzzcompile.compiler.recorder import Recorder


@dataclass(frozen=True)
class Hook:
    """An attribute of a torch module (or of a class in it) that is wrapped while a compile is watched."""

    name: str
    module: str
    attribute: str
    wrap: Callable[[Recorder, Callable[..., Any]], Callable[..., Any]]

    def owner(self) -> Any:
        """The module or class that holds the attribute; raises ImportError or AttributeError without it."""
        owner: Any = importlib.import_module(self.module)
        for part in self.attribute.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    def find(self) -> tuple[Any, str, Callable[..., Any]]:
        """Owner, attribute name and present value."""
        owner, leaf = self.owner(), self.attribute.rsplit(".", 1)[-1]
        return owner, leaf, getattr(owner, leaf)


switched_off: dict[str, str] = {}
"""Hooks that failed their probe on this torch (see :mod:`fuzzcompile.compiler.conformance`), and how."""


def missing_hooks() -> list[str]:
    """Names of the hooks that the installed torch has no place for."""
    missing = []
    for hook in HOOKS:
        try:
            hook.find()
        except (ImportError, AttributeError):
            missing.append(hook.name)
    return missing


@contextlib.contextmanager
def installed(recorder: Recorder) -> Iterator[None]:
    """Replace every hook's function for the time of the block.

    They stay through ``backward()``, which may compile. Hooks that this torch lacks, or that failed their probe, are
    left out, and the ledger says so.
    """
    with contextlib.ExitStack() as stack:
        missing_hooks()  # loads the modules that hold them, so that their plain functions are seen as well
        stack.enter_context(plain.watched(recorder))
        stack.enter_context(hooked_passes.custom_passes(recorder))
        for hook in HOOKS:
            try:
                if hook.name in switched_off:
                    raise AttributeError(switched_off[hook.name])
                owner, leaf, original = hook.find()
            except (ImportError, AttributeError) as error:
                recorder.ledger.unwatched.append(f"{hook.name} ({error})")
                continue
            setattr(owner, leaf, functools.wraps(original)(hook.wrap(recorder, original)))
            stack.callback(setattr, owner, leaf, original)
        yield


def initialise_patterns(device: torch.device) -> None:
    """Register Inductor's lazily registered patterns now.

    A ledger, plant or veto that comes first would see the tracing of the patterns themselves. Called as
    the compiler calls it, because the registration is cached by its arguments.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    for module, argument in ((joint_graph, device), (post_grad, None), (pre_grad, None)):
        lazy_init = getattr(module, "lazy_init", None)
        if lazy_init is None:
            continue
        if argument is not None and inspect.signature(lazy_init).parameters:
            lazy_init(argument)
        else:
            lazy_init()


_FREEZING = "torch._inductor.freezing"
_OBSERVER = "torch.fx.passes.graph_transform_observer"
HOOKS = (
    Hook("backend entry", COMPILE_FX, "compile_fx", hooked_stages.wrap_compile_fx),
    Hook("pre-grad stage", COMPILE_FX, "_recursive_pre_grad_passes", hooked_stages.wrap_pre_grad),
    Hook("joint-graph stage", COMPILE_FX, "_recursive_joint_graph_passes", hooked_stages.wrap_joint),
    Hook("post-grad stage", COMPILE_FX, "_recursive_post_grad_passes", hooked_stages.wrap_post_grad),
    Hook("partition", COMPILE_FX, "partition_fn", hooked_stages.wrap_partition),
    Hook("freezing stage", _FREEZING, "freeze", hooked_stages.wrap_freezing),
    Hook("frozen parameters", _FREEZING, "replace_params_with_constants", hooked_stages.wrap_frozen_parameters),
    Hook(
        "layout of frozen weights",
        _FREEZING,
        "convert_conv_weights_to_channels_last",
        hooked_stages.wrap_weights_layout,
    ),
    Hook("dead code", "torch.fx.graph", "Graph.eliminate_dead_code", hooked_passes.wrap_dead_code),
    Hook("graph pass", _OBSERVER, "GraphTransformObserver.apply_graph_pass", hooked_passes.wrap_observed_pass),
    Hook("module pass", _OBSERVER, "GraphTransformObserver.apply_gm_pass", hooked_passes.wrap_observed_pass),
    Hook(
        "pattern pass", "torch._inductor.pattern_matcher", "PatternMatcherPass.apply", hooked_passes.wrap_pattern_pass
    ),
    Hook("fusion passes", "torch._inductor.scheduler", "Scheduler.__init__", hooked_passes.wrap_scheduler),
)
