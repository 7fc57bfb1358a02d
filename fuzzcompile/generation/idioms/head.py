"""What is made of the last activation: logits, losses, pooled features, samples."""

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.registry import Idiom, part_idiom, register
from fuzzcompile.generation.spec import Part

register(Idiom("head_logits", "head", "nn.Linear to a vocabulary; the embedding's own matrix where there is one.", 2))


@part_idiom("head", 2)
def head_pooled(pen: Pen) -> Part:
    """One vector for a sequence: the first token, the mean, the maximum, or a mean over real tokens."""
    return Part.of("head_pooled", by=pen.one_of(("first", "mean", "max", "masked_mean")))


@part_idiom("head", 2)
def head_cross_entropy(pen: Pen) -> Part:
    """Cross-entropy with every third target ignored, reduced or not, smoothed or not."""
    return Part.of("head_cross_entropy", reduction=pen.one_of(("mean", "sum", "none")), smoothed=pen.chance(25))


@part_idiom("head", 1)
def head_sampling(pen: Pen) -> Part:
    """Logits over a temperature, the top k kept and the rest filled with −inf, then probabilities or a choice."""
    return Part.of("head_sampling", top=pen.one_of((2, 3)), temperature=pen.one_of((0.7, 1.5)), chosen=pen.chance(30))


@part_idiom("head", 1)
def head_log_probabilities(pen: Pen) -> Part:
    """log_softmax, and what is gathered from it: the scores of given tokens, or the entropy."""
    return Part.of("head_log_probabilities", what=pen.one_of(("tokens", "entropy")))


@part_idiom("head", 1)
def head_extremes(pen: Pen) -> Part:
    """Maxima along an axis and over everything, as quantisers scale by them: reused partial reductions."""
    return Part.of("head_extremes", what=pen.one_of(("amax", "amin")))
