"""Normalisations, before or after a residual branch."""

from fuzzcompile.generation.registry import Idiom, register

register(Idiom("layer_norm", "norm", "nn.LayerNorm over the features.", weight=2))
register(Idiom("rms_norm", "norm", "nn.RMSNorm over the features."))
register(Idiom("rms_norm_by_hand", "norm", "x · rsqrt(mean(x²) + ε) · weight, as models write it themselves."))
