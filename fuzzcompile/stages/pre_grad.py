"""Passes over dynamo's graph, before it is differentiated."""

from __future__ import annotations

from fuzzcompile import stage_names
from fuzzcompile.stages.rewriting import RewritingStage


class PreGrad(RewritingStage):
    """Torch-level rewrites: normalisation, split and cat, batch fusions, a user's own passes."""

    name = stage_names.PRE_GRAD
    settings = ({"split_cat_fx_passes": False}, {"pattern_matcher": False}, {"use_pre_grad_passes": False})
