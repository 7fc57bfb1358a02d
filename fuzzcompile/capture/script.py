"""From a script that calls ``torch.compile`` to a case: one call of a compiled callable, as the script makes it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.capture.ambient import Ambient
from fuzzcompile.capture.interception import CallReached, CompiledCallable, Interception
from fuzzcompile.capture.process import silenced_output
from fuzzcompile.capture.retarget import cuda_imitated, retargeted
from fuzzcompile.capture.world import World
from fuzzcompile.case import Arguments, Case, CompileSettings
from fuzzcompile.compiler.configs import preserved_config
from fuzzcompile.compiler.entry import changed_configs, compiler_configs, reset_compiler
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.building import RUN_SEED, placed_input
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.reachable import Reached, global_names, is_user_file
from fuzzcompile.execution.tensors import StorageCopier, tensor_leaves

# Earlier calls of the same callable with other shapes are part of the case, as recompiles depend on them.
_MAX_HISTORY = 8
# Attributes that a callable names if it runs a backward pass of its own: its graph is gone after it.
_OWN_BACKWARD = {"backward", "grad"}
# Variables that change how torch compiles.
_READ_AT_IMPORT = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TORCHCOMPILE_")
_ONLY_TALK = ("_VERBOSE", "_DEBUG", "_LOGS", "_TRACE")


@dataclass
class _Captured:
    """The call that is the case, and everything that surrounded it."""

    record: CompiledCallable
    arguments: list[Arguments]
    world: World
    ambient: Ambient
    configs: Mapping[str, Mapping[str, Any]]


def load_script(path: Path, source: str, device: torch.device, *, call: int | None = None) -> Case:
    """Run the script until its ``call``-th call of a compiled callable (the first), and make that call a case.

    Nothing is compiled while it runs. What it prints is discarded; ``sys.argv`` holds its path alone.

    Args:
        path: the script.
        source: its text.
        device: where the case will run; text that names another kind of device is rewritten.
        call: which call, 1 being the first of the script.

    Raises:
        CaseError: the text is no Python, the script raises or ends before that call, or never compiles anything.
    """
    run = _Run(path, source, device, call or 1)
    run.execute()
    found = run.captured
    if found is None:
        raise CaseError(run.explain())
    grad = found.ambient.grad
    first, *others = found.arguments
    return Case(
        name=path.stem,
        path=path,
        source=source,
        make=lambda: (found.record.target, first),
        grad=grad,
        backward=grad == "enabled" and run.mentions_backward and _differentiable(found),
        settings=_settings(found),
        calls=others or None,
        run=None,
        ambient=found.ambient.entered,
        reseed=found.ambient.random.restore,
        state=found.world,
        notes=tuple(run.notes()),
    )


@dataclass
class _Run:
    """One execution of a script, up to the call that was asked for."""

    path: Path
    source: str
    device: torch.device
    wanted: int
    captured: _Captured | None = None
    error: BaseException | None = None
    rewritten: bool = False
    history: dict[int, list[tuple[Any, Arguments]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.filename = str(self.path.resolve())
        self.interception = Interception(self.filename, self._on_call)
        self.tree = self._parse()
        self.compile_lines = _lines_that_compile(self.tree)
        self.mentions_backward = any(
            isinstance(node, ast.Attribute) and node.attr in ("backward", "grad") for node in ast.walk(self.tree)
        )
        self._before = compiler_configs()
        self.environment = set(os.environ)

    def execute(self) -> None:
        """Run the script; what it raises is kept in ``error``."""
        tree, self.rewritten = retargeted(self.tree, self.device)
        # Not with this module's own __future__ imports.
        code = compile(tree, self.filename, "exec", dont_inherit=True)
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.source), None, lines, self.filename)  # it may delete its file
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=self.filename, __builtins__=builtins)
        sys.modules["__main__"] = main  # dynamo resolves the globals of traced code there
        sys.argv = [str(self.path)]
        importable = list(sys.path)
        sys.path.insert(0, str(self.path.resolve().parent))
        seed_everything(RUN_SEED)
        with preserved_config(), silenced_output(), self.interception.installed(), self._cuda():
            try:
                exec(code, main.__dict__)
            except (KeyboardInterrupt, MemoryError):
                raise
            except CallReached:
                pass
            except BaseException as error:
                self.error = error
            finally:
                self.interception.active = False
                # What the compiler imports later must still be found, whatever the script took out.
                sys.path.extend(entry for entry in importable if entry not in sys.path)
                reset_compiler()

    def _cuda(self) -> contextlib.AbstractContextManager[None]:
        needed = self.device.type == "cpu" and (self.rewritten or "torch.cuda" in self.source)
        return cuda_imitated() if needed else contextlib.nullcontext()

    def _on_call(self, record: CompiledCallable, arguments: Arguments, number: int) -> None:
        if self.captured is not None:
            raise CallReached  # a bare except of the script has swallowed the first
        if number < self.wanted:
            self._remember(record, arguments)
            return
        ambient, configs = Ambient.current(), changed_configs(self._before)
        world = World({"": record.target, **_holders(arguments)})
        own = {id(tensor) for tensor in world.tensors().values()}
        kind = _kind(arguments)
        earlier = [call for other, call in self.history.get(record.number, []) if other != kind]
        kept = [*earlier, _copied(arguments, own)][-_MAX_HISTORY:]
        self.captured = _Captured(record, kept, world, ambient, configs)
        raise CallReached

    def _remember(self, record: CompiledCallable, arguments: Arguments) -> None:
        """Keep the first call of each kind of input (shape, stride, dtype) of a callable."""
        known = self.history.setdefault(record.number, [])
        kind = _kind(arguments)
        if all(kind != other for other, _ in known):
            known.append((kind, _copied(arguments, set())))

    def notes(self) -> list[str]:
        """What a user should know of how the script was read."""
        assert self.captured is not None
        record, compiled = self.captured.record, self.interception.compiled
        notes = [f"judged: call {self.wanted} of the script, {record}"]
        others = [str(other) for other in compiled if other.number != record.number]
        lines = sorted(self.compile_lines - {other.line for other in compiled})
        if others:
            notes.append(f"also compiled: {', '.join(others[:8])}; --call N judges another call")
        if lines:
            text = ", ".join(str(line) for line in lines[:8])
            notes.append(f"not reached: torch.compile at line {text}; --call N goes on to later calls")
        changed = os.environ.keys() - self.environment
        ignored = sorted(n for n in changed if n.startswith(_READ_AT_IMPORT) and not n.endswith(_ONLY_TALK))
        if ignored:
            notes.append(
                f"the script sets {', '.join(ignored)}, which torch reads when it is imported: "
                "set it in the environment of fuzzcompile"
            )
        if self.rewritten:
            notes.append(f"the script is written for another kind of device and was run on {self.device}")
        return notes

    def explain(self) -> str:
        """Why there is no case, in one sentence that says what to do."""
        calls, name = self.interception.calls, str(self.path)
        if isinstance(self.error, ModuleNotFoundError):
            return f"{name} needs the module {self.error.name!r}, which is not installed; install it."
        if self.error is not None and not isinstance(self.error, SystemExit):
            return f"{name} {_raises(self.error, self.filename)} before {self._missing_call()}; mend the script."
        if calls:
            listed = ", ".join(f"{record} {record.calls}×" for record in self.interception.compiled if record.calls)
            return f"{name} makes {calls} calls of compiled callables ({listed}), so there is no call {self.wanted}."
        ending = f"exits{self._status()} before it calls" if self.error is not None else "never calls"
        if self.interception.compiled:
            listed = ", ".join(str(record) for record in self.interception.compiled)
            return f"{name} compiles {listed} but {ending} it; call it, or write a case with make()."
        if self.compile_lines and self.error is not None:
            return (
                f"{name} exits{self._status()} before it calls torch.compile; mend the script, or write a case with "
                "make()."
            )
        if self.compile_lines:
            text = ", ".join(str(line) for line in sorted(self.compile_lines)[:8])
            return (
                f"{name} does not reach torch.compile (line {text}) in the process that runs it; "
                "call it there, or write a case with make()."
            )
        return f"{name} is no case: it defines no make() and never calls torch.compile; see 'Case files' in the README."

    def _status(self) -> str:
        code = getattr(self.error, "code", None)
        return f" (status {code})" if isinstance(code, int) else ""

    def _missing_call(self) -> str:
        return "any compiled callable is called" if not self.interception.calls else f"call {self.wanted}"

    def _parse(self) -> ast.Module:
        try:
            return ast.parse(self.source, self.filename)
        except (SyntaxError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise CaseError(f"{self.path} is no case: it is not valid Python ({text}).") from error


def _lines_that_compile(tree: ast.Module) -> set[int]:
    """Lines with ``torch.compile`` in any form: a call, a decorator, a bare name."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "compile"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    }


def _raises(error: BaseException, filename: str) -> str:
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    where = f" in line {frames[-1]}" if frames else ""
    text = " ".join(str(error).split())[:200]
    return f"raises {type(error).__name__}{f' ({text})' if text else ''}{where}"


def _holders(arguments: Arguments) -> dict[str, Any]:
    """Arguments that are no plain data: modules, optimizers, objects with tensors in them."""
    leaves = pytree.tree_leaves((arguments.args, dict(arguments.kwargs)))
    return {f"argument{i}": leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}


def _copied(arguments: Arguments, own: set[int]) -> Arguments:
    """The arguments as they are now; tensors that belong to the callable's state stay themselves."""
    copier = StorageCopier()

    def copy(leaf: Any) -> Any:
        return placed_input(leaf, copier) if isinstance(leaf, torch.Tensor) and id(leaf) not in own else leaf

    return Arguments(pytree.tree_map(copy, arguments.args), pytree.tree_map(copy, dict(arguments.kwargs)))


def _kind(arguments: Arguments) -> Sequence[Any]:
    leaves = pytree.tree_leaves((arguments.args, dict(arguments.kwargs)))
    return [
        (tuple(leaf.shape), leaf.dtype, leaf.layout == torch.strided and leaf.stride())
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)[:100]
        for leaf in leaves
    ]


def _differentiable(found: _Captured) -> bool:
    """Whether anything that the call touches asks for a gradient, and the callable does not differentiate itself."""
    functions = [o for o in Reached({"": found.record.target}).objects if isinstance(o, types.FunctionType)]
    if any(_OWN_BACKWARD & set(global_names(f.__code__)) for f in functions if is_user_file(f.__code__.co_filename)):
        return False
    tensors = [*found.world.tensors().values(), *tensor_leaves([(c.args, dict(c.kwargs)) for c in found.arguments])]
    return any(tensor.requires_grad for tensor in tensors)


def _settings(found: _Captured) -> CompileSettings:
    given: Mapping[str, Any] = found.record.arguments
    backend: str | Callable[..., Any] = given.get("backend") or "inductor"
    return CompileSettings(
        backend=backend,
        options=dict(given.get("options") or {}),
        inductor=dict(found.configs["inductor"]),
        dynamo=dict(found.configs["dynamo"]),
        functorch=dict(found.configs["functorch"]),
        mode=given.get("mode"),
        dynamic=given.get("dynamic"),
        fullgraph=bool(given.get("fullgraph", False)),
    )
