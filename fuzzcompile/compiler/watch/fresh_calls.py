"""Calls of a compiled callable that compile anew, whatever dynamo's guards say, and the records of these guards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from fuzzcompile.compiler.watch.ledger import GuardRecord
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.stages import DYNAMO
from fuzzcompile.run.call_state import CallState
from fuzzcompile.run.case import Arguments

BUILDER = ("torch._dynamo.guards", "GuardBuilder")
"""The class of dynamo whose methods, one for each kind, make guards."""
_SHOWS = "changes of the Python state between calls"


def wrap_check_functions(recorder: Recorder, original: Function, *args: object, **kwargs: object) -> object:
    """Record the guards of a traced frame, once dynamo has made the checks of them."""
    result = original(*args, **kwargs)
    from torch._dynamo.guards import GuardBuilder

    kinds = {id(made): name for name, made in vars(GuardBuilder).items() if name.isupper()}
    graph: Any = args[2]
    call = max(1, len(recorder.ledger.calls))
    for guard in graph.guards:
        make = getattr(guard.create_fn, "func", guard.create_fn)
        made, checks = (tuple(map(str, told or ())) for told in (guard.guard_types, guard.code_list))
        asked = getattr(guard.create_fn, "keywords", {})
        part = str(asked.get("attr", asked.get("key", "")))
        record = GuardRecord(str(guard.name), part, kinds.get(id(make), make.__name__), made, checks, call)
        recorder.ledger.guards.append(record)
    return result


def call_anew(
    recorder: Recorder,
    compiled: Any,
    target: Callable[..., object],
    facts: Collection[str] | None,
    eager_calls: Collection[int] = (),
) -> Callable[..., Any]:
    """The compiled form of ``target``, which compiles anew in each call before which a fact has changed.

    ``facts`` are names of :class:`~fuzzcompile.run.call_state.CallState`; None has every call but the first compile
    anew. The ``eager_calls``, by their numbers from 1, run in eager mode. The states before the calls are kept in the
    ledger. A compiled module stays the object that it is.
    """
    calls, running, since = recorder.ledger.calls, False, 0
    inner = compiled.forward if isinstance(compiled, nn.Module) else compiled

    @functools.wraps(inner)
    def call(*args: object, **kwargs: object) -> object:
        nonlocal running, since
        if running:
            return inner(*args, **kwargs)
        try:
            state = CallState.read(target, Arguments(args, kwargs))
            wanted = facts is None or any(
                not set(facts).isdisjoint(state.list_changes(earlier)) for earlier in calls[since:]
            )
        except Exception as error:  # of an object of the program's, which may raise anything where it is looked at
            recorder.ledger.record_unseen(Unseen("the state before a call", describe_error(error), (DYNAMO,), _SHOWS))
        else:
            if calls and wanted:
                torch._dynamo.reset()
                since = len(calls)
            calls.append(state)
        running = True
        how = torch.compiler.set_stance("force_eager") if len(calls) in eager_calls else nullcontext()
        try:
            with how:
                return inner(*args, **kwargs)
        finally:
            running = False

    if not isinstance(compiled, nn.Module):
        return call
    compiled.forward = call
    return compiled
