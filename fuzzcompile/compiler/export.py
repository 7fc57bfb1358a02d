"""Programs exported by ``torch.export`` before they run, and from there compiled by AOTInductor.

An exported program compiles nothing anew: a call that none of the programs so far accepts is exported anew.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.model.contract import AOTI
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.stages import DYNAMO, LOWERING

# What torch.export raises where it documents that it takes no such program.
_REFUSALS = (
    "UserError",
    "Unsupported",
    "GuardOnDataDependentSymNode",
    "UserErrorType",
    "ConstraintViolationError",
    "SpecViolationError",
    "PendingUnbackedSymbolNotFound",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)
_REFUSES = re.compile(r"(not|un|n't) ?support|only supports?|data.dependent|assigned during export", re.IGNORECASE)


AnyCallable = Callable[..., object]


class ExportError(Exception):
    """Exporting, or compiling what was exported, raised ``inner_exception``."""

    def __init__(self, error: Exception, stage: str) -> None:
        super().__init__(str(error))
        self.inner_exception, self.stage = error, stage  # of the compiler, unless the ledger knows better
        self.refused = _find_refusal(error)  # the reason, where this is a documented limit and no fault


def _find_refusal(error: BaseException | None) -> str | None:
    while error is not None:
        if type(error).__name__ in _REFUSALS or _REFUSES.search(str(error)):
            return describe_error(error, 200)
        error = error.__cause__
    return None


class ExportedCallable:
    """Calls the program exported for inputs of that kind; with ``dynamic``, sizes are symbols wherever they can be."""

    def __init__(
        self, model: AnyCallable, path: str, *, dynamic: bool, options: Mapping[str, object], recorder: Recorder
    ) -> None:
        self._model, self._path, self._dynamic = model, path, dynamic
        self._options, self._recorder = options, recorder
        # The kind of inputs, the check of its constraints, and what runs it, of each program.
        self._programs: list[tuple[object, AnyCallable, AnyCallable]] = []

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the program, exported if there is none for such inputs yet; ExportError if that failed."""
        own = _make_input_key(args, kwargs, sized=not self._dynamic)
        for kind, check, run in self._programs:
            accepts = kind == own
            if accepts:
                try:
                    check(*pytree.tree_leaves((args, kwargs)))
                except (AssertionError, RuntimeError, ValueError):  # how a constraint of an exported program says no
                    accepts = False
            if accepts:
                return run(*args, **kwargs)
        self._programs.append((own, *self._build_program(args, kwargs)))
        return self._programs[-1][-1](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _build_program(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[AnyCallable, AnyCallable]:
        module = self._model if isinstance(self._model, nn.Module) else _FunctionModule(self._model)
        try:
            program = _export_module(module, args, kwargs, dynamic=self._dynamic)
            self._recorder.exported += 1
            self._recorder.ledger.exported.append(program.graph)
            runnable = program.module()
        except Exception as error:  # of any kind: whatever exporting raises is what this side shows
            raise ExportError(error, DYNAMO) from error
        check = _build_guards(program, runnable)
        if self._path != AOTI:
            return check, runnable
        try:
            return check, _compile_package(program, args, kwargs, self._options, self._recorder)
        except Exception as error:  # of any kind: whatever compiling raises is what this side shows
            raise ExportError(error, LOWERING) from error


class _FunctionModule(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


def _export_module(
    module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], *, dynamic: bool
) -> torch.export.ExportedProgram:
    shapes = None
    if dynamic:
        collection = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
        for tensor in pytree.tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.ndim:
                collection[tensor] = dict.fromkeys(range(tensor.ndim), torch.export.Dim.AUTO)
        shapes = collection.dynamic_shapes(module, args, kwargs)  # type: ignore[no-untyped-call]
    return torch.export.export(module, args, kwargs, dynamic_shapes=shapes)


def _build_guards(program: torch.export.ExportedProgram, runnable: nn.Module) -> Callable[..., object]:
    """A check of the program's constraints on its flat inputs, which raises where they do not hold."""
    from torch._export.utils import _check_input_constraints_for_graph

    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    user_inputs = set(program.graph_signature.user_inputs)
    named = [node for node in placeholders if node.name in user_inputs]
    guards = getattr(runnable, "_guards_fn", None)

    def check(*leaves: object) -> None:
        paths: list[Any] = [((pytree.SequenceKey(index),), leaf) for index, leaf in enumerate(leaves)]
        _check_input_constraints_for_graph(named, paths, program.range_constraints)
        if guards is not None:
            guards(*leaves)

    return check


def _compile_package(
    program: torch.export.ExportedProgram,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    options: Mapping[str, object],
    recorder: Recorder,
) -> AnyCallable:
    from torch._inductor.package.package import load_package, package_aoti

    before = len(recorder.ledger.frames)
    options = {**options, "aot_inductor.package": True}
    files: Any = torch._inductor.aot_compile(program.module(), args, kwargs, options=options)
    frames, loaded = recorder.ledger.frames[before:], cast(Any, None)
    interpreter, recorder.interpreter = recorder.interpreter, None
    if interpreter is None:
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
            loaded = load_package(package_aoti(str(Path(folder) / "model.pt2"), files))
        _share_state(loaded, program)

    def run(*args: object, **kwargs: object) -> object:
        leaves = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in pytree.tree_leaves((args, kwargs))]
        for frame in frames:
            recorder.capture(frame.dynamo_calls, leaves)
            recorder.capture(frame.forward_calls, leaves)
        if interpreter is None:
            return loaded(*args, **kwargs)
        outputs: Any = interpreter(leaves)
        spec: Any = program.call_spec.out_spec
        return pytree.tree_unflatten(list(outputs), spec)

    return run


def _share_state(loaded: Any, program: torch.export.ExportedProgram) -> None:
    """Let the package, which has copies, work on the model's own tensors if the program writes to any."""
    targets = [node.target for node in program.graph.nodes]
    if not any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets):
        return
    own = {**program.state_dict, **program.constants}
    held = {name: own[name] for name in loaded.get_constant_fqns() if isinstance(own.get(name), torch.Tensor)}
    if held:
        loaded.load_constants(held, check_full_update=False, user_managed=True)


def _make_input_key(args: tuple[object, ...], kwargs: Mapping[str, object], *, sized: bool) -> object:
    """Return the key under which one program serves several calls: structure, layouts, sizes, values but tensors."""

    def make_key(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return type(leaf).__name__, repr(leaf)
        steps = leaf.stride()
        order = sorted(range(leaf.ndim), key=lambda dim: (-steps[dim], dim))
        sizes = (tuple(order), leaf.is_contiguous(), tuple(step == 0 for step in steps))
        layout = (tuple(leaf.shape), steps) if sized else sizes
        return (leaf.dtype, leaf.device, leaf.requires_grad, leaf.ndim, *layout)

    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    return str(spec), tuple(map(make_key, leaves)), torch.is_grad_enabled()
