"""Choices that Inductor leaves to timing on a device, made without one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import select_algorithm

from fuzzcompile.compiler.target.interpreted.launching import Session


def choose_first(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """``AlgorithmSelectorCache.__call__`` that takes the first library call, or the first Triton template.

    torch 2.11 returns the node, and the choice too only where it is asked for; torch 2.13 always returns both.
    """
    always_both = "return_choice" not in inspect.signature(original).parameters

    @functools.wraps(original)  # replaced twice, it still has its signature
    def call(selector: Any, name: str, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for preprocess in getattr(selector, "preprocessing_fns", ()):
            choices = preprocess(choices)
        if not choices:
            return original(selector, name, choices, *args, **kwargs)
        if len(choices) > 1:
            session.log.not_decided(f"the kernel of {name} among {len(choices)}")
        choice = _preferred(choices, session.templates)
        node = choice.output_node()
        return (node, choice) if always_both or kwargs.get("return_choice") else node

    return call


def _preferred(choices: Sequence[Any], templates: bool) -> Any:
    kind = select_algorithm.TritonTemplateCaller if templates else select_algorithm.ExternKernelCaller
    return next((choice for choice in choices if isinstance(choice, kind)), choices[0])
