"""Feed-forward parts of a block: two linear layers around an activation, gated ones, experts."""

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.registry import Idiom, part_idiom, register
from fuzzcompile.generation.spec import Choices

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
