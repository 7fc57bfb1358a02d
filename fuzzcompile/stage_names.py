"""The stages of a compile. Needs no torch, so that the help of a command can name them."""

from __future__ import annotations

# In the order in which a program passes them.
STAGES = (
    "dynamo",
    "pre_grad",
    "functionalization",
    "decomposition",
    "fake_tensor",
    "joint_graph",
    "partition",
    "freezing",
    "post_grad",
    "lowering",
    "scheduler",
    "codegen",
    "cudagraphs",
    "runtime",
)
