"""Turn a script that calls ``torch.compile`` into a case: one call of a compiled callable, as the script makes it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import difflib
import importlib.util
import linecache
import os
import re
import shlex
import sys
import traceback
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from fuzzcompile.compiler.custom_code import apply_backend
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.compiler.torch_api import copy_configs, diff_configs, reset_compiler
from fuzzcompile.compiler.torch_config import preserve_config
from fuzzcompile.model.errors import CaseError, describe_error, format_message
from fuzzcompile.model.evidence import ALSO_COMPILED, JUDGED
from fuzzcompile.model.hints import format_command
from fuzzcompile.programs.capture.interception import (
    CallHistory,
    CallReached,
    CompiledCallable,
    CompileInterception,
    RecordedCall,
    make_captured_case,
    record_call,
)
from fuzzcompile.programs.capture.script_process import (
    WatchedArguments,
    find_importer,
    find_usage_error,
    imitate_cuda,
    mute_trackers,
    name_muted,
    retarget_script,
    set_too_late,
    silence_output,
    walk_causes,
)
from fuzzcompile.programs.capture.state import Ambient, World, Worlds
from fuzzcompile.programs.casefiles.case_file import CaseFile, read_case_file
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import Arguments, Case
from fuzzcompile.run.case_program import RUN_SEED, build, call_make, name_roots
from fuzzcompile.run.code_files import is_user_file
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.ranks import prepare_group
from fuzzcompile.run.reachable_state import ReachedObjects, get_own_dict, is_model, list_global_names, name_holders
from fuzzcompile.run.runs import observe
from fuzzcompile.run.seats import forms_group
from fuzzcompile.run.tensors import list_tensors
from fuzzcompile.run.transforms import leave_function_modes

# Attributes by which a callable runs its own backward pass, which frees its graph.
_OWN_BACKWARD = {"backward", "grad"}


def load_script(file: CaseFile, device: torch.device, *, call: int | None = None) -> Case:
    """Run the script up to its ``call``-th call (or the first) of a compiled callable, and make that call a case.

    Nothing is compiled while it runs. Its output is discarded; ``sys.argv`` holds its path and ``file.arguments``. A
    script that names another kind of device is rewritten. CaseError if it raises or ends before that call, or never
    compiles anything.
    """
    run = ScriptRun(file, device, call or 1)
    run.execute()
    record, calls = run.record, run.calls
    if record is None:
        raise CaseError(run.explain())
    inductor, dynamo, functorch = (dict(run.configs[name]) for name in ("inductor", "dynamo", "functorch"))
    return make_captured_case(
        calls,
        run.ambient,
        replace(record.settings, inductor=inductor, dynamo=dynamo, functorch=functorch),
        name=file.path.stem,
        path=file.path,
        source=file.source,
        backward=run.differentiates(calls, run.ambient),
        notes=run.notes(record),
    )


NOT_REACHED = "not reached: torch.compile at "
"""Beginning of the remark on the places of a script to which the judged call has not come."""
Visit = Callable[[CompiledCallable, Arguments, int], None]
"""Looks at one call of a script, given its callable, its inputs and its number from 1; it may raise CallReached."""


@dataclass
class ScriptRun:
    """One execution of a script, up to the wanted call: its callable (None if it was not reached), and its state.

    With ``visit``, no call is wanted: each is looked at as the script makes it.
    """

    file: CaseFile
    device: torch.device
    wanted: int = 1
    visit: Visit | None = None
    record: CompiledCallable | None = None
    calls: list[RecordedCall] = field(default_factory=list)
    error: BaseException | None = None
    rewritten: bool = False
    history: dict[int, CallHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path, self.source = self.file.path, self.file.source
        self.filename = str(self.path.resolve())
        self.argv = WatchedArguments([str(self.path), *self.file.arguments])
        self.interception = CompileInterception(self.filename, self._on_call, self.file.place)
        self.tree = ast.parse(self.source, self.filename)
        attributes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)]
        compiling = [node for node in attributes if node.attr == "compile" and isinstance(node.value, ast.Name)]
        # Lines with ``torch.compile`` in any form: a call, a decorator, a bare name.
        self.compile_lines = {node.lineno for node in compiling if ast.unparse(node.value) == "torch"}
        self.mentions_backward = any(node.attr in _OWN_BACKWARD for node in attributes)
        self.configs: Mapping[str, Mapping[str, object]] = copy_configs()
        self.ambient, self.environment = Ambient.current(), dict(os.environ)

    def differentiates(self, calls: Sequence[RecordedCall], ambient: Ambient) -> bool:
        """Return whether the script may call for gradients of the last of some calls, which has none of its own."""
        if ambient.grad != "enabled" or not self.mentions_backward or runs_own_backward(calls[-1].target):
            return False
        tensors = [*calls[-1].world.reached().tensors.values(), *list_tensors([call.arguments for call in calls])]
        return any(tensor.requires_grad for tensor in tensors)

    def execute(self) -> None:
        """Run the script; what it raises is kept in ``error``."""
        tree, self.rewritten = retarget_script(self.tree, self.device)
        # Without this module's own __future__ imports.
        code = compile(tree, self.filename, "exec", dont_inherit=True)
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.source), None, lines, self.filename)  # it may delete its file
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=self.filename, __builtins__=builtins)
        sys.modules["__main__"] = main  # dynamo resolves the globals of traced code there
        sys.argv = self.argv
        importable = list(sys.path)
        sys.path.insert(0, str(self.path.resolve().parent))
        seed_everything(RUN_SEED)
        prepare_group(self.source)
        mute_trackers()
        to_cpu = self.device.type == "cpu" and (self.rewritten or "torch.cuda" in self.source)
        cuda = imitate_cuda() if to_cpu else contextlib.nullcontext()
        with preserve_config(), silence_output(), self.interception.install(), cuda:
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

    def _on_call(self, record: CompiledCallable, arguments: Arguments, number: int) -> None:
        if self.visit is not None:
            self.visit(record, arguments, number)
            return
        if self.record is not None:
            raise CallReached  # a bare except in the script has swallowed the first one
        history = self.history.setdefault(record.number, CallHistory())
        if number < self.wanted:
            with leave_function_modes():
                history.add(record.target, arguments)
            return
        self.ambient, self.configs = Ambient.current(), diff_configs(self.configs)
        with leave_function_modes():
            self.calls = history.until(record.target, arguments)
        self.record = record
        raise CallReached

    def notes(self, record: CompiledCallable) -> list[str]:
        """Remarks for the user: what is judged and what is not, and the state that could not be kept."""
        calls, compiled = self.calls, self.interception.compiled
        notes = [f"{JUDGED}call {self.wanted} of the {self.file.kind}, {record}", *self.file.notes]
        also_compiled = list(dict.fromkeys(str(other) for other in compiled if other.number != record.number))
        if also_compiled:
            notes.append(f"{ALSO_COMPILED}{', '.join(also_compiled[:8])}; --call N judges another call")
        if lines := self.compile_lines - {callable_.line for callable_ in compiled}:
            notes.append(f"{NOT_REACHED}{self._places(lines)}; --call N goes on to later calls")
        given = name_holders(calls[-1].arguments)
        held = [name for name, leaf in given.items() if get_own_dict(leaf) and not is_model(leaf)]
        if held and self.wanted == 1:
            notes.append(f"{', '.join(held[:4])} may hold what each call changes: --call N judges a later call")
        if self.history[record.number].dropped:
            notes.append("earlier calls with inputs of another kind are left out: their state takes more than 1 GiB")
        notes += [*name_muted(), *set_too_late(self.tree, self.environment)]
        if self.rewritten:
            notes.append(f"where the script names another kind of device, {self.device} stood in for it")
        return notes

    def explain(self) -> str:
        """The reason why the wanted call was not reached, and what to do."""
        calls, compiled, error, name = self.interception.calls, self.interception.compiled, self.error, str(self.path)
        if error is not None and not isinstance(error, SystemExit):
            return self._explain_error(error)
        if error is not None and (wrong := find_usage_error(error)):
            return f"{name} wants other arguments ({wrong}): give them after `--`, as in {self._with_arguments()}."
        if calls:
            listed = ", ".join(f"{record} {record.calls}×" for record in compiled if record.calls)
            return f"{name} makes {calls} calls of compiled callables ({listed}), so there is no call {self.wanted}."
        code = getattr(error, "code", None)
        said = f"status {code}" if isinstance(code, int) else format_message(error, 200) if error is not None else ""
        exits = f"exits{f' ({said})' if said else ''} before it calls"
        if compiled:
            listed = ", ".join(map(str, compiled))
            ending = exits if error is not None else "never calls"
            methods = sorted({f"{method}()" for record in compiled for method in record.methods})
            if methods:
                return (
                    f"{name} compiles {listed} but {ending} it: {', '.join(methods[:4])} runs the module itself, not "
                    "its compiled form; compile it in place (model.compile(), or model.forward = "
                    "torch.compile(model.forward))."
                )
            return f"{name} compiles {listed} but {ending} it; call it, or write a case with make()."
        if self.compile_lines and error is not None:
            return f"{name} {exits} torch.compile; {self._advise('fix the script, or write a case with make()')}."
        asks = sorted(set(_COMPILING_OPTION.findall(self.source)))
        if asks and not any("compile" in argument for argument in self.file.arguments):
            return f"{name} does not compile unless its arguments ask for it: {self._with_arguments(asks[0])}."
        if self.compile_lines:
            places = self._places(self.compile_lines)
            return (
                f"{name} does not reach torch.compile ({places}) in the process that runs it; "
                "call it there, or write a case with make()."
            )
        return (
            f"{name} is no case: it defines no make() and never calls torch.compile; compile the model in it "
            "(model = torch.compile(model)), or see 'Case files' in docs/cases.md. "
            "(A library that is asked to compile may do so on a GPU only; its warnings say so.)"
        )

    def _explain_error(self, error: BaseException) -> str:
        name, place = str(self.path), self._place_of(error)
        where = f" in {place}" if place else ""
        chain = list(walk_causes(error))
        missing = next((e for e in chain if isinstance(e, ModuleNotFoundError) and e.name), None)
        if missing is not None:
            by = find_importer(missing)
            lacks = f"which {by} imports and is not installed" if by else "which is not installed"
            return f"{name} needs the module {missing.name!r}{where}, {lacks}: {self._find(missing)}."
        absent = next((e for e in chain if isinstance(e, FileNotFoundError) and e.filename), None)
        if absent is not None:
            return f"{name} needs {os.fspath(absent.filename)!r}{where}, which is not there: {self._replace(absent)}."
        if any(kind.__name__ in _OF_NETWORKS for e in walk_causes(error, contexts=True) for kind in type(e).__mro__):
            return (
                f"{name} wants to download something{where}, and cannot ({describe_error(chain[-1], 120)}): download "
                f"it first, or {_MADE_UP}; `{format_command('triage', hf_config='NAME')}` does so for an "
                "architecture of transformers or timm."
            )
        if isinstance(error, ImportError) and "attempted relative import" in str(error):
            return f"{name} is a module of a package (relative import{where}): {self._run_as_module()}."
        reached = f"call {self.wanted}" if self.interception.calls else "any compiled callable is called"
        cause = "" if len(chain) == 1 else f", because of {describe_error(chain[-1], 200)}"
        raised = f"raises {describe_error(error, 200)}{where}{cause}"
        return f"{name} {raised} before {reached}; {self._advise('fix the script')}."

    def _find(self, missing: ModuleNotFoundError) -> str:
        """Advise on a missing module, which may be the script's own."""
        root = str(missing.name).partition(".")[0]
        if root in sys.modules or importlib.util.find_spec(root) is not None:
            return f"install another version of {root}, one that has it"
        for folder in list(self.path.resolve().parents)[1:5]:
            if (folder / root).is_dir() or (folder / f"{root}.py").is_file():
                beside = Path(os.path.relpath(folder))
                return f"it is in {beside}: `PYTHONPATH={beside} {self._command()}`"
        return f"install it (`python -m pip install {root}`, if that is its package), or set PYTHONPATH to its folder"

    def _replace(self, absent: FileNotFoundError) -> str:
        """Advise on a file that is not there."""
        named, folder = Path(os.fsdecode(absent.filename)), self.path.resolve().parent
        if not named.is_absolute() and (folder / named).exists():
            judged = format_command("triage", self.path.name, arguments=self.file.arguments)
            return f"it is beside the script: `{shlex.join(['cd', str(folder)])} && {judged}`"
        if self.argv.were_read:
            return f"name another in its arguments ({self._with_arguments()}), or {_MADE_UP}"
        return f"put it there, or {_MADE_UP}"

    def _run_as_module(self) -> str:
        names, folder = [self.path.stem], self.path.resolve().parent
        while (folder / "__init__.py").is_file():
            names, folder = [folder.name, *names], folder.parent
        run = f'import runpy; runpy.run_module("{".".join(names)}", run_name="__main__")'
        script = f"run_{self.path.name}"
        judged = (
            f"PYTHONPATH={os.path.relpath(folder)} {format_command('triage', script, arguments=self.file.arguments)}"
        )
        return f"judge a script that runs it: `echo '{run}' > {script} && {judged}`"

    def _advise(self, otherwise: str) -> str:
        if not self.argv.were_read:
            return otherwise
        return f"{otherwise}, or give it other arguments after `--`: {self._with_arguments()}"

    def _with_arguments(self, *more: str) -> str:
        return f"`{self._command(*(more or ('...',)))}`"

    def _command(self, *more: str) -> str:
        return format_command("triage", self.path, arguments=(*self.file.arguments, *more))

    def _places(self, lines: Collection[int]) -> str:
        return ", ".join(self.file.place(line) for line in sorted(lines)[:8])

    def _place_of(self, error: BaseException) -> str:
        frames = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == self.filename]
        return self.file.place(frames[-1]) if frames else ""


_COMPILING_OPTION = re.compile(r"""["'](--[\w-]*compile)["']""")
_MADE_UP = "make random data of that shape and dtype in its place (a bug of the compiler seldom depends on the values)"
# Names of exceptions that libraries raise where there is no network.
_OF_NETWORKS = (
    *("ConnectError", "ConnectionError", "ConnectTimeout", "LocalEntryNotFoundError", "MaxRetryError"),
    *("OfflineModeIsEnabled", "URLError", "gaierror"),
)


def runs_own_backward(target: Callable[..., object]) -> bool:
    """Return whether user code that ``target`` reaches calls autograd itself, as a training step does."""
    functions = [o for o in ReachedObjects({"": target}).objects if isinstance(o, types.FunctionType)]
    return any(
        _OWN_BACKWARD & set(list_global_names(f.__code__)) for f in functions if is_user_file(f.__code__.co_filename)
    )


# Turn a submodule of a case into a case of its own, on the inputs that it gets in the whole.

T = TypeVar("T")
_NAMES_SHOWN = 6


def submodule_case(case: Case, path: str, device: torch.device) -> Case:
    """The submodule at ``path`` (in ``named_modules``) as a case: its state and inputs at its first call in eager.

    Inputs of later calls are kept up to the number of calls that the case has. Settings are the case's; grad mode,
    autocast and random state are those in force around the submodule's call. CaseError if the callable is no module,
    has no such submodule, or never calls it.
    """
    program = build(case, device)
    whole = getattr(program.model, "__self__", program.model)  # of a bound method, such as model.forward
    if not isinstance(whole, nn.Module):
        raise CaseError(f"{case.name} compiles a plain callable, which has no submodules; leave out --module.")
    modules = dict(whole.named_modules(remove_duplicate=False))
    module = modules.get(path) if path else None
    if module is None:
        raise CaseError(f"{case.name} has no module {path!r}; {_closest(path, [name for name in modules if name])}")
    calls, ambients, handles = list[RecordedCall](), list[Ambient](), list[RemovableHandle]()

    def record(called: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        ambients.append(Ambient.current())
        handles[-1].remove()  # or it would be restored with the module's own hooks
        # Outside of inference mode and autograd, because the copies serve runs of every kind.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            calls.append(record_call(called, Arguments(args, kwargs), calls))
        if len(calls) > len(case.calls or ()):
            raise CallReached
        handles.append(called.register_forward_pre_hook(record, prepend=True, with_kwargs=True))

    handles.append(module.register_forward_pre_hook(record, prepend=True, with_kwargs=True))
    seen = observe(case, program, program.model)
    handles[-1].remove()
    if not calls:
        if seen.failure is not None:
            raise CaseError(f"{case.name} raises in eager before it calls {path} ({seen.failure}); fix the case.")
        raise CaseError(
            f"{case.name} never calls {path}, only things in it or nothing of it; name a module whose forward runs."
        )
    return make_captured_case(
        calls,
        ambients[0],
        case.settings,
        name=f"{case.name}:{path}",
        path=case.path,
        source=case.source,
        backward=case.backward and ambients[0].grad == "enabled",
        notes=(*case.notes, f"{JUDGED}module {path} alone, on the inputs that it gets in {case.name}"),
    )


_PLAIN = (torch.Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def copy_objects(tree: T) -> T:
    """The tree with the objects that a call can change (a key-value cache) copied; its tensors stay themselves.

    In training a cache holds results of operators, which torch does not copy: their values are copied, detached.
    """
    memo: dict[int, object] = {}

    def copy_leaf(leaf: object) -> object:
        if isinstance(leaf, _PLAIN):
            return leaf
        for tensor in ReachedObjects({"": leaf}, functions=False).tensors.values():
            if not tensor.is_leaf:
                memo.setdefault(id(tensor), tensor.detach().clone())
        try:
            return copy.deepcopy(leaf, memo)
        except Exception:  # a user's __deepcopy__ may raise anything; such an object is hardly state
            return leaf

    fresh: T = pytree.tree_map(copy_leaf, tree)
    return fresh


def _closest(path: str, names: Sequence[str]) -> str:
    if not names:
        return "it has no submodules at all: leave out --module."
    close = difflib.get_close_matches(path, names, n=_NAMES_SHOWN, cutoff=0.5)
    # The same last part under another parent is more likely than a similar spelling.
    alike = [name for name in names if path and name.rpartition(".")[2] == path.rpartition(".")[2]]
    if shown := list(dict.fromkeys([*close, *alike]))[:_NAMES_SHOWN]:
        return f"close to it are {', '.join(shown)}."
    return f"it has {', '.join(names[:_NAMES_SHOWN])}{' ...' if len(names) > _NAMES_SHOWN else ''}"


# Load a case: a case file, a call of a script, or a submodule of either.


def load(path: Path | CaseFile, device: torch.device, *, call: int | None = None, module: str | None = None) -> Case:
    """The case in the file at ``path``, under the backend in force (:mod:`fuzzcompile.compiler.custom_code`), if any.

    It is a case file, a script or notebook that calls ``torch.compile``, or one that was read already. A script written
    for another kind of device is retargeted, and so is a case file in a process that compiles for a target. ``call`` is
    that of a script's compiled callable (1 is the first and the default), ``module`` the path of a submodule that is
    judged on the inputs it gets, in place of the whole. CaseError if it is neither, or has no such call or module.
    """
    file = path if isinstance(path, CaseFile) else read_case_file(path)
    if file.kind != "case":
        case = load_script(file, device, call=call)
    elif call is not None:
        raise CaseError(f"{file.path} is a case file, whose calls are all judged; --call is for scripts.")
    elif file.arguments:
        raise CaseError(f"{file.path} is a case file, which takes no arguments; leave out `--` and what follows it.")
    else:
        # Compiled for a target it runs on the CPU, whatever device it is written for.
        told = current_target() is not None
        prepare_group(file.source)
        case = load_case(file, lambda tree: retarget_script(tree, device)[0]) if told else load_case(file)
        case = _capture_made(case) if forms_group(file.source) else case
    case = replace(case, settings=apply_backend(case.settings))
    return case if module is None else submodule_case(case, module, device)


def _capture_made(case: Case) -> Case:
    """A case file that may form a group of processes, as a case whose ``make()`` was called, once in each of them.

    Processes that one run of it asks for are not formed again by the next, and those of a group call ``make()``
    together or wait for each other. What it returned is restored before every run, as a script's call is.
    """
    seed_everything(RUN_SEED)
    model, (inputs, *later) = call_make(case)
    ambient, state = Ambient.current(), Worlds([World(name_roots(model, (inputs, *later)))])
    return replace(
        case,
        make=lambda: (model, inputs),
        calls=later or None,
        ambient=ambient.enter,
        modes=ambient.modes,
        reseed=ambient.random.restore,
        state=state,
    )
