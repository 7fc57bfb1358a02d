"""Sizes, dtypes and settings that matter where the compiler works: other ones for a GPU than for the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fuzzcompile.generation.spec import Dims
from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES, Toggle


@dataclass(frozen=True)
class Repertoire:
    """The sizes, dtypes and settings that a case is drawn from, the simplest first.

    Attributes:
        sequences: numbers of tokens.
        heads: numbers of heads.
        head_dims: features of a head.
        sources: numbers of keys in a cross attention.
        dtypes: how often each dtype is drawn.
        plain_dtypes: the same for a plain attention.
        modes: modes of ``torch.compile`` and their weights; none has the weight 240.
        toggles: settings.
        toggled: how often a case has that many settings.
        plain_toggled: the percentage of plain attentions that have one.
        most_features: the widest token; None for any.
        most_elements: the most elements of an activation or of all scores; None for any.
    """

    sequences: tuple[int, ...]
    heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    sources: tuple[int, ...]
    dtypes: Mapping[str, int]
    plain_dtypes: Mapping[str, int]
    modes: tuple[tuple[str, int], ...]
    toggles: tuple[Toggle, ...]
    toggled: tuple[tuple[int, int], ...]
    plain_toggled: int = 0
    most_features: int | None = None
    most_elements: int | None = None

    def affordable(self, dims: Dims) -> Dims:
        """The sizes with fewer heads, and then fewer samples, so that they stay within the limits."""
        while self._too_much(dims) and dims.heads > 1:
            dims = replace(dims, heads=dims.heads // 2)
        while self._too_much(dims) and dims.batch > 1:
            dims = replace(dims, batch=dims.batch // 2)
        return dims

    def _too_much(self, dims: Dims) -> bool:
        elements = dims.batch * dims.heads * dims.sequence * max(dims.head_dim, dims.sequence, dims.source)
        too_wide = self.most_features is not None and dims.width > self.most_features
        return too_wide or (self.most_elements is not None and elements > self.most_elements)


CPU = Repertoire(
    sequences=tuple(range(2, 17)),
    heads=(1, 2, 3, 4, 6, 8),
    head_dims=(2, 3, 4, 8, 16),
    sources=(3, 5, 7, 9),
    dtypes={"float32": 2, "bfloat16": 1, "float16": 1},
    # The patterns that cast look for float32 and float16; to the others bfloat16 is like float16.
    plain_dtypes={"float32": 5, "bfloat16": 1, "float16": 5},
    modes=(("max-autotune-no-cudagraphs", 2), ("max-autotune", 1), ("reduce-overhead", 2)),
    toggles=TOGGLES,
    toggled=((0, 72), (1, 20), (2, 8)),
)
# Products are padded where a size is no multiple of 8 (of 4 in float32); warps have 32 threads, blocks powers of two;
# a sum over more than 128 rows is split, a row of more than 1024 elements is reduced in a loop; flash attention takes
# heads of up to 256 features, in steps of 8. The limits hold for kernels that are interpreted.
GPU = Repertoire(
    sequences=(2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 260),
    heads=(1, 2, 3, 4, 8),
    head_dims=(2, 3, 4, 8, 5, 12, 16, 20, 24, 32, 40, 64, 72, 520),
    sources=(3, 5, 9, 33, 1040),
    dtypes={"float32": 2, "bfloat16": 3, "float16": 4},
    plain_dtypes={"float32": 3, "bfloat16": 3, "float16": 6},
    modes=(("max-autotune-no-cudagraphs", 12), ("max-autotune", 2), ("reduce-overhead", 1)),
    toggles=(*(toggle for toggle in TOGGLES if not toggle.of_the_cpu), *FOR_GPU),
    toggled=((0, 45), (1, 40), (2, 15)),
    plain_toggled=40,
    most_features=1040,
    most_elements=2**16,
)
