"""Token ids with positions, in front of a stack of blocks."""

from fuzzcompile.generation.registry import Idiom, PartTraits, register

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
