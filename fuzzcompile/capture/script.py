"""Turn a script that calls ``torch.compile`` into a case: one call of a compiled callable, as the script makes it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from fuzzcompile.capture.ambient import Ambient
from fuzzcompile.capture.history import History, RecordedCall
from fuzzcompile.capture.interception import CallReached, CompiledCallable, Interception
from fuzzcompile.capture.process import silenced_output
from fuzzcompile.capture.retarget import cuda_imitated, retargeted
from fuzzcompile.capture.variables import set_too_late
from fuzzcompile.capture.world import Worlds
from fuzzcompile.case import Arguments, Case, CompileSettings
from fuzzcompile.casefiles import CaseFile
from fuzzcompile.compiler.configs import preserved_config
from fuzzcompile.compiler.entry import changed_configs, compiler_configs, reset_compiler
from fuzzcompile.errors import CaseError, message_of
from fuzzcompile.execution.building import RUN_SEED
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.holders import holders, is_model
from fuzzcompile.execution.reachable import Reached, global_names, is_user_file, own_dict
from fuzzcompile.execution.tensors import tensor_leaves

# Attributes by which a callable runs its own backward pass, which frees its graph.
_OWN_BACKWARD = {"backward", "grad"}


@dataclass
class _Captured:
    """The call that becomes the case, and the state around it."""

    record: CompiledCallable
    calls: list[RecordedCall]
    state: Worlds
    ambient: Ambient
    configs: Mapping[str, Mapping[str, object]]


def load_script(file: CaseFile, device: torch.device, *, call: int | None = None) -> Case:
    """Run the script up to its ``call``-th call of a compiled callable, and make that call a case.

    Nothing is compiled while it runs. Its output is discarded; ``sys.argv`` holds only its path.

    Args:
        file: the script or notebook.
        device: where the case will run; the script is rewritten if it names another kind of device.
        call: which call of the script, counted from 1; the first by default.

    Raises:
        CaseError: the script raises or ends before that call, or never compiles anything.
    """
    run = _Run(file, device, call or 1)
    run.execute()
    captured = run.captured
    if captured is None:
        raise CaseError(run.explain())
    grad = captured.ambient.grad
    first, *later = (call.arguments for call in captured.calls)
    return Case(
        name=file.path.stem,
        path=file.path,
        source=file.source,
        make=lambda: (captured.record.target, first),
        grad=grad,
        backward=grad == "enabled" and run.mentions_backward and _differentiable(captured),
        settings=_settings(captured),
        calls=later or None,
        run=None,
        ambient=captured.ambient.entered,
        reseed=captured.ambient.random.restore,
        state=captured.state,
        notes=tuple(run.notes()),
    )


@dataclass
class _Run:
    """One execution of a script, up to the wanted call."""

    file: CaseFile
    device: torch.device
    wanted: int
    captured: _Captured | None = None
    error: BaseException | None = None
    rewritten: bool = False
    history: dict[int, History] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path, self.source = self.file.path, self.file.source
        self.filename = str(self.path.resolve())
        self.interception = Interception(self.filename, self._on_call, self.file.place)
        self.tree = ast.parse(self.source, self.filename)
        self.compile_lines = _lines_that_compile(self.tree)
        nodes = ast.walk(self.tree)
        self.mentions_backward = any(isinstance(n, ast.Attribute) and n.attr in _OWN_BACKWARD for n in nodes)
        self._before = compiler_configs()
        self.environment = dict(os.environ)

    def execute(self) -> None:
        """Run the script; ``error`` keeps the exception it raises."""
        tree, self.rewritten = retargeted(self.tree, self.device)
        # Without this module's own __future__ imports.
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
            except BaseException as error:  # a script may raise anything, SystemExit too; explain() reports it
                self.error = error
            finally:
                self.interception.active = False
                # The compiler's later imports need the entries that the script may have removed.
                sys.path.extend(entry for entry in importable if entry not in sys.path)
                reset_compiler()

    def _cuda(self) -> contextlib.AbstractContextManager[None]:
        needed = self.device.type == "cpu" and (self.rewritten or "torch.cuda" in self.source)
        return cuda_imitated() if needed else contextlib.nullcontext()

    def _on_call(self, record: CompiledCallable, arguments: Arguments, number: int) -> None:
        if self.captured is not None:
            raise CallReached  # a bare except in the script has swallowed the first one
        history = self.history.setdefault(record.number, History())
        if number < self.wanted:
            history.add(record.target, arguments)
            return
        ambient, configs = Ambient.current(), changed_configs(self._before)
        calls = history.until(record.target, arguments)
        self.captured = _Captured(record, calls, Worlds([call.world for call in calls]), ambient, configs)
        raise CallReached

    def notes(self) -> list[str]:
        """Remarks for the user: what is judged and what is not."""
        assert self.captured is not None
        record, compiled = self.captured.record, self.interception.compiled
        kind = "notebook" if self.file.notebook is not None else "script"
        notes = [f"judged: call {self.wanted} of the {kind}, {record}", *self.file.notes]
        also_compiled = [str(callable_) for callable_ in compiled if callable_.number != record.number]
        lines = sorted(self.compile_lines - {callable_.line for callable_ in compiled})
        if also_compiled:
            notes.append(f"also compiled: {', '.join(also_compiled[:8])}; --call N judges another call")
        if lines:
            notes.append(f"not reached: torch.compile at {self._places(lines)}; --call N goes on to later calls")
        notes += self._about_state()
        notes += set_too_late(self.tree, self.environment)
        if self.rewritten:
            notes.append(f"the script is written for another kind of device and was run on {self.device}")
        return notes

    def _about_state(self) -> list[str]:
        """Describe the starting state of a later call, and the calls and state that could not be kept."""
        assert self.captured is not None
        notes = []
        given = holders(self.captured.calls[-1].arguments)
        held = [name for name, leaf in given.items() if own_dict(leaf) and not is_model(leaf)]
        if held and self.wanted == 1:
            notes.append(f"{', '.join(held[:4])} may hold what each call changes: --call N judges a later call")
        if self.history[self.captured.record.number].dropped:
            notes.append("earlier calls with inputs of another kind are left out: their state takes more than 1 GiB")
        if not all(call.world.complete for call in self.captured.calls):
            notes.append("the callable reaches more than 200 000 objects; what lies behind them is not restored")
        return notes

    def explain(self) -> str:
        """Explain in one sentence why there is no case and what to do about it."""
        calls, name = self.interception.calls, str(self.path)
        if isinstance(self.error, ModuleNotFoundError) and self.error.name:
            return f"{name} needs the module {self.error.name!r}, which is not installed; install it."
        if self.error is not None and not isinstance(self.error, SystemExit):
            return f"{name} {self._raises(self.error)} before {self._missing_call()}; fix the script."
        if calls:
            listed = ", ".join(f"{record} {record.calls}×" for record in self.interception.compiled if record.calls)
            return f"{name} makes {calls} calls of compiled callables ({listed}), so there is no call {self.wanted}."
        exits = f"exits{self._status()} before it calls"
        if self.interception.compiled:
            listed = ", ".join(str(record) for record in self.interception.compiled)
            ending = exits if self.error is not None else "never calls"
            methods = sorted({f"{method}()" for record in self.interception.compiled for method in record.methods})
            if methods:
                return (
                    f"{name} compiles {listed} but {ending} it: {', '.join(methods[:4])} runs the module itself, not "
                    "its compiled form; compile it in place (model.compile(), or model.forward = "
                    "torch.compile(model.forward))."
                )
            return f"{name} compiles {listed} but {ending} it; call it, or write a case with make()."
        if self.compile_lines and self.error is not None:
            return f"{name} {exits} torch.compile; fix the script, or write a case with make()."
        if self.compile_lines:
            places = self._places(self.compile_lines)
            return (
                f"{name} does not reach torch.compile ({places}) in the process that runs it; "
                "call it there, or write a case with make()."
            )
        return (
            f"{name} is no case: it defines no make() and never calls torch.compile; see 'Case files' in the README. "
            "(A library that is asked to compile may do so on a GPU only; its warnings say so.)"
        )

    def _status(self) -> str:
        code = getattr(self.error, "code", None)
        return f" (status {code})" if isinstance(code, int) else ""

    def _missing_call(self) -> str:
        return "any compiled callable is called" if not self.interception.calls else f"call {self.wanted}"

    def _places(self, lines: Collection[int]) -> str:
        return ", ".join(self.file.place(line) for line in sorted(lines)[:8])

    def _raises(self, error: BaseException) -> str:
        frames = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == self.filename]
        where = f" in {self.file.place(frames[-1])}" if frames else ""
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        cause = "" if first is error else f", because of {type(first).__name__} ({message_of(first, 200)})"
        text = message_of(error, 200)
        return f"raises {type(error).__name__}{f' ({text})' if text else ''}{where}{cause}"


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


def _differentiable(captured: _Captured) -> bool:
    """Return whether a tensor of the call requires a gradient and the callable runs no backward pass itself."""
    if runs_own_backward(captured.record.target):
        return False
    inputs = tensor_leaves([call.arguments for call in captured.calls])
    return any(tensor.requires_grad for tensor in (*captured.calls[-1].world.reached().tensors.values(), *inputs))


def runs_own_backward(target: Callable[..., object]) -> bool:
    """Return whether user code that ``target`` reaches calls autograd itself, as a training step does."""
    functions = [o for o in Reached({"": target}).objects if isinstance(o, types.FunctionType)]
    return any(_OWN_BACKWARD & set(global_names(f.__code__)) for f in functions if is_user_file(f.__code__.co_filename))


def _settings(captured: _Captured) -> CompileSettings:
    configs = {name: dict(entries) for name, entries in captured.configs.items()}
    settings = captured.record.settings
    return replace(settings, inductor=configs["inductor"], dynamo=configs["dynamo"], functorch=configs["functorch"])
