"""Passes over the joint graph of forward and backward, or over the only graph where nothing is differentiated."""

from __future__ import annotations

from fuzzcompile import stage_names
from fuzzcompile.stages.rewriting import RewritingStage


class JointGraph(RewritingStage):
    """ATen-level rewrites before the graph is cut: attention patterns, constant folding, no-ops, padding."""

    name = stage_names.JOINT_GRAPH
    settings = ({"pattern_matcher": False}, {"use_joint_graph_passes": False})
