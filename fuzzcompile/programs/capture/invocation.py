"""A call that a user makes in a running process, as a case, and its file for another process that judges it."""

from __future__ import annotations

import contextlib
import copyreg
import importlib.machinery
import inspect
import linecache
import pickle
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import cloudpickle
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.torch_api import AnyCallable, is_compiled, read_compile_settings, unwrap_compiled
from fuzzcompile.compiler.torch_config import (
    CONFIGS,
    compile_in_process,
    list_changed_entries,
    load_config,
    preserve_config,
)
from fuzzcompile.model.errors import CaseError, UsageError, describe_error
from fuzzcompile.programs.capture.case_loader import runs_own_backward
from fuzzcompile.programs.capture.interception import CallHistory, make_captured_case, name_target, roots_of_call
from fuzzcompile.programs.capture.state import Ambient, PresentState
from fuzzcompile.run.case import Arguments, Case, CompileSettings
from fuzzcompile.run.code_files import is_user_file
from fuzzcompile.run.reachable_state import ReachedObjects, name_arguments
from fuzzcompile.run.tensors import list_tensors, reduce_operator

# Reading the text of a class takes milliseconds, and a closure may reach a whole framework.
_MAX_TEXTS = 200
# Entries that say how a process compiles, not what: a worker sets its own.
_OF_PROCESS = ("compile_threads", "worker_start_method", "worker_log_path", "quiesce_async_compile_pool")


@dataclass(frozen=True)
class Invocation:
    """One call of ``target``, what the user wrote and not its compiled form; ``name`` is what a user calls it.

    ``settings`` are the arguments of ``torch.compile``, ``configs`` the entries of the compiler's configs that are not
    torch's defaults, by config. ``source`` is text that says which program this is, for the signature of an unproved
    bug; ``notes`` are what a user should know about how the call was read.
    """

    name: str
    target: AnyCallable
    arguments: Arguments
    settings: CompileSettings
    ambient: Ambient
    backward: bool
    configs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def roots(self) -> dict[str, object]:
        """The callable, and the arguments that are not tensors: all that a call can change besides its inputs."""
        return roots_of_call(self.target, self.arguments)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that the call can reach."""
        return [*ReachedObjects(self.roots).tensors.values(), *list_tensors(self.arguments)]

    def case(self) -> Case:
        """The call as a case that runs in place, on the objects themselves, restored before every run."""
        return make_captured_case(
            CallHistory().until(self.target, self.arguments),
            self.ambient,
            self.settings,
            name=self.name,
            path=Path(self.name),
            source=self.source,
            backward=self.backward,
            notes=self.notes,
        )


def capture_invocation(model: object, arguments: Arguments) -> Invocation:
    """The call ``model(*args, **kwargs)`` as it would be made now.

    Of a compiled callable, the call of its original under the arguments that ``torch.compile`` got. Gradients are
    compared where autograd records and either the callable is a module in training mode, or an input requires a
    gradient. UsageError if ``model`` cannot be called.
    """
    if not callable(model) or isinstance(model, type):
        raise UsageError(f"triage() takes a module or a function and its arguments, not {model!r:.80}.")
    target, notes = unwrap_compiled(model), list[str]()
    try:
        settings = read_compile_settings(model)
    except LookupError as error:
        settings = None
        notes.append(f"{error}: the defaults are judged; pass them to triage.options()")
    modules, ambient = list(_find_modules(target)), Ambient.current()
    parts = [f"{name_target(m)}.{name}" for m in modules for name, child in m._modules.items() if is_compiled(child)]
    if parts:
        first = f"{parts[0]}{f' and {len(parts) - 1} more' if parts[1:] else ''}"
        notes.append(f"judged as a whole, though {first} is compiled on its own: pass that part to judge it as it is")
    recording = ambient.grad == "enabled" and not runs_own_backward(target)
    trained = (p for module in modules if module.training for p in module.parameters(recurse=False))
    return Invocation(
        name=name_target(target),
        target=target,
        arguments=arguments,
        settings=settings or CompileSettings(),
        ambient=ambient,
        backward=recording and any(tensor.requires_grad for tensor in (*list_tensors(arguments), *trained)),
        configs={
            name: {key: value for key, value in list_changed_entries(name).items() if key not in _OF_PROCESS}
            for name in CONFIGS
        },
        source=_build_source(target, arguments),
        notes=tuple(notes),
    )


@contextlib.contextmanager
def run_parts_uncompiled(target: AnyCallable) -> Iterator[None]:
    """Have the modules of ``target`` run as written in the block, where parts of it were compiled on their own."""
    with contextlib.ExitStack() as stack:
        for module in _find_modules(target):
            if vars(module).get("_compiled_call_impl") is not None:
                stack.callback(vars(module).__setitem__, "_compiled_call_impl", vars(module)["_compiled_call_impl"])
                vars(module)["_compiled_call_impl"] = None
            for name, child in list(module._modules.items()):
                written = unwrap_compiled(child) if child is not None else child
                if written is not child and isinstance(written, nn.Module):
                    stack.callback(module._modules.__setitem__, name, child)
                    module._modules[name] = written
        yield


@contextlib.contextmanager
def restore_after(invocation: Invocation) -> Iterator[None]:
    """Judge in this process in the block; afterwards all that the call reaches, and the process, are as before.

    What the user has compiled is compiled again at its next call: torch forgets it at the first compile here.
    """
    before, originals = Ambient.current(), PresentState(invocation.roots)
    try:
        with before.enter(), warnings.catch_warnings(), contextlib.ExitStack() as stack:
            # Reading every entry of a config to restore it reads the deprecated ones, too.
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.utils\._config_module")
            # Autograd on and autocast off, as in a worker: each run enters the modes of the call itself.
            regions = [torch.autocast(device, enabled=False) for device, *_ in before.autocast.regions]
            modes: list[AbstractContextManager[object]] = [torch.inference_mode(False), torch.enable_grad(), *regions]
            for context in (preserve_config(), *modes, run_parts_uncompiled(invocation.target)):
                stack.enter_context(context)
            compile_in_process()
            yield
    finally:
        originals.put_back()
        before.random.restore()


def _find_modules(target: AnyCallable) -> Iterator[nn.Module]:
    owner = getattr(target, "__self__", None)
    root = target if isinstance(target, nn.Module) else owner
    if isinstance(root, nn.Module):
        yield from root.modules()
    else:
        reached = ReachedObjects({"": target}).objects
        yield from (value for value in reached if isinstance(value, nn.Module))


def _build_source(target: AnyCallable, arguments: Arguments) -> str:
    owner = getattr(target, "__self__", target)
    reached = ReachedObjects({"": target}).objects
    written = [value for value in (target, *reached) if isinstance(value, types.FunctionType | type)]
    texts = [text for value in [*dict.fromkeys(written)][:_MAX_TEXTS] if (text := _get_text(value))]
    model = repr(owner) if isinstance(owner, nn.Module) else ""
    forms = [f"{name}: {_form(leaf)}" for name, leaf in name_arguments(arguments)]
    return "\n".join([*texts, f"MODEL = {model!r}", f"INPUTS = {forms!r}", ""])


def _get_text(value: types.FunctionType | type) -> str:
    if isinstance(value, types.FunctionType) and "." in value.__qualname__.replace("<locals>.", ""):
        return ""  # a method: its class is among the others
    with contextlib.suppress(OSError, TypeError):
        if is_user_file(inspect.getsourcefile(value) or ""):
            return textwrap.dedent(inspect.getsource(value))
    return ""


def _form(leaf: object) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{tuple(leaf.shape)} {tuple(leaf.stride())} {leaf.dtype}" if leaf.layout == torch.strided else "tensor"
    return repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf).__name__


# The file for another process: what is defined in the running program goes along by value. torch writes the tensors, so
# that views of one buffer stay views of one buffer, and cloudpickle the rest. What the other process can
# import goes by name; those of ``__main__``, of a notebook, and of modules that no finder finds (a test file that
# pytest loads from its path) go by value, with the globals that they name.


class Unsendable(Exception):
    """A call that cannot be written for another process; the message says why, in one line."""


def send(invocation: Invocation, path: Path) -> None:
    """Write the call to ``path``; Unsendable if something that it reaches cannot be pickled."""
    # A tensor is pickled without its gradient, and what is a result of an operator would arrive as a leaf.
    gradients = [(tensor, tensor.grad) for tensor in invocation.tensors if tensor.is_leaf and tensor.grad is not None]
    leaves = pytree.tree_leaves(invocation.arguments)
    results = {n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and not leaf.is_leaf}
    # Sources of functions' files that are in memory only, as those of a notebook are.
    functions = [value for value in ReachedObjects(invocation.roots).objects if isinstance(value, types.FunctionType)]
    files = {function.__code__.co_filename for function in functions}
    texts = {name: "".join(linecache.getlines(name)) for name in files if not Path(name).exists()}
    sent = invocation, gradients, results, texts
    module = types.SimpleNamespace(__name__=__name__, Pickler=_Pickler)  # all that torch.save uses of one
    with run_parts_uncompiled(invocation.target), _modules_by_value():
        try:
            torch.save(sent, path, pickle_module=module, pickle_protocol=pickle.DEFAULT_PROTOCOL)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # pickling runs the objects' own code, which may raise anything
            raise Unsendable(describe_error(error, 200)) from error


def receive(path: Path, device: torch.device) -> Invocation:
    """The call in a file that :func:`send` wrote, its tensors on ``device``; CaseError if it cannot be rebuilt."""
    try:
        invocation, gradients, results, texts = torch.load(path, map_location=device, weights_only=False)
    except MemoryError:
        raise
    except Exception as error:  # unpickling imports modules and runs the objects' own code
        said = describe_error(error, 200)
        raise CaseError(f"{path.stem} cannot be rebuilt in another process: {said}") from error
    for name, text in texts.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    for tensor, gradient in gradients:
        tensor.grad = gradient
    leaves, spec = pytree.tree_flatten(invocation.arguments)
    with torch.enable_grad():
        fresh = [leaf.clone() if number in results else leaf for number, leaf in enumerate(leaves)]
    # Entries of the sender's configs that this process has otherwise.
    changed: dict[str, Any] = {}
    for name, held in invocation.configs.items():
        own = load_config(name).get_config_copy() if held else {}
        changed[name] = {key: value for key, value in held.items() if key in own and own[key] != value}
    settings = replace(invocation.settings, **changed)
    received: Invocation = replace(invocation, arguments=pytree.tree_unflatten(fresh, spec), settings=settings)
    return received


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """Gives functions that go by value the globals of a module of their name, where dynamo looks them up."""

    def __init__(self, file: IO[bytes], protocol: int | None = None) -> None:
        super().__init__(file, protocol=protocol)
        for module in list(sys.modules.values()):
            name, path = getattr(module, "__name__", None), getattr(module, "__file__", None)
            if isinstance(name, str) and (name == "__main__" or is_user_file(path or "")):
                self.globals_ref[id(vars(module))] = _Globals(name, path)

    def reducer_override(self, obj: object) -> object:
        """Operators go by name.

        An optimizer goes with attributes that it would not be saved with, such as its hooks. What stands in for a
        method (the step that a scheduler counts) stays here: as a copy it would have its own copy of torch's globals.
        """
        saved = torch.optim.Optimizer.__getstate__
        if isinstance(obj, torch.optim.Optimizer) and type(obj).__getstate__ is saved:
            state = {name: value for name, value in vars(obj).items() if not hasattr(type(obj), name)}
            return copyreg.__newobj__, (type(obj),), state  # type: ignore[attr-defined]
        return reduce_operator(obj) or super().reducer_override(obj)


@dataclass(frozen=True)
class _Globals:
    """Pickles as the globals of a module that the other process makes."""

    name: str
    file: str | None

    def __reduce__(self) -> tuple[object, ...]:
        return _make_globals, (self.name, self.file)


def _make_globals(name: str, file: str | None) -> dict[str, object]:
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    return vars(module)


@contextlib.contextmanager
def _modules_by_value() -> Iterator[None]:
    """Pickle the user's modules by value that another process would not import from the same file."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            own = name != "__main__" and getattr(module, "__name__", None) == name and is_user_file(file)
            if own and _origin(name) != Path(file).resolve():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _origin(name: str) -> Path | None:
    parent = sys.modules.get(name.rpartition(".")[0])
    where = getattr(parent, "__path__", None) if "." in name else None
    if "." in name and where is None:
        return None
    try:
        spec = importlib.machinery.PathFinder.find_spec(name, where)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None
