"""Profiles: the names, sizes, dtypes and settings that the generator may draw in a campaign."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import msgspec

from fuzzcompile.fuzz.aliased_programs.grammar import list_alias_names
from fuzzcompile.fuzz.distributed_programs.collective_programs import list_collective_names
from fuzzcompile.fuzz.distributed_programs.grammar import list_distributed_names
from fuzzcompile.fuzz.distributed_programs.sharded_programs import list_sharded_names
from fuzzcompile.fuzz.generation.spec import NEAR_MISSES, Dims
from fuzzcompile.fuzz.idioms.registry import idioms
from fuzzcompile.fuzz.operator_programs.numerics import load_operator_table
from fuzzcompile.fuzz.operator_programs.production import PRODUCTIONS
from fuzzcompile.fuzz.stateful_programs.grammar import list_state_names
from fuzzcompile.model.compiler_toggles import FOR_GPU, TOGGLES, CompilerToggle
from fuzzcompile.model.errors import FuzzcompileError


@dataclass(frozen=True)
class Name:
    """An idiom, near miss, production, row of Python state or toggle that a campaign can draw more or less often."""

    name: str
    kind: str
    weight: int
    summary: str


def list_names(*, gpu: bool = False, distributed: bool = False) -> tuple[Name, ...]:
    """All idioms (``kind`` is the role), near misses, productions, rows of Python state and toggles, once each.

    With ``gpu`` the toggles are those for one; with ``distributed`` what several processes run is among them.
    """
    apart = (*list_distributed_names(), *list_collective_names(), *list_sharded_names()) if distributed else ()
    toggles = (*TOGGLES, *FOR_GPU) if gpu else TOGGLES
    return (
        *(Name(idiom.name, idiom.role, idiom.weight, idiom.summary) for idiom in idioms()),
        *(Name(miss.name, "near_miss", miss.percent, miss.summary) for miss in NEAR_MISSES),
        *(Name(made.name, "production", made.weight, made.summary) for made in PRODUCTIONS.values()),
        *(Name(*name) for name in (*list_state_names(), *list_alias_names(), *apart)),
        *(Name(toggle.name, "toggle", toggle.weight, toggle.summary) for toggle in toggles),
    )


DTYPES = ("float32", "bfloat16", "float16")


class StaleRecipe(FuzzcompileError):
    """Another version of the generator wrote these choices: this one would read another case from them."""


@dataclass(frozen=True)
class Profile:
    """The axes of a campaign; together with a seed it fixes every case that is drawn.

    Without ``near_misses`` none of the operators of `fuzzcompile.fuzz.near_misses` is drawn, the plain coincidences of
    shape among them. ``weights`` steer by name, in percent of what is registered, 0 to 10,000. ``without`` are names
    that are never drawn, such as settings that the installed torch lacks. With ``gpu`` the sizes, dtypes and settings
    are those that matter where the compiler works for a GPU. With ``nproc`` so many processes run each case.
    """

    near_misses: bool = True
    dtypes: tuple[str, ...] = DTYPES
    training: bool = True
    weights: tuple[tuple[str, int], ...] = ()
    without: tuple[str, ...] = ()
    gpu: bool = False
    nproc: int | None = None

    def __post_init__(self) -> None:
        unknown = [dtype for dtype in self.dtypes if dtype not in DTYPES]
        if unknown or not self.dtypes:
            raise ValueError(f"dtypes must be some of {', '.join(DTYPES)}, not {self.dtypes}")
        if any(not 0 <= weight <= 10_000 for _, weight in self.weights):
            raise ValueError("weights are percentages from 0 to 10,000")

    def steer(self, weights: Mapping[str, int]) -> Profile:
        """The same profile under these weights; equal weights make equal profiles."""
        return replace(self, weights=tuple(sorted(weights.items())))

    def to_json(self) -> dict[str, object]:
        """Plain data for `from_json`, with the version of the generator that reads choices under it."""
        plain = msgspec.json.decode(msgspec.json.encode(self))
        return {**plain, "generator": compute_generator_version(gpu=self.gpu, distributed=self.nproc is not None)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """The profile that `to_json` wrote; `StaleRecipe` if another version of the generator did."""
        distributed = data.get("nproc") is not None
        version = data.get("generator")
        own = compute_generator_version(gpu=bool(data.get("gpu")), distributed=distributed)
        if version != own:
            raise StaleRecipe(
                f"The recipe was drawn by another version of the generator ({version or 'the first'}, this is {own}), "
                "so its choices cannot be read; its source can still be judged and minimized."
            )
        return msgspec.convert(data, cls)


def compute_generator_version(*, gpu: bool = False, distributed: bool = False) -> str:
    """Identifies the meaning of choices: the grammar, what is registered with its weight, the operators, Hypothesis."""
    # What is drawn for a GPU or several processes only has a version of its own: it makes no other recipe stale.
    grammar: object = (_GRAMMAR, _GPU_GRAMMAR) if gpu else _GRAMMAR
    grammar = (grammar, "distributed", _DISTRIBUTED_GRAMMAR) if distributed else grammar
    names = list_names(gpu=gpu, distributed=distributed)
    registered = tuple((name.name, name.kind, name.weight) for name in names)  # in order
    known = repr((grammar, registered, load_operator_table().version, hypothesis.__version__))
    return f"{_GRAMMAR}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"


# Increment it if the order or the meaning of draws changes while the registered names stay the same.
_GRAMMAR = 18
# The same for `fuzzcompile.fuzz.generation.profile.GPU_REPERTOIRE`.
_GPU_GRAMMAR = 1
# The same for what several processes run.
_DISTRIBUTED_GRAMMAR = 1


@dataclass(frozen=True)
class Repertoire:
    """The sizes, dtypes and settings that a case is drawn from, the simplest first."""

    sequences: tuple[int, ...]  # numbers of tokens
    heads: tuple[int, ...]  # numbers of heads
    head_dims: tuple[int, ...]  # features of a head
    sources: tuple[int, ...]  # numbers of keys in a cross attention
    dtypes: Mapping[str, int]  # how often each dtype is drawn
    plain_dtypes: Mapping[str, int]  # the same for a plain attention
    modes: tuple[tuple[str, int], ...]  # modes of ``torch.compile`` and their weights; none has the weight 240
    toggles: tuple[CompilerToggle, ...]  # settings
    toggled: tuple[tuple[int, int], ...]  # how often a case has that many settings
    plain_toggled: int = 0  # the percentage of plain attentions that have one
    most_features: int | None = None  # the widest token; None for any
    most_elements: int | None = None  # the most elements of an activation or of all scores; None for any

    def limit_dims(self, dims: Dims) -> Dims:
        """The sizes with fewer heads, and then fewer samples, so that they stay within the limits."""
        while self._exceeds_limits(dims) and dims.heads > 1:
            dims = replace(dims, heads=dims.heads // 2)
        while self._exceeds_limits(dims) and dims.batch > 1:
            dims = replace(dims, batch=dims.batch // 2)
        return dims

    def _exceeds_limits(self, dims: Dims) -> bool:
        elements = dims.batch * dims.heads * dims.sequence * max(dims.head_dim, dims.sequence, dims.source)
        too_wide = self.most_features is not None and dims.width > self.most_features
        return too_wide or (self.most_elements is not None and elements > self.most_elements)


CPU_REPERTOIRE = Repertoire(
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
GPU_REPERTOIRE = Repertoire(
    sequences=(2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 260),
    heads=(1, 2, 3, 4, 8),
    head_dims=(2, 3, 4, 8, 5, 12, 16, 20, 24, 32, 40, 64, 72, 520),
    sources=(3, 5, 9, 33, 1040),
    dtypes={"float32": 2, "bfloat16": 3, "float16": 4},
    plain_dtypes={"float32": 3, "bfloat16": 3, "float16": 6},
    modes=(("max-autotune-no-cudagraphs", 12), ("max-autotune", 2), ("reduce-overhead", 1)),
    toggles=(*(toggle for toggle in TOGGLES if not toggle.is_cpu_only), *FOR_GPU),
    toggled=((0, 45), (1, 40), (2, 15)),
    plain_toggled=40,
    most_features=1040,
    most_elements=2**16,
)
