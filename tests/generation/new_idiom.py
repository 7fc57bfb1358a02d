"""The worked example of CONTRIBUTING.md: an idiom and a detour, each a template and a unit.

Inside the package the same functions stand in ``fuzzcompile/generation/idioms/attention.py`` and
``fuzzcompile/generation/near_misses/detours.py``, their templates in ``templates/idioms/sigmoid_attention.py.j2`` and
``templates/detours/centred_in_place.py.j2``, and ``source`` is left out. Outside of it, importing this module registers
both.
"""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.detour_registry import detour, never
from fuzzcompile.generation.registry import AttentionTraits, attention_idiom
from fuzzcompile.generation.spec import Attention, Choices, Mask


@attention_idiom(
    20,
    AttentionTraits(plain=10, scale="factor", scale_takes="tensor", leading=True, softmax_axis=False, sink=False),
    source="""
{% extends "idioms/attention.py.j2" %}
{% block scores %}
        scores = ({{ product }}) * {{ scale }}
{% endblock %}
{% block softmax %}
        weights = torch.sigmoid(scores - {{ a.chosen.bias }}){{ ".to(v.dtype)" if promoted and not drops }}
{% endblock %}
""",
)
def sigmoid_attention(pen: Pen) -> Attention:
    """sigmoid(q @ kᵀ * s - b) @ v: no softmax, so no axis of it and no sink."""
    mask = Mask("causal") if pen.chance(40) else None
    return Attention("sigmoid_attention", mask=mask, form=(("bias", pen.one_of((1.5, 2.5))),))


@detour(
    10,
    has_gradient=never,
    writes=True,
    source="""
{% macro apply(x, p, width) %}
{{ x }} -= {{ x }}.mean({{ p.axis }}, keepdim=True)
{% endmacro %}
""",
)
def centred_in_place(pen: Pen) -> Choices:
    """The mean along an axis is subtracted in place.

    The mean has to be read before the first element is written.
    """
    return {"axis": pen.one_of((-1, -2))}
