"""The idioms of transformers: attention as models write it, and its parts, the simplest of each role first."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.fuzz.generation.spec import Attention, CaseSpec, Choices, Dims, Mask, MaskKind, Part, Pen, Returns
from fuzzcompile.fuzz.idioms.registry import AttentionTraits, Idiom, PartTraits, attention_idiom, part_idiom, register

_SDPA = AttentionTraits(
    plain=2,
    has_scores=False,
    scale="factor",
    scale_takes="number",
    softcap=False,
    sink=False,
    softmax_axis=False,
    key_permuted=False,
    leading=True,
)


@attention_idiom(30, AttentionTraits(plain=10, scale="factor", scale_takes="tensor", leading=True))
def attention_mul(pen: Pen) -> Attention:
    """softmax(q @ kᵀ * s) @ v: SDPA patterns 2 and 4, with heads permuted 28."""
    return Attention("attention_mul")


@attention_idiom(30, AttentionTraits(plain=12, scale_takes="tensor", leading=True))
def attention_div(pen: Pen) -> Attention:
    """softmax(q @ kᵀ / s) @ v: SDPA patterns 1 and 3, with heads permuted 11 and 12."""
    return Attention("attention_div")


@attention_idiom(
    25,
    AttentionTraits(
        plain=26, scale_takes="tensor", leading=True, mask_dtypes=("model", "float32"), widens_plain_mask=True
    ),
)
def attention_masked(pen: Pen) -> Attention:
    """softmax(q @ kᵀ / s + mask) @ v, a mask of float32 at times: SDPA patterns 5, 6, with heads permuted 14, 16."""
    mask = _draw_mask(pen)
    wide = pen.chance(20) and mask.kind != "alibi"
    return Attention("attention_masked", mask=replace(mask, dtype="float32") if wide else mask)


@attention_idiom(25, _SDPA)
def attention_sdpa(pen: Pen) -> Attention:
    """F.scaled_dot_product_attention with each of its arguments: plain, causal, a mask, a scale of its own."""
    kind = pen.draw_weighted([("plain", 4), ("causal", 3), ("mask", 3)])
    scaled = pen.chance(25)
    attention = Attention("attention_sdpa", is_causal=kind == "causal", form=(("scaled", scaled), ("math", False)))
    if kind != "mask":
        return attention
    mask = _draw_mask(pen)
    dtype = "bool" if mask.kind in ("causal", "window", "padding", "documents", "prefix") else "model"
    return Attention("attention_sdpa", mask=Mask(mask.kind, mask.shape, dtype, inside=mask.inside), form=attention.form)


@attention_idiom(15, replace(_SDPA, plain=9, layouts=("heads_last",), scale_takes="usual", leading=False))
def attention_sdpa_math(pen: Pen) -> Attention:
    """F.scaled_dot_product_attention under the MATH backend, which is decomposed: SDPA patterns 29 and 30."""
    mask = _draw_mask(pen) if pen.chance(50) else None
    return Attention("attention_sdpa_math", mask=mask, form=(("scaled", False), ("math", True)))


@attention_idiom(20, AttentionTraits(plain=10, layouts=("heads_last",), scale="of_each"))
def attention_safe(pen: Pen) -> Attention:
    """SDPA's own maths written out, scale split between query and key, safe softmax: SDPA patterns 29 and 30."""
    return Attention("attention_safe", mask=Mask() if pen.chance(50) else None)


@attention_idiom(25, AttentionTraits(plain=11, layouts=("heads_last",), scale_takes="tensor"))
def attention_upcast(pen: Pen) -> Attention:
    """Scores divided, softmax in float32, weights cast back or down to float16: SDPA patterns 7 and 8."""
    return Attention("attention_upcast", form=(("narrow", pen.chance(50)),))


@attention_idiom(25, AttentionTraits(plain=11, layouts=("heads_last",), scale_takes="tensor"))
def attention_query_scaled(pen: Pen) -> Attention:
    """The query divided before the product, softmax in float32: SDPA patterns 9 and 10."""
    return Attention("attention_query_scaled", form=(("narrow", pen.chance(50)),))


@attention_idiom(15, AttentionTraits(plain=3, layouts=("flat",)))
def attention_bmm(pen: Pen) -> Attention:
    """bmm(dropout(softmax(bmm(q, kᵀ))), v) over three dimensions and without a scale: SDPA pattern 13."""
    return Attention("attention_bmm")


def _make_key_mask_input(attention: Attention, dims: Dims) -> dict[str, str]:
    return {"keys": f"(torch.arange({dims.keys}) * 4 < {dims.keys} * 3 + 1).long().repeat({dims.batch}, 1)"}


@attention_idiom(
    20,
    AttentionTraits(
        plain=11,
        layouts=("heads_last",),
        scale_takes="tensor",
        softcap=False,
        hides_keys=True,
        own_mask=True,
        inputs=_make_key_mask_input,
    ),
)
def attention_keys_filled(pen: Pen) -> Attention:
    """A (B, S) mask of ones and zeros, viewed, expanded and filled with −inf: SDPA patterns 15, 17 and 20."""
    return Attention("attention_keys_filled", form=(("early", pen.chance(50)),))


def _make_bias_input(attention: Attention, dims: Dims) -> dict[str, str]:
    return {"bias": f"torch.randn(1, 1, {dims.sequence}, {dims.keys})"} if attention.chosen.get("biased") else {}


@attention_idiom(
    25,
    AttentionTraits(
        plain=18, layouts=("heads_last", "heads_first"), own_mask=True, mask_dtypes=("bool",), inputs=_make_bias_input
    ),
)
def attention_where(pen: Pen) -> Attention:
    """where(mask, scores / full(s), finfo.min), with an additive mask as well or keys returned: patterns 18 and 19."""
    biased = pen.chance(50)
    mask = Mask(pen.one_of(("causal", "padding")), dtype="bool", use="keep")
    if mask.kind == "padding":
        mask = Mask("padding", "key", "bool", "keep")
    return Attention("attention_where", mask=mask, returns="" if biased else "keys", form=(("biased", biased),))


@attention_idiom(60, AttentionTraits(plain=40, layouts=("heads_last",), mask_dtypes=("model", "float32")))
def attention_unscaled(pen: Pen) -> Attention:
    """No scale, softmax in float32, keys and values returned for a cache or not: SDPA patterns 21 to 23, 25 to 27."""
    rounded = pen.chance(50)
    masked, key = pen.chance(60), pen.chance(50)
    # Scores that are rounded to the model's dtype come from a mask that is wider.
    dtype = "float32" if pen.chance(70 if rounded else 20) else "model"
    mask = Mask(shape="key" if key else "square", dtype=dtype) if masked else None
    returns: Returns = "keys" if pen.chance(60) else ""
    return Attention("attention_unscaled", mask=mask, returns=returns, form=(("rounded", rounded),))


@attention_idiom(
    15,
    AttentionTraits(
        plain=4,
        layouts=("heads_first",),
        softcap=False,
        sink=False,
        softmax_axis=False,
        key_permuted=False,
        shared_heads=False,
        empty=False,
        own_mask=True,
        mask_dtypes=("model", "float32"),
    ),
)
def attention_heads_folded(pen: Pen) -> Attention:
    """Heads folded into the batch for bmm, unfolded for an additive mask: SDPA pattern 24."""
    return Attention("attention_heads_folded", mask=Mask(dtype="float32" if pen.chance(60) else "model"))


def _draw_mask(pen: Pen) -> Mask:
    """A mask as models use it: a bias, a causal triangle or window, one entry per key, distances."""
    kinds: list[tuple[MaskKind, int]] = [
        ("bias", 30),
        ("causal", 30),
        ("padding", 12),
        ("window", 8),
        ("alibi", 8),
        ("prefix", 6),
        ("documents", 6),
    ]
    kind = pen.draw_weighted(kinds)
    inside = pen.chance(30) and kind != "bias"
    key = pen.chance(40)
    if kind == "padding" or (kind == "bias" and key):
        return Mask(kind, "key", inside=inside)
    return Mask(kind, "heads" if kind == "alibi" else "square", inside=inside)


# Token ids with positions, in front of a stack of blocks.

register(
    Idiom(
        "embedding_parameter",
        "embedding",
        "nn.Embedding plus a learned matrix of positions.",
        traits=PartTraits(fixes=("sequence",)),
    )
)
register(Idiom("embedding_lookup", "embedding", "Two nn.Embedding: one for ids, one looked up at arange(T)."))
register(Idiom("embedding_sinusoidal", "embedding", "nn.Embedding times sqrt(C), plus sines and cosines of positions."))
register(Idiom("embedding_counted", "embedding", "nn.Embedding, and positions counted by cumsum over real tokens."))


# Feed-forward parts of a block: two linear layers around an activation, gated ones, experts.

register(Idiom("feed_forward_relu", "feed_forward", "Linear, ReLU, Linear."))
register(Idiom("feed_forward_gelu", "feed_forward", "Linear, GELU (erf), Linear.", weight=2))
register(Idiom("feed_forward_silu", "feed_forward", "Linear, SiLU, Linear."))
register(Idiom("feed_forward_gelu_tanh", "feed_forward", "Linear, GELU (tanh), Linear."))
register(Idiom("feed_forward_squared_relu", "feed_forward", "Linear, ReLU squared, Linear."))


@part_idiom("feed_forward", 2)
def feed_forward_gated(pen: Pen) -> Choices:
    """A gated linear unit: one half activated and multiplied with the other, as two layers or one that is chunked."""
    return {
        "activation": pen.one_of(("relu", "silu", "gelu", "sigmoid", "tanh")),
        "chunked": pen.chance(50),
    }


@part_idiom("feed_forward", 2)
def mixture_of_experts(pen: Pen) -> Choices:
    """Top-k routing to experts, combined densely, by index_add, by scatter of one-hot gates, or by gathered weights."""
    return {
        "combine": pen.one_of(("einsum", "index_add", "scatter", "gather")),
        "top": pen.one_of((1, 2)),
    }


# Heads on the last activation: logits, losses, pooled features, samples.

register(Idiom("head_logits", "head", "nn.Linear to a vocabulary; the embedding's own matrix where there is one.", 2))


@part_idiom("head", 2)
def head_pooled(pen: Pen) -> Choices:
    """One vector for a sequence: the first token, the mean, the maximum, or a mean over real tokens."""
    return {"by": pen.one_of(("first", "mean", "max", "masked_mean"))}


@part_idiom("head", 2, PartTraits(targets=lambda part: True))
def head_cross_entropy(pen: Pen) -> Choices:
    """Cross-entropy with every third target ignored, reduced or not, smoothed or not."""
    return {"reduction": pen.one_of(("mean", "sum", "none")), "smoothed": pen.chance(25)}


def _fit_sampling(part: Part, spec: CaseSpec) -> Part:
    """No gradient flows through an argmax."""
    return part.with_choices(chosen=False) if spec.backward else part


@part_idiom("head", 1, PartTraits(fit=_fit_sampling))
def head_sampling(pen: Pen) -> Choices:
    """Logits over a temperature, the top k kept and the rest filled with −inf, then probabilities or a choice."""
    return {"top": pen.one_of((2, 3)), "temperature": pen.one_of((0.7, 1.5)), "chosen": pen.chance(30)}


@part_idiom("head", 1, PartTraits(targets=lambda part: part["what"] == "tokens"))
def head_log_probabilities(pen: Pen) -> Choices:
    """log_softmax, from which the scores of given tokens or the entropy are computed."""
    return {"what": pen.one_of(("tokens", "entropy"))}


# Modules from (B, T, C) to (B, T, C) that stand in the place of the attention, each written out whole.

_POINTWISE = ("add", "sub", "mul", "div", "relu", "tanh", "sigmoid", "clamp", "nan_to_num", "detach", "dropout")


@part_idiom("layer", 3, PartTraits(own_strides=True))
def multihead_attention(pen: Pen) -> Choices:
    """nn.MultiheadAttention: weights asked for or not, causal, with a key padding mask."""
    return {
        "mask": pen.one_of(("none", "causal", "padding", "float")),
        "weights": pen.chance(30),
        "bias": not pen.chance(30),
    }


@part_idiom("layer", 3)
def encoder_layer(pen: Pen) -> Choices:
    """nn.TransformerEncoderLayer, norm first or last, ReLU or GELU, causal or not."""
    return {
        "first": pen.chance(50),
        "activation": pen.one_of(("relu", "gelu")),
        "causal": pen.chance(30),
    }


register(Idiom("decoder_layer", "layer", "nn.TransformerDecoderLayer over the tokens and a shifted copy of them."))


@part_idiom("layer", 3)
def prefix_dense(pen: Pen) -> Choices:
    """PrefixLM over packed sequences as one masked attention: all see the prefix, later tokens only earlier ones."""
    return {"by": pen.one_of(("fill", "where", "sdpa"))}


@part_idiom("layer", 2, PartTraits(fixes=("sequence",), graph_break=True))
def prefix_looped(pen: Pen) -> Choices:
    """PrefixLM over packed sequences in a Python loop over their lengths, which breaks the graph."""
    return {"lengths": pen.one_of(("list", "tensor"))}


def _fit_static_cache(part: Part, spec: CaseSpec) -> Part:
    """Tensors that a gradient needs may not be overwritten."""
    if spec.backward and part["write"] != "select_scatter":
        part = part.with_choices(write="slice_scatter")
    return part.with_choices(kept=False) if part["kept"] and (spec.backward or spec.compile.grad) else part


@part_idiom("layer", 4, PartTraits(fixes=("batch", "sequence"), fit=_fit_static_cache, autocast=False))
def cache_static(pen: Pen) -> Choices:
    """A key-value cache of fixed size: a prefill, then steps that write one position and attend to all so far."""
    return {
        "write": pen.one_of(("assign", "index_copy", "slice_scatter", "index_put", "select_scatter")),
        "steps": pen.one_of((1, 2)),
        "kept": pen.chance(40),
    }


@part_idiom("layer", 2, PartTraits(autocast=False))
def cache_growing(pen: Pen) -> Choices:
    """A key-value cache that grows by torch.cat: a prefill, then decode steps."""
    return {"steps": pen.one_of((1, 2))}


@part_idiom("layer", 2, PartTraits(fixes=("batch",), autocast=False))
def cache_rolling(pen: Pen) -> Choices:
    """A key-value cache of the last few tokens, moved on by torch.cat or torch.roll at each step."""
    return {"move": pen.one_of(("cat", "roll")), "window": pen.one_of((2, 3))}


@part_idiom("layer", 2)
def linear_attention(pen: Pen) -> Choices:
    """Causal linear attention: cumulative sums of outer products of keys and values."""
    return {"feature": pen.one_of(("elu", "relu", "softmax"))}


@part_idiom("layer", 2)
def convolution(pen: Pen) -> Choices:
    """A gated depthwise convolution over time, padded to the left, as in Conformer and Mamba."""
    return {"gated": pen.chance(50), "kernel": pen.one_of((2, 3))}


@part_idiom("layer", 5)
def dense(pen: Pen) -> Choices:
    """One linear layer over the features, activated or not."""
    return {"activation": pen.one_of(("none", "gelu", "relu"))}


@part_idiom("layer", 2)
def dense_int8(pen: Pen) -> Choices:
    """A linear layer of int8 weights: cast to the activation's dtype, or with a rounded activation, both scaled."""
    return {"by": pen.one_of(("cast", "product")), "bias": pen.chance(40)}


@part_idiom("layer", 3)
def convolution_2d(pen: Pen) -> Choices:
    """A two-dimensional convolution over the tokens, normalised in batches, joined with another one, activated."""
    return {
        "norm": pen.chance(50),
        "joined": pen.chance(40),
        "activation": pen.one_of(("none", "relu", "gelu")),
    }


@part_idiom("layer", 5, PartTraits(stirs=("equal_operators", "shared_input_linears")))
def parallel_linears(pen: Pen) -> Choices:
    """Several linear layers over parts of the features or over the same ones, activated and joined."""
    return {
        "count": pen.one_of((2, 3, 4)),
        "over": pen.one_of(("same", "chunks")),
        "activation": pen.one_of(("none", "relu", "tanh", "sigmoid")),
        "join": pen.one_of(("sum", "cat", "stack")),
        "bias": not pen.chance(40),
    }


@part_idiom("layer", 3, PartTraits(stirs=("equal_operators",)))
def parallel_norms(pen: Pen) -> Choices:
    """A LayerNorm for each of several parts of the features, joined again."""
    return {"count": pen.one_of((2, 3, 4)), "affine": not pen.chance(30)}


@part_idiom("layer", 6, PartTraits(stirs=("equal_operators",), uneven=True))
def parallel_pointwise(pen: Pen) -> Choices:
    """The same pointwise operator on several pairs of parts of the features, joined by cat or stack."""
    return {
        "operator": pen.one_of(_POINTWISE),
        "count": pen.one_of((2, 3, 4)),
        "join": pen.one_of(("cat", "stack")),
        "uneven": False,
    }


@part_idiom("layer", 8, PartTraits(stirs=("rejoined_parts",)))
def regrouped(pen: Pen) -> Choices:
    """Features cut into parts by split, chunk or unbind and put together again by cat or stack, in some order."""
    return {
        "cut": pen.one_of(("split", "chunk", "unbind", "split_twice", "slices")),
        "order": pen.one_of(("same", "reversed", "some")),
        "join": pen.one_of(("cat", "stack", "stack_first")),
        "between": pen.one_of(("nothing", "relu", "reshape", "squeeze")),
    }


register(Idiom("attention_pooled", "layer", "Tokens attend to a few learned queries, and are rebuilt from those."))
register(Idiom("attention_local", "layer", "Attention within blocks of tokens: padded, unfolded to windows, and back."))


@part_idiom("layer", 3, PartTraits(recalled=True))
def recompiled(pen: Pen) -> Choices:
    """A layer that depends on a Python number of its own, which grows from call to call: guards, symbolic numbers."""
    return {
        "by": pen.one_of(("factor", "fraction", "rolled", "flag", "none", "dtype", "size", "compared", "axis")),
        "first": pen.one_of((0, 1, 2)),
    }


# Normalisations, before or after a residual branch.

register(Idiom("layer_norm", "norm", "nn.LayerNorm over the features.", weight=3))
register(Idiom("rms_norm", "norm", "nn.RMSNorm over the features.", weight=2))
register(Idiom("rms_norm_by_hand", "norm", "x · rsqrt(mean(x²) + ε) · weight in float32, by hand.", weight=2))
register(Idiom("layer_norm_by_hand", "norm", "(x − mean) / sqrt(var + ε), scaled and shifted, as models write it."))
register(Idiom("layer_norm_plain", "norm", "F.layer_norm without weight and bias."))
register(Idiom("group_norm", "norm", "nn.GroupNorm over the features, which are moved to axis 1 and back."))
register(
    Idiom("norm_modulated", "norm", "AdaLN: a LayerNorm whose scale and shift are computed from the tokens' mean.")
)


# Projections of activations to query, key and value. No projection at all is the simplest choice.

register(Idiom("projection_linear", "projection", "nn.Linear for query, key, value and output.", weight=4))
register(
    Idiom(
        "projection_einsum",
        "projection",
        "A weight matrix and a bias for each element of the batch: einsum('bid,bdh->bih').",
        weight=2,
        traits=PartTraits(fixes=("batch",)),
    )
)
register(
    Idiom(
        "projection_einsum_token",
        "projection",
        "A weight matrix and a bias for each token: einsum('btd,btdh->bth').",
        traits=PartTraits(fixes=("batch", "sequence")),
    )
)
register(Idiom("projection_no_bias", "projection", "nn.Linear without bias.", weight=2))
register(Idiom("projection_chunk", "projection", "One nn.Linear for query, key and value, cut by chunk.", weight=2))
register(Idiom("projection_split", "projection", "One nn.Linear for query, key and value, cut by split.", weight=2))
register(Idiom("projection_unbind", "projection", "One nn.Linear, unflattened to (B, T, 3, C) and unbound.", weight=2))
register(Idiom("projection_matmul", "projection", "x @ weight + bias with weights that are not transposed."))
register(Idiom("projection_addmm", "projection", "addmm over tokens flattened to two dimensions."))
register(
    Idiom(
        "projection_baddbmm",
        "projection",
        "baddbmm with the weight expanded over the batch.",
        traits=PartTraits(fixes=("batch",)),
    )
)
register(Idiom("projection_sum", "projection", "Two products added: x @ a + x @ b over flattened tokens."))
register(Idiom("projection_low_rank", "projection", "LoRA: a linear layer plus a scaled product of two thin matrices."))
register(Idiom("projection_tied", "projection", "One weight for query, key and value; its transpose for the output."))


# Residual connections: ways of adding a branch to the residual stream.

register(Idiom("residual_scaled", "residual", "The branch times a constant: x + 0.5 · f(x)."))
register(Idiom("residual_gated", "residual", "The branch times tanh of a learned gate that begins at zero."))
register(Idiom("residual_scales", "residual", "LayerScale: the branch times a learned weight for each feature."))
register(Idiom("residual_dropped", "residual", "nn.Dropout on the branch."))
register(
    Idiom("residual_stochastic", "residual", "Stochastic depth: in training the branch is left out of some samples.")
)


# Positions, norms and shared heads of query and key, before their product.

register(Idiom("rope_half", "position", "Rotary positions, the halves of a head rotated: cat(−x₂, x₁).", weight=2))
register(Idiom("rope_interleaved", "position", "Rotary positions, neighbours rotated: stacked, then flattened."))
register(Idiom("rope_complex", "position", "Rotary positions as a product of complex numbers."))

register(Idiom("qk_norm_rms", "query_norm", "RMS norm of each head's query and key."))
register(Idiom("qk_norm_l2", "query_norm", "Query and key at unit length (F.normalize)."))

register(Idiom("heads_repeated", "grouping", "Grouped-query attention by repeat_interleave of the key heads."))
register(Idiom("heads_expanded", "grouping", "Grouped-query attention by expand and reshape of the key heads."))
register(
    Idiom(
        "heads_enabled",
        "grouping",
        "Grouped-query attention by enable_gqa of F.scaled_dot_product_attention.",
        traits=PartTraits(sdpa_argument="enable_gqa=True"),
    )
)
