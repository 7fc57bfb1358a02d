"""Residual connections: ways of adding a branch to the residual stream."""

from fuzzcompile.generation.registry import Idiom, register

register(Idiom("residual_scaled", "residual", "The branch times a constant: x + 0.5 · f(x)."))
register(Idiom("residual_gated", "residual", "The branch times tanh of a learned gate that begins at zero."))
register(Idiom("residual_scales", "residual", "LayerScale: the branch times a learned weight for each feature."))
register(Idiom("residual_dropped", "residual", "nn.Dropout on the branch."))
register(
    Idiom("residual_stochastic", "residual", "Stochastic depth: in training the branch is left out of some samples.")
)
