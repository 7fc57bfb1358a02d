"""Faults before the graph passes: dynamo, functionalization, decompositions, fake tensors, partition."""
