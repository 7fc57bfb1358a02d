"""Renders a spec to the source of its case file. Nothing is drawn here."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from jinja2.environment import TemplateModule

from fuzzcompile.fuzz.aliased_programs.grammar import render_aliased
from fuzzcompile.fuzz.distributed_programs.grammar import collect_settings, render_distributed
from fuzzcompile.fuzz.generation.inputs import (
    Sizes,
    list_activations,
    list_extra_inputs,
    list_inputs,
    make_fixed_sizes,
    render_mask,
    render_mask_function,
    resolve_shape,
    takes_targets,
    takes_x,
)
from fuzzcompile.fuzz.generation.spec import (
    Block,
    CaseSpec,
    DistributedProgram,
    OperatorProgram,
    Part,
    StatefulProgram,
)
from fuzzcompile.fuzz.idioms.registry import find_attention_traits, idiom
from fuzzcompile.fuzz.near_misses.near_miss_registry import find_detour
from fuzzcompile.fuzz.stateful_programs.source import list_imports, render_reset, render_run, render_state, uses_name
from fuzzcompile.model.compiler_toggles import collect_configs, collect_options
from fuzzcompile.model.contract import COMPILE
from fuzzcompile.model.package_files import expand_macro, get_template
from fuzzcompile.programs.edits.tensor_values import find_functions, format_tuple


def _describe(spec: CaseSpec) -> str:
    lines = ["A generated case.", ""]
    parts = [("Idioms", spec.idioms), ("Near misses", spec.near_misses), ("Operators", spec.operators)]
    parts += [("State", spec.states)] if spec.state else [("Aliases", spec.aliasing)] if spec.aliases else []
    parts += [("Distribution", spec.distribution)] if spec.distributed else []
    for title, names in (*parts, ("Choices", spec.choices)):
        text = f"{title}: {', '.join(names) or 'none'}."
        lines += textwrap.wrap(text, 99, break_long_words=False)
    return "\n".join([*lines, ""])


def _is_of_torch(line: str) -> bool:
    return line.startswith("from torch")


def _list_settings(spec: CaseSpec) -> list[tuple[str, str]]:
    how = spec.compile
    dynamo = dict.fromkeys(_CAPTURE, True) if how.captured else {}
    dynamo |= dict.fromkeys(spec.state.assumed if spec.state is not None else (), False)
    options = collect_options(how.toggles)
    if spec.distributed is not None:
        of_inductor, of_dynamo = collect_settings(spec.distributed)
        options, dynamo = {**options, **of_inductor}, {**dynamo, **of_dynamo}
    configs = {**collect_configs(how.toggles), "dynamo": dynamo}
    settings: dict[str, object] = {
        "GRAD": how.grad,
        "BACKWARD": spec.backward or None,
        "OPTIONS": options or None,
        "CONFIG": {name: entries for name, entries in configs.items() if entries} or None,
        "MODE": how.mode,
        "DYNAMIC": how.dynamic,
        "FULLGRAPH": how.fullgraph or None,
        "PATH": None if how.path == COMPILE else how.path,
    }
    return [(name, _render_constant(value)) for name, value in settings.items() if value is not None]


def _render_constant(value: object, indent: str = "") -> str:
    if not isinstance(value, Mapping):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    inner = indent + "    "
    entries = [f'{inner}"{key}": {_render_constant(entry, inner)},\n' for key, entry in value.items()]
    return "{\n" + "".join(entries) + indent + "}" if entries else "{}"


def _render_calls(spec: CaseSpec) -> str:
    rows = []
    for call in spec.compile.calls:
        laid_out = replace(spec, inputs=call.inputs, backward=spec.backward or call.grad)
        inputs = list_inputs(laid_out, call.dims(spec.dims))
        names = dict(inputs)
        entries = "".join(f"        {names.get(expression, expression)},\n" for _, expression in inputs)
        rows.append(f"    ({inputs[0][1]},),\n" if len(inputs) == 1 else f"    (\n{entries}    ),\n")
    return "[\n" + "".join(rows) + "]" if rows else ""


def _render_driver(spec: CaseSpec) -> str:
    if spec.state is not None:
        return render_run(spec.state)
    how, call = spec.compile, "return model(*inputs)"
    if how.autocast is not None:
        call = f"with torch.autocast(inputs[0].device.type, dtype=torch.{how.autocast}):\n    {call}"
    if how.mark is not None:
        call = f"torch._dynamo.decorators.{how.mark}(inputs[0], 0)\n{call}"
    return call if how.autocast or how.mark else ""


# Numbers, and tensors of sizes, that depend on what a tensor holds stay in the graph.
_CAPTURE = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")


# The mask dtypes that promote scores of each dtype (two half formats meet in float32).
_WIDER = {"float32": ("float64",), "float16": ("float32", "float64"), "bfloat16": ("float16", "float32", "float64")}

# Marks of parameters that start at 0 or 1, where an error in what is done with them does not show.
_CONSTANT_AT_FIRST = ("Norm(", "nn.Parameter(torch.zeros", "nn.Parameter(torch.ones")


@lru_cache(maxsize=1024)
def render(spec: CaseSpec, *, described: bool = False) -> str:
    """The case file: self-contained, needs torch only, formatted as ``ruff format`` would.

    ``described`` puts the names of its idioms, near misses and choices on top.
    """
    if (text := _render_alone(spec)) is not None:
        return f'"""{_describe(spec)}"""\n\n{text}' if described else text
    classes = [source.strip() for source in _render_classes(spec)]
    inputs = list_inputs(spec, spec.dims)
    classes = [*find_functions([expression for _, expression in inputs]), *classes]
    plain = spec.state is not None and spec.state.plain
    reset = render_reset(spec.state) if spec.state is not None else []
    driver = _render_driver(spec)
    cast = spec.dtype != "float32" and any(mark in source for source in classes for mark in ("nn.Parameter", "self."))
    texts = [*classes, driver, *reset]
    imported = list_imports(texts) if spec.state is not None else []
    of_torch = ["from torch import nn"] if not plain or any(uses_name(source, "nn") for source in texts) else []
    of_torch += ["from torch.nn import functional as F"] * any(uses_name(source, "F") for source in texts)
    if any("sdpa_kernel(" in source for source in classes):
        of_torch.append("from torch.nn.attention import SDPBackend, sdpa_kernel")
    return get_template("case.py.j2").render(
        spec=spec,
        description=_describe(spec) if described else "",
        classes=classes,
        inputs=inputs,
        settings=_list_settings(spec),
        calls=_render_calls(spec),
        driver=driver,
        imports=[line for line in imported if not _is_of_torch(line) and line != "import numpy"],
        numpy="import numpy" in imported,
        torch_imports=sorted([*of_torch, *filter(_is_of_torch, imported)], key=lambda line: line.split()[1]),
        reset=reset,
        plain=plain,
        cast=f".to(torch.{spec.dtype})" if cast else "",
        scattered=not plain and any(mark in source for source in classes for mark in _CONSTANT_AT_FIRST),
    )


def _render_alone(spec: CaseSpec) -> str | None:
    """The source of a case that has a form of its own; None for the others."""
    if spec.aliases is not None:
        return render_aliased(spec.aliases, spec.seed, _list_settings(spec))
    return None if spec.distributed is None else _render_distributed(spec, spec.distributed)


def _render_distributed(spec: CaseSpec, program: DistributedProgram) -> str:
    settings = _list_settings(spec)
    if not program.wraps:
        inputs = list(zip(program.arguments, program.inputs, strict=True))
        return render_distributed(program, program.classes, inputs, spec.seed, settings, ["model = Model()"])
    inputs = list_inputs(spec, spec.dims)
    classes = [source.strip() for source in _render_classes(spec)]
    classes = [*find_functions([expression for _, expression in inputs]), *classes]
    cast = f".to(torch.{spec.dtype})" if spec.dtype != "float32" else ""
    built = [f"model = Model(){cast}.{'train' if spec.training else 'eval'}()"]
    if any(mark in source for source in classes for mark in _CONSTANT_AT_FIRST):
        built += [
            "with torch.no_grad():",
            "    for parameter in model.parameters():",
            "        if parameter.dim() < 2:",
        ]
        built.append("            parameter.add_(torch.randn_like(parameter), alpha=0.1)")
    return render_distributed(program, classes, inputs, spec.seed, settings, built, _render_calls(spec))


def _load_macros(name: str | None) -> TemplateModule | None:
    return idiom(name).load().module if name else None


def _render_constructor(spec: CaseSpec, part: Part) -> str:
    return expand_macro(_load_macros(part.name), "new", spec.dims, part)


def _render_classes(spec: CaseSpec) -> list[str]:
    """The source of every function and class, each after those that it uses; the last is ``Model``."""
    if spec.program is not None and spec.state is not None:
        return _render_stateful_classes(spec, spec.program, spec.state)
    if spec.program is not None:
        return [_render_program_class(spec, spec.program)]
    d, n, block = spec.dims, _choose_sizes(spec, "x"), spec.block or Block()
    whole = bool(block.layers > 1 or spec.head or spec.detours or spec.programs or spec.returns_activation)
    alone = spec.block is None and not whole
    used = [spec.embedding, block.norm, block.residual]
    if spec.layer is None:
        used += [spec.attention.position, spec.attention.projection]
    defined = [*(Part(name) for name in used if name), *filter(None, (block.feed_forward, spec.layer))]
    sources = []
    for part in defined:
        source = expand_macro(_load_macros(part.name), "definition", d, n, part)
        if alone and part is spec.layer:
            source = source.replace(f"class {_render_constructor(spec, part).partition('(')[0]}(", "class Model(")
        sources.append(source)
    sources.append(render_mask_function(spec))
    if spec.layer is None:
        sources.append(_render_attention_class(spec, "Model" if alone else "Attention"))
    if spec.block:
        sources.append(_render_block_class(spec, spec.block, "Block" if whole else "Model"))
    if whole:
        sources.append(_render_model_class(spec))
    return list(filter(None, sources))


def _choose_sizes(spec: CaseSpec, x: str) -> Sizes:
    """Numbers; or, if a second call has other sizes, expressions that read them from ``x``."""
    if not spec.compile.calls:
        return make_fixed_sizes(spec)
    if x == "q":
        source = "k.shape[-1]" if spec.attention.key_permuted else "k.shape[-2]"
        return Sizes("q.shape[0]", "q.shape[-2]", source, spec.dims.width)
    source = "memory.shape[1]" if spec.attention.cross and spec.layer is None else f"{x}.shape[1]"
    return Sizes(f"{x}.shape[0]", f"{x}.shape[1]", source, spec.dims.width)


def _render_attention_class(spec: CaseSpec, name: str) -> str:
    a, d, (entering, *_) = spec.attention, spec.dims, list_activations(spec)
    n, traits = _choose_sizes(spec, entering), find_attention_traits(a)
    features = d.width if a.layout == "flat" else d.head_dim
    # The scale that keeps scores near 1, from the number of features summed; or the odd one that was drawn.
    root = float(features**0.5)
    value = {"factor": 1 / root, "divisor": root, "of_each": root**-0.5}[traits.scale]
    value = float(a.chosen["factor"]) if "factor" in a.chosen else round(value, 4)
    parts = {part: _load_macros(getattr(a, part)) for part in ("projection", "position", "norm", "grouping")}
    text = (
        idiom(a.idiom)
        .load()
        .render(
            **parts,
            a=a,
            d=d,
            n=n,
            name=name,
            arguments=[*list_activations(spec), *list_extra_inputs(spec)],
            rotated=features,
            takes_x=takes_x(spec),
            source="memory" if a.cross else "x",
            kv_width=spec.key_heads * d.head_dim,
            arrange={letter: _render_arrangement(spec, n, letter) for letter in "qkv"},
            product="q @ k" if a.key_permuted else "q @ k.transpose(-2, -1)",
            scale_value=value,
            scale=value if a.scale == "literal" else "self.scale",
            promoted=bool(a.mask and a.mask.use == "add" and traits.has_scores and a.mask.dtype in _WIDER[spec.dtype]),
            narrow=bool(a.chosen.get("narrow")),
            drops=a.dropout is not None and traits.has_scores,
            made=render_mask(spec, n, f"{entering}.device") if a.mask and a.mask.inside else None,
            call=_render_sdpa_arguments(spec, value),
        )
    )
    return text.strip()


def _render_sdpa_arguments(spec: CaseSpec, scale: float) -> str:
    a = spec.attention
    shared = idiom(a.grouping).traits.sdpa_argument if a.grouping else ""
    choices = (
        ("q, k, v", True),
        ("mask", a.mask is not None),
        (f"dropout_p={a.dropout}", a.dropout is not None),
        ("is_causal=True", a.is_causal and a.mask is None),
        (f"scale={scale}", bool(a.chosen.get("scaled")) or "factor" in a.chosen),
        (shared, bool(shared)),
    )
    return ", ".join(argument for argument, present in choices if present)


def _render_arrangement(spec: CaseSpec, n: Sizes, letter: str) -> str:
    """The calls that bring query, key or value to (B, H, T, D), or (B, H, D, T) for a permuted key."""
    a, d = spec.attention, spec.dims
    if a.layout == "flat":
        return ""
    permuted = letter == "k" and a.key_permuted
    shared = letter != "q"
    heads = spec.key_heads if shared else d.heads
    length = n.source if shared and a.cross else n.sequence
    calls = ""
    if takes_x(spec):
        calls += f".view({n.batch}, {length}, {heads}, {d.head_dim})"
    if permuted:
        calls += ".permute(0, 2, 3, 1)"
    elif a.layout == "heads_last":
        calls += ".permute(0, 2, 1, 3)"
    if shared and a.expanded:
        calls += f".expand(-1, {d.heads}, -1, -1)"
    return calls


def _render_block_class(spec: CaseSpec, block: Block, name: str) -> str:
    embedding = _load_macros(spec.embedding) if name == "Model" else None
    extra = list_extra_inputs(spec)
    return get_template("block.py.j2").render(
        d=spec.dims,
        n=_choose_sizes(spec, "tokens"),
        name=name,
        arguments=["tokens" if embedding else "x", *extra],
        more="".join(f", {argument}" for argument in extra),
        embedding=embedding,
        attention=_render_constructor(spec, spec.layer) if spec.layer else "Attention()",
        norm=_render_constructor(spec, Part(block.norm)) if block.norm else None,
        placement=block.placement,
        residual=_load_macros(block.residual),
        in_place=block.in_place,
        feed_forward=_render_constructor(spec, block.feed_forward) if block.feed_forward else None,
    )


def _render_program_class(spec: CaseSpec, program: OperatorProgram) -> str:
    parameters = [argument for argument in program.arguments if argument.parameter]
    return get_template("program.py.j2").render(
        parameters=[(argument.name, format_tuple(resolve_shape(argument.shape, spec.dims))) for argument in parameters],
        arguments=["x", *list_extra_inputs(spec)],
        statements=program.statements,
        outputs=program.outputs,
    )


def _render_stateful_classes(spec: CaseSpec, program: OperatorProgram, state: StatefulProgram) -> list[str]:
    """The classes and functions of a stateful program around its operator program."""
    shapes = [
        (made.name, format_tuple(resolve_shape(made.shape, spec.dims))) for made in program.arguments if made.parameter
    ]
    parameters = [f"self.{name} = nn.Parameter(torch.randn({shape}))" for name, shape in shapes]
    arguments = ["x", *list_extra_inputs(spec)]
    return render_state(state, arguments, parameters, program.statements, program.outputs)


def _render_model_class(spec: CaseSpec) -> str:
    """The module around the body: embedding, detours, a stack of blocks, a head, several outputs."""
    block, extra, a, activations = spec.block, list_extra_inputs(spec), spec.attention, list_activations(spec)
    embedding, entering = _load_macros(spec.embedding), activations[0]
    arguments = ", ".join([*activations, *extra])
    outputs = ["x"]
    if block is not None and block.layers > 1:
        blocks = f"[Block()] * {block.layers}" if block.tied else f"Block() for _ in range({block.layers})"
        parts = [("blocks", f"nn.ModuleList({blocks})")]
        calls = [f"for block in self.blocks:\n    x = block({arguments})"]
    else:
        name = "block" if block else "layer" if spec.layer else "attention"
        body = "Block()" if block else _render_constructor(spec, spec.layer) if spec.layer else "Attention()"
        if name == "attention":
            outputs += {"": [], "weights": ["weights"], "keys": ["keys_out", "values_out"]}[a.returns]
        parts, calls = [(name, body)], [f"{', '.join(outputs)} = self.{name}({arguments})"]
    if spec.returns_activation:
        calls.insert(0, f"given = {entering}")
        outputs.append("given")
    width = spec.dims.width if entering == "x" or a.layout == "flat" else spec.dims.head_dim

    def list_beside(where: str, name: str) -> list[str]:
        detours = [find_detour(part).render_statements(name, part, width) for at, part in spec.detours if at == where]
        return [*detours, *("\n".join(program.statements) for at, program in spec.programs if at == where)]

    return get_template("model.py.j2").render(
        d=spec.dims,
        n=_choose_sizes(spec, "tokens" if embedding else "x"),
        p=spec.head,
        tied=bool(embedding),
        arguments=[*(["tokens"] if embedding else activations), *extra, *(["targets"] if takes_targets(spec) else [])],
        embedding=embedding,
        parts=parts,
        calls=calls,
        before=list_beside("before", entering),
        after=list_beside("after", "x"),
        head=_load_macros(spec.head.name) if spec.head else None,
        result=", ".join(outputs),
    )
