"""The kernels behind ``scaled_dot_product_attention`` (SDPA): which take given inputs, why others refuse, forcing one.

torch's own dispatch answers: ``_fused_sdp_choice`` is what ``scaled_dot_product_attention`` asks
(``aten/src/ATen/native/transformers/attention.cpp``), on every device, without running a kernel. With a single kernel
switched on it explains a refusal in warnings, one section for each kernel, and raises.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError, describe_error
from fuzzcompile.model.profile_contract import (
    AttentionBackendJson,
    AttentionCallJson,
    AttentionKernelsJson,
    AttentionTensorJson,
)
from fuzzcompile.run.device import Numerics, hold_numerics
from fuzzcompile.run.torch_attributes import ReplacedAttribute

# By the names that users give them, in the order in which tables show them.
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# What a report on runs under :func:`force_math_kernel` says.
MATH_ONLY = (
    "math only: every scaled_dot_product_attention ran on the math kernel and float32 products in float32 (no TF32), "
    "on both sides; this is for validation, not for production"
)
# The field of Numerics that switches each kernel on.
_SWITCHES = {"math": "math_sdp", "flash": "flash_sdp", "efficient": "mem_efficient_sdp", "cudnn": "cudnn_sdp"}
# What torch raises where every kernel that is on refuses, and where none exists for the device.
_REFUSED, _NONE_EXISTS = "No available kernel", "No viable backend"
_HEADER = "kernel not used because"
# Warnings that explain a refusal carry the file of their rule.
_RULES_FILE = r"(?s).*Triggered internally at .*transformers/.*sdp_utils"
_ORIGIN = " (Triggered internally at"


def list_backends(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[AttentionBackendJson]:
    """Every kernel of SDPA, whether it takes these inputs, and which one torch chooses; runs none of them.

    The arguments are those of ``scaled_dot_product_attention``. Whether a gradient is needed counts: grad mode and
    ``requires_grad`` are those at the time of the call. A kernel is usable if it is switched on and takes the inputs;
    else its reason is in torch's words where torch gives any. Names are those of :data:`KERNELS`, and ``overrideable``
    for that of another device, where chosen.

    Raises:
        RuntimeError: torch cannot answer for these tensors at all.
    """
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    ask = functools.partial(torch._fused_sdp_choice, q, k, v, attn_mask, dropout_p, is_causal, **options)
    enabled, (chosen, *_) = list_enabled_kernels(), _ask_torch(ask)
    backends: list[AttentionBackendJson] = []
    for name, kernel in KERNELS.items():
        reason = f"It is switched off (torch.backends.cuda.{_SWITCHES[name]}_enabled())."
        if name in enabled:
            reason = _find_refusal(name, ask, q.device, attn_mask)
        picked = name in enabled and kernel == chosen
        backends.append({"name": name, "usable": not reason, "chosen": picked, "reason": reason})
    if chosen == SDPBackend.OVERRIDEABLE:
        backends.append({"name": "overrideable", "usable": True, "chosen": True, "reason": ""})
    return backends


def list_enabled_kernels() -> tuple[str, ...]:
    """The kernels that the settings in force admit."""
    numerics = Numerics.current()
    return tuple(name for name in KERNELS if getattr(numerics, _SWITCHES[name]))


@contextlib.contextmanager
def force_kernel(name: str) -> Iterator[None]:
    """Have SDPA run on one kernel alone in the block, programs compiled there included.

    A compiled program keeps the kernels for which it was traced, as dynamo guards on no setting of SDPA: reset dynamo
    and compile inside the block. (Nor does the key of torch's caches on disk hold the setting; the block has its own.)
    What a case sets for the process switches no other kernel on. A program that enters
    ``torch.nn.attention.sdpa_kernel`` itself gets what it asks for there.

    Raises:
        UsageError: there is no kernel of that name.
        EnvironmentUnfit: in the block, the kernel refused its inputs; the message gives torch's reasons.
    """
    if name not in KERNELS:
        raise UsageError(f"SDPA has no kernel {name!r}; use one of {', '.join(KERNELS)}.")
    switches = {switch: kernel == name for kernel, switch in _SWITCHES.items()}
    config = torch.compiler.config
    before = config.cache_key_tag
    config.cache_key_tag = f"{before}sdpa:{name}"
    try:
        with _explain_refusals(name), sdpa_kernel(KERNELS[name]), hold_numerics(**switches):
            yield
    finally:
        config.cache_key_tag = before


@contextlib.contextmanager
def force_math_kernel() -> Iterator[None]:
    """Have SDPA run on its math kernel, and float32 products in float32 (no TF32, no bfloat16), in the block.

    This takes the two largest differences between devices out of a comparison, and the speed with them: it is for
    validation, not for production.
    """
    full: dict[str, bool | str] = {
        "float32_matmul": "highest",
        "cudnn_tf32": False,
        "math_sdp_reduced_precision_reduction": False,
    }
    with hold_numerics(**full), force_kernel("math"):
        yield


def _ask_torch(ask: Callable[[], int]) -> tuple[SDPBackend | None, str, list[str]]:
    """The kernel that torch chooses under the settings in force; None, its error and its warnings if all refuse."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return SDPBackend(ask()), "", []
        except RuntimeError as error:
            if not _is_refusal(error):
                raise
            return None, str(error), [str(warning.message) for warning in caught]


def _find_refusal(name: str, ask: Callable[[], int], device: torch.device, mask: torch.Tensor | None) -> str:
    """The reason for which an enabled kernel does not take the inputs; empty if it takes them."""
    with sdpa_kernel(KERNELS[name]):
        chosen, error, warned = _ask_torch(ask)
    if chosen is not None:
        return "" if chosen == KERNELS[name] else "torch chooses another kernel."
    if _NONE_EXISTS in error:
        return f"torch has no such kernel for tensors on {device.type}."
    if said := " ".join(select_reasons(name, warned)):
        return said
    if mask is not None and mask.requires_grad:  # torch 2.11 to 2.15 refuse it without a word
        return "The mask requires a gradient; torch gives no reason of its own."
    return "torch gives no reason."


def select_reasons(name: str, messages: Sequence[str]) -> list[str]:
    """Select from torch's warnings the sentences about one kernel, without the places in torch's source."""
    kept, inside = list[str](), False
    for message in messages:
        text = message.split(_ORIGIN)[0].strip()
        if _HEADER in text:
            inside = name in text.lower()
        elif inside and text not in kept:
            kept.append(text)
    return kept


def _is_refusal(error: BaseException) -> bool:
    return any(text in str(error) for text in (_REFUSED, _NONE_EXISTS))


@contextlib.contextmanager
def _explain_refusals(name: str) -> Iterator[None]:
    """Collect what torch says about a refusal in the block, and put it into the error."""
    heard = list[str]()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def listen(message: Warning | str, *others: Any, **further: Any) -> None:
            if "sdp_utils" in str(message):
                heard.append(str(message))
            else:
                shown(message, *others, **further)

        warnings.filterwarnings("always", message=_RULES_FILE)
        warnings.showwarning = listen
        try:
            yield
        except RuntimeError as error:
            if not _is_refusal(error):
                raise
            why = " ".join(select_reasons(name, heard)) or "torch has no such kernel for this device."
            raise EnvironmentUnfit(
                f"The {name} kernel of scaled_dot_product_attention refuses these inputs: {why}"
            ) from error


# Calls of ``scaled_dot_product_attention`` (SDPA) in a run, with the kernels that take their inputs.

_SDPA = functional.scaled_dot_product_attention


@contextlib.contextmanager
def record_attention_calls() -> Iterator[list[AttentionCallJson]]:
    """Collect the distinct calls of SDPA in the block, in the order of their first occurrence.

    Run the program in eager mode: dynamo would trace what is installed here. Values of the run are not to be compared,
    because a :class:`torch.nn.TransformerEncoderLayer` leaves its fast path while it is watched.

    Yields:
        The calls so far, each with every kernel's answer (:func:`list_backends`).
    """
    watch = _Watch()
    with ATTENTION.replace(watch.call_from_torch), watch:
        yield watch.calls


def _probe_attention() -> str | None:
    x = torch.ones(2, 1, 4)
    with record_attention_calls() as calls, torch.random.fork_rng(devices=[]):
        torch.nn.MultiheadAttention(4, 1)(x, x, x, need_weights=False)
    return None if calls else "multi_head_attention_forward does not call it"


ATTENTION = ReplacedAttribute("torch.nn.functional", "scaled_dot_product_attention", probe=_probe_attention)


def refuse_unless_usable(calls: Sequence[AttentionCallJson], name: str) -> None:
    """Refuse to run ``calls``, recorded under the settings of a plain run, on a kernel that does not take them all.

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
    """Mode that records calls from Python.

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

    def call_from_torch(self, *args: Any, **options: Any) -> torch.Tensor:
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
            "query": _describe_tensor(query),
            "key": _describe_tensor(key),
            "value": _describe_tensor(value),
            "mask": None if attn_mask is None else _describe_tensor(attn_mask),
            "device": str(query.device),
            "dropout": float(dropout_p),
            "causal": bool(is_causal),
            "scale": None if scale is None else float(scale),
            "enable_gqa": bool(enable_gqa),
            "needs_grad": torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
            "switched_on": list(list_enabled_kernels()),
            "calls": 0,
            "backends": [],
            "note": "A nested tensor has no shape that is a list of numbers." if nested else "",
        }
        signature = json.dumps(call)
        if signature not in self._known:
            options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            try:
                call["backends"] = list_backends(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
            except Exception as error:  # the run goes on; for subclasses of tensors torch has no answer
                why = f"torch cannot say which kernels take these inputs ({describe_error(error)})."
                call["note"] = f"{call['note']} {why}".strip()
            self._known[signature] = call
            self.calls.append(call)
        self._known[signature]["calls"] += 1


def _describe_tensor(tensor: torch.Tensor) -> AttentionTensorJson:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return {"shape": [], "strides": [], "dtype": dtype}
    return {"shape": list(tensor.shape), "strides": list(tensor.stride()), "dtype": dtype}


# A table of the kernels of ``scaled_dot_product_attention`` that a device has for typical inputs.

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDTHS = (64, 80, 256)
_INPUTS = ("plain", "causal", "masked", "training", "training, dropout")
_BATCH, _HEADS, _LENGTH = 1, 2, 64


def ask_kernels(device: torch.device) -> list[AttentionKernelsJson]:
    """Ask every kernel about typical inputs of shape (1, 2, 64, head dim) on ``device``; runs none of them."""
    answers: list[AttentionKernelsJson] = []
    for inputs, width, dtype in itertools.product(_INPUTS, _WIDTHS, _DTYPES):
        training = inputs.startswith("training")
        query = torch.zeros(_BATCH, _HEADS, _LENGTH, width, dtype=dtype, device=device, requires_grad=training)
        mask = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool, device=device) if inputs == "masked" else None
        options: dict[str, Any] = {"dropout_p": 0.1 if "dropout" in inputs else 0.0, "is_causal": inputs == "causal"}
        backends: list[AttentionBackendJson] = []
        with torch.set_grad_enabled(training), contextlib.suppress(RuntimeError):  # it knows no attention there
            backends = list_backends(query, query, query, attn_mask=mask, **options)
        name = str(dtype).removeprefix("torch.")
        answers.append({"inputs": inputs, "head_dim": width, "dtype": name, "backends": backends})
    return answers


def format_kernel_table(answered: Sequence[AttentionKernelsJson]) -> list[str]:
    """The answers as lines of text: the chosen kernel first, head dims of equal answers together, then refusals."""
    dtypes = list(dict.fromkeys(answer["dtype"] for answer in answered))
    rows = [["inputs", "head dim", *dtypes], *_format_rows(answered, dtypes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, *_list_refusals(answered)]


def _format_rows(answered: Sequence[AttentionKernelsJson], dtypes: Sequence[str]) -> Iterator[list[str]]:
    cells: dict[tuple[str, int, str], str] = {}
    for answer in answered:
        usable = [backend for backend in answer["backends"] if backend["usable"]]
        names = [backend["name"] for backend in sorted(usable, key=lambda backend: not backend["chosen"])]
        cells[answer["inputs"], answer["head_dim"], answer["dtype"]] = ", ".join(names) or "none"
    for inputs in dict.fromkeys(answer["inputs"] for answer in answered):
        alike: dict[tuple[str, ...], list[str]] = {}
        for width in dict.fromkeys(answer["head_dim"] for answer in answered):
            alike.setdefault(tuple(cells[inputs, width, dtype] for dtype in dtypes), []).append(str(width))
        for row, widths in alike.items():
            yield [inputs, ", ".join(widths), *row]


def _list_refusals(answered: Sequence[AttentionKernelsJson]) -> Iterator[str]:
    """Each reason once, with the first inputs that it refuses."""
    seen = set()
    for answer in answered:
        for backend in answer["backends"]:
            name, reason = backend["name"], backend["reason"]
            if not backend["usable"] and (name, reason) not in seen:
                seen.add((name, reason))
                yield f"{name} refuses {answer['inputs']} {answer['dtype']}, head dim {answer['head_dim']}: {reason}"


FLEX = ReplacedAttribute(
    "torch.nn.attention.flex_attention",
    "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
    optional=True,
    unprobed="A torch without it has no float64 reference of flex attention, which the report says.",
)


FLEX_OPERATOR = ReplacedAttribute(
    "torch.nn.attention.flex_attention",
    "flex_attention_hop",
    optional=True,
    unprobed="A torch without it has no float64 reference of gradients of flex attention, which the report says.",
)


@contextlib.contextmanager
def interpret_flex_attention() -> Iterator[None]:
    """Run flex attention operator by operator in the block, so that a mode sees what it computes, and autograd too.

    In eager mode it compiles itself for a backend that only runs operators, which no dispatch mode may surround.
    """
    with FLEX.replace_if_loaded(True), FLEX_OPERATOR.replace_if_loaded(_attend_densely):
        yield


def _attend_densely(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> object:
    """Flex attention by products and a softmax, which autograd differentiates as any other operators.

    As the operator does, it computes in autocast's dtype, and gives its maxima no gradients.
    """
    attend = torch.ops.higher_order.flex_attention.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    device, given = query.device.type, [query, key, value]
    if torch.is_autocast_enabled(device):
        given = [tensor.to(torch.get_autocast_dtype(device)) for tensor in given]
    with torch.autocast(device, enabled=False):
        attended, sums, *maxima = attend(*given, *rest, **options)
    return attended, sums, *(each.detach() for each in maxima)
