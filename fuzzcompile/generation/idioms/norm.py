"""Normalisations, before or after a residual branch."""

from fuzzcompile.generation.registry import Idiom, register

register(Idiom("layer_norm", "norm", "nn.LayerNorm over the features.", weight=3))
register(Idiom("rms_norm", "norm", "nn.RMSNorm over the features.", weight=2))
register(Idiom("rms_norm_by_hand", "norm", "x · rsqrt(mean(x²) + ε) · weight in float32, by hand.", weight=2))
register(Idiom("layer_norm_by_hand", "norm", "(x − mean) / sqrt(var + ε), scaled and shifted, as models write it."))
register(Idiom("layer_norm_plain", "norm", "F.layer_norm without weight and bias."))
register(Idiom("group_norm", "norm", "nn.GroupNorm over the features, which are moved to axis 1 and back."))
register(
    Idiom("norm_modulated", "norm", "AdaLN: a LayerNorm whose scale and shift are computed from the tokens' mean.")
)
