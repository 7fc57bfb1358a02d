"""Passes over a graph that will be lowered."""

from __future__ import annotations

from fuzzcompile import stage_names
from fuzzcompile.stages.rewriting import RewritingStage


class PostGrad(RewritingStage):
    """Rewrites of forward and backward alike: fusions of matrix products, reinplacing, no-ops."""

    name = stage_names.POST_GRAD
    settings = ({"pattern_matcher": False}, {"use_post_grad_passes": False})
