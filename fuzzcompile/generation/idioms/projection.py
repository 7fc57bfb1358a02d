"""How activations become query, key and value. No projection at all is the simplest choice."""

from fuzzcompile.generation.registry import Idiom, register

register(Idiom("projection_linear", "projection", "nn.Linear for query, key, value and output.", weight=2))
register(
    Idiom(
        "projection_einsum",
        "projection",
        "A weight matrix and a bias for each element of the batch: einsum('bid,bdh->bih').",
    )
)
