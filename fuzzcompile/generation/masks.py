"""The expression that makes a mask: no query is ever left without a key."""

from __future__ import annotations

from fuzzcompile.generation.spec import CaseSpec, Mask


def mask_shape(spec: CaseSpec, mask: Mask) -> tuple[int, ...]:
    """The mask's shape; without heads the scores are (B, T, T), else (B, H, T, T)."""
    d = spec.dims
    heads = () if spec.attention.layout == "flat" else (d.heads,)
    ones = tuple(1 for _ in heads)
    shapes: dict[str, tuple[int, ...]] = {
        "square": (1, *ones, d.sequence, d.sequence),
        "key": (d.batch, *ones, 1, d.sequence),
        "matrix": (d.sequence, d.sequence),
        "heads": (*heads, d.sequence, d.sequence),
        "row": (d.sequence,),
        "full": (d.batch, *heads, d.sequence, d.sequence),
    }
    return shapes[mask.shape]


def mask_expression(spec: CaseSpec) -> str:
    """Source of the mask of ``spec``'s attention."""
    mask = spec.attention.mask
    assert mask is not None, "only a masked attention has a mask"
    sizes = ", ".join(str(size) for size in mask_shape(spec, mask))
    if mask.dtype == "bool":
        return _boolean(spec, mask, sizes)
    if mask.dtype == "int64":
        return f"torch.randint(-2, 3, ({sizes}{',' if mask.shape == 'row' else ''}))"
    dtype = spec.dtype if mask.dtype == "model" else mask.dtype
    option = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    if mask.causal:
        return f'torch.full(({sizes}), float("-inf"){option}).triu(1)'
    return f"torch.randn({sizes}{option})"


def _boolean(spec: CaseSpec, mask: Mask, sizes: str) -> str:
    """True where a key is hidden; in SDPA where it is kept. One in four keys, or the later ones, hide."""
    keeps = spec.attention.idiom == "attention_sdpa"
    length = spec.dims.sequence
    if mask.shape in ("row", "key"):
        hidden = length - max(1, length // 4)
        row = f"torch.arange({length}) {'<' if keeps else '>='} {hidden}"
        return row if mask.shape == "row" else f"({row}).repeat({sizes.removesuffix(str(length))}1)"
    return f"torch.ones({sizes}, dtype=torch.bool){'.tril()' if keeps else '.triu(1)'}"
