"""Projections of activations to query, key and value. No projection at all is the simplest choice."""

from fuzzcompile.generation.registry import Idiom, PartTraits, register

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
