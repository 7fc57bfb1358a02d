"""A case as plain data: which idioms, with which parameters, at which sizes.

A spec is the whole recipe: `fuzzcompile.generation.render` turns it into source without drawing
anything, and every name it reports is read off the data, so that it cannot say one thing and
render another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Layout = Literal["heads_first", "heads_last", "flat"]
Scale = Literal["literal", "buffer", "parameter", "one_element"]
MaskShape = Literal["square", "key", "matrix", "heads", "row", "full"]
MaskUse = Literal["add", "fill", "where"]

_SCHEMA = 1


@dataclass(frozen=True)
class Dims:
    """Sizes: ``batch`` × ``sequence`` × (``heads`` · ``head_dim``)."""

    batch: int
    sequence: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Mask:
    """What is laid over the scores.

    ``dtype`` is ``model`` for the dtype of the scores, else a torch name. A boolean mask is true
    where a key is hidden, except in ``F.scaled_dot_product_attention``, where it is the reverse.
    """

    causal: bool = False
    shape: MaskShape = "square"
    dtype: str = "model"
    use: MaskUse = "add"


@dataclass(frozen=True)
class Attention:
    """One attention; the defaults are the plainest one.

    ``layout`` says how query, key and value arrive: (B, H, T, D), (B, T, H, D) to be permuted, or
    (B, T, C) without heads. Without a ``projection`` they are inputs of the module (or, within a
    block, the block's activation itself).
    """

    idiom: str
    projection: str | None = None
    layout: Layout = "heads_first"
    mask: Mask | None = None
    is_causal: bool = False
    scale: Scale = "literal"
    key_permuted: bool = False
    softmax_axis: int = -1
    dropout: float | None = None
    expanded: bool = False
    returns_weights: bool = False


@dataclass(frozen=True)
class Block:
    """The residual block around the attention, ``layers`` times."""

    layers: int = 1
    norm: str | None = None
    norm_first: bool = True
    feed_forward: str | None = None


@dataclass(frozen=True)
class CaseSpec:
    """A whole case. Equal specs render to equal source."""

    attention: Attention
    dims: Dims
    block: Block | None = None
    embedding: str | None = None
    dtype: str = "float32"
    training: bool = False
    backward: bool = False
    seed: int = 0

    @property
    def idioms(self) -> tuple[str, ...]:
        """Names of the registered idioms in this case, the attention first."""
        block = self.block or Block()
        attention = (self.attention.idiom, self.attention.projection)
        return tuple(name for name in (*attention, block.norm, block.feed_forward, self.embedding) if name)

    @property
    def near_misses(self) -> tuple[str, ...]:
        """Names of the near-miss operators whose mark this case bears, drawn or by chance."""
        return tuple(name for name, present in MARKS.items() if present(self))

    def to_json(self) -> dict[str, Any]:
        """Plain data for `from_json`, with the names of idioms and near misses for people."""
        return {
            "schema": _SCHEMA,
            **asdict(self),
            "idioms": list(self.idioms),
            "near_misses": list(self.near_misses),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseSpec:
        """The spec that `to_json` wrote."""
        if data.get("schema") != _SCHEMA:
            raise ValueError(f"a case spec of schema {data.get('schema')}, this version reads {_SCHEMA}")
        mask = data["attention"]["mask"]
        return cls(
            attention=Attention(**{**data["attention"], "mask": Mask(**mask) if mask else None}),
            dims=Dims(**data["dims"]),
            block=Block(**data["block"]) if data["block"] else None,
            **{key: data[key] for key in ("embedding", "dtype", "training", "backward", "seed")},
        )


# What each near-miss operator leaves in the data, by the operator's name; the operators enter
# themselves, because they know this module and it does not know them.
MARKS: dict[str, Callable[[CaseSpec], bool]] = {}
