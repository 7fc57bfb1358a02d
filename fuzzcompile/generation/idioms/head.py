"""Heads on the last activation: logits, losses, pooled features, samples."""

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.registry import Idiom, PartTraits, part_idiom, register
from fuzzcompile.generation.spec import CaseSpec, Choices, Part

register(Idiom("head_logits", "head", "nn.Linear to a vocabulary; the embedding's own matrix where there is one.", 2))


@part_idiom("head", 2)
def head_pooled(pen: Pen) -> Choices:
    """One vector for a sequence: the first token, the mean, the maximum, or a mean over real tokens."""
    return {"by": pen.one_of(("first", "mean", "max", "masked_mean"))}


@part_idiom("head", 2, PartTraits(targets=lambda part: True))
def head_cross_entropy(pen: Pen) -> Choices:
    """Cross-entropy with every third target ignored, reduced or not, smoothed or not."""
    return {"reduction": pen.one_of(("mean", "sum", "none")), "smoothed": pen.chance(25)}


def _with_gradient(part: Part, spec: CaseSpec) -> Part:
    """No gradient flows through an argmax."""
    return part.having(chosen=False) if spec.backward else part


@part_idiom("head", 1, PartTraits(fit=_with_gradient))
def head_sampling(pen: Pen) -> Choices:
    """Logits over a temperature, the top k kept and the rest filled with −inf, then probabilities or a choice."""
    return {"top": pen.one_of((2, 3)), "temperature": pen.one_of((0.7, 1.5)), "chosen": pen.chance(30)}


@part_idiom("head", 1, PartTraits(targets=lambda part: part["what"] == "tokens"))
def head_log_probabilities(pen: Pen) -> Choices:
    """log_softmax, from which the scores of given tokens or the entropy are computed."""
    return {"what": pen.one_of(("tokens", "entropy"))}
