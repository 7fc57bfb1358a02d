"""Block sizes for the interpreter: larger than those of a device, as each program costs the same whatever its size."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch._inductor.runtime.hints import TRITON_MAX_BLOCK

from fuzzcompile.compiler.target.interpreted.log import Grid

# Grids whose programs are independent; the blocks of others are part of what the kernel computes.
_PLAIN = ("Grid1D", "Grid2D", "Grid3D", "Grid2DWithYZOverflow")
_ENOUGH = 8  # a grid of so few programs stays as it is: bounds between programs must be met too
_ELEMENTS = 2**17
_WIDENED = ("XBLOCK", "YBLOCK", "ZBLOCK")


def widened(tuner: Any, config: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], Grid]:
    """A configuration with larger blocks, up to what Inductor lets a kernel rely on, and the arguments and grid for it.

    Args:
        tuner: Inductor's autotuner of the kernel.
        config: the configuration to begin with, one that a device might choose.
        args: what the kernel is launched with.
    """
    positional, grid = tuner._interpret_args_grid(args, config)
    if tuner.inductor_meta.get("grid_type") not in _PLAIN:
        return config, positional, grid
    for name in _WIDENED:
        while _programs(grid) > _ENOUGH and _may_grow(config.kwargs, name):
            larger = copy.copy(config)
            larger.kwargs = {**config.kwargs, name: 2 * config.kwargs[name]}
            positional, wider = tuner._interpret_args_grid(args, larger)
            if _programs(wider) == _programs(grid):
                break
            config, grid = larger, wider
    return config, positional, grid


def _may_grow(blocks: Mapping[str, Any], name: str) -> bool:
    limit = TRITON_MAX_BLOCK[name.removesuffix("BLOCK")]
    elements = 1
    for key, size in blocks.items():
        elements *= size if key.endswith("BLOCK") and isinstance(size, int) else 1
    return isinstance(blocks.get(name), int) and 2 * blocks[name] <= limit and 2 * elements <= _ELEMENTS


def _programs(grid: Grid) -> int:
    return grid[0] * grid[1] * grid[2]
