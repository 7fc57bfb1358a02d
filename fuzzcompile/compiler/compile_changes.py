"""Changes to a compile: what an ablation leaves out or does in another way, and what a user writes to do the same."""

from __future__ import annotations

import contextlib
import importlib
import os
import unittest.mock
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self

from fuzzcompile.compiler import graph_breaks
from fuzzcompile.compiler.graph_caches import GRAPH_CACHES, GraphCache, keep_graphs
from fuzzcompile.compiler.instruction_words import Instruction
from fuzzcompile.compiler.instructions import InstructionTrace
from fuzzcompile.compiler.kernels import kernel_patches
from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.operators import decompositions, operator_application
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.compiler.torch_config import patch_config
from fuzzcompile.compiler.watch import aot_autograd, patch_table
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.torch_patch import install_patches
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.contract import CACHED, COMPILE, EXPORT
from fuzzcompile.model.facts import NumberFunction
from fuzzcompile.run.torch_attributes import replace_attributes


class CompileChange:
    """One change to a compile; :meth:`fuzzcompile.compiler.session.Compilation.under` composes them.

    Of one kind, a compile has one change. Most are applied around the compile (:meth:`apply`); those that say how
    ``torch.compile`` is called, or what kernels are generated and run, are read where that is done.
    """

    text: str
    """The change as the table of ablations names it."""
    workaround: str | None = None
    """The change as a user writes it; None if it is one of fuzzcompile's own."""
    needs_code: bool = False
    """Whether the change shows in generated code alone, so that graphs are not interpreted under it."""

    breaks_graph: ClassVar[bool] = False
    """Whether dynamo is to break the graph, whatever ``fullgraph`` says."""
    parts_memory: ClassVar[bool] = False
    """Whether results no longer share memory under it: values alone say whether a program is right."""

    @property
    def kind(self) -> type[CompileChange]:
        """The class of changes of which a compile has one."""
        return type(self)

    def after(self, earlier: Self) -> Self:
        """Both the change and an earlier one of its kind; by default, the later takes the other's place."""
        return self

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """A context in which everything is compiled under the change; ``recorder`` is that of the compile."""
        return nullcontext()


@dataclass(frozen=True)
class _NameChange(CompileChange):
    name: str
    form: ClassVar[str]
    said: ClassVar[Mapping[str, str]] = MappingProxyType({})  # what a user writes, by name; the key "" is for any other

    @property
    def text(self) -> str:  # type: ignore[override]
        return self.form.format(self.name)

    @property
    def workaround(self) -> str | None:  # type: ignore[override]
        said = self.said.get(self.name, self.said.get(""))
        return None if said is None else said.format(self.name)


@dataclass(frozen=True)
class _ListChange(CompileChange):
    names: tuple[str, ...]
    # these as the table of ablations calls them; the names themselves by default
    shown: str = field(default="", compare=False)
    form: ClassVar[str]

    @property
    def text(self) -> str:  # type: ignore[override]
        return self.form.format(self.shown or ", ".join(self.names))

    def after(self, earlier: Self) -> Self:
        return replace(self, names=tuple(dict.fromkeys((*earlier.names, *self.names))))


@dataclass(frozen=True)
class _EntriesChange(CompileChange):
    entries: Mapping[str, object]
    config: ClassVar[str]

    @property
    def workaround(self) -> str | None:  # type: ignore[override]
        return ", ".join(f"torch._{self.config}.config.{key} = {value!r}" for key, value in self.entries.items())

    @property
    def text(self) -> str:  # type: ignore[override]
        return str(self.workaround)

    def after(self, earlier: Self) -> Self:
        return replace(self, entries={**earlier.entries, **self.entries})

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        return patch_config(self.config, dict(self.entries))


# How torch.compile is called.


class Backend(_NameChange):
    """Another backend than the case's own, by its name; it gets neither mode nor options of the case."""

    form, said = "backend={}", MappingProxyType({"": 'torch.compile(..., backend="{}")'})


# Nothing behind dynamo: its graphs run as they were captured.
CAPTURE_ONLY = Backend("eager")
# Nothing behind AOTAutograd: its graphs run on the kernels of eager mode.
TRACE_ONLY = Backend("aot_eager")


class CompileMode(_NameChange):
    """Another mode of ``torch.compile`` than the case's own, whose options stay."""

    form = "mode={}"


class CompilePath(_NameChange):
    """Another path than the case's own (:mod:`fuzzcompile.model.contract`)."""

    form = "path={}"
    said = MappingProxyType({COMPILE: "torch.compile(...)", EXPORT: "torch.export.export(...).module()"})


@dataclass(frozen=True)
class GraphsFromDisk(CompilePath):
    """Graphs from those of torch's caches on disk that lie in ``folder``, as another process has stored them."""

    name: str = CACHED
    folder: Path = Path()
    caches: tuple[GraphCache, ...] = GRAPH_CACHES

    @property
    def kind(self) -> type[CompileChange]:
        """The class of changes of which a compile has one."""
        return CompilePath

    @contextlib.contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Compile the block with these caches, and note whether a graph has come out of them."""
        with keep_graphs(self.folder, self.caches) as list_hit:
            yield
            recorder.ledger.restored = bool(list_hit())


class BypassedNodes(_ListChange):
    """Nodes of dynamo's graph that give their first argument in place of their value."""

    form = "without {}"


_SHOWN_FACTS = 3


@dataclass(frozen=True)
class CompiledAnew(CompileChange):
    """Every call but the first compiles anew, or those before which one of some facts has changed.

    The facts are names of `fuzzcompile.run.call_state.CallState`; None stands for all, changed or not. ``dynamic``
    leaves sizes open in each of these compiles. The ``eager_calls``, by their numbers from 1, run in eager mode.
    """

    facts: tuple[str, ...] | None = None
    dynamic: bool = False
    eager_calls: tuple[int, ...] = ()
    breaks_graph = True  # what is traced anew may be what dynamo cannot capture

    @property
    def text(self) -> str:  # type: ignore[override]
        """What has a call compile anew."""
        shown = ", ".join((self.facts or ())[:_SHOWN_FACTS])
        rest = f" and {len(self.facts) - _SHOWN_FACTS} more" if self.facts and len(self.facts) > _SHOWN_FACTS else ""
        when = "each call" if self.facts is None else f"where {shown}{rest} changed"
        eager = f", call {' and '.join(map(str, self.eager_calls))} in eager mode" if self.eager_calls else ""
        return f"compiled anew {when}{', with sizes left open' if self.dynamic else ''}{eager}"

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Record dynamo's guards."""
        return install_patches(recorder, patch_table.GUARDS)


# Settings of the compiler.


@dataclass(frozen=True)
class InductorSettings(_EntriesChange):
    """Entries of ``torch._inductor.config``, which go before the case's own options."""

    # what the table of ablations calls them; the entries themselves by default
    name: str = field(default="", compare=False)
    needs_code: bool = field(default=False, compare=False)  # whether they change generated code alone
    config = "inductor"

    @property
    def kind(self) -> type[CompileChange]:
        """Also that of an omitted pass."""
        return InductorSettings

    @property
    def text(self) -> str:  # type: ignore[override]
        """The name, or each entry with its value."""
        return self.name or ", ".join(f"{key}={value}" for key, value in self.entries.items())


# Generated code rounds to the low-precision dtypes to which the program casts.
CASTS = "emulate_precision_casts"
KEPT_CASTS = InductorSettings({CASTS: True})


class OmittedPass(InductorSettings):
    """The compiler without a pass of the user's own, by the settings that hold it."""

    @property
    def workaround(self) -> str | None:  # type: ignore[override]
        """The pass, and the assignments."""
        return f"leave the pass {self.name} out: {super().workaround}"


class TracingSettings(_EntriesChange):
    """Entries of ``torch._functorch.config``, which go before the case's own."""

    config = "functorch"


@dataclass(frozen=True)
class OutputsAsComputed(CompileChange):
    """Outputs that AOTAutograd makes anew as views (of inputs or of others) are those that the graph has computed."""

    text = "outputs as the graph computes them, not made anew as views"
    parts_memory = True

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Replace the function that makes them."""
        return replace_attributes(recorder, [aot_autograd.VIEWS])


class DistinctOutputs(CompileChange):
    """Each output of a compiled graph is a tensor of its own, where the graph gives one in several places."""

    text = "each output a tensor of its own"

    @contextlib.contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Have the recorder tell them apart."""
        recorder.distinct = True
        yield


class DynamoSettings(_EntriesChange):
    """Entries of ``torch._dynamo.config``, which go before the case's own."""

    config = "dynamo"


@dataclass(frozen=True)
class EnvironmentVariables(_EntriesChange):
    """Environment variables, and the function of torch (``module:function``) that reads them once."""

    reader: str = ""

    @property
    def workaround(self) -> str | None:  # type: ignore[override]
        """The assignments."""
        return ", ".join(f'os.environ["{key}"] = "{value}"' for key, value in self.entries.items())

    @contextlib.contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Set them, and have them read anew, then and afterwards."""
        module, _, function = self.reader.partition(":")
        reader = getattr(importlib.import_module(module), function, None)
        clears = [clear] if callable(clear := getattr(reader, "cache_clear", None)) else []
        if not clears:
            recorder.record_unseen(Unseen(self.text, f"{self.reader} remembers nothing", (), "compiles under it"))
        with contextlib.ExitStack() as stack:
            for clear in clears:
                stack.callback(clear)
            stack.enter_context(unittest.mock.patch.dict(os.environ, {k: str(v) for k, v in self.entries.items()}))
            for clear in clears:
                clear()
            yield


SETTINGS = {changes.config: changes for changes in (InductorSettings, TracingSettings, DynamoSettings)}
"""The changes of entries of a config, by its name."""


def keep_numbers(function: NumberFunction) -> CompileChange:
    """Leave out what treats a program's numbers as symbols."""
    if function.reader:
        return EnvironmentVariables(function.without, function.reader)
    return DynamoSettings(function.without)


# Rewrites and operators left out.


class Veto(_ListChange):
    """Rewrites that are refused (:func:`fuzzcompile.compiler.watch.rule_labels.is_vetoed`)."""

    form = "veto {}"

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Have the recorder refuse them."""
        recorder.vetoed = self.names
        return nullcontext()


class OnlyRewrites(_ListChange):
    """Rewrites that alone may apply, beside the mandatory ones."""

    form = "only {}"

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Have the recorder refuse all others."""
        recorder.only = self.names
        return nullcontext()


@dataclass(frozen=True)
class GraphBreak(CompileChange):
    """Calls at which dynamo breaks the graph, each with the name under which the user calls it."""

    calls: tuple[tuple[str, graph_breaks.CallTarget], ...]
    breaks_graph = True

    @property
    def text(self) -> str:  # type: ignore[override]
        """The calls."""
        return f"graph break at {', '.join(name for name, _ in self.calls)}"

    @property
    def workaround(self) -> str | None:  # type: ignore[override]
        """The call of dynamo for each function; None if there is a method, which it cannot leave out."""
        if not all(graph_breaks.is_function(call) for _, call in self.calls):
            return None
        return ", ".join(f"torch._dynamo.disallow_in_graph({name})" for name, _ in self.calls)

    def after(self, earlier: Self) -> Self:
        """The graph breaks at all of them."""
        return replace(self, calls=(*earlier.calls, *self.calls))

    @contextlib.contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Have dynamo disallow the functions, and refuse to make nodes of the methods."""
        targets = [call for _, call in self.calls]
        methods = [call for call in targets if not graph_breaks.is_function(call)]
        exclusions = graph_breaks.GraphExclusions(methods, recorder.ledger)
        with (
            install_patches(exclusions, patch_table.BREAKS) if methods else nullcontext(),
            graph_breaks.break_graph_at(targets),
        ):
            yield


@dataclass(frozen=True)
class WatchedInstructions(CompileChange):
    """Dynamo's tracing of Python's instructions is recorded."""

    trace: InstructionTrace
    text = "instructions watched"

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Record each instruction."""
        self.trace.program_calls = recorder.ledger.calls
        return install_patches(self.trace, patch_table.INSTRUCTIONS)


@dataclass(frozen=True)
class InstructionLeftOut(CompileChange):
    """Instructions of Python at which dynamo breaks the graph, so that eager mode runs them; they do the same."""

    instructions: tuple[Instruction, ...]
    whole: bool = False  # the whole frame is left to eager mode
    breaks_graph = True

    @property
    def text(self) -> str:  # type: ignore[override]
        """The instruction and its line."""
        lines = sorted({str(each.line) for each in self.instructions})
        what = "the frame left to eager mode for" if self.whole else "graph break at"
        return f"{what} {self.instructions[0].does} in line {' and '.join(lines)}"

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Have dynamo refuse it."""
        trace = InstructionTrace(recorder.ledger, [each.place for each in self.instructions], self.whole)
        return install_patches(trace, patch_table.INSTRUCTIONS)


class Undecomposed(_ListChange):
    """Operators (``aten.gelu.default``) that are not decomposed."""

    form = "decomposition of {} off"

    @contextlib.contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Take their decompositions out of torch's tables."""
        removal = decompositions.ChosenOperators(self.names, recorder.ledger)
        if not removal.operators:
            yield
            return
        with install_patches(removal, patch_table.DECOMPOSITIONS), decompositions.keep_undecomposed(removal):
            yield


class MetadataFromKernel(_ListChange):
    """Operators whose results have the dtype, shape and strides that their kernels give, whatever fake tensors say."""

    form = "metadata of {} from its kernel"

    @contextlib.contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Answer for their fake implementations."""
        metadata = decompositions.ChosenOperators(self.names, recorder.ledger)
        with install_patches(metadata, patch_table.METADATA), operator_application.forget_metadata():
            yield


class ContiguousOperands(_ListChange):
    """Operators whose ATen kernels get contiguous copies of their operands."""

    form = "{} on contiguous operands"

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Copy the operands of their kernels."""
        return operator_application.use_contiguous_operands(self.names)


# Behind the graph passes.


@dataclass(frozen=True)
class Lowered(CompileChange):
    """Another lowering of the graphs, and other kernels."""

    control: Control
    text: str = field(default="another lowering", compare=False)
    needs_code = True


class CompilerFlags(_ListChange):
    """Flags that the compiler of generated C++ gets too, without their leading dash."""

    form = "C++ compiled with {}"
    needs_code = True

    def apply(self, recorder: Recorder) -> AbstractContextManager[object]:
        """Add them to Inductor's own."""
        return kernel_patches.add_flags(self.names)


@dataclass(frozen=True)
class ProgramsInOrder(CompileChange):
    """For a target: the order in which the programs of an interpreted kernel run."""

    order: ProgramOrder
    text = "programs in their order"
    needs_code = True


@dataclass(frozen=True)
class Templates(CompileChange):
    """For a target: a matrix template stands where a device would time it against a library."""

    text = "templates of matrix products"
