"""Graph breaks: their number and reasons, breaks at chosen calls, and captured calls behind a rewrite."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, TypeGuard

import torch
from torch import fx

from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError, UnseenRecorder
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import PRE_GRAD
from fuzzcompile.run.code_files import find_owner
from fuzzcompile.run.torch_attributes import replace_attribute

# Source of dynamo's own handling of a function.


def find_handler(function: Callable[..., Any], name: str) -> Callable[..., Any] | None:
    """The code of dynamo that treats ``function`` (or the method ``name`` of tensors) in a way of its own, if any."""
    found: Callable[..., Any] | None = None
    with contextlib.suppress(ImportError, AttributeError):
        variable = importlib.import_module("torch._dynamo.variables.tensor").TensorVariable
        found = getattr(variable, f"method_{name}", None)
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        variable = importlib.import_module("torch._dynamo.variables.torch").TorchInGraphFunctionVariable
        found = found or variable._get_handlers().get(function)
    return found


_LONGEST = 300
_FACTS = facts().dynamo
_BRANCH = "Data-dependent branching"
_LOOP = "graph break in loop"
_SYMBOLS = re.compile(r"\s*\((?:unhinted|Size-like symbols): .*")
_EXPLANATION = re.compile(r"^\s*Explanation:\s*(.+?)(?=\n\s*(?:Hint|Developer debug context)\b|\n\n|\Z)", re.M | re.S)
_CAUSE = re.compile(r"^Caused by:.*#\s*(\S+:\d+)", re.M)
_ADVICE = re.compile(r"^Consider annotating your code using torch\._check\*\(\)\.\s*")
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/]?[\w.+-]+)?(?:[\\/][\w.+ -]+)*[\\/](?=[\w.+-]+\.py\b)")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class DynamoCounts:
    """Dynamo's counters at one moment; later counts are compared with these."""

    graphs: int
    breaks: dict[str, int]
    refusals: dict[str, int]
    attempts: tuple[object, ...] = ()

    @classmethod
    def now(cls) -> DynamoCounts:
        """The counts as they stand; zero where this torch does not count."""
        counters = getattr(_import_dynamo("utils"), "counters", {})
        broken, refused = (
            {str(text): int(count) for text, count in dict(counters.get(table, {})).items()}
            for table in ("graph_break", "unimplemented")
        )
        attempts = getattr(_import_dynamo("utils"), "get_compilation_metrics", list)
        return cls(int(dict(counters.get("stats", {})).get("unique_graphs", 0)), broken, refused, tuple(attempts()))


def list_breaks(before: DynamoCounts) -> tuple[str, ...]:
    """The reason of every graph break since ``before``, each once.

    Dynamo lists the breaks after which it went on, with the line of the user, until it is reset. What made it leave
    a frame to Python altogether stands in its record of attempts, which keeps the latest; earlier ones it only counts,
    together with what it refused on one way to trace a call and traced on another, which is no break.
    """
    lines: dict[str, None] = {}
    headlines: set[str] = set()
    for reason in list(getattr(_import_dynamo("utils"), "graph_break_reasons", [])):
        text = str(getattr(reason, "reason", reason))
        if text.startswith(_FACTS.jump):
            text = f"{_BRANCH}\n  Explanation: a branch of the program depends on a value in a tensor"
        headlines.add(extract_headline(text))
        lines[format_break(text, getattr(reason, "user_stack", None) or ())] = None
    now, known = DynamoCounts.now(), set(map(id, before.attempts))
    for attempt in now.attempts:  # those that left a frame to Python, with the place at which dynamo gave up
        reason, file = getattr(attempt, "fail_reason", None), getattr(attempt, "fail_user_frame_filename", None)
        if id(attempt) not in known and reason and getattr(attempt, "fail_type", None) in _FACTS.uncaptured:
            line, function = getattr(attempt, "fail_user_frame_lineno", None), str(getattr(attempt, "co_name", ""))
            headlines.add(extract_headline(str(reason)))
            stack = [traceback.FrameSummary(file, line, function)] if file and line else []
            lines[format_break(str(reason), stack)] = None
    counted = [(now.breaks, before.breaks)]
    longest = getattr(getattr(_import_dynamo("utils"), "_compilation_metrics", None), "maxlen", None)
    if len(now.attempts) == longest and not known.intersection(map(id, now.attempts)):
        # The record of attempts was too short for all that were made since.
        counted.append((now.refusals, before.refusals))
    for counts, earlier in counted:
        for text, count in counts.items():
            if count > earlier.get(text, 0) and extract_headline(text) not in headlines:
                lines[format_break(text)] = None
    return tuple(lines)


def format_break(text: str, stack: Sequence[traceback.FrameSummary] = ()) -> str:
    """One line: what dynamo could not capture, why, and the line of the user's program."""
    explained, cause = _EXPLANATION.search(text), _CAUSE.search(text)
    parts = [extract_headline(text), explained[1].strip().split("\n\n")[0] if explained is not None else ""]
    line = _strip_paths(": ".join(part.rstrip(".:") for part in parts if part))
    if len(line) > _LONGEST:
        line = line[: _LONGEST - 1] + "…"
    frames = [frame for frame in stack if hasattr(frame, "filename")]
    own = [frame for frame in frames if find_owner(frame.filename) == "program"]
    frame = next(iter((own or frames)[-1:]), None)
    if _LOOP in text:
        line = f"{line}; in a loop, so that all of {frame.name if frame else 'the function'} runs uncompiled"
    if frame is not None:
        code = " ".join((frame.line or "").split())
        return f"{line} ({Path(frame.filename).name}:{frame.lineno}{': ' + code[:120] if code else ''})"
    return f"{line} ({_strip_paths(cause[1])})" if cause is not None else line


def find_uncaptured_reason(error: BaseException) -> str | None:
    """The reason why ``fullgraph=True`` cannot be honoured; None for an error of another kind."""
    exceptions = _import_dynamo("exc")
    kinds = tuple(kind for name in _FACTS.uncaptured if isinstance(kind := getattr(exceptions, name, None), type))
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, kinds):
            return format_break(str(getattr(chain, "msg", None) or chain), getattr(chain, "real_stack", None) or ())
        inner = getattr(chain, "inner_exception", None)
        chain = inner if isinstance(inner, BaseException) and inner is not chain else None
    return None


def extract_headline(text: str) -> str:
    """The first line of a reason, without what torch adds on its own symbols."""
    text = _ADVICE.sub("", text.strip())
    return _SYMBOLS.sub("", text.splitlines()[0].strip()) if text else ""


def _strip_paths(text: str) -> str:
    """Without line breaks, folders of this machine and addresses."""
    return _ADDRESS.sub("", _PATH.sub("", " ".join(text.split())))


def _import_dynamo(module: str) -> object:
    return importlib.import_module(f"torch._dynamo.{module}")


CallTarget = Callable[..., object] | str
"""What a node of dynamo's graph calls: a function, or the name of a method of tensors."""


def is_function(call: CallTarget) -> TypeGuard[Callable[..., object]]:
    """Return whether dynamo's own ``disallow_in_graph`` can leave the call to eager mode."""
    return not isinstance(call, str) and not _is_operator(call) and not _is_method(call)


def _is_method(call: object) -> TypeGuard[FunctionType]:
    """Return whether a call is of a method written in Python, which dynamo handles by itself if it knows it."""
    return isinstance(call, FunctionType) and "." in call.__qualname__ and "<locals>" not in call.__qualname__


def _is_operator(call: object) -> bool:
    return getattr(call, "__module__", None) == operator.add.__module__


@dataclass(frozen=True)
class GraphExclusions:
    """Methods, and Python's operators, that dynamo is to leave to eager mode, and the compile's ledger."""

    calls: Collection[CallTarget]
    ledger: Ledger

    @property
    def breaks_at_operators(self) -> bool:
        """Whether one of Python's operators is among them."""
        return any(map(_is_operator, self.calls))

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record an exclusion that could not be applied."""
        self.ledger.record_unseen(unseen)


def wrap_create_proxy(
    left: GraphExclusions, original: Function, tracer: object, kind: str, target: CallTarget, *rest: Any, **named: Any
) -> object:
    """Break the graph where a node would be made that calls what is left out."""
    if kind in ("call_method", "call_function"):
        _break_at(target, left)
    return original(tracer, kind, target, *rest, **named)


def wrap_call_method(
    left: GraphExclusions, original: Function, variable: object, tx: object, name: str, *rest: object, **named: object
) -> object:
    """Break the graph where dynamo meets a method that is left out, which it may make another node of, or none."""
    _break_at(name, left)
    return original(variable, tx, name, *rest, **named)


# Instructions of Python's operators behind which dynamo by itself leaves the rest of the frame to Python.
_OPERATORS = ("BINARY_OP", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE")


class OperatorBreaker(UnseenRecorder, Protocol):
    """What watches a compile, and may want breaks at Python's operators."""

    @property
    def breaks_at_operators(self) -> bool:
        """Whether it does."""


def wrap_run(watcher: OperatorBreaker, original: Function, translator: Any, *rest: object) -> object:
    """Have dynamo's translator of a frame break the graph at Python's operators, too, as it does at calls."""
    if not watcher.breaks_at_operators:
        return original(translator, *rest)
    breaking = importlib.import_module("torch._dynamo.symbolic_convert").break_graph_if_unsupported
    table = list(translator.dispatch_table)
    for code in (dis.opmap[name] for name in _OPERATORS if name in dis.opmap):
        table[code] = breaking(push=True, msg_prefix="An operator is left to eager mode")(table[code])
    with replace_attribute(translator, "dispatch_table", table):
        return original(translator, *rest)


def _break_at(call: CallTarget, left: GraphExclusions) -> None:
    if call in left.calls:
        raise IntendedError(importlib.import_module("torch._dynamo.exc").Unsupported(f"{call} is left to eager mode"))


def resolve_call(function: Callable[..., object]) -> CallTarget:
    """A function that a program calls, as it is left to eager mode: a method of tensors by its name."""
    name = getattr(function, "__name__", "")
    if getattr(torch.Tensor, name, None) is not function:
        return function
    return vars(operator).get(name, name) if name.startswith("__") else name


@contextlib.contextmanager
def break_graph_at(calls: Sequence[CallTarget]) -> Iterator[None]:
    """Have dynamo break the graph at these functions inside the block, where it puts them into graphs."""
    with contextlib.ExitStack() as stack:
        for method in filter(_is_method, calls):
            stack.enter_context(_leave_method(method))
        if honoured := list(filter(is_function, calls)):
            stack.enter_context(_disallow(honoured))
        yield


@contextlib.contextmanager
def _disallow(functions: Sequence[Callable[..., object]]) -> Iterator[None]:
    rules = importlib.import_module("torch._dynamo.trace_rules")
    tables = [getattr(rules, name, None) for name in _FACTS.special_functions]
    known = [(table, set(table())) for table in tables if table is not None]
    try:
        for function in functions:
            with contextlib.suppress(RuntimeError, AssertionError):
                torch._dynamo.disallow_in_graph(function)
        yield
    finally:
        for table, ids in known:
            now = table()
            for added in now - ids:
                table.remove(added)
            for removed in ids - now:
                table.add(removed)


@contextlib.contextmanager
def _leave_method(method: FunctionType) -> Iterator[None]:
    """Have dynamo trace a method neither where it is called nor, behind a break there, by itself."""
    owner = _resolve(_find_public_module(method), method.__qualname__.rpartition(".")[0])
    left: Any = torch._dynamo.disable(method)  # type: ignore[no-untyped-call]
    if isinstance(inspect.getattr_static(owner, method.__name__, None), staticmethod):
        left = staticmethod(left)
    with replace_attribute(owner, method.__name__, left):
        yield


# Captured calls of the user's program behind the place where a rewrite applied.

_CALLS = ("call_function", "call_method")
# Where a user finds the functions that dynamo puts into its graphs, the usual spelling first.
_HOMES = ("torch", "torch.nn.functional", "torch.special", "torch.fft", "torch.linalg")


def find_captured_calls(
    ledger: Ledger, site: str | None = None, nodes: Sequence[str] | None = None
) -> dict[str, CallTarget]:
    """Return dynamo's captured calls at a ``site`` of the program that can be left to eager mode, by the user's names.

    If some of ``nodes`` of dynamo's graph stand on its line, only their calls are meant. There is no site where a
    module of torch's is compiled by itself: then the nodes are meant, if there is one graph. Without either, all calls
    are.
    """
    records = [record for frame in ledger.frames if (record := frame.find_record(PRE_GRAD)) is not None]
    captured = [node for record in records if record.snapshots for node in record.snapshots[0].graph.nodes]
    calls = [node for node in captured if node.op in _CALLS]
    if nodes is None:
        meant = calls
    elif site is None:
        meant = [node for node in calls if node.name in nodes and len(records) == 1]
    else:
        there = [node for node in calls if find_location([node]) == site.split(" #")[0]]
        meant = [node for node in there if node.name in nodes] or there
    return {name: node.target for node in meant if (name := find_call_name(node)) is not None}


def find_call_name(node: fx.Node) -> str | None:
    """The user's name for a node of dynamo's graph: ``torch.max_pool1d``, ``torch.Tensor.cumsum``; or None."""
    if isinstance(node.target, str):
        return f"torch.Tensor.{node.target}"
    if isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{node.target}"
    return f"operator.{node.target.__name__}" if _is_operator(node.target) else find_public_name(node.target)


_NUMPY = "wrapped_"  # how dynamo names what it calls in the place of NumPy's functions, methods and operators


def find_numpy_name(node: fx.Node) -> str | None:
    """NumPy's name for a node of dynamo's graph (``numpy.getitem``); None for one that does not stand for NumPy's."""
    name = str(getattr(node.target, "__name__", ""))
    if type(node.target).__module__ != "torch._dynamo.utils" or not name.startswith(_NUMPY):
        return None
    # A function may stand for another one of NumPy's than it is called after: fix for round.
    called, own = getattr(node.target, "f", None), name.removeprefix(_NUMPY)
    names = [public for public, held in vars(torch._numpy).items() if held is called]
    return f"numpy.{own if own in names or not names else names[0]}"


def find_public_name(function: object) -> str | None:
    """The function's name in torch's public modules; None for operators of Python and whatever has none."""
    name, homes = getattr(function, "__name__", ""), list(_HOMES)
    if _is_method(function):
        name, homes = function.__qualname__, [_find_public_module(function)]
    found = (f"{home}.{name}" for home in homes if _resolve(home, name) is function)
    return next(found, None) if name else None


def _find_public_module(function: FunctionType) -> str:
    """The module from which users import the class of a method, be it written in a private one."""
    return function.__module__.partition("._")[0]


def _resolve(module: str, path: str) -> object:
    found: object = importlib.import_module(module)
    return functools.reduce(lambda owner, name: getattr(owner, name, None), path.split("."), found)
