"""What follows the attention in a block: two linear layers around an activation, gated ones, experts."""

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.registry import Idiom, part_idiom, register
from fuzzcompile.generation.spec import Part

register(Idiom("feed_forward_relu", "feed_forward", "Linear, ReLU, Linear."))
register(Idiom("feed_forward_gelu", "feed_forward", "Linear, GELU (erf), Linear.", weight=2))
register(Idiom("feed_forward_silu", "feed_forward", "Linear, SiLU, Linear."))
register(Idiom("feed_forward_gelu_tanh", "feed_forward", "Linear, GELU (tanh), Linear."))
register(Idiom("feed_forward_squared_relu", "feed_forward", "Linear, ReLU squared, Linear."))


@part_idiom("feed_forward", 2)
def feed_forward_gated(pen: Pen) -> Part:
    """A gated linear unit: one half activated and multiplied with the other, as two layers or one that is chunked."""
    return Part.of(
        "feed_forward_gated",
        activation=pen.one_of(("relu", "silu", "gelu", "sigmoid", "tanh")),
        chunked=pen.chance(50),
    )


@part_idiom("feed_forward", 2)
def mixture_of_experts(pen: Pen) -> Part:
    """Top-k routing to experts, combined densely, by index_add, by scatter of one-hot gates, or by gathered weights."""
    return Part.of(
        "mixture_of_experts",
        combine=pen.one_of(("dense", "index_add", "one_hot", "gather")),
        top=pen.one_of((1, 2)),
    )
