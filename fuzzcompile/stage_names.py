"""The stages of a compile by the names that the JSON contract gives them. Needs no torch.

No other file spells them: what a stage does is in its class (``fuzzcompile/stages/``), and whoever only records or
shows a name takes it from here.
"""

from __future__ import annotations

DYNAMO = "dynamo"
PRE_GRAD = "pre_grad"
FUNCTIONALIZATION = "functionalization"
DECOMPOSITION = "decomposition"
FAKE_TENSOR = "fake_tensor"
JOINT_GRAPH = "joint_graph"
PARTITION = "partition"
FREEZING = "freezing"
POST_GRAD = "post_grad"
LOWERING = "lowering"
SCHEDULER = "scheduler"
CODEGEN = "codegen"
CUDAGRAPHS = "cudagraphs"
RUNTIME = "runtime"

# In the order in which a program passes them.
STAGES = (
    DYNAMO,
    PRE_GRAD,
    FUNCTIONALIZATION,
    DECOMPOSITION,
    FAKE_TENSOR,
    JOINT_GRAPH,
    PARTITION,
    FREEZING,
    POST_GRAD,
    LOWERING,
    SCHEDULER,
    CODEGEN,
    CUDAGRAPHS,
    RUNTIME,
)
# Stages whose passes rewrite a graph: their ledger can be replayed, and a veto switches one rewrite off.
GRAPH_STAGES = (PRE_GRAD, JOINT_GRAPH, FREEZING, POST_GRAD)
# Stages that no pass stands for and whose faults show without generated code.
AROUND_CAPTURE = (DYNAMO, FUNCTIONALIZATION, DECOMPOSITION, FAKE_TENSOR, PARTITION)
# Stages whose faults show in generated code alone.
BEHIND_GRAPHS = (LOWERING, SCHEDULER, CODEGEN, CUDAGRAPHS, RUNTIME)
