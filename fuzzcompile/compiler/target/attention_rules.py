"""Rules for the attention kernels that a CUDA or ROCm device admits for a ``scaled_dot_product_attention`` call.

The rules are those of ATen: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` (public,
and in the include folder of every wheel). For CUDA they were checked against the compiled rules of torch 2.11.0, 2.13.0
and 2.15.0. Those for ROCm follow the source alone.

A condition on a symbolic size counts as met only if it holds for certain (``guard_or_false``), as in ATen's own rules
since torch 2.15; earlier ones raise for sizes that depend on data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from fuzzcompile.targets import Target


@dataclass(frozen=True)
class Release:
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
    Release((2, 11), efficient_offsets=False, sixteenths=False, most_blocks=frozenset()),
    Release((2, 13)),
    Release(
        (2, 15),
        unbatched=True,
        single_head=True,
        efficient_groups=True,
        wide_heads=True,
        most_blocks=frozenset({"cudnn", "flash"}),
    ),
)


def release_of(version: str) -> Release:
    """The rules of a version of torch: those of the last release known that is not later."""
    major, minor = (int(part) for part in version.split(".")[:2])
    known = [release for release in _RELEASES if release.version <= (major, minor)]
    return known[-1] if known else _RELEASES[0]


@dataclass(frozen=True)
class Call:
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

    def batched(self) -> Call:
        """The same call with a batch dimension in front."""
        query, key, value = (tensor.unsqueeze(0) for tensor in self.inputs)
        mask = self.mask
        while mask is not None and mask.dim() < 4:
            mask = mask.unsqueeze(0)
        return replace(self, query=query, key=key, value=value, mask=mask)


Checks = Iterator[tuple[bool, str]]  # whether a rule is met, and what it means if it is not; asked in order
_HALF = (torch.float16, torch.bfloat16)
_MOST_BLOCKS = 65535


def flash(call: Call, target: Target, release: Release) -> Checks:
    """The rules of the flash kernel (``can_use_flash_attention``)."""
    width = call.query.size(-1)
    yield torch._C._get_flash_sdp_enabled(), "it is switched off"
    yield _all_dims(call, 4), "query, key and value are not four-dimensional"
    yield call.mask is None, "it takes no mask"
    yield _sure(*(width == tensor.size(-1) for tensor in call.inputs)), "head dimensions differ"
    most = 512 if target.kind == "rocm" else 256
    yield _sure(width <= most), f"the head dimension is above {most}"
    yield _has_tensor_cores(target), f"{target.arch} is older than sm_80"
    yield _trains(call, target), f"{target.arch} cannot train this head dimension"
    lengths = call.query.size(-2) == call.key.size(-2)
    yield not call.is_causal or _sure(lengths), "the mask is causal and the lengths differ"
    yield _dtype_in(call, _half_dtypes(target, flash=True)), "the dtype is not half precision"
    yield _few_blocks(call, release, "flash"), f"there are more than {_MOST_BLOCKS} batches or heads"
    yield _heads_fit(call, release, groups=True, same=True), "batches or heads differ"
    yield _has_length(call), "a length is 0"
    yield _contiguous_rows(call, ignore_single=True), "the last dimension is not contiguous"


def efficient(call: Call, target: Target, release: Release) -> Checks:
    """The rules of the memory efficient kernel (``can_use_mem_efficient_attention``)."""
    yield torch._C._get_mem_efficient_sdp_enabled(), "it is switched off"
    yield _all_dims(call, 4), "query, key and value are not four-dimensional"
    aligned = _alignment(call, target)
    yield _efficient_width(call, target, aligned), f"head dimensions differ or are no multiples of {aligned}"
    yield _aligned_offsets(call, target, release, aligned), "a storage offset is not aligned"
    yield _has_length(call), "a length is 0"
    yield _contiguous_rows(call, ignore_single=False), "the last dimension is not contiguous"
    groups = release.efficient_groups and target.kind == "cuda"
    yield _heads_fit(call, release, groups=groups, same=True), "batches or heads differ"
    mask = call.mask
    same = mask is None or mask.dtype in (torch.bool, call.query.dtype)
    yield target.kind == "cuda" or same, "the mask has another dtype"
    dtypes = (torch.float16, torch.float32, torch.bfloat16) if target.capability >= (8, 0) else _LOW_DTYPES
    yield _dtype_in(call, dtypes), "it has no kernel of this dtype"


_LOW_DTYPES = (torch.float16, torch.float32)


def cudnn(call: Call, target: Target, release: Release) -> Checks:
    """The rules of cuDNN's kernel (``can_use_cudnn_attention``), with the cuDNN that the release's wheel asks for."""
    yield torch._C._get_cudnn_sdp_enabled(), "it is switched off"
    yield target.kind == "cuda", "ROCm has no cuDNN"
    yield _all_dims(call, 4), "query, key and value are not four-dimensional"
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    yield not torch.are_deterministic_algorithms_enabled() or lenient, "it is not deterministic"
    yield _dtype_in(call, _half_dtypes(target)), "the dtype is not half precision"
    yield _mask_fits(call), "the mask has another shape or requires a gradient"
    yield _has_tensor_cores(target), f"{target.arch} is older than sm_80"
    sixteenth = float(call.dropout * 16).is_integer()
    yield sixteenth or not release.sixteenths, "the dropout probability is no multiple of 1/16"
    yield _has_length(call), "a length is 0"
    yield _contiguous_rows(call, ignore_single=True), "the last dimension is not contiguous"
    yield _heads_fit(call, release, groups=True, same=False), "batches or heads differ"
    yield _few_blocks(call, release, "cudnn"), f"there are more than {_MOST_BLOCKS} batches or heads"
    widths = call.query.size(-1), call.value.size(-1)
    most = 256 if target.capability == (9, 0) else 128
    yield _sure(*(width <= most for width in widths)), f"a head dimension is above {most}"
    yield _sure(*(width % 8 == 0 for width in widths)), "a head dimension is no multiple of 8"
    yield _sure(call.key.size(-2) != 1), "there is one key"
    yield not call.dropout or _sure(call.query.size(-2) != 1), "there is one query, and dropout"
    wide = release.wide_heads and call.needs_grad and target.capability == (9, 0)
    yield not wide or _differentiable(*widths), "it cannot train these head dimensions"


def prefers_cudnn(target: Target) -> bool:
    """Return whether torch tries cuDNN first on this device (``check_prefer_cudnn_attention``)."""
    return target.kind == "cuda" and target.capability[0] in (9, 10)


# -- single rules -----------------------------------------------------------------------------------


def _sure(*conditions: bool | torch.SymBool) -> bool:
    return all(guard_or_false(condition) for condition in conditions)


def _all_dims(call: Call, dims: int) -> bool:
    return all(tensor.dim() == dims and not tensor.is_nested for tensor in call.inputs)


def _dtype_in(call: Call, dtypes: tuple[torch.dtype, ...]) -> bool:
    dtype = call.query.dtype
    return dtype in dtypes and call.key.dtype == dtype and call.value.dtype == dtype


def _half_dtypes(target: Target, *, flash: bool = False) -> tuple[torch.dtype, ...]:
    if target.capability < (8, 0):
        return (torch.float16,)
    third = flash and target.capability >= (9, 0) and torch._C._get_fa3_sdp_enabled()
    return (*_HALF, torch.float8_e4m3fn) if third else _HALF


def _has_tensor_cores(target: Target) -> bool:
    return target.kind == "rocm" or (8, 0) <= target.capability <= (12, 1)


def _trains(call: Call, target: Target) -> bool:
    """Return whether the flash kernel's backward fits into the shared memory of a consumer's device."""
    small = (8, 6) <= target.capability <= (8, 9) or (12, 0) <= target.capability <= (12, 1)
    if target.kind == "rocm" or not small or not call.needs_grad:
        return True
    width = call.query.size(-1)
    return _sure(width <= 192) or (call.dropout == 0.0 and _sure(width > 224))


def _few_blocks(call: Call, release: Release, kernel: str) -> bool:
    if kernel not in release.most_blocks:
        return True
    return _sure(call.query.size(0) <= _MOST_BLOCKS, call.query.size(1) <= _MOST_BLOCKS)


def _heads_fit(call: Call, release: Release, *, groups: bool, same: bool) -> bool:
    """Return whether batches agree, and heads do or (``groups``) divide; ``same``: key and value have as many."""
    batch, heads = call.query.size(0), call.query.size(-3)
    own = call.key.size(-3), call.value.size(-3)
    if not _sure(*(batch == tensor.size(0) for tensor in call.inputs)):
        return False
    if call.enable_gqa and groups:
        divides = all(_sure(count > 0) and _sure(heads % count == 0) for count in own)
        return divides and (not same or _sure(own[0] == own[1]))
    if _sure(*(heads == count for count in own)):
        return True
    return groups and release.single_head and _sure(heads > 0, *(count == 1 for count in own))


def _has_length(call: Call) -> bool:
    return _sure(call.query.size(-2) != 0, call.key.size(-2) != 0)


def _contiguous_rows(call: Call, *, ignore_single: bool) -> bool:
    rows = _sure(*(tensor.stride(-1) == 1 for tensor in call.inputs))
    rows = rows or (ignore_single and _sure(call.query.size(-1) == 1))
    return rows and (call.mask is None or _sure(call.mask.stride(-1) == 1))


def _alignment(call: Call, target: Target) -> int:
    """Elements to which the memory efficient kernel's matrix products align (``minimum_gemm_alignment``)."""
    half = call.query.dtype in _HALF
    if target.capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and target.capability >= (7, 0) else 1


def _efficient_width(call: Call, target: Target, aligned: int) -> bool:
    width, own = call.query.size(-1), call.value.size(-1)
    fits = _sure(width == call.key.size(-1), width % aligned == 0, width > 0, own % aligned == 0, own > 0)
    return fits and (target.kind == "cuda" or _sure(width <= 512, own <= 512))


def _aligned_offsets(call: Call, target: Target, release: Release, aligned: int) -> bool:
    """Symbolic offsets count as aligned, as in ATen; what has no elements is aligned."""
    if not release.efficient_offsets or target.kind == "rocm" or target.capability < (8, 0):
        return True
    return all(
        _sure(tensor.numel() == 0) or not _sure(tensor.storage_offset() % aligned != 0) for tensor in call.inputs
    )


def _mask_fits(call: Call) -> bool:
    if call.mask is None:
        return True
    mask, query = call.mask, call.query
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    wanted = (query.size(0), query.size(1), query.size(2), call.key.size(2))[-mask.dim() :]
    return all(
        _sure(size == target) or (isinstance(size, int) and size == 1)
        for size, target in zip(mask.shape, wanted, strict=True)
    )


def _differentiable(width: int, own: int) -> bool:
    """Head dimensions that cuDNN differentiates where it computes up to 256."""
    pairs = ((192, 128), (256, 256))
    return _sure(width <= 128, own <= 128) or any(_sure(width == pair[0], own == pair[1]) for pair in pairs)
