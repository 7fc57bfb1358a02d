"""Distributed programs drawn: how a module is wrapped or planned, on what mesh, and the source of the case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from string import Template
from typing import Any

from fuzzcompile.fuzz.generation.spec import (
    COLLECTIVES,
    PLANNED,
    SHARDED,
    WRAPPED,
    DistributedProgram,
    Pen,
    Weights,
)
from fuzzcompile.model.package_files import read_rows

MOST_PROCESSES, MOST_IMITATED = 4, 64
"""The processes that run a program; of more, up to that number, all but one are imitated."""
KINDS: Weights[str] = ((WRAPPED, 34), (PLANNED, 26), (COLLECTIVES, 24), (SHARDED, 16))
"""What a distributed case is, and how often."""


@dataclass(frozen=True, kw_only=True)
class DistributedSetting:
    """A row of ``settings.toml``, where each entry is explained."""

    name: str
    weight: int
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """A row of ``layers.toml``, where each entry is explained."""

    name: str
    new: str
    weight: int
    source: str
    plans: Mapping[str, Sequence[Mapping[str, str]]]
    heads: bool = False


@cache
def load_settings() -> tuple[DistributedSetting, ...]:
    """The rows of ``settings.toml``, in order."""
    return read_rows(__package__, "settings", DistributedSetting)


@cache
def load_layers() -> tuple[PlannedLayer, ...]:
    """The rows of ``layers.toml``, in order."""
    return read_rows(__package__, "layers", PlannedLayer)


# How a module is wrapped: arguments of the wrapper, by name, and how often each is given.

_DDP: Weights[tuple[str, str]] = (
    (("ddp_small_buckets", "bucket_cap_mb=0.001"), 4),
    (("ddp_bucket_views", "gradient_as_bucket_view=True"), 15),
    (("ddp_static", "static_graph=True"), 10),
    (("ddp_unused", "find_unused_parameters=True"), 10),
    (("ddp_own_buffers", "broadcast_buffers=False"), 10),
)
_FSDP: Weights[tuple[str, str]] = (
    (("fsdp_bfloat16", "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)"), 14),
    (
        (
            "fsdp_reduced_wide",
            "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
        ),
        14,
    ),
    (("fsdp_output", "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)"), 10),
    (
        ("fsdp_own_inputs", "mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16, cast_forward_inputs=False)"),
        6,
    ),
)
_FSDP_MORE: Weights[tuple[str, str]] = (
    (("fsdp_kept", "reshard_after_forward=False"), 25),
    (("fsdp_last_axis", "shard_placement_fn=lambda p: Shard(p.dim() - 1) if p.shape[-1] % $n == 0 else None"), 12),
)
# Layers of which each fills a bucket of DDP, so that dynamo splits the graph between them: the width of a token, that
# within a layer, and how many there are.
_WIDE, _WIDE_WITHIN, _WIDE_LAYERS = 512, 520, (2, 3)
# Percentages: such layers in place of a module of the generator's; a wrapped module whose layers FSDP shards, one that
# is checkpointed if it is differentiated, and one with a policy of mixed precision; a mesh of two dimensions; a program
# with a setting of its own, and one with two.
FILLING, _LAYERS, _CHECKPOINTED, _POLICY, _HYBRID, _SET, _SET_TWICE = 20, 60, 25, 40, 30, 45, 12

_FORMS = (
    ("ddp", 45, "DistributedDataParallel around the model."),
    ("ddp_wide", FILLING, "Layers that fill a bucket of DDP each."),
    ("fsdp", 55, "fully_shard of the model."),
    ("fsdp_layers", _LAYERS, "fully_shard of each layer as well."),
    ("fsdp_hybrid", _HYBRID, "fully_shard over a mesh of two dimensions."),
    ("checkpointed", _CHECKPOINTED, "Layers whose activations are computed again in the backward pass."),
    ("planned_2d", 35, "A plan over one dimension of a mesh, fully_shard over the other."),
    ("sequence_parallel", 40, "Each process has some of the tokens."),
    ("embedded", 30, "A divided embedding in front."),
    ("headed", 30, "A divided linear layer behind."),
    ("collectives_2d", 30, "Collectives over the dimensions of a mesh."),
    ("sharded_2d", 40, "Tensors in parts over a mesh of two dimensions."),
    ("partial_input", 15, "An input that is the sum of the parts."),
)
"""Names that are drawn by the chance that each has, with what they mean."""

MESH_IMPORT = "from torch.distributed.device_mesh import init_device_mesh"
_DDP_IMPORT = "from torch.nn.parallel import DistributedDataParallel"
_FAKE_IMPORT = "from torch.testing._internal.distributed.fake_pg import FakeStore"
_CHECKPOINT_IMPORT = "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"


def list_distributed_names() -> Iterator[tuple[str, str, int, str]]:
    """Name, kind, weight and summary of all of this module that can be drawn more or less often."""
    yield from ((name, "distributed", weight, name.replace("_", " ")) for name, weight in KINDS)
    yield from (
        (row.name, "distributed_setting", row.weight, str(row.options or row.dynamo)) for row in load_settings()
    )
    yield from ((row.name, "distributed_layer", row.weight, row.new) for row in load_layers())
    for (name, text), weight in (*_DDP, *_FSDP, *_FSDP_MORE):
        yield name, "distributed_wrapper", weight, text
    yield from ((name, "distributed_form", weight, summary) for name, weight, summary in _FORMS)


def draw_settings(pen: Pen, program: DistributedProgram) -> DistributedProgram:
    """The program under none, one or two of the settings that act on it."""
    count = int(pen.chance(_SET)) + int(pen.chance(_SET_TWICE))
    rows = [row for row in load_settings() if row.of is None or row.of in program.names]
    rows = [row for row in rows if pen.weights.get(row.name, 100)]
    chosen: dict[str, DistributedSetting] = {}
    for _ in range(count if rows else 0):
        name = pen.draw_named([(row.name, row.weight) for row in rows])
        chosen[name] = next(row for row in rows if row.name == name)
    return replace(program, names=(*program.names, *chosen))


def collect_settings(program: DistributedProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of Inductor and the entries of dynamo's config that the settings of a program make together."""
    rows = [row for row in load_settings() if row.name in program.names]
    options = {name: value for row in rows for name, value in row.options.items()}
    return options, {name: value for row in rows for name, value in row.dynamo.items()}


def draw_mesh(pen: Pen, nproc: int, *, planes: bool) -> tuple[int, ...]:
    """The sizes of a mesh of so many processes; with ``planes``, it may have two dimensions."""
    if not planes:
        return (nproc,)
    shapes = [(first, nproc // first) for first in range(1, nproc + 1) if nproc % first == 0]
    # One of several rows and columns is worth most.
    return pen.draw_weighted([(shape, 3 if 1 not in shape else 1) for shape in shapes])


def draw_wrapping(pen: Pen, nproc: int, *, stacked: bool, backward: bool) -> DistributedProgram:
    """How ``Model()`` is wrapped, which has ``blocks`` if it is ``stacked``."""
    layers = "model.blocks" if stacked else "model.children()"
    names, made, imports = list[str](), list[str](), list[str]()
    if backward and pen.chance(_CHECKPOINTED, "checkpointed"):
        names.append("checkpointed")
        imports.append(_CHECKPOINT_IMPORT)
        if stacked:
            made += ["for number, layer in enumerate(model.blocks):"]
            made += ["    model.blocks[number] = checkpoint_wrapper(layer)"]
        else:
            made += ["for name, layer in list(model.named_children()):"]
            made += ["    model.register_module(name, checkpoint_wrapper(layer))"]
    if pen.draw_named([("ddp", 45), ("fsdp", 55)]) == "ddp" and nproc <= MOST_PROCESSES:  # no reducer imitates others
        given = [row for row, percent in _DDP if pen.chance(percent, row[0])]
        names += ["ddp", *(name for name, _ in given)]
        arguments = "".join(f", {text}" for _, text in given)
        made.append(f"model = DistributedDataParallel(model{arguments})")
        return DistributedProgram(tuple(names), nproc, (_DDP_IMPORT, *imports), tuple(made))
    mesh = draw_mesh(pen, nproc, planes=pen.chance(_HYBRID, "fsdp_hybrid"))
    shard, of_fsdp = _draw_sharding(pen, "mesh", mesh[-1])
    names += ["fsdp", *(["fsdp_hybrid"] if len(mesh) > 1 else []), *of_fsdp]
    if pen.chance(_LAYERS, "fsdp_layers"):
        names.append("fsdp_layers")
        made += [f"for layer in {layers}:", f"    {shard.replace('model', 'layer')}"]
    made.append(shard)
    return DistributedProgram(tuple(names), nproc, (*_list_fsdp_imports(shard), *imports), tuple(made), mesh)


def draw_wide(pen: Pen, nproc: int) -> DistributedProgram:
    """DDP around layers that are larger than its buckets."""
    names, classes, fields, steps = ["ddp", "ddp_wide"], list[str](), list[str](), list[str]()
    rows = [row for row in load_layers() if not row.heads]
    row = rows[pen.number(len(rows) - 1)]
    sizes = {"w": _WIDE, "h": _WIDE_WITHIN, "d": 1, "act": pen.one_of(_ACTIVATIONS), "attend": ""}
    classes.append(Template(row.source).substitute(sizes).strip())
    for number in range(pen.one_of(_WIDE_LAYERS)):
        fields.append(f"self.layer{number} = {row.new}")
        steps.append(f"x = {'x + ' if pen.chance(50) else ''}self.layer{number}(x)")
    given = [("", "bucket_cap_mb=1"), *(each for each, percent in _DDP[1:] if pen.chance(percent, each[0]))]
    classes.append(_write_model(fields, steps))
    made = f"model = DistributedDataParallel(model{''.join(f', {text}' for _, text in given)})"
    names += [name for name, _ in given if name]
    inputs = (f"torch.randn({2 + pen.number(3)}, {_WIDE})",)
    return DistributedProgram(tuple(names), nproc, (_DDP_IMPORT,), (made,), classes=tuple(classes), inputs=inputs)


def _write_model(fields: Sequence[str], steps: Sequence[str]) -> str:
    whole = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    whole += [f"        {line}" for line in fields]
    return "\n".join(
        [*whole, "", "    def forward(self, x):", *(f"        {line}" for line in steps), "        return x"]
    )


def _draw_sharding(pen: Pen, mesh: str, size: int) -> tuple[str, list[str]]:
    """The call that shards over a mesh, between so many processes, and the names of its arguments."""
    given = [pen.draw_weighted([(row, weight) for row, weight in _FSDP])] if pen.chance(_POLICY, "fsdp_policy") else []
    given += [row for row, percent in _FSDP_MORE if pen.chance(percent, row[0])]
    arguments = "".join(f", {Template(text).safe_substitute(n=size)}" for _, text in given)
    return f"fully_shard(model, mesh={mesh}{arguments})", [name for name, _ in given]


def _list_fsdp_imports(text: str) -> list[str]:
    policy = ["MixedPrecisionPolicy"] if "MixedPrecisionPolicy" in text else []
    placed = ["from torch.distributed.tensor import Shard"] if "Shard(" in text else []
    return [MESH_IMPORT, f"from torch.distributed.fsdp import {', '.join([*policy, 'fully_shard'])}", *placed]


# A model of which a plan divides each layer between the processes of one dimension of a mesh.

_ACTIVATIONS = ("F.relu", "F.gelu", "F.silu", "torch.tanh", "torch.sigmoid")
_ATTENDING = (
    "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "y = torch.softmax(q @ k.transpose(-2, -1) * 0.3, dim=-1) @ v",
    "y = F.scaled_dot_product_attention(q, k, v)",
)
_NORMS = ("nn.LayerNorm", "nn.RMSNorm")
# Percentages: tokens divided between the processes, an embedding in front, a head behind, both over a mesh of two
# dimensions, and a model whose norms stand before each layer.
_SEQUENCE, _EMBEDDED, _HEADED, _PLANES, _NORMED = 40, 30, 30, 35, 80
_EMBEDDINGS = {
    "replicated": ("RowwiseParallel(input_layouts=Replicate())", "ColwiseParallel(output_layouts=Replicate())"),
    "sequence": ("RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))",),
}
_HEADS = {
    "replicated": (
        "ColwiseParallel(output_layouts=Replicate())",
        "ColwiseParallel()",
        "RowwiseParallel(input_layouts=Replicate())",
        "ColwiseParallel(use_local_output=False)",
    ),
    "sequence": (
        "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())",
        "ColwiseParallel(input_layouts=Shard(1), use_local_output=False)",
    ),
}
# Styles whose result is a plain tensor: of uneven parts the next layer could not tell how large the whole is.
_KEPT_LOCAL = {"ColwiseParallel()", "ColwiseParallel(input_layouts=Shard(1))"}


@dataclass
class _PlannedModel:
    """A planned model while it is drawn."""

    width: int
    names: list[str] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    plan: dict[str, str] = field(default_factory=dict)

    def add_layer(self, pen: Pen, number: int, size: int, mode: str, *, normed: bool) -> None:
        drawn = pen.draw_named([(row.name, row.weight) for row in load_layers()])
        row = next(row for row in load_layers() if row.name == drawn)
        head, plan = pen.one_of((2, 4, 8)), pen.one_of(row.plans[mode])
        hidden = size * (head if row.heads else pen.one_of((4, 8, 5, 6))) * (1 + pen.number(1))
        if _KEPT_LOCAL.isdisjoint(plan.values()):
            hidden += pen.number(size)
        chosen: dict[str, object] = {"w": self.width, "h": hidden, "d": head}
        chosen |= {"act": pen.one_of(_ACTIVATIONS), "attend": pen.one_of(_ATTENDING)}
        # Each layer has a class of its own: its sizes stand in it.
        plain = row.new.partition("(")[0]
        name = plain if plain not in self.classes else f"{plain}{number}"
        self.classes[name] = (
            Template(row.source.replace(f"class {plain}(", f"class {name}(")).substitute(chosen).strip()
        )
        self.fields.append(f"self.layer{number} = {name}()")
        self.plan |= {f"layer{number}" + f".{path}" * bool(path): style for path, style in plan.items()}
        into = "x"
        if normed:
            self.fields.append(f"self.norm{number} = {pen.one_of(_NORMS)}({self.width})")
            into = f"self.norm{number}(x)"
            if mode == "sequence":
                self.plan[f"norm{number}"] = "SequenceParallel()"
        self.steps.append(f"x = x + self.layer{number}({into})")
        self.names.append(row.name)


def draw_planned(pen: Pen, nproc: int, *, backward: bool) -> DistributedProgram:
    """A model of layers, each with a plan of its own."""
    mode = "sequence" if pen.chance(_SEQUENCE, "sequence_parallel") else "replicated"
    mesh = draw_mesh(pen, nproc, planes=pen.chance(_PLANES, "planned_2d"))
    size, model = mesh[-1], _PlannedModel(pen.one_of((8, 16, 12, 6)))
    batch, tokens = 1 + pen.number(2), size * (1 + pen.number(3))
    vocabulary = pen.one_of((10, 16, 7))
    inputs = [f"torch.randn({batch}, {tokens // size if mode == 'sequence' else tokens}, {model.width})"]
    normed, embedded, headed = pen.chance(_NORMED), pen.chance(_EMBEDDED, "embedded"), pen.chance(_HEADED, "headed")
    if embedded:
        model.fields.append(f"self.embedding = nn.Embedding({vocabulary}, {model.width})")
        model.steps.append("x = self.embedding(x)")
        model.plan["embedding"] = pen.one_of(_EMBEDDINGS[mode])
        inputs = [f"torch.randint(0, {vocabulary}, ({batch}, {tokens}))"]
    for number in range(pen.draw_weighted([(1, 50), (2, 35), (3, 15)])):
        model.add_layer(pen, number, size, mode, normed=normed)
    if headed:
        model.fields.append(f"self.head = nn.Linear({model.width}, {vocabulary})")
        model.steps.append("x = self.head(x)")
        model.plan["head"] = pen.one_of(_HEADS[mode])
    had = {"sequence_parallel": mode == "sequence", "embedded": embedded, "headed": headed}
    names = [*model.names, *(name for name, present in had.items() if present)]
    return _finish_planned(pen, model, nproc, mesh, inputs, names, backward=backward)


def _finish_planned(
    pen: Pen,
    model: _PlannedModel,
    nproc: int,
    mesh: tuple[int, ...],
    inputs: Sequence[str],
    names: list[str],
    *,
    backward: bool,
) -> DistributedProgram:
    """The program of a drawn model: planned, checkpointed, and sharded where the mesh has a second dimension."""
    plan = [f'    "{path}": {style},' for path, style in model.plan.items()]
    on = 'mesh["tp"]' if len(mesh) > 1 else "mesh"
    made, imports = [f"parallelize_module(model, {on}, {{", *plan, "})"], [MESH_IMPORT]
    layers = [line.split(" = ")[0].removeprefix("self.") for line in model.fields if line.startswith("self.layer")]
    if backward and pen.chance(_CHECKPOINTED, "checkpointed"):
        names.append("checkpointed")
        made += [f"model.{name} = checkpoint_wrapper(model.{name})" for name in layers]
        imports.append(_CHECKPOINT_IMPORT)
    if len(mesh) > 1:
        shard, of_fsdp = _draw_sharding(pen, 'mesh["dp"]', mesh[0])
        names += ["planned_2d", *of_fsdp]
        if pen.chance(_LAYERS):
            made += [shard.replace("(model", f"(model.{name}") for name in layers]
        made.append(shard)
        imports += _list_fsdp_imports(shard)
    text = "\n".join(made)
    placements = [name for name in ("Replicate", "Shard") if f"{name}(" in text]
    styles = ("ColwiseParallel", "PrepareModuleInput", "PrepareModuleOutput", "RowwiseParallel", "SequenceParallel")
    used = [style for style in styles if f"{style}(" in text]
    imports = [line for line in imports if "torch.distributed.tensor import" not in line]
    imports += [f"from torch.distributed.tensor import {', '.join(placements)}"] * bool(placements)
    imports.append(f"from torch.distributed.tensor.parallel import {', '.join([*used, 'parallelize_module'])}")
    same = (() if len(mesh) == 1 else ("dp",)) if "sequence_parallel" not in names or "embedded" in names else None
    return DistributedProgram(
        tuple(dict.fromkeys(names)),
        nproc,
        tuple(dict.fromkeys(imports)),
        tuple(made),
        mesh,
        classes=(*model.classes.values(), _write_model(model.fields, model.steps)),
        inputs=tuple(inputs),
        apart=same,
    )


# The source of a case.


def render_distributed(
    program: DistributedProgram,
    classes: Sequence[str],
    inputs: Sequence[tuple[str, str]],
    seed: int,
    settings: Sequence[tuple[str, str]],
    built: Sequence[str],
    calls: str = "",
) -> str:
    """The case file of a program, of whose model the lines ``built`` are, and which ``torchrun`` runs as well."""
    body = [*classes]
    lines = ["import torch", "import torch.distributed as dist", *_list_imports(program, [*body, *program.made])]
    constants = [f"{name} = {value}" for name, value in settings]
    constants = [f"NPROC = {program.nproc}"] * (program.rank is None) + constants
    lines += ["", *constants] if constants else []
    for source in body:
        lines += ["", "", source]
    lines += ["", "", f"CALLS = {calls}"] if calls else []
    lines += ["", "", "def make():", f"    {_render_group(program)}"]
    if program.mesh:
        named = ', mesh_dim_names=("dp", "tp")' if len(program.mesh) > 1 else ""
        shape = ", ".join(map(str, program.mesh)) + "," * (len(program.mesh) == 1)
        lines.append(f'    mesh = init_device_mesh("cpu", ({shape}){named})')
    made = [*(built if program.nested is None else ()), *program.made]
    lines += [f"    torch.manual_seed({seed})", *(f"    {line}" if line else "" for line in made)]
    lines.append(f"    torch.manual_seed({_render_seed(program, seed)})")
    lines += [f"    {name} = {expression}" for name, expression in inputs]
    given = ", ".join(name for name, _ in inputs) + "," * (len(inputs) == 1)
    lines += [f"    return {program.nested or 'model'}, ({given})", "", "", *_render_main(program, dict(settings)), ""]
    return "\n".join(lines)


def _render_group(program: DistributedProgram) -> str:
    if program.rank is None:
        return 'dist.init_process_group("gloo")'
    return f'dist.init_process_group("fake", rank={program.rank}, world_size={program.nproc}, store=FakeStore())'


def _render_seed(program: DistributedProgram, seed: int) -> str:
    """The seed of the inputs: another in each process, or the same along the dimension that a plan divides."""
    if program.apart is None:
        return f"{seed + 1} + dist.get_rank()"
    return f"{seed + 1}" + "".join(f' + mesh["{name}"].get_local_rank()' for name in program.apart)


def _list_imports(program: DistributedProgram, texts: Sequence[str]) -> list[str]:
    whole = "\n".join(texts)
    wanted = [*program.imports, *(["from torch import nn"] if "nn." in whole.replace("F.", "") else [])]
    wanted += ["from torch.nn import functional as F"] if "F." in whole else []
    wanted += [_FAKE_IMPORT] if program.rank is not None else []
    wanted += ["from torch.nn.attention import SDPBackend, sdpa_kernel"] if "sdpa_kernel(" in whole else []
    plain = [line for line in dict.fromkeys(wanted) if line.startswith("import ")]
    return [*plain, *sorted(set(wanted) - set(plain), key=lambda line: line.split()[1])]


def _render_main(program: DistributedProgram, settings: Mapping[str, str]) -> list[str]:
    given = "".join(
        f", {argument}={name}"
        for name, argument in (("OPTIONS", "options"), ("DYNAMIC", "dynamic"), ("FULLGRAPH", "fullgraph"))
        if name in settings
    )
    started = "" if program.rank is not None else f"  # torchrun --nproc-per-node {program.nproc} FILE"
    lines = [f'if __name__ == "__main__":{started}']
    lines += ["    model, inputs = make()", f"    print(torch.compile(model{given})(*inputs))"]
    return [*lines, "    dist.destroy_process_group()"]
