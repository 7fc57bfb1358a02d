"""The graphs of a step as case files that need torch and safetensors only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fuzzcompile.compiler.operators.graph_capture import CapturedGraph, make_watching_backend
from fuzzcompile.compiler.torch_api import diff_configs
from fuzzcompile.programs.ir.case_source import write_source
from fuzzcompile.programs.ir.program import Input, Program, use_plain_names
from fuzzcompile.programs.ir.tracing import Untranslatable, translate_graph
from fuzzcompile.run.tensors import list_tensors

MOST_GRAPHS = 8
_IN_LAYER = "  # in layer "
# What dynamo puts before the path of a module: where it found the root.
_ROOT = re.compile(r"^[LG]\[[^]]*\](\.__self__|\._orig_mod)*\.?")
# Entries of the compiler's configs that a watch or a worker sets.
_OURS = ("fallback_random", "compile_threads")


@dataclass
class Graphs:
    """The graphs that the rest of a step calls, in order; ``left_out`` says what could not be written, and why."""

    captured: dict[int, CapturedGraph] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def capture(self) -> None:
        """From now on, have every compiled callable of this process run graph by graph and kept."""
        torch.compiler.reset()
        torch.compiler.set_stance("default", force_backend=make_watching_backend(self.captured))

    def write(self, folder: Path, settings: Mapping[str, object], state_bytes: int) -> list[Path]:
        """Write the graphs as case files of at most so many bytes of state, those with most operators first."""
        programs = []
        for graph in self.captured.values():
            differentiable = graph.grad and any(tensor.requires_grad for tensor in list_tensors(graph.inputs))
            kind: dict[str, object] = {"BACKWARD": True} if differentiable else {}
            try:
                program = translate_graph(graph.module, graph.inputs, graph.parameters, {**kind, **settings})
            except Untranslatable as error:
                self.left_out.append(f"a graph of the step, which no case file can hold: {error}")
                continue
            if program.output_refs():
                programs.append(program if graph.grad else program.without_gradients())
        programs.sort(key=lambda program: -len(program.statements))
        if len(programs) > MOST_GRAPHS:
            self.left_out.append(f"{len(programs) - MOST_GRAPHS} smaller graphs of the step")
        several = len(programs) > 1
        return [
            write_case(program, folder / (f"case_{number}.py" if several else "case.py"), state_bytes)
            for number, program in enumerate(programs[:MOST_GRAPHS], start=1)
        ]


def case_settings(given: Mapping[str, object], before: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Module-level names of a case file by which it is compiled as a script compiles.

    They come from the arguments ``given`` to ``torch.compile``, and from what the script changed in the
    compiler's configs, which were as ``before``.
    """
    named = {name.upper(): value for name, value in given.items() if _is_plain(value)}
    changed = {
        name: {key: value for key, value in entries.items() if _is_plain(value) and key not in _OURS}
        for name, entries in diff_configs(before).items()
    }
    config = {name: entries for name, entries in changed.items() if entries}
    return {**named, **({"CONFIG": config} if config else {})}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(inner) for inner in value.values())
    return value is None or isinstance(value, bool | int | float | str)


_GROUP = """
if not dist.is_initialized():
    dist.init_process_group("gloo")
"""


def write_case(program: Program, path: Path, state_bytes: int) -> Path:
    """Write a case file with its values beside it; beyond ``state_bytes`` in all, the largest become random ones.

    One that calls collectives forms a group, and takes the values of another rank than the first from a folder of the
    name ``rank1``, where that rank's own file is.
    """
    from safetensors.torch import save_file

    program, total, small = use_plain_names(program), 0, set[str]()
    for input_ in sorted(program.inputs, key=_bytes):
        total += _bytes(input_)
        small |= {input_.name} if total <= state_bytes else set()

    def bounded(input_: Input) -> Input:
        is_kept = input_.name in small or not input_.dtype.is_floating_point
        return input_ if is_kept else replace(input_, fill="randn", values=None)

    program, state = program.map_inputs(bounded), path.with_suffix(".safetensors")
    source, values = write_source(program), dict[str, torch.Tensor]()
    lines = [f'    VALUES = load_file(Path(__file__).with_name("{state.name}"))']
    if (collective := "c10d" in source) is True:
        lines[:] = [
            f'    own = Path(__file__).parent / f"rank{{dist.get_rank()}}" / "{state.name}"',
            f'    VALUES = load_file(own if own.exists() else Path(__file__).with_name("{state.name}"))',
        ]
    for input_ in program.inputs:
        if input_.fill == "recorded" and input_.values is not None:
            values[input_.name] = input_.values.contiguous().clone()
            if input_.stride != torch.empty(input_.shape, device="meta").stride():
                value = f'VALUES["{input_.name}"]'
                made = f"torch.empty_strided({input_.shape}, {input_.stride}, dtype={value}.dtype)"
                lines.append(f"    {value} = {made}.copy_({value})")
    save_file(values, state)
    source = re.sub(r"^    VALUES = torch\.load\(.*\)$", lambda _: "\n".join(lines), source, flags=re.MULTILINE)
    distributed = "import torch.distributed as dist\n" if collective else ""
    imports = f"import torch\n{distributed}from safetensors.torch import load_file\n"
    source = source.replace("import torch\n", f"{imports}{_GROUP if collective else ''}", 1)
    layers = {s.name: layer for s in program.statements if (layer := _ROOT.sub("", s.module))}

    def named(match: re.Match[str]) -> str:
        return f"{match[0]}{_IN_LAYER}{layers[match[1]]}" if match[1] in layers else match[0]

    path.write_text(re.sub(r"^    (\w+) = .*$", named, source, flags=re.MULTILINE), encoding="utf-8")
    return path


def _bytes(input_: Input) -> int:
    return torch.Size(input_.shape).numel() * input_.dtype.itemsize


def layer_at(case: Path, line: int) -> str | None:
    """The layer behind a line of a case file that :func:`write_case` wrote; None if none is named there."""
    lines = case.read_text(encoding="utf-8").splitlines()
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    return text.rpartition(_IN_LAYER)[2] if _IN_LAYER in text else None
