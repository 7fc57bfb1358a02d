"""``scaled_dot_product_attention`` on a device that is not there: the kernel that torch chooses, and its arguments.

In C++ the choice lies behind a dispatch stub, which a CPU build does not have for CUDA and a CUDA build answers by
asking the driver. :func:`install` therefore puts a kernel of the target's own in front of it. It does what ATen's
``scaled_dot_product_attention`` (``aten/src/ATen/native/transformers/attention.cpp``) does on a CUDA device. The calls
that it makes were compared with those of the compiled torch 2.11.0, 2.13.0 and 2.15.0, argument by argument.

``_fused_sdp_choice`` stays as it is: for fake tensors torch answers ``math`` on a CUDA device too.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from fuzzcompile.compiler.target import attention_rules as rules
from fuzzcompile.compiler.target.attention_rules import Call, Release
from fuzzcompile.compiler.target.registering import register
from fuzzcompile.targets import Target

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Backends by their number in torch's priority order (``at::SDPBackend``), and torch's default order.
_KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
_DEFAULT_ORDER = [1, 2, 0, 3, 4]
_RULES = {"flash": rules.flash, "efficient": rules.efficient, "cudnn": rules.cudnn}


@dataclass(frozen=True)
class Choice:
    """The kernel that torch chooses on a device.

    Attributes:
        kernel: ``flash``, ``efficient``, ``cudnn`` or ``math``.
        refused: why each kernel with precedence over it was not chosen. It names ``math`` itself where the program
            switched every admissible kernel off; torch raises an error on the device then.
    """

    kernel: str
    refused: Mapping[str, str]


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    *,
    target: Target,
) -> Choice:
    """The kernel that torch chooses for a call of ``scaled_dot_product_attention`` on ``target``.

    The tensors may be fake and their sizes symbolic. Their device is not looked at. The priority order and the flags
    of ``torch.backends.cuda`` are those in force.

    Args:
        query: shape (batch, heads, length, width), or less dimensions.
        key: as the query, with a length and a number of heads of its own.
        value: as the key, with a width of its own.
        mask: boolean or additive, broadcast against (batch, heads, length of the query, length of the key).
        dropout_p: probability of dropping a weight.
        is_causal: mask what comes later.
        enable_gqa: heads of the query share those of key and value.
        target: the device.
    """
    call = Call(query, key, value, mask, dropout_p, is_causal, enable_gqa)
    return _choice(_as_batch(call), target, _release())


def install(target: Target, chosen: Callable[[Choice], None] | None = None) -> None:
    """Make ``scaled_dot_product_attention`` of CUDA tensors do what it does on ``target``, for the life of the process.

    Args:
        target: the device.
        chosen: called with each choice.
    """
    impl = functools.partial(_attention, target, chosen or (lambda _: None))
    operator = _aten.scaled_dot_product_attention.default
    register("scaled_dot_product_attention", impl, "AutogradCUDA")
    # Below autograd (inference mode), modes decompose the operator by this kernel; it serves every device.
    operator.py_kernels[_COMPOSITE] = impl
    operator._dispatch_cache.clear()


@functools.cache
def _release() -> Release:
    return rules.release_of(str(torch.__version__))


# -- the choice -------------------------------------------------------------------------------------


def _choice(call: Call, target: Target, release: Release) -> Choice:
    refused: dict[str, str] = {}
    for kernel in _order(target):
        if kernel == "math":
            if torch._C._get_math_sdp_enabled():
                return Choice(kernel, refused)
            refused[kernel] = "it is switched off"
            continue
        reason = next((reason for met, reason in _RULES[kernel](call, target, release) if not met), None)
        if reason is None:
            return Choice(kernel, refused)
        refused[kernel] = reason
    return Choice("math", refused)


def _order(target: Target) -> list[str]:
    """Return the kernels in order of precedence; the first time that torch chooses, it replaces its default order."""
    order = torch._C._get_sdp_priority_order()
    first = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1" and rules.prefers_cudnn(target)
    if order == _DEFAULT_ORDER and first:
        order = [3, 1, 2, 0]
    return [_KERNELS[number] for number in order if number in _KERNELS]


def _as_batch(call: Call) -> Call:
    unbatched = all(tensor.dim() == 3 and not tensor.is_nested for tensor in call.inputs)
    return call.batched() if unbatched and _release().unbatched else call


# -- what ATen calls --------------------------------------------------------------------------------


def _attention(
    target: Target,
    chosen: Callable[[Choice], None],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if query.device.type != "cuda":
        return _composite(call, scale)
    batch = _as_batch(call)
    choice = _choice(batch, target, _release())
    chosen(choice)
    output = _CALLS[choice.kernel](batch, scale)
    return output if batch is call else output.squeeze(0)


def _composite(call: Call, scale: float | None) -> torch.Tensor:
    """ATen's own implementation, which makes a choice for the devices that this build knows."""
    operator = _aten.scaled_dot_product_attention.default
    arguments = (*call.inputs, call.mask, call.dropout, call.is_causal)
    output: torch.Tensor = operator._op_dk(_COMPOSITE, *arguments, scale=scale, enable_gqa=call.enable_gqa)
    return output


def _math(call: Call, scale: float | None) -> torch.Tensor:
    with _math_alone():
        return _composite(call, scale)


def _flash(call: Call, scale: float | None) -> torch.Tensor:
    """Call the flash kernel, which wants a head dimension that 8 divides; the scale stays that of the one given."""
    width = call.query.size(-1)
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    query, key, value = (_padded(tensor, 8) for tensor in call.inputs)
    kernel = _aten._scaled_dot_product_flash_attention.default
    output: torch.Tensor = kernel(query, key, value, call.dropout, call.is_causal, False, scale=scale)[0]
    return output if query is call.query else _rows_to(width, output)


def _efficient(call: Call, scale: float | None) -> torch.Tensor:
    mask = _additive(call)
    if mask is not None:
        shape = (*call.query.shape[:3], call.key.size(2))
        mask = _aligned(mask).expand(shape)
    kernel = _aten._scaled_dot_product_efficient_attention.default
    output: torch.Tensor = kernel(*call.inputs, mask, call.needs_grad, call.dropout, call.is_causal, scale=scale)[0]
    return output


def _cudnn(call: Call, scale: float | None) -> torch.Tensor:
    mask = _additive(call)
    kernel = _aten._scaled_dot_product_cudnn_attention.default
    output: torch.Tensor = kernel(
        *call.inputs, mask, call.needs_grad, call.dropout, call.is_causal, False, scale=scale
    )[0]
    return output


_CALLS = {"math": _math, "flash": _flash, "efficient": _efficient, "cudnn": _cudnn}


def _rows_to(length: int, tensor: torch.Tensor) -> torch.Tensor:
    cut: torch.Tensor = _aten.slice.Tensor(tensor, -1, 0, length)
    return cut


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    missing = -tensor.size(-1) % multiple
    return functional.pad(tensor, (0, missing)) if missing else tensor


def _additive(call: Call) -> torch.Tensor | None:
    """The mask; a boolean one as 0 and minus infinity in the dtype of the query.

    torch 2.11 hands cuDNN -65504 instead, so that a row without any key is an average of all values. Eager mode runs on
    the CPU here and gives zeros for such a row, as later releases do, so that only the compiled side would show that.
    """
    mask = call.mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=call.query.dtype, device=mask.device), float("-inf"))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """The mask with rows that begin at multiples of 8 elements; a mask that does not is padded in memory."""
    if all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    length = mask.size(-1)
    return _rows_to(length, functional.pad(mask, (0, 8 - length % 8)))


@contextlib.contextmanager
def _math_alone() -> Iterator[None]:
    """Switch off every kernel but math, so that C++ does not choose."""
    flags = (
        (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash, False),
        (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient, False),
        (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn, False),
        (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math, True),
    )
    kept = [(switch, read()) for read, switch, _ in flags]
    try:
        for _, switch, on in flags:
            switch(on)
        yield
    finally:
        for switch, was in kept:
            switch(was)
