"""Positions, norms and shared heads of query and key, before their product."""

from fuzzcompile.generation.registry import Idiom, PartTraits, register

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
