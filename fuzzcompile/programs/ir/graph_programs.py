"""Captured graphs as programs, and programs as files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fuzzcompile.compiler.operators.graph_capture import CapturedGraph, capture_functional, capture_graphs
from fuzzcompile.model.contract import COMPILE
from fuzzcompile.programs.ir.case_source import CaseText
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.ir.tracing import Untranslatable, translate_graph
from fuzzcompile.programs.shrink.search import Capture
from fuzzcompile.run.case import Case

_MOST_GRAPHS = 6


def capture_graph_programs(case: Case, device: torch.device, capture: Capture = "static") -> list[Program]:
    """The graphs of a case as programs, the largest first; those that cannot be written as torch code are left out.

    Raises:
        CaseError: ``make()`` fails.
    """
    if capture == "aten":
        captured = capture_functional(case, device)
    else:
        captured = capture_graphs(case, device, dynamic=capture == "dynamic")
    if capture == "dynamic":  # as dynamo makes sizes dynamic that change between calls
        case = replace(case, settings=replace(case.settings, dynamic=True))
    programs = [program for graph in captured if (program := _program(graph, case)) is not None]
    return sorted(programs, key=lambda program: -len(program.statements))[:_MOST_GRAPHS]


def _program(graph: CapturedGraph, case: Case) -> Program | None:
    try:
        program = translate_graph(graph.module, graph.inputs, graph.parameters, _settings(case, graph))
    except Untranslatable:
        return None
    if not program.output_refs():
        return None
    freezes = bool(dict(case.settings.options).get("freezing")) or bool(case.settings.inductor.get("freezing"))
    program = replace(program, as_module=freezes and any(value.parameter for value in program.inputs))
    return program if graph.grad else program.without_gradients()


def _settings(case: Case, graph: CapturedGraph) -> dict[str, object]:
    """The module-level names (``GRAD``, ``OPTIONS``, …) that give a case file the settings of this case."""
    settings = case.settings
    asked: dict[str, object] = {}
    if case.backward:
        asked["BACKWARD"] = True
    elif graph.grad or case.grad == "inference_mode":
        asked["GRAD"] = "enabled" if graph.grad else case.grad
    config = {name: dict(entries) for name, entries in settings.config_patches.items()}
    asked |= {"OPTIONS": dict(settings.options)} if settings.options else {}
    asked |= {"CONFIG": config} if config else {}
    asked |= {"MODE": settings.mode} if settings.mode else {}
    asked |= {"PATH": settings.path} if settings.path != COMPILE else {}
    asked |= {"DYNAMIC": settings.dynamic} if settings.dynamic is not None else {}
    return asked | ({"FULLGRAPH": True} if settings.fullgraph else {})


@contextlib.contextmanager
def write_out(candidate: CaseText) -> Iterator[Path]:
    """The candidate as a file, with its recorded values beside it."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(candidate.source, encoding="utf-8")
        if candidate.values:
            torch.save(dict(candidate.values), path.with_name("values.pt"))
        yield path
