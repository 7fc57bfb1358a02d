"""A run of a model in one ``.safetensors`` file, to be compared with a run on another machine.

The file holds the tensors of each call of each layer, whole or sampled, under names such as ``encoder.0#1.out0``. Its
metadata hold the facts that identify the run and the table of calls. Equal tensors, such as the output of a layer and
the input of the next, are stored once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.sides import EAGER, WHOLE, Calls, Look, Side, SideRun, run_once, run_side
from fuzzcompile.analyses.profile.taps import SAMPLE, Keeping, KeptCall, KeptTensor
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, UsageError, describe_error
from fuzzcompile.report.circumstances import several
from fuzzcompile.report.output_files import write_whole
from fuzzcompile.run.attention_backends import force_math_kernel
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.device import describe_environment
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.tensors import name_leaves, view_bytes

# The identity of a run: program, weights and inputs by their hashes, and the machine it ran on. Two runs are comparable
# layer by layer only if the first three are the same. Another torch or device is what a comparison is for.

_SHOWN = 4  # names of what differs, in a message
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Leaf:
    """A tensor's dtype, shape and SHA-256 in row-major order, or a plain value's; empty if there are no bytes."""

    sha256: str
    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """The identity of a run."""

    case: str  # its name
    source: str  # SHA-256 of the case's text
    modules: Mapping[str, str]  # the class of each module, by its qualified name
    weights: Mapping[str, Leaf]  # parameters, buffers and other tensors that exist before the call
    inputs: Mapping[str, Leaf]  # the leaves of the inputs of all calls
    side: str  # which way of running it was: ``eager``, ``inductor``, ...
    device: str  # where it ran
    dtype: str  # the widest floating dtype of the program
    environment: Mapping[str, object]  # torch, device, driver (:func:`fuzzcompile.run.device.describe_environment`)


def collect_facts(case: Case, program: CaseProgram, side: str, device: torch.device) -> RunFacts:
    """The facts of a run on ``device`` that is about to begin with a fresh ``program``, in its own dtypes.

    Weights are hashed on the CPU, one after the other, and their hashes do not depend on the device.
    """
    model, modules = program.model, dict[str, str]()
    if isinstance(model, nn.Module):
        modules |= {name: type(module).__qualname__ for name, module in model.named_modules()}
    else:
        modules[""] = getattr(model, "__qualname__", type(model).__qualname__)
    return RunFacts(
        case.name,
        case.sha256,
        modules,
        {name: _leaf(tensor) for name, tensor in program.collect_tensors().items()},
        {name: _leaf(leaf) for name, leaf in name_leaves("in", list(program.calls))},
        side,
        str(device),
        str(program.dtype).removeprefix("torch."),
        describe_environment(device),
    )


def check_same(recorded: RunFacts, present: RunFacts) -> list[str]:
    """Check that two runs can be compared: CaseError says whether program, weights or inputs differ.

    Returned are notes on what else differs, such as torch or the device, and on what could not be compared.
    """
    then, now, differing = recorded.modules, present.modules, list[str]()
    if recorded.source != present.source:
        differing.append(f"the source differs (SHA-256 {recorded.source[:12]} recorded, {present.source[:12]} here)")
    changes = {name: _beside(then.get(name), now.get(name)) for name in {**then, **now}}
    compared = {"modules": {name: "" if then.get(name) == now.get(name) else said for name, said in changes.items()}}
    for what, old, new in (
        ("weights", recorded.weights, present.weights),
        ("inputs", recorded.inputs, present.inputs),
    ):
        compared[what] = {name: _change(old.get(name), new.get(name)) for name in {**old, **new}}
    for what, said_of in compared.items():
        changed = [f"{name or 'the model'} ({said})" for name, said in said_of.items() if said]
        first = several(changed, ", ", _SHOWN)
        differing += [f"{len(changed)} of {len(said_of)} {what} differ: {first}"] if changed else []
    if differing:
        raise CaseError(
            f"The recording of {recorded.case} cannot be compared with this run: {'; '.join(differing)}. Use one case "
            "file on both machines, with fixed seeds or one checkpoint."
        )
    return list(_notes(recorded, present))


def read_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements in row-major order; RuntimeError or TypeError without plain elements (sparse, quantised)."""
    with torch.no_grad(), _disable_current_modes():
        elements: memoryview = view_bytes(tensor.detach().cpu().resolve_conj().resolve_neg()).numpy().data
    return elements


def _leaf(value: object) -> Leaf:
    if not isinstance(value, torch.Tensor):
        digest = hashlib.sha256(repr(value).encode()).hexdigest() if isinstance(value, _PLAIN) else ""
        return Leaf(digest, type(value).__qualname__)
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    try:
        return Leaf(hashlib.sha256(read_bytes(value)).hexdigest(), dtype, shape)
    except (RuntimeError, TypeError):
        # torch's answers for sparse, quantised and meta tensors, and for subclasses without elements of their own
        return Leaf("", dtype, shape)


def _change(recorded: Leaf | None, present: Leaf | None) -> str:
    if recorded is None or present is None:
        return "only recorded" if present is None else "only here"
    if recorded.dtype != present.dtype:
        return _beside(recorded.dtype, present.dtype)
    if recorded.shape != present.shape:
        return f"shape {_beside(list(recorded.shape), list(present.shape))}"
    return "values" if recorded.sha256 != present.sha256 else ""


def _notes(recorded: RunFacts, present: RunFacts) -> Iterator[str]:
    then, now = recorded.environment, present.environment
    for key in {**then, **now}:
        implied = key == "torch_git" and then.get("torch") != now.get("torch")
        if then.get(key) != now.get(key) and not implied:
            yield f"{key.replace('_', ' ')}: {_beside(then.get(key), now.get(key))}"
    for what, leaves in (("weight", present.weights), ("input", present.inputs)):
        unread = [f"{name} ({leaf.dtype})" for name, leaf in leaves.items() if not leaf.sha256]
        if unread:
            first = several(unread, ", ", _SHOWN)
            yield f"not compared, because the values of such {what}s cannot be hashed: {first}"


def _beside(recorded: object, present: object) -> str:
    then, now = ("absent" if value is None else value for value in (recorded, present))
    return f"{then} recorded, {now} here"


SCHEMA = 1
MARK = "fuzzcompile_recording"  # the key of the metadata that tells a recording from other files
_SAMPLED_SHARE = 4  # one part in so many of the budget is left to samples
_OF_LEFT = 64  # a sample takes one part in so many of what is left, at most
_ENTRY = 600  # bytes that are set aside for a tensor in the header and, escaped, in the table of calls
# What the format has had from its first versions on; tensors of any other dtype are stored as bytes.
_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


# In the table of calls. A tensor: its ``shape``, ``dtype``, whether it is ``whole``, and the ``key`` of its elements in
# the file. A call: its ``name``, ``number`` and ``kind``, and its ``inputs`` and ``outputs``.
Entry: TypeAlias = dict[str, Any]


class FileBudget(Keeping):
    """Keeps tensors of a run whole while a quarter of the file's budget stays free, then samples of them.

    A sample has :data:`SAMPLE` elements, and fewer once that would take more than a 64th of what is left. Facts, names
    and shapes are always written, so that a budget in which only these would fit is exceeded.
    """

    def __init__(self, budget: int, facts: RunFacts) -> None:
        super().__init__(budget - len(json.dumps(json.dumps(asdict(facts)))))
        self._reserve = budget // _SAMPLED_SHARE

    def __call__(self, tensor: torch.Tensor) -> KeptTensor:
        """Keep ``tensor``; each entry takes room in the header, also that of a tensor that is stored already."""
        self.left = max(0, self.left - _ENTRY)
        return super().__call__(tensor)

    def limit(self, tensor: torch.Tensor) -> int | None:
        """The number of elements to keep of a tensor; None for all."""
        size = tensor.element_size()
        if self.left - tensor.numel() * size >= self._reserve:
            return None
        return min(tensor.numel(), SAMPLE, self.left // _OF_LEFT // size)


def write_recording(path: Path, facts: RunFacts, calls: Iterable[KeptCall]) -> None:
    """Write a recording, whole or not at all; EnvironmentUnfit on a full disk, UsageError for a sparse tensor."""
    stored: dict[bytes, str] = {}
    tensors: dict[str, torch.Tensor] = {}

    def entries(label: str, kept: Sequence[KeptTensor]) -> Iterator[Entry]:
        for index, tensor in enumerate(kept):
            key = f"{label}{index}"
            try:
                elements = hashlib.sha256(read_bytes(tensor.values)).digest()
            except (RuntimeError, TypeError) as error:
                reason = f"{key} is a {tensor.values.layout} tensor of {tensor.values.dtype}, which cannot be recorded"
                raise UsageError(f"{reason}; leave out its layer with --depth.") from error
            digest = hashlib.sha256(f"{tensor.dtype}{list(tensor.values.shape)}".encode() + elements).digest()
            if digest not in stored:
                stored[digest], plain = key, tensor.values.detach().resolve_conj().resolve_neg().contiguous()
                if tensor.dtype not in _DTYPES:
                    plain = view_bytes(plain)
                tensors[key] = plain.clone() if tensor.values.untyped_storage().nbytes() > plain.nbytes else plain
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield {"key": stored[digest], "shape": list(tensor.shape), "dtype": dtype, "whole": tensor.whole}

    table = []
    for call in calls:
        label = f"{call.name}#{call.number + 1}"
        inputs, outputs = list(entries(f"{label}.in", call.inputs)), list(entries(f"{label}.out", call.outputs))
        head = {"name": call.name, "number": call.number, "kind": call.kind}
        table.append({**head, "inputs": inputs, "outputs": outputs})
    metadata = {MARK: str(SCHEMA), "facts": json.dumps(asdict(facts)), "calls": json.dumps(table)}
    write_whole(path, _safetensors().torch.save(tensors, metadata), "--record")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise EnvironmentUnfit("Recordings need safetensors: pip install 'fuzzcompile[profile]'.") from error
    return safetensors


class Recording(NamedTuple):
    """A recording that was read."""

    facts: RunFacts
    calls: Calls


def read_recording(path: Path) -> Recording:
    """Open a recording; UsageError if the file cannot be read, is none, is damaged, or is of a newer version."""
    library = _safetensors()
    try:
        with path.open("rb"):
            pass  # the library's own errors do not say why a file cannot be opened
        file = library.safe_open(str(path), framework="pt")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; name a recording.") from error
    except library.SafetensorError as error:
        raise UsageError(
            f"{path} is no whole .safetensors file ({error}); copy it again, or make it with --record."
        ) from error
    metadata = file.metadata() or {}
    if MARK not in metadata:
        raise UsageError(f"{path} holds tensors but is no recording; make one with --record.")
    try:
        if (schema := int(metadata[MARK])) > SCHEMA:
            raise UsageError(
                f"{path} was recorded by a newer fuzzcompile (schema {schema}, this one reads {SCHEMA}); update it."
            )
        facts = msgspec.json.decode(metadata["facts"], type=RunFacts)
        return Recording(facts, _Calls(file, json.loads(metadata["calls"])))
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:  # the shapes of damage
        raise UsageError(f"The recording {path} is damaged ({describe_error(error)}); record it again.") from error


class _Calls(Mapping[tuple[str, int], KeptCall]):
    def __init__(self, file: Any, entries: Sequence[Entry]) -> None:
        self._file = file
        self._entries = {(str(entry["name"]), int(entry["number"])): entry for entry in entries}
        present = set(file.keys())
        for tensor in (tensor for entry in entries for tensor in (*entry["inputs"], *entry["outputs"])):
            if tensor["key"] not in present:
                raise KeyError(tensor["key"])
            stored = file.get_slice(tensor["key"]).get_shape()
            if _dtype(tensor) in _DTYPES and len(stored) != (len(tensor["shape"]) if tensor["whole"] else 1):
                raise ValueError(f"{tensor['key']} has shape {stored}")

    def __getitem__(self, key: tuple[str, int]) -> KeptCall:
        def read(tensors: Sequence[Entry]) -> Iterator[KeptTensor]:
            for tensor in tensors:
                values, dtype, shape = self._file.get_tensor(tensor["key"]), _dtype(tensor), tuple(tensor["shape"])
                if dtype not in _DTYPES:  # bytes, which the format does not align
                    values = values.clone().view(dtype).reshape(shape if tensor["whole"] else (-1,))
                yield KeptTensor(values, shape, dtype, tensor["whole"])

        entry = self._entries[key]
        return KeptCall(
            entry["name"], entry["number"], entry["kind"], list(read(entry["inputs"])), list(read(entry["outputs"]))
        )

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _dtype(entry: Entry) -> torch.dtype:
    dtype = getattr(torch, entry["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{entry['dtype']} is no dtype")
    return dtype


@dataclass(frozen=True)
class RecordedRun:
    """A recording as written: the file, the side that ran, the numbers of layer calls and of bytes."""

    path: str
    side: str
    calls: int
    size: int


def record(
    case: Case, device: torch.device, side: Side, path: Path, *, look: Look, math_kernel: bool = False
) -> RecordedRun:
    """Run ``case`` as ``side`` says (anything but a recording), and write its activations, outputs and gradients.

    The budget of ``look`` is that of the file. With ``math_kernel``, attention takes its math kernel, and TF32 is off.
    It raises as :func:`~fuzzcompile.analyses.profile.sides.run_side` and :func:`write_recording` do.
    """
    facts = _facts(case, device, side)
    keep = FileBudget(look.budget, facts)
    with force_math_kernel() if math_kernel else contextlib.nullcontext():
        run = run_side(case, device, side, look) if side.is_compiled else run_once(case, device, side, look, keep)
    gradients = [
        KeptCall(value.name, 0, value.kind, [], [KeptTensor.view(value.value)])
        for value in run.observation.values
        if value.kind == "gradient" and isinstance(value.value, torch.Tensor)
    ]
    calls = [call for key, call in run.calls.items() if key[0] != WHOLE]
    kept_already = 0 if side.is_compiled else len(calls)
    calls += [run.calls[WHOLE, 0], *gradients]
    for index, call in enumerate(calls[kept_already:], kept_already):
        inputs, outputs = (
            [keep(kept.values) if kept.whole else kept for kept in tensors] for tensors in (call.inputs, call.outputs)
        )
        calls[index] = replace(call, inputs=inputs, outputs=outputs)
    write_recording(path, facts, calls)
    return RecordedRun(str(path), str(side), len(calls), path.stat().st_size)


def _facts(case: Case, device: torch.device, side: Side) -> RunFacts:
    return collect_facts(case, build(case, side.device(device)), str(side), side.device(device))


def replay_recording(case: Case, device: torch.device, side: Side) -> SideRun:
    """A recording in the place of a run; what differs between both machines is among the notes.

    CaseError if it was made of another program, other weights or other inputs.
    """
    recording = read_recording(Path(side.argument))
    notes = check_same(recording.facts, _facts(case, device, EAGER))
    calls = recording.calls
    outputs = [Value(f"out{i}", kept.values, "output") for i, kept in enumerate(calls[WHOLE, 0].outputs)]
    graded = [call for call in calls.values() if call.kind == "gradient" and call.outputs[0].whole]
    gradients = [Value(call.name, call.outputs[0].values, "gradient") for call in graded]
    return SideRun(calls, Observation((*outputs, *gradients)), notes=(f"recorded as {recording.facts.side}", *notes))
