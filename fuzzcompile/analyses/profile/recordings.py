"""A run of a model in one ``.safetensors`` file, to be compared with a run on another machine.

The file holds the tensors of each call of each layer, whole or sampled, under names such as ``encoder.0#1.out0``. Its
metadata hold the facts that identify the run (:mod:`fuzzcompile.analyses.profile.identity`) and the table of calls.
Equal tensors, such as the output of a layer and the input of the next, are stored once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch

from fuzzcompile.analyses.profile.identity import Leaf, RunFacts, check_same, collect_facts, read_bytes
from fuzzcompile.analyses.profile.side_runs import WHOLE, Calls, Look, SideRun, run_once, run_side
from fuzzcompile.analyses.profile.sides import EAGER, Side
from fuzzcompile.analyses.profile.taps import SAMPLE, Keeping, KeptCall, KeptTensor
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError
from fuzzcompile.report.output_files import write_whole
from fuzzcompile.run.attention_backends import force_math_kernel
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation, Value

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


class TensorEntry(TypedDict):
    """A kept tensor in the table of calls; ``key`` is the name of its elements in the file."""

    key: str
    shape: list[int]
    dtype: str
    whole: bool


class CallEntry(TypedDict):
    """A call in the table of calls."""

    name: str
    number: int
    kind: str
    inputs: list[TensorEntry]
    outputs: list[TensorEntry]


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
    """Write a recording, whole or not at all: a file that was at ``path`` stays until the new one is complete.

    EnvironmentUnfit on a full disk, UsageError where a tensor has no plain elements (it is sparse or quantised).
    """
    stored: dict[bytes, str] = {}
    tensors: dict[str, torch.Tensor] = {}

    def entries(label: str, kept: Sequence[KeptTensor]) -> Iterator[TensorEntry]:
        for index, tensor in enumerate(kept):
            key = f"{label}{index}"
            digest = _digest(key, tensor)
            if digest not in stored:
                stored[digest], plain = key, tensor.values.detach().resolve_conj().resolve_neg().contiguous()
                if tensor.dtype not in _DTYPES:
                    plain = plain.reshape(-1).view(torch.uint8)
                tensors[key] = plain.clone() if tensor.values.untyped_storage().nbytes() > plain.nbytes else plain
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield TensorEntry(key=stored[digest], shape=list(tensor.shape), dtype=dtype, whole=tensor.whole)

    table = []
    for call in calls:
        label = f"{call.name}#{call.number + 1}"
        inputs, outputs = list(entries(f"{label}.in", call.inputs)), list(entries(f"{label}.out", call.outputs))
        table.append(CallEntry(name=call.name, number=call.number, kind=call.kind, inputs=inputs, outputs=outputs))
    metadata = {MARK: str(SCHEMA), "facts": json.dumps(asdict(facts)), "calls": json.dumps(table)}
    write_whole(path, _safetensors().torch.save(tensors, metadata), "--record")


def _digest(key: str, kept: KeptTensor) -> bytes:
    try:
        elements = hashlib.sha256(read_bytes(kept.values)).digest()
    except (RuntimeError, TypeError) as error:
        reason = f"{key} is a {kept.values.layout} tensor of {kept.dtype}, which cannot be recorded"
        raise UsageError(f"{reason}; leave out its layer with --depth.") from error
    return hashlib.sha256(f"{kept.dtype}{list(kept.values.shape)}".encode() + elements).digest()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise EnvironmentUnfit("Recordings need safetensors: pip install 'fuzzcompile[profile]'.") from error
    return safetensors


# Recordings as they are read: the facts at once, the tensors of a call when it is asked for.


class Recording(NamedTuple):
    """A recording that was read: its facts, and its calls, whose tensors are read when they are asked for."""

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
        return Recording(_read_facts(json.loads(metadata["facts"])), _Calls(file, json.loads(metadata["calls"])))
    except FuzzcompileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the shapes that damage can take in JSON
        raise UsageError(
            f"The recording {path} is damaged ({type(error).__name__}: {error}); record it again."
        ) from error


def _read_facts(fields: Mapping[str, Any]) -> RunFacts:
    leaves = {
        what: {name: Leaf(leaf["sha256"], leaf["dtype"], tuple(leaf["shape"])) for name, leaf in fields[what].items()}
        for what in ("weights", "inputs")
    }
    return RunFacts(**{**fields, **leaves})


class _Calls(Mapping[tuple[str, int], KeptCall]):
    """The table of calls, over an open file; nothing read is kept."""

    def __init__(self, file: Any, entries: Sequence[CallEntry]) -> None:
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
        entry = self._entries[key]
        inputs, outputs = ([self._tensor(tensor) for tensor in entry[side]] for side in ("inputs", "outputs"))
        return KeptCall(entry["name"], entry["number"], entry["kind"], inputs, outputs)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _tensor(self, entry: TensorEntry) -> KeptTensor:
        values, dtype, shape = self._file.get_tensor(entry["key"]), _dtype(entry), tuple(entry["shape"])
        if dtype not in _DTYPES:  # bytes, which the format does not align
            values = values.clone().view(dtype).reshape(shape if entry["whole"] else (-1,))
        return KeptTensor(values, shape, dtype, entry["whole"])


def _dtype(entry: TensorEntry) -> torch.dtype:
    dtype = getattr(torch, entry["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{entry['dtype']} is no dtype")
    return dtype


# ``profile --record``: one run of a case, written down for a comparison on another machine.


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
    It raises as :func:`~fuzzcompile.analyses.profile.side_runs.run_side` and :func:`write_recording` do.
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
    layers = [call for key, call in run.calls.items() if key[0] != WHOLE]
    calls = layers if not side.is_compiled else [_kept_within(keep, call) for call in layers]
    calls += [_kept_within(keep, call) for call in (run.calls[WHOLE, 0], *gradients)]
    write_recording(path, facts, calls)
    return RecordedRun(str(path), str(side), len(calls), path.stat().st_size)


def _kept_within(keep: FileBudget, call: KeptCall) -> KeptCall:
    inputs, outputs = (
        [keep(kept.values) if kept.whole else kept for kept in tensors] for tensors in (call.inputs, call.outputs)
    )
    return replace(call, inputs=inputs, outputs=outputs)


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
