"""Rules for the attention kernels that a CUDA or ROCm device admits for a ``scaled_dot_product_attention`` call.

The rules are those of ATen: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` (public,
and in the include folder of every wheel). For CUDA they were checked against the compiled rules of torch 2.11.0, 2.13.0
and 2.15.0. Those for ROCm follow the source alone.

A condition on a symbolic size counts as met only if it holds for certain (``guard_or_false``), as in ATen's own rules
since torch 2.15; earlier ones raise for sizes that depend on data.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzzcompile.compiler.operators.decompositions import put_dispatcher_kernel
from fuzzcompile.compiler.target.cuda_dispatch import register_kernel
from fuzzcompile.model.targets import Target
from fuzzcompile.run.tensors import SHORT_FLOATS


@dataclass(frozen=True)
class AttentionRelease:
    """The rules that a release of torch changes, from ``version`` on."""

    version: tuple[int, int]
    unbatched: bool = False  # three-dimensional inputs are given a batch dimension; otherwise they take the math kernel
    single_head: bool = False  # one head of keys and values serves all heads of the query without ``enable_gqa``
    efficient_groups: bool = False  # the memory efficient kernel accepts ``enable_gqa``
    efficient_offsets: bool = True  # the memory efficient kernel wants storage offsets that are aligned
    sixteenths: bool = True  # cuDNN drops with multiples of 1/16 only
    wide_heads: bool = False  # cuDNN differentiates some head dimensions above 128 only
    most_blocks: frozenset[str] = frozenset({"cudnn"})  # kernels that refuse more than 65535 batches or heads


_EARLIEST = AttentionRelease((2, 11), efficient_offsets=False, sixteenths=False, most_blocks=frozenset())
_RELEASES = (
    _EARLIEST,
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


@functools.cache
def find_release(version: str) -> AttentionRelease:
    """The rules of a version of torch: those of the last release known that is not later."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return next((release for release in reversed(_RELEASES) if release.version <= (major, minor)), _EARLIEST)


_MOST_BLOCKS = 65535


def _is_certain(*conditions: bool | torch.SymBool) -> bool:
    return all(guard_or_false(condition) for condition in conditions)


@dataclass
class _AttentionCall:
    """The arguments of one call that the rules ask for; tensors are (batch, heads, length, width)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool
    target: Target

    def __post_init__(self) -> None:
        self.inputs = self.query, self.key, self.value
        self.release = find_release(str(torch.__version__))
        self.on_rocm = self.target.kind == "rocm"
        self.needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.inputs)

    def add_batch(self) -> _AttentionCall:
        """The same call with a batch dimension in front, if this torch adds one."""
        unbatched = all(tensor.dim() == 3 and not tensor.is_nested for tensor in self.inputs)
        if not unbatched or not self.release.unbatched:
            return self
        query, key, value = (tensor.unsqueeze(0) for tensor in self.inputs)
        mask = self.mask
        while mask is not None and mask.dim() < 4:
            mask = mask.unsqueeze(0)
        return replace(self, query=query, key=key, value=value, mask=mask)

    def has_dims(self) -> bool:
        return all(tensor.dim() == 4 and not tensor.is_nested for tensor in self.inputs)

    def has_dtype(self, *dtypes: torch.dtype) -> bool:
        dtype = self.query.dtype
        return dtype in dtypes and self.key.dtype == dtype and self.value.dtype == dtype

    def is_half(self, *, flash: bool = False) -> bool:
        if self.target.capability < (8, 0):
            return self.has_dtype(torch.float16)
        third = flash and self.target.capability >= (9, 0) and torch._C._get_fa3_sdp_enabled()
        return self.has_dtype(*SHORT_FLOATS, *((torch.float8_e4m3fn,) if third else ()))

    def has_tensor_cores(self) -> bool:
        return self.on_rocm or (8, 0) <= self.target.capability <= (12, 1)

    def has_few_blocks(self, kernel: str) -> bool:
        if kernel not in self.release.most_blocks:
            return True
        return _is_certain(self.query.size(0) <= _MOST_BLOCKS, self.query.size(1) <= _MOST_BLOCKS)

    def has_fitting_heads(self, *, groups: bool, same: bool) -> bool:
        """Return whether batches agree, and heads do or (``groups``) divide; ``same``: key and value have as many."""
        batch, heads = self.query.size(0), self.query.size(-3)
        own = self.key.size(-3), self.value.size(-3)
        if not _is_certain(*(batch == tensor.size(0) for tensor in self.inputs)):
            return False
        if self.enable_gqa and groups:
            divides = all(_is_certain(count > 0) and _is_certain(heads % count == 0) for count in own)
            return divides and (not same or _is_certain(own[0] == own[1]))
        if _is_certain(*(heads == count for count in own)):
            return True
        return groups and self.release.single_head and _is_certain(heads > 0, *(count == 1 for count in own))

    def has_length(self) -> bool:
        return _is_certain(self.query.size(-2) != 0, self.key.size(-2) != 0)

    def has_contiguous_rows(self, *, ignore_single: bool) -> bool:
        rows = _is_certain(*(tensor.stride(-1) == 1 for tensor in self.inputs))
        rows = rows or (ignore_single and _is_certain(self.query.size(-1) == 1))
        return rows and (self.mask is None or _is_certain(self.mask.stride(-1) == 1))


# Whether a rule is met, and what it means if it is not; asked in order.
_AttentionChecks = Iterator[tuple[bool, str]]


def _check_flash(call: _AttentionCall) -> _AttentionChecks:
    """The rules of the flash kernel (``can_use_flash_attention``)."""
    width, arch = call.query.size(-1), call.target.arch
    yield torch._C._get_flash_sdp_enabled(), "it is switched off"
    yield call.has_dims(), "query, key and value are not four-dimensional"
    yield call.mask is None, "it takes no mask"
    yield _is_certain(*(width == tensor.size(-1) for tensor in call.inputs)), "head dimensions differ"
    most = 512 if call.on_rocm else 256
    yield _is_certain(width <= most), f"the head dimension is above {most}"
    yield call.has_tensor_cores(), f"{arch} is older than sm_80"
    yield _fits_flash_backward(call), f"{arch} cannot train this head dimension"
    lengths = call.query.size(-2) == call.key.size(-2)
    yield not call.is_causal or _is_certain(lengths), "the mask is causal and the lengths differ"
    yield call.is_half(flash=True), "the dtype is not half precision"
    yield call.has_few_blocks("flash"), f"there are more than {_MOST_BLOCKS} batches or heads"
    yield call.has_fitting_heads(groups=True, same=True), "batches or heads differ"
    yield call.has_length(), "a length is 0"
    yield call.has_contiguous_rows(ignore_single=True), "the last dimension is not contiguous"


def _fits_flash_backward(call: _AttentionCall) -> bool:
    """Return whether the flash kernel's backward fits into the shared memory of a consumer's device."""
    capability, width = call.target.capability, call.query.size(-1)
    small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    if call.on_rocm or not small or not call.needs_grad:
        return True
    return _is_certain(width <= 192) or (call.dropout == 0.0 and _is_certain(width > 224))


def _check_efficient(call: _AttentionCall) -> _AttentionChecks:
    """The rules of the memory efficient kernel (``can_use_mem_efficient_attention``)."""
    yield torch._C._get_mem_efficient_sdp_enabled(), "it is switched off"
    yield call.has_dims(), "query, key and value are not four-dimensional"
    recent, half = call.target.capability >= (8, 0), call.query.dtype in SHORT_FLOATS
    # Elements to which the kernel's matrix products align (``minimum_gemm_alignment``).
    aligned = 8 if half and call.target.capability >= (7, 0) else 4 if recent else 1
    width, own = call.query.size(-1), call.value.size(-1)
    fits = _is_certain(width == call.key.size(-1), width % aligned == 0, width > 0, own % aligned == 0, own > 0)
    fits = fits and (not call.on_rocm or _is_certain(width <= 512, own <= 512))
    yield fits, f"head dimensions differ or are no multiples of {aligned}"
    offsets = call.release.efficient_offsets and recent and not call.on_rocm
    # Symbolic offsets count as aligned, as in ATen; what has no elements is aligned.
    full = [each for each in call.inputs if not _is_certain(each.numel() == 0)]
    astray = offsets and any(_is_certain(each.storage_offset() % aligned != 0) for each in full)
    yield not astray, "a storage offset is not aligned"
    yield call.has_length(), "a length is 0"
    yield call.has_contiguous_rows(ignore_single=False), "the last dimension is not contiguous"
    groups = call.release.efficient_groups and not call.on_rocm
    yield call.has_fitting_heads(groups=groups, same=True), "batches or heads differ"
    same = call.mask is None or call.mask.dtype in (torch.bool, call.query.dtype)
    yield not call.on_rocm or same, "the mask has another dtype"
    brain = (torch.bfloat16,) if recent else ()
    yield call.has_dtype(torch.float16, torch.float32, *brain), "it has no kernel of this dtype"


def _check_cudnn(call: _AttentionCall) -> _AttentionChecks:
    """The rules of cuDNN's kernel (``can_use_cudnn_attention``), with the cuDNN that the release's wheel asks for."""
    yield torch._C._get_cudnn_sdp_enabled(), "it is switched off"
    yield not call.on_rocm, "ROCm has no cuDNN"
    yield call.has_dims(), "query, key and value are not four-dimensional"
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    yield not torch.are_deterministic_algorithms_enabled() or lenient, "it is not deterministic"
    yield call.is_half(), "the dtype is not half precision"
    yield _is_fitting_mask(call), "the mask has another shape or requires a gradient"
    yield call.has_tensor_cores(), f"{call.target.arch} is older than sm_80"
    sixteenth = float(call.dropout * 16).is_integer()
    yield sixteenth or not call.release.sixteenths, "the dropout probability is no multiple of 1/16"
    yield call.has_length(), "a length is 0"
    yield call.has_contiguous_rows(ignore_single=True), "the last dimension is not contiguous"
    yield call.has_fitting_heads(groups=True, same=False), "batches or heads differ"
    yield call.has_few_blocks("cudnn"), f"there are more than {_MOST_BLOCKS} batches or heads"
    widths, hopper = (call.query.size(-1), call.value.size(-1)), call.target.capability == (9, 0)
    most = 256 if hopper else 128
    yield _is_certain(*(width <= most for width in widths)), f"a head dimension is above {most}"
    yield _is_certain(*(width % 8 == 0 for width in widths)), "a head dimension is no multiple of 8"
    yield _is_certain(call.key.size(-2) != 1), "there is one key"
    yield not call.dropout or _is_certain(call.query.size(-2) != 1), "there is one query, and dropout"
    wide = call.release.wide_heads and call.needs_grad and hopper
    pairs = ((192, 128), (256, 256))  # differentiated beside those up to 128
    known = any(_is_certain(widths[0] == pair[0], widths[1] == pair[1]) for pair in pairs)
    trained = _is_certain(*(width <= 128 for width in widths)) or known
    yield not wide or trained, "it cannot train these head dimensions"


def _is_fitting_mask(call: _AttentionCall) -> bool:
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


# ``scaled_dot_product_attention`` on a device that is not there: the kernel that torch chooses, and its arguments.

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Backends by their number in torch's priority order (``at::SDPBackend``), and torch's default order.
_KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
_DEFAULT_ORDER = [1, 2, 0, 3, 4]
_CHECKS = {"flash": _check_flash, "efficient": _check_efficient, "cudnn": _check_cudnn}


def install_attention(target: Target) -> None:
    """Make ``scaled_dot_product_attention`` of CUDA tensors do what it does on ``target``, until the process ends."""
    impl = functools.partial(_compute_attention, target)
    operator = _aten.scaled_dot_product_attention.default
    register_kernel("scaled_dot_product_attention", impl, "AutogradCUDA")
    # Below autograd (inference mode), modes decompose the operator by this kernel; it serves every device.
    put_dispatcher_kernel(operator, _COMPOSITE, impl)


def choose_kernel(call: _AttentionCall) -> tuple[str, dict[str, str]]:
    """The kernel that torch chooses for a call, and why each with precedence (or all: ``math``) was not chosen."""
    order = torch._C._get_sdp_priority_order()
    # The first time that torch chooses, it replaces its default order (``check_prefer_cudnn_attention``).
    prefers_cudnn = call.target.kind == "cuda" and call.target.capability[0] in (9, 10)
    if order == _DEFAULT_ORDER and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1" and prefers_cudnn:
        order = [3, 1, 2, 0]
    refused: dict[str, str] = {}
    for kernel in (_KERNELS[number] for number in order if number in _KERNELS):
        checks = iter([(torch._C._get_math_sdp_enabled(), "it is switched off")])
        checks = checks if kernel == "math" else _CHECKS[kernel](call)
        reason = next((reason for met, reason in checks if not met), None)
        if reason is None:
            return kernel, refused
        refused[kernel] = reason
    return "math", refused


def _compute_attention(
    target: Target,
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
    call = _AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, target)
    if query.device.type != "cuda":
        return _compute_composite(call, scale)
    batch = call.add_batch()
    kernel, _ = choose_kernel(batch)
    output = _COMPUTE[kernel](batch, scale)
    return output if batch is call else output.squeeze(0)


def _compute_composite(call: _AttentionCall, scale: float | None) -> torch.Tensor:
    operator = _aten.scaled_dot_product_attention.default
    arguments = (*call.inputs, call.mask, call.dropout, call.is_causal)
    output: torch.Tensor = operator._op_dk(_COMPOSITE, *arguments, scale=scale, enable_gqa=call.enable_gqa)
    return output


def _compute_math(call: _AttentionCall, scale: float | None) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return _compute_composite(call, scale)


def _compute_flash(call: _AttentionCall, scale: float | None) -> torch.Tensor:
    """Call the flash kernel, which wants a head dimension that 8 divides; the scale stays that of the one given."""
    width = call.query.size(-1)
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    missing = -width % 8
    query, key, value = (functional.pad(each, (0, missing)) if missing else each for each in call.inputs)
    kernel = _aten._scaled_dot_product_flash_attention.default
    output: torch.Tensor = kernel(query, key, value, call.dropout, call.is_causal, False, scale=scale)[0]
    return _cut_rows(output, width) if missing else output


def _compute_efficient(call: _AttentionCall, scale: float | None) -> torch.Tensor:
    mask = _make_additive(call)
    if mask is not None:
        if any(stride % 8 for stride in mask.stride()[:-1]) or mask.stride(-1) != 1:  # rows begin at multiples of 8
            length = mask.size(-1)
            mask = _cut_rows(functional.pad(mask, (0, 8 - length % 8)), length)
        mask = mask.expand((*call.query.shape[:3], call.key.size(2)))
    kernel = _aten._scaled_dot_product_efficient_attention.default
    output: torch.Tensor = kernel(*call.inputs, mask, call.needs_grad, call.dropout, call.is_causal, scale=scale)[0]
    return output


def _compute_cudnn(call: _AttentionCall, scale: float | None) -> torch.Tensor:
    kernel = _aten._scaled_dot_product_cudnn_attention.default
    arguments = (*call.inputs, _make_additive(call), call.needs_grad, call.dropout, call.is_causal, False)
    output: torch.Tensor = kernel(*arguments, scale=scale)[0]
    return output


_COMPUTE = {"math": _compute_math, "flash": _compute_flash, "efficient": _compute_efficient, "cudnn": _compute_cudnn}


def _cut_rows(tensor: torch.Tensor, length: int) -> torch.Tensor:
    cut: torch.Tensor = _aten.slice.Tensor(tensor, -1, 0, length)
    return cut


def _make_additive(call: _AttentionCall) -> torch.Tensor | None:
    """The mask; a boolean one as 0 and minus infinity in the dtype of the query.

    torch 2.11 hands cuDNN -65504 instead, so that a row without any key is an average of all values. Eager mode runs on
    the CPU here and gives zeros for such a row, as later releases do, so that only the compiled side would show that.
    """
    mask = call.mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=call.query.dtype, device=mask.device), float("-inf"))
