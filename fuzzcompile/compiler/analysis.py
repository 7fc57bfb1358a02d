"""AOTAutograd's analysis of a graph's inputs and outputs before tracing, checked against a run of that graph.

The analysis decides which outputs get gradients, which are given back as views of inputs, and which inputs are written
to; nothing behind it looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.functional import transforms_left
from fuzzcompile.compiler.labels import source_of
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.patching import Function
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.compiler.replay import _Replayer
from fuzzcompile.execution.tensors import copy_tree, same_values, share_storage

SOURCE = "torch/_functorch/_aot_autograd/collect_metadata_analysis.py"
FUNCTION = "run_functionalized_fw_and_collect_metadata"
_OF_INPUT = ("alias_of_input", "is_input")


@dataclass(frozen=True)
class Analysis:
    """Result of the analysis: for each output its kind and if it gets gradients; for each input if it is written to.

    An output's kind is the name of AOTAutograd's ``OutputType`` and the input that it is a view of, if any.
    """

    gradients: Sequence[bool]
    kinds: Sequence[tuple[str, int | None]]
    written: Sequence[bool]
    line: int | None


def wrap_analysis(recorder: Recorder, original: Function) -> Function:
    """Keep the first analysis of each captured graph; later ones are of other forms of it."""
    _, line = source_of(original)

    def prepare(*args: object, **kwargs: object) -> Function:
        analyse = original(*args, **kwargs)
        assert callable(analyse)

        def analysed(*flat: object) -> object:
            said = analyse(*flat)
            if recorder.frame is not None and recorder.frame.analysis is None:
                recorder.frame.analysis = _read(said, line)
            return said

        return analysed

    return prepare


def _read(said: object, line: int | None) -> Analysis:
    outputs, inputs = getattr(said, "output_info", ()), getattr(said, "input_info", ())
    return Analysis(
        tuple(bool(getattr(output, "requires_grad_for_backward", output.requires_grad)) for output in outputs),
        tuple((str(output.output_type.name), output.base_idx) for output in outputs),
        tuple(bool(each.mutates_data) for each in inputs),
        line,
    )


def contradictions(said: Analysis, snapshot: Snapshot, inputs: Sequence[object], *, grad: bool) -> Iterator[str]:
    """Yield, in a few words each, facts about inputs and outputs that a run of the graph shows and the analysis denies.

    Args:
        said: the analysis of that graph.
        snapshot: the graph.
        inputs: values of its placeholders, in order; copied before the run.
        grad: whether the program has gradients.

    Raises:
        Exception: whatever the graph raises.
    """
    given = copy_tree(list(inputs))
    kept = copy_tree([value.detach() if isinstance(value, torch.Tensor) else value for value in given])
    with torch.set_grad_enabled(grad), transforms_left():
        outputs = pytree.tree_leaves(_Replayer(snapshot).run(*given))
    if (len(outputs), len(given)) != (len(said.gradients), len(said.written)):
        return
    for index, output in enumerate(outputs):
        if isinstance(output, torch.Tensor):
            yield from _of_output(f"output {index}", output, said.gradients[index], said.kinds[index], given, grad)
    for index, (before, after) in enumerate(zip(kept, given, strict=True)):
        if not said.written[index] and _written(before, after):
            yield f"input {index} is written to"


def _written(before: object, after: object) -> bool:
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or before.shape != after.shape:
        return False
    return not same_values(before, after.detach())


def _of_output(
    name: str, output: torch.Tensor, gradient: bool, kind: tuple[str, int | None], given: Sequence[object], grad: bool
) -> Iterator[str]:
    # A view that was made without gradients requires them as its base does, and gets none.
    differentiable = output.requires_grad and (output.grad_fn is not None or not output._is_view())
    if grad and differentiable != gradient:
        yield f"{name} {'gets' if differentiable else 'gets no'} gradients"
    shared = [
        index for index, value in enumerate(given) if isinstance(value, torch.Tensor) and share_storage(value, output)
    ]
    of_input, base = kind
    if of_input in _OF_INPUT and base not in shared:
        yield f"{name} is no view of input {base}"
    # One of several views that one call makes (chunk) is given back as no alias, on purpose, and names its input.
    if kind == ("non_alias", None) and shared:
        yield f"{name} is a view of input {shared[0]}"
