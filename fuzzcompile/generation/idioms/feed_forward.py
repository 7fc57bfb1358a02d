"""Two linear layers with an activation between them."""

from fuzzcompile.generation.registry import Idiom, register

register(Idiom("feed_forward_relu", "feed_forward", "Linear, ReLU, Linear."))
register(Idiom("feed_forward_gelu", "feed_forward", "Linear, GELU (erf), Linear.", weight=2))
register(Idiom("feed_forward_silu", "feed_forward", "Linear, SiLU, Linear."))
