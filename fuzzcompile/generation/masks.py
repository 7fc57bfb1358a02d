"""Expressions for masks. Without near misses every query keeps at least one key."""

from __future__ import annotations

from dataclasses import dataclass

from fuzzcompile.generation.registry import form_of
from fuzzcompile.generation.spec import CaseSpec, Mask
from fuzzcompile.generation.tensors import as_tuple
from fuzzcompile.templating import template


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call as source text: numbers, or expressions that read them from a tensor."""

    batch: str
    sequence: str
    source: str
    width: int

    @property
    def tokens(self) -> str:
        """The number of tokens, for code in front of the embedding."""
        return self.sequence if self.sequence.isdigit() else "tokens.shape[1]"

    def dividing(self, count: int) -> int:
        """The most parts, up to ``count``, that the features can be cut into."""
        return next(parts for parts in range(count, 0, -1) if self.width % parts == 0)


def fixed_sizes(spec: CaseSpec) -> Sizes:
    """The sizes of the first call as numbers."""
    d = spec.dims
    return Sizes(str(d.batch), str(d.sequence), str(d.keys), d.width)


def mask_shape(spec: CaseSpec, mask: Mask, n: Sizes) -> tuple[str, ...]:
    """The mask's shape; without heads the scores are (B, T, S), else (B, H, T, S)."""
    flat = spec.attention.layout == "flat"
    heads = () if flat else (str(spec.dims.heads),)
    singles = tuple("1" for _ in heads)
    shapes: dict[str, tuple[str, ...]] = {
        "square": ("1", *singles, n.sequence, n.source),
        "key": (n.batch, *singles, "1", n.source),
        "matrix": (n.sequence, n.source),
        "heads": (*heads, n.sequence, n.source),
        "row": (n.source,),
        "full": (n.batch, *heads, n.sequence, n.source),
    }
    return shapes[mask.shape]


def mask_expression(spec: CaseSpec, n: Sizes, device: str = "") -> str:
    """Source of the mask of ``spec``'s attention; ``device`` (``x.device``) where a module makes it."""
    mask = spec.attention.mask
    assert mask is not None, "only a masked attention has a mask"
    if mask_function(spec):
        return f"make_mask({n.batch}, {n.sequence}, {n.source}{', ' + device if device else ''})"
    shape = mask_shape(spec, mask, n)
    size = as_tuple(shape)
    dtype = _dtype(spec, mask)
    option = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    on = f", device={device}" if device else ""
    if mask.dtype == "int64":
        return f"torch.randint(-2, 3, {size})"
    if mask.dtype == "bool":
        return f"torch.ones({size}, dtype=torch.bool{on})" + (".tril()" if _keeps(spec, mask) else ".triu(1)")
    if mask.kind == "bias":
        return f"torch.randn({size if len(shape) == 1 else ', '.join(shape)}{option})"
    return f'torch.full({size}, float("-inf"){option}{on}).triu(1)'


def mask_function(spec: CaseSpec) -> str:
    """Source of the function that makes the mask, or nothing where an expression does."""
    mask = spec.attention.mask
    if (
        mask is None
        or spec.layer is not None
        or mask.dtype == "int64"
        or not (_rows(mask) or _by_rule(mask) or mask.inside)
    ):
        return ""
    shape = mask_shape(spec, mask, Sizes("batch", "queries", "keys", spec.dims.width))
    paired = mask.shape not in ("row", "key")
    rule = "blocked" if mask.blocked else mask.kind if paired or mask.kind == "alibi" else "padding"
    return (
        template("mask.py.j2")
        .render(
            rule="padding" if rule == "bias" else rule,
            paired=paired,
            shape=as_tuple(shape),
            sizes=", ".join(shape),
            heads=spec.dims.heads,
            slopes=mask.shape in ("heads", "full") and spec.attention.layout != "flat",
            boolean=mask.dtype == "bool",
            keeps=_keeps(spec, mask),
            dtype=_dtype(spec, mask),
        )
        .strip()
    )


def _rows(mask: Mask) -> bool:
    """Return whether a rule makes the mask: with one entry per key, a triangle would hide keys from every query."""
    return mask.blocked or (mask.shape in ("row", "key") and (mask.kind != "bias" or mask.dtype == "bool"))


def _by_rule(mask: Mask) -> bool:
    return mask.kind not in ("bias", "causal") or (mask.kind == "bias" and mask.dtype == "bool")


def _dtype(spec: CaseSpec, mask: Mask) -> str:
    return spec.dtype if mask.dtype in ("model", "bool") else mask.dtype


def _keeps(spec: CaseSpec, mask: Mask) -> bool:
    """Return whether true means that a key is kept."""
    return mask.use == "keep" or not form_of(spec.attention).has_scores
