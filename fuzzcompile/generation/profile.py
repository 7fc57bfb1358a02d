"""Profiles: the choices that the generator may draw in a campaign."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import hypothesis

from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.generation.names import registered
from fuzzcompile.generation.operator_table import operator_table

DTYPES = ("float32", "bfloat16", "float16")


class StaleRecipe(FuzzcompileError):
    """Another version of the generator wrote these choices: this one would read another case from them."""


@dataclass(frozen=True)
class Profile:
    """The axes of a campaign; together with a seed it fixes every case that is drawn.

    Without ``near_misses`` none of the operators of `fuzzcompile.generation.near_misses` is drawn,
    the plain coincidences of shape among them. ``weights`` steer by name (see `fuzzcompile.generation.names`): in
    percent of what is registered, 0 to 10,000. ``without`` are names that are never drawn, such as settings that the
    installed torch lacks. With ``gpu`` the sizes, dtypes and settings are those that matter where the compiler works
    for a GPU (see `fuzzcompile.generation.repertoire`).
    """

    near_misses: bool = True
    dtypes: tuple[str, ...] = DTYPES
    training: bool = True
    weights: tuple[tuple[str, int], ...] = ()
    without: tuple[str, ...] = ()
    gpu: bool = False

    def __post_init__(self) -> None:
        unknown = [dtype for dtype in self.dtypes if dtype not in DTYPES]
        if unknown or not self.dtypes:
            raise ValueError(f"dtypes must be some of {', '.join(DTYPES)}, not {self.dtypes}")
        if any(not 0 <= weight <= 10_000 for _, weight in self.weights):
            raise ValueError("weights are percentages from 0 to 10,000")

    @property
    def steering(self) -> dict[str, int]:
        """The weight of each name that is steered."""
        return {**dict(self.weights), **dict.fromkeys(self.without, 0)}

    def steered(self, weights: Mapping[str, int]) -> Profile:
        """The same profile under these weights; equal weights make equal profiles."""
        return replace(self, weights=tuple(sorted(weights.items())))

    def to_json(self) -> dict[str, object]:
        """Plain data for `from_json`, with the version of the generator that reads choices under it."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {**plain, "weights": [list(pair) for pair in self.weights], "generator": generator_version(gpu=self.gpu)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """The profile that `to_json` wrote.

        Raises:
            StaleRecipe: another version of the generator wrote it, under which choices mean something else.
        """
        version, gpu = data.get("generator"), bool(data.get("gpu"))
        own = generator_version(gpu=gpu)
        if version != own:
            raise StaleRecipe(
                f"The recipe was drawn by another version of the generator ({version or 'the first'}, this is {own}), "
                "so its choices cannot be read; its source can still be judged and minimized."
            )
        return cls(
            data["near_misses"],
            tuple(data["dtypes"]),
            data["training"],
            tuple((name, weight) for name, weight in data["weights"]),
            tuple(data["without"]),
            gpu,
        )


def generator_version(*, gpu: bool = False) -> str:
    """Identifies the meaning of choices: the grammar, what is registered with its weight, the operators, Hypothesis.

    What is drawn for a GPU only has a version of its own, so that it makes no other recipe stale.
    """
    grammar = (_GRAMMAR, _GPU_GRAMMAR) if gpu else _GRAMMAR
    known = repr((grammar, registered(gpu=gpu), operator_table().version, hypothesis.__version__))
    return f"{_GRAMMAR}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"


# Increment it if the order or the meaning of draws changes while the registered names stay the same.
_GRAMMAR = 10
# The same for `fuzzcompile.generation.repertoire.GPU`.
_GPU_GRAMMAR = 1
