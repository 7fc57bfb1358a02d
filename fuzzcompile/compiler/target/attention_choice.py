"""Rules for the attention kernels that a CUDA or ROCm device admits for a ``scaled_dot_product_attention`` call.

The rules are those of ATen: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` (public,
and in the include folder of every wheel). For CUDA they were checked against the compiled rules of torch 2.11.0, 2.13.0
and 2.15.0. Those for ROCm follow the source alone.

A condition on a symbolic size counts as met only if it holds for certain (``guard_or_false``), as in ATen's own rules
since torch 2.15; earlier ones raise for sizes that depend on data.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn import functional

from fuzzcompile.compiler.target.target_patches import register_kernel
from fuzzcompile.model.targets import Target


@dataclass(frozen=True)
class AttentionRelease:
    """The rules that a release of torch changes.

    Attributes:
        version: the first release that does so.
        unbatched: three-dimensional inputs are given a batch dimension; otherwise they take the math kernel.
        single_head: one head of keys and values serves all heads of the query without ``enable_gqa``.
        efficient_groups: the memory efficient kernel accepts ``enable_gqa``.
        efficient_offsets: the memory efficient kernel wants storage offsets that are aligned.
        sixteenths: cuDNN drops with multiples of 1/16 only.
        wide_heads: cuDNN differentiates some head dimensions above 128 only.
        most_blocks: kernels that refuse more than 65535 batches or heads.
    """

    version: tuple[int, int]
    unbatched: bool = False
    single_head: bool = False
    efficient_groups: bool = False
    efficient_offsets: bool = True
    sixteenths: bool = True
    wide_heads: bool = False
    most_blocks: frozenset[str] = frozenset({"cudnn"})


_RELEASES = (
    AttentionRelease((2, 11), efficient_offsets=False, sixteenths=False, most_blocks=frozenset()),
    AttentionRelease((2, 13)),
    AttentionRelease(
        (2, 15),
        unbatched=True,
        single_head=True,
        efficient_groups=True,
        wide_heads=True,
        most_blocks=frozenset({"cudnn", "flash"}),
    ),
)


def find_release(version: str) -> AttentionRelease:
    """The rules of a version of torch: those of the last release known that is not later."""
    major, minor = (int(part) for part in version.split(".")[:2])
    known = [release for release in _RELEASES if release.version <= (major, minor)]
    return known[-1] if known else _RELEASES[0]


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one call that the rules ask for; tensors are (batch, heads, length, width)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool

    @property
    def needs_grad(self) -> bool:
        """True if a gradient of query, key or value may be needed."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.inputs)

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def add_batch(self) -> AttentionCall:
        """The same call with a batch dimension in front."""
        query, key, value = (tensor.unsqueeze(0) for tensor in self.inputs)
        mask = self.mask
        while mask is not None and mask.dim() < 4:
            mask = mask.unsqueeze(0)
        return replace(self, query=query, key=key, value=value, mask=mask)


AttentionChecks = Iterator[tuple[bool, str]]  # whether a rule is met, and what it means if it is not; asked in order
_HALF = (torch.float16, torch.bfloat16)
_MOST_BLOCKS = 65535


def check_flash(call: AttentionCall, target: Target, release: AttentionRelease) -> AttentionChecks:
    """The rules of the flash kernel (``can_use_flash_attention``)."""
    width = call.query.size(-1)
    yield torch._C._get_flash_sdp_enabled(), "it is switched off"
    yield _have_dims(call, 4), "query, key and value are not four-dimensional"
    yield call.mask is None, "it takes no mask"
    yield _is_certain(*(width == tensor.size(-1) for tensor in call.inputs)), "head dimensions differ"
    most = 512 if target.kind == "rocm" else 256
    yield _is_certain(width <= most), f"the head dimension is above {most}"
    yield _has_tensor_cores(target), f"{target.arch} is older than sm_80"
    yield _can_train(call, target), f"{target.arch} cannot train this head dimension"
    lengths = call.query.size(-2) == call.key.size(-2)
    yield not call.is_causal or _is_certain(lengths), "the mask is causal and the lengths differ"
    yield _has_dtype(call, _list_half_dtypes(target, flash=True)), "the dtype is not half precision"
    yield _has_few_blocks(call, release, "flash"), f"there are more than {_MOST_BLOCKS} batches or heads"
    yield _have_fitting_heads(call, release, groups=True, same=True), "batches or heads differ"
    yield _has_length(call), "a length is 0"
    yield _has_contiguous_rows(call, ignore_single=True), "the last dimension is not contiguous"


def check_efficient(call: AttentionCall, target: Target, release: AttentionRelease) -> AttentionChecks:
    """The rules of the memory efficient kernel (``can_use_mem_efficient_attention``)."""
    yield torch._C._get_mem_efficient_sdp_enabled(), "it is switched off"
    yield _have_dims(call, 4), "query, key and value are not four-dimensional"
    aligned = _find_alignment(call, target)
    yield _fits_efficient_width(call, target, aligned), f"head dimensions differ or are no multiples of {aligned}"
    yield _has_aligned_offsets(call, target, release, aligned), "a storage offset is not aligned"
    yield _has_length(call), "a length is 0"
    yield _has_contiguous_rows(call, ignore_single=False), "the last dimension is not contiguous"
    groups = release.efficient_groups and target.kind == "cuda"
    yield _have_fitting_heads(call, release, groups=groups, same=True), "batches or heads differ"
    mask = call.mask
    same = mask is None or mask.dtype in (torch.bool, call.query.dtype)
    yield target.kind == "cuda" or same, "the mask has another dtype"
    dtypes = (torch.float16, torch.float32, torch.bfloat16) if target.capability >= (8, 0) else _LOW_DTYPES
    yield _has_dtype(call, dtypes), "it has no kernel of this dtype"


_LOW_DTYPES = (torch.float16, torch.float32)


def check_cudnn(call: AttentionCall, target: Target, release: AttentionRelease) -> AttentionChecks:
    """The rules of cuDNN's kernel (``can_use_cudnn_attention``), with the cuDNN that the release's wheel asks for."""
    yield torch._C._get_cudnn_sdp_enabled(), "it is switched off"
    yield target.kind == "cuda", "ROCm has no cuDNN"
    yield _have_dims(call, 4), "query, key and value are not four-dimensional"
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    yield not torch.are_deterministic_algorithms_enabled() or lenient, "it is not deterministic"
    yield _has_dtype(call, _list_half_dtypes(target)), "the dtype is not half precision"
    yield _is_fitting_mask(call), "the mask has another shape or requires a gradient"
    yield _has_tensor_cores(target), f"{target.arch} is older than sm_80"
    sixteenth = float(call.dropout * 16).is_integer()
    yield sixteenth or not release.sixteenths, "the dropout probability is no multiple of 1/16"
    yield _has_length(call), "a length is 0"
    yield _has_contiguous_rows(call, ignore_single=True), "the last dimension is not contiguous"
    yield _have_fitting_heads(call, release, groups=True, same=False), "batches or heads differ"
    yield _has_few_blocks(call, release, "cudnn"), f"there are more than {_MOST_BLOCKS} batches or heads"
    widths = call.query.size(-1), call.value.size(-1)
    most = 256 if target.capability == (9, 0) else 128
    yield _is_certain(*(width <= most for width in widths)), f"a head dimension is above {most}"
    yield _is_certain(*(width % 8 == 0 for width in widths)), "a head dimension is no multiple of 8"
    yield _is_certain(call.key.size(-2) != 1), "there is one key"
    yield not call.dropout or _is_certain(call.query.size(-2) != 1), "there is one query, and dropout"
    wide = release.wide_heads and call.needs_grad and target.capability == (9, 0)
    yield not wide or _is_differentiable(*widths), "it cannot train these head dimensions"


def prefers_cudnn(target: Target) -> bool:
    """Return whether torch tries cuDNN first on this device (``check_prefer_cudnn_attention``)."""
    return target.kind == "cuda" and target.capability[0] in (9, 10)


# -- single rules -----------------------------------------------------------------------------------


def _is_certain(*conditions: bool | torch.SymBool) -> bool:
    return all(guard_or_false(condition) for condition in conditions)


def _have_dims(call: AttentionCall, dims: int) -> bool:
    return all(tensor.dim() == dims and not tensor.is_nested for tensor in call.inputs)


def _has_dtype(call: AttentionCall, dtypes: tuple[torch.dtype, ...]) -> bool:
    dtype = call.query.dtype
    return dtype in dtypes and call.key.dtype == dtype and call.value.dtype == dtype


def _list_half_dtypes(target: Target, *, flash: bool = False) -> tuple[torch.dtype, ...]:
    if target.capability < (8, 0):
        return (torch.float16,)
    third = flash and target.capability >= (9, 0) and torch._C._get_fa3_sdp_enabled()
    return (*_HALF, torch.float8_e4m3fn) if third else _HALF


def _has_tensor_cores(target: Target) -> bool:
    return target.kind == "rocm" or (8, 0) <= target.capability <= (12, 1)


def _can_train(call: AttentionCall, target: Target) -> bool:
    """Return whether the flash kernel's backward fits into the shared memory of a consumer's device."""
    small = (8, 6) <= target.capability <= (8, 9) or (12, 0) <= target.capability <= (12, 1)
    if target.kind == "rocm" or not small or not call.needs_grad:
        return True
    width = call.query.size(-1)
    return _is_certain(width <= 192) or (call.dropout == 0.0 and _is_certain(width > 224))


def _has_few_blocks(call: AttentionCall, release: AttentionRelease, kernel: str) -> bool:
    if kernel not in release.most_blocks:
        return True
    return _is_certain(call.query.size(0) <= _MOST_BLOCKS, call.query.size(1) <= _MOST_BLOCKS)


def _have_fitting_heads(call: AttentionCall, release: AttentionRelease, *, groups: bool, same: bool) -> bool:
    """Return whether batches agree, and heads do or (``groups``) divide; ``same``: key and value have as many."""
    batch, heads = call.query.size(0), call.query.size(-3)
    own = call.key.size(-3), call.value.size(-3)
    if not _is_certain(*(batch == tensor.size(0) for tensor in call.inputs)):
        return False
    if call.enable_gqa and groups:
        divides = all(_is_certain(count > 0) and _is_certain(heads % count == 0) for count in own)
        return divides and (not same or _is_certain(own[0] == own[1]))
    if _is_certain(*(heads == count for count in own)):
        return True
    return groups and release.single_head and _is_certain(heads > 0, *(count == 1 for count in own))


def _has_length(call: AttentionCall) -> bool:
    return _is_certain(call.query.size(-2) != 0, call.key.size(-2) != 0)


def _has_contiguous_rows(call: AttentionCall, *, ignore_single: bool) -> bool:
    rows = _is_certain(*(tensor.stride(-1) == 1 for tensor in call.inputs))
    rows = rows or (ignore_single and _is_certain(call.query.size(-1) == 1))
    return rows and (call.mask is None or _is_certain(call.mask.stride(-1) == 1))


def _find_alignment(call: AttentionCall, target: Target) -> int:
    """Elements to which the memory efficient kernel's matrix products align (``minimum_gemm_alignment``)."""
    half = call.query.dtype in _HALF
    if target.capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and target.capability >= (7, 0) else 1


def _fits_efficient_width(call: AttentionCall, target: Target, aligned: int) -> bool:
    width, own = call.query.size(-1), call.value.size(-1)
    fits = _is_certain(width == call.key.size(-1), width % aligned == 0, width > 0, own % aligned == 0, own > 0)
    return fits and (target.kind == "cuda" or _is_certain(width <= 512, own <= 512))


def _has_aligned_offsets(call: AttentionCall, target: Target, release: AttentionRelease, aligned: int) -> bool:
    """Symbolic offsets count as aligned, as in ATen; what has no elements is aligned."""
    if not release.efficient_offsets or target.kind == "rocm" or target.capability < (8, 0):
        return True
    return all(
        _is_certain(tensor.numel() == 0) or not _is_certain(tensor.storage_offset() % aligned != 0)
        for tensor in call.inputs
    )


def _is_fitting_mask(call: AttentionCall) -> bool:
    if call.mask is None:
        return True
    mask, query = call.mask, call.query
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    wanted = (query.size(0), query.size(1), query.size(2), call.key.size(2))[-mask.dim() :]
    return all(
        _is_certain(size == target) or (isinstance(size, int) and size == 1)
        for size, target in zip(mask.shape, wanted, strict=True)
    )


def _is_differentiable(width: int, own: int) -> bool:
    """Head dimensions that cuDNN differentiates where it computes up to 256."""
    pairs = ((192, 128), (256, 256))
    return _is_certain(width <= 128, own <= 128) or any(_is_certain(width == pair[0], own == pair[1]) for pair in pairs)


# ``scaled_dot_product_attention`` on a device that is not there: the kernel that torch chooses, and its arguments.

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Backends by their number in torch's priority order (``at::SDPBackend``), and torch's default order.
_KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
_DEFAULT_ORDER = [1, 2, 0, 3, 4]
_RULES = {"flash": check_flash, "efficient": check_efficient, "cudnn": check_cudnn}


@dataclass(frozen=True)
class AttentionChoice:
    """The kernel that torch chooses on a device.

    Attributes:
        kernel: ``flash``, ``efficient``, ``cudnn`` or ``math``.
        refused: why each kernel with precedence over it was not chosen. It names ``math`` itself where the program
            switched every admissible kernel off; torch raises an error on the device then.
    """

    kernel: str
    refused: Mapping[str, str]


def choose_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    *,
    target: Target,
) -> AttentionChoice:
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
    call = AttentionCall(query, key, value, mask, dropout_p, is_causal, enable_gqa)
    return _make_choice(_add_batch(call), target, _current_release())


def install_attention(target: Target, chosen: Callable[[AttentionChoice], None] | None = None) -> None:
    """Make ``scaled_dot_product_attention`` of CUDA tensors do what it does on ``target``, for the life of the process.

    Args:
        target: the device.
        chosen: called with each choice.
    """
    impl = functools.partial(_compute_attention, target, chosen or (lambda _: None))
    operator = _aten.scaled_dot_product_attention.default
    register_kernel("scaled_dot_product_attention", impl, "AutogradCUDA")
    # Below autograd (inference mode), modes decompose the operator by this kernel; it serves every device.
    operator.py_kernels[_COMPOSITE] = impl
    operator._dispatch_cache.clear()


@functools.cache
def _current_release() -> AttentionRelease:
    return find_release(str(torch.__version__))


# -- the choice -------------------------------------------------------------------------------------


def _make_choice(call: AttentionCall, target: Target, release: AttentionRelease) -> AttentionChoice:
    refused: dict[str, str] = {}
    for kernel in _list_precedence(target):
        if kernel == "math":
            if torch._C._get_math_sdp_enabled():
                return AttentionChoice(kernel, refused)
            refused[kernel] = "it is switched off"
            continue
        reason = next((reason for met, reason in _RULES[kernel](call, target, release) if not met), None)
        if reason is None:
            return AttentionChoice(kernel, refused)
        refused[kernel] = reason
    return AttentionChoice("math", refused)


def _list_precedence(target: Target) -> list[str]:
    """Return the kernels in order of precedence; the first time that torch chooses, it replaces its default order."""
    order = torch._C._get_sdp_priority_order()
    first = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1" and prefers_cudnn(target)
    if order == _DEFAULT_ORDER and first:
        order = [3, 1, 2, 0]
    return [_KERNELS[number] for number in order if number in _KERNELS]


def _add_batch(call: AttentionCall) -> AttentionCall:
    unbatched = all(tensor.dim() == 3 and not tensor.is_nested for tensor in call.inputs)
    return call.add_batch() if unbatched and _current_release().unbatched else call


# -- what ATen calls --------------------------------------------------------------------------------


def _compute_attention(
    target: Target,
    chosen: Callable[[AttentionChoice], None],
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
    call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if query.device.type != "cuda":
        return _compute_composite(call, scale)
    batch = _add_batch(call)
    choice = _make_choice(batch, target, _current_release())
    chosen(choice)
    output = _COMPUTE[choice.kernel](batch, scale)
    return output if batch is call else output.squeeze(0)


def _compute_composite(call: AttentionCall, scale: float | None) -> torch.Tensor:
    """ATen's own implementation, which makes a choice for the devices that this build knows."""
    operator = _aten.scaled_dot_product_attention.default
    arguments = (*call.inputs, call.mask, call.dropout, call.is_causal)
    output: torch.Tensor = operator._op_dk(_COMPOSITE, *arguments, scale=scale, enable_gqa=call.enable_gqa)
    return output


def _compute_math(call: AttentionCall, scale: float | None) -> torch.Tensor:
    with _allow_only_math():
        return _compute_composite(call, scale)


def _compute_flash(call: AttentionCall, scale: float | None) -> torch.Tensor:
    """Call the flash kernel, which wants a head dimension that 8 divides; the scale stays that of the one given."""
    width = call.query.size(-1)
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    query, key, value = (_pad_width(tensor, 8) for tensor in call.inputs)
    kernel = _aten._scaled_dot_product_flash_attention.default
    output: torch.Tensor = kernel(query, key, value, call.dropout, call.is_causal, False, scale=scale)[0]
    return output if query is call.query else _pad_rows(width, output)


def _compute_efficient(call: AttentionCall, scale: float | None) -> torch.Tensor:
    mask = _make_additive(call)
    if mask is not None:
        shape = (*call.query.shape[:3], call.key.size(2))
        mask = _align_mask(mask).expand(shape)
    kernel = _aten._scaled_dot_product_efficient_attention.default
    output: torch.Tensor = kernel(*call.inputs, mask, call.needs_grad, call.dropout, call.is_causal, scale=scale)[0]
    return output


def _compute_cudnn(call: AttentionCall, scale: float | None) -> torch.Tensor:
    mask = _make_additive(call)
    kernel = _aten._scaled_dot_product_cudnn_attention.default
    output: torch.Tensor = kernel(
        *call.inputs, mask, call.needs_grad, call.dropout, call.is_causal, False, scale=scale
    )[0]
    return output


_COMPUTE = {"math": _compute_math, "flash": _compute_flash, "efficient": _compute_efficient, "cudnn": _compute_cudnn}


def _pad_rows(length: int, tensor: torch.Tensor) -> torch.Tensor:
    cut: torch.Tensor = _aten.slice.Tensor(tensor, -1, 0, length)
    return cut


def _pad_width(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    missing = -tensor.size(-1) % multiple
    return functional.pad(tensor, (0, missing)) if missing else tensor


def _make_additive(call: AttentionCall) -> torch.Tensor | None:
    """The mask; a boolean one as 0 and minus infinity in the dtype of the query.

    torch 2.11 hands cuDNN -65504 instead, so that a row without any key is an average of all values. Eager mode runs on
    the CPU here and gives zeros for such a row, as later releases do, so that only the compiled side would show that.
    """
    mask = call.mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=call.query.dtype, device=mask.device), float("-inf"))


def _align_mask(mask: torch.Tensor) -> torch.Tensor:
    """The mask with rows that begin at multiples of 8 elements; a mask that does not is padded in memory."""
    if all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    length = mask.size(-1)
    return _pad_rows(length, functional.pad(mask, (0, 8 - length % 8)))


@contextlib.contextmanager
def _allow_only_math() -> Iterator[None]:
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
