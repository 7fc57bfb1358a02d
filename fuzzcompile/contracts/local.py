"""Partings of one execution of a compiled graph from ATen: each operator on the inputs that it had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import fx

from fuzzcompile.codegen.table import generator_of
from fuzzcompile.compiler.kernels.buffer_loops import nodes_of_loop, operators_of_loop
from fuzzcompile.compiler.kernels.followed import Applied, Followed, Stored, applications
from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered
from fuzzcompile.compiler.kernels.operators import lowering_source, operator_of
from fuzzcompile.compiler.unseen import Unseen, UnseenLog, reason
from fuzzcompile.contracts.bits import Difference, difference
from fuzzcompile.contracts.covered import is_exact, open_bits, open_cast, open_code
from fuzzcompile.contracts.parting import Parting
from fuzzcompile.stage_names import CODEGEN, LOWERING, RUNTIME
from fuzzcompile.stages.kernels.culprits import kernel_of, site_of
from fuzzcompile.stages.kernels.examined import Examined

_LOOPS = "a loop that the lowering wrote"


class Local:
    """The partings in one call of one lowered graph.

    Args:
        look: the graph with the inputs of the call.
    """

    def __init__(self, look: Examined) -> None:
        self.lowered, self._look = look.lowered, look
        self._places = {node.name: place for place, node in enumerate(self.lowered.snapshot.graph.nodes)}
        inexact = {
            buffer: kernel.extern or not is_exact(operators_of_loop(kernel, buffer))
            for kernel in self.lowered.kernels
            for buffer in kernel.writes
        }
        self._followed = Followed(self.lowered, look.inputs or (), look.native, look.call, inexact)

    def partings(self) -> list[Parting]:
        """Find the partings of lowerings, kernels and the wrapper from the right values, in graph order."""
        found = list(self._of_lowerings())
        with contextlib.suppress(*_FAILS):
            self._followed.finish()
        found += self._of_kernels()
        found += self._of_outputs()
        return sorted(found, key=lambda parting: parting.position)

    # -- lowerings ------------------------------------------------------------------------------

    def _of_lowerings(self) -> Iterator[Parting]:
        try:
            applied = list(applications(self._followed, self._look.inputs or ()))
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # an operator that does not run on these values leaves the rest uncompared
            missed = Unseen("operators of a graph", reason(error), (LOWERING, CODEGEN), "places where bits part")
            UnseenLog().note(missed)
            return
        for each in applied:
            parting = self._of_lowering(each)
            if parting is not None:
                yield parting

    def _of_lowering(self, applied: Applied) -> Parting | None:
        aten, lowered, node = applied.aten, applied.lowered, applied.node
        rounded = lowered.to(aten.dtype)
        if lowered.is_floating_point() and aten.is_floating_point():
            left = difference(node.name, rounded.to(lowered.dtype), lowered)
            if left is not None and not left.only_payloads:
                if applied.reads_unrounded and open_cast(node) is not None:
                    return None
                what = f"its result is not rounded to {str(aten.dtype).removeprefix('torch.')}"
                return self._parting(LOWERING, node, left, what, open_cast(node))
        if applied.reads_unrounded:
            return None
        apart = difference(node.name, aten, rounded)
        if apart is None:
            return None
        return self._parting(LOWERING, node, apart, "not what ATen gives", open_bits(node, aten, apart))

    # -- kernels --------------------------------------------------------------------------------

    def _of_kernels(self) -> Iterator[Parting]:
        for stored in self._followed.stored.values():
            parting = self._of_kernel(stored)
            if parting is not None:
                yield parting

    def _of_kernel(self, stored: Stored) -> Parting | None:
        if stored.meant is None or stored.meant.shape != stored.written.shape:
            return None
        apart = difference(stored.buffer, stored.meant, stored.written)
        if apart is None:
            return None
        kernel = self.lowered.kernels[stored.kernel]
        operators = operators_of_loop(kernel, stored.buffer)
        names = nodes_of_loop(kernel, stored.buffer)
        nodes = [node for node in self.lowered.snapshot.graph.nodes if node.name in names]
        why = open_code(operators, nodes, apart, stored.written.dtype, reads_unknown=stored.reads_unknown)
        name = stored.node or (kernel.nodes[-1] if kernel.nodes else None)
        node = self.lowered.node(self.lowered.producer(name)) if name is not None else None
        if node is None:
            return None
        return self._parting(CODEGEN, node, apart, f"the kernel writes something else than {_LOOPS}", why, kernel)

    # -- outputs --------------------------------------------------------------------------------

    def _of_outputs(self) -> Iterator[Parting]:
        """Outputs that are not what the kernels wrote: the wrapper, or what calls it."""
        for node, value in zip(self.lowered.snapshot.results, self._look.call.outputs or (), strict=False):
            stored = self._followed.buffer_of(node.name) if isinstance(node, fx.Node) else None
            if stored is None or not isinstance(value, torch.Tensor) or stored.written.shape != value.shape:
                continue
            apart = difference(node.name, stored.written, value.cpu())
            if apart is not None and not self._is_overwritten(stored):
                what = f"output {node.name} is not what the kernel wrote: {apart}"
                place = self._places.get(node.name, 0)
                yield Parting(self.lowered.frame, self.lowered.direction, RUNTIME, None, apart, what, position=place)

    def _is_overwritten(self, stored: Stored) -> bool:
        """Return whether a later kernel writes into the same buffer."""
        renamed = getattr(self.lowered.scheduler, "mutation_real_name", {})
        later = (name for kernel in self.lowered.kernels[stored.kernel + 1 :] for name in kernel.writes)
        return any(renamed.get(name, name) == stored.buffer for name in later)

    # -- what is the same of all ----------------------------------------------------------------

    def _parting(
        self, stage: str, node: fx.Node, apart: Difference, what: str, why: str | None, kernel: Kernel | None = None
    ) -> Parting:
        return parting_at(self.lowered, stage, node, apart, what, why, kernel, self._places.get(node.name, 0))


def parting_at(
    lowered: Lowered,
    stage: str,
    node: fx.Node,
    apart: Difference,
    what: str,
    why: str | None,
    kernel: Kernel | None = None,
    position: int = 0,
) -> Parting:
    """A parting at a node of a lowered graph; its kernel is the first that computes the node, if none is given."""
    node = lowered.node(lowered.producer(node.name)) or node  # of several results, the operator
    kernel = kernel or kernel_of(lowered, node.name)
    label = lowered.labels.get(node.name)
    if stage == CODEGEN and kernel is not None and not kernel.extern:
        code = generator_of(lowered, kernel.name).fused_loops()
        source, line = code.source, code.line
    else:
        source, line = lowering_source(node.target)
    return Parting(
        lowered.frame,
        lowered.direction,
        stage,
        operator_of(label) if label else None,
        apart,
        f"{what}: {apart}",
        node.name,
        kernel.name if kernel is not None else None,
        site_of(lowered, node.name),
        source,
        line,
        why,
        position,
    )


_FAILS = (AttributeError, RuntimeError, TypeError, KeyError, ValueError)
