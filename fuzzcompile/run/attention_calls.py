"""Which calls of ``scaled_dot_product_attention`` (SDPA) a run makes, and which kernels take their inputs."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fuzzcompile.model.contract import AttentionBackendJson, AttentionCallJson, AttentionTensorJson
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.attention_backends import backends_for, switched_on

_SDPA = functional.scaled_dot_product_attention


@contextlib.contextmanager
def attention_calls() -> Iterator[list[AttentionCallJson]]:
    """Collect the distinct calls of SDPA in the block, in the order of their first occurrence.

    Run the program in eager mode: dynamo would trace what is installed here. Values of the run are not to be compared,
    because a :class:`torch.nn.TransformerEncoderLayer` leaves its fast path while it is watched.

    Yields:
        The calls so far, each with every kernel's answer (:func:`backends_for`).
    """
    watch = _Watch()
    functional.scaled_dot_product_attention = watch.inside
    try:
        with watch:
            yield watch.calls
    finally:
        functional.scaled_dot_product_attention = _SDPA


def refuse_unless_usable(calls: Sequence[AttentionCallJson], name: str) -> None:
    """Refuse to run these calls on one kernel that does not take them all.

    Args:
        calls: of :func:`attention_calls`, under the settings of a plain run.
        name: the kernel.

    Raises:
        EnvironmentUnfit: with torch's reason, and the shapes of the first call that is refused.
    """
    for call in calls:
        backend = next((backend for backend in call["backends"] if backend["name"] == name), None)
        if backend is not None and not backend["usable"]:
            shapes = f"{call['query']['shape']} and {call['key']['shape']}"
            usable = [backend["name"] for backend in call["backends"] if backend["usable"]]
            raise EnvironmentUnfit(
                f"The {name} kernel of scaled_dot_product_attention refuses a call of this program (query and key "
                f"{shapes}): {backend['reason']} Use one of {', '.join(usable) or 'none'}."
            )


class _Watch(TorchFunctionMode):
    """Sees calls from Python.

    torch leaves the mode inside its own Python functions (``multi_head_attention_forward``). Those look SDPA up in
    ``torch.nn.functional``, where :meth:`inside` stands.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCallJson] = []
        self._known: dict[str, AttentionCallJson] = {}
        self._depth = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note a call of SDPA, and run it as it is."""
        options = kwargs or {}
        if func is _SDPA:
            self._note(*args, **options)
            return func(*args, **options)
        self._depth += 1
        try:
            return func(*args, **options)
        finally:
            self._depth -= 1

    def inside(self, *args: Any, **options: Any) -> torch.Tensor:
        """Stand in for SDPA where torch's own functions call it."""
        if self._depth:
            self._note(*args, **options)
        return _SDPA(*args, **options)

    def _note(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        tensors = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
        nested = any(tensor.is_nested for tensor in tensors)
        call: AttentionCallJson = {
            "query": _described(query),
            "key": _described(key),
            "value": _described(value),
            "mask": None if attn_mask is None else _described(attn_mask),
            "device": str(query.device),
            "dropout": float(dropout_p),
            "causal": bool(is_causal),
            "scale": None if scale is None else float(scale),
            "enable_gqa": bool(enable_gqa),
            "needs_grad": torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
            "switched_on": list(switched_on()),
            "calls": 0,
            "backends": [],
            "note": "A nested tensor has no shape that is a list of numbers." if nested else "",
        }
        signature = json.dumps(call)
        if signature not in self._known:
            ask = functools.partial(backends_for, query, key, value, attn_mask=attn_mask, dropout_p=dropout_p)
            asked = functools.partial(ask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
            call["backends"], why = _answered(asked)
            call["note"] = " ".join(filter(None, (call["note"], why)))
            self._known[signature] = call
            self.calls.append(call)
        self._known[signature]["calls"] += 1


def _answered(ask: Callable[[], Sequence[Any]]) -> tuple[list[AttentionBackendJson], str]:
    try:
        return [backend.to_json() for backend in ask()], ""
    except Exception as error:  # the run goes on; for subclasses of tensors torch has no answer
        return [], f"torch cannot say which kernels take these inputs ({type(error).__name__}: {error})."


def _described(tensor: torch.Tensor) -> AttentionTensorJson:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return {"shape": [], "strides": [], "dtype": dtype}
    return {"shape": list(tensor.shape), "strides": list(tensor.stride()), "dtype": dtype}
