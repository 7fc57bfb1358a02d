"""A run of a model in one ``.safetensors`` file, to be compared with a run on another machine.

The file holds the tensors of each call of each layer, whole or sampled, under names such as ``encoder.0#1.out0``. Its
metadata hold the facts that identify the run (:mod:`fuzzcompile.analyses.profile.identity`) and the table of calls.
Equal
tensors, such as the output of a layer and the input of the next, are stored once.
:mod:`fuzzcompile.analyses.profile.recordings` reads it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypedDict

import torch

from fuzzcompile.analyses.profile.identity import Leaf, RunFacts, check_same, collect_facts, read_bytes
from fuzzcompile.analyses.profile.side_runs import WHOLE, Look, SideRun, collecting, refuse_failed, run_side, whole
from fuzzcompile.analyses.profile.sides import Side
from fuzzcompile.analyses.profile.taps import SAMPLE, KeptCall, KeptTensor
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError
from fuzzcompile.run.attention_backends import force_math_kernel
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.runs import observe

SCHEMA = 1
MARK = "fuzzcompile_recording"  # the key of the metadata that tells a recording from other files
_SAMPLED_SHARE = 4  # one part in so many of the budget is left to samples
_OF_LEFT = 64  # a sample takes one part in so many of what is left, at most
_HEADER_ENTRY = 90  # bytes that a tensor takes in the header besides its name, at most
_ENTRY = 400  # bytes that are set aside for a tensor in the header and the table of calls
_ALIGNED = 16  # where the tensors begin: at a multiple of the largest element
_PIECE = 2**20  # bytes copied at a time
_LARGEST_HEADER = 100_000_000  # of the format: a larger one is refused by its readers
# What the format has had from its first versions on; tensors of any other dtype are stored as bytes.
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


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


@dataclass(frozen=True)
class _Spooled:
    """Position of a tensor's bytes in the spool, and their description in the file."""

    key: str
    dtype: str
    shape: list[int]
    itemsize: int
    start: int
    size: int


class RecordingWriter:
    """Writes a recording call by call; a context manager that puts the file in place when its block ends.

    Until then, what was added lies in a file without a name on the same disk, so that an interrupted run leaves nothing
    behind, even when it is killed. A file that was at ``path`` stays until the new one is complete.

    Args:
        path: the file.
        facts: what identifies the run.
        budget: the size of the file in bytes, at most. Facts, names and shapes are always written (some 400 bytes a
            tensor), so that a budget in which only these would fit is exceeded.

    Raises:
        EnvironmentUnfit: the disk is full (also from :meth:`add`).
        UsageError: the file cannot be written there.
    """

    def __init__(self, path: Path, facts: RunFacts, *, budget: int) -> None:
        self._path = path
        self._facts = json.dumps(asdict(facts))
        self._budget = budget
        self._used = _escaped(self._facts)
        self._promised = 0
        self._spooled: dict[bytes, _Spooled] = {}
        self._end = 0
        self._calls: list[CallEntry] = []
        self._labels: set[str] = set()
        self._spool: IO[bytes] | None = None

    def __enter__(self) -> RecordingWriter:
        with _disk_errors(self._path):
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._spool = tempfile.TemporaryFile(dir=self._path.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        spool = self._open_spool()
        try:
            if error is None:
                with _disk_errors(self._path):
                    self._finish(spool)
        finally:
            with contextlib.suppress(OSError):  # what a full disk did not take goes anyway
                spool.close()

    def most(self, numel: int, element_size: int) -> int | None:
        """Return the number of elements of a tensor to keep, None for all; they are taken from the budget.

        All are kept while a quarter of the budget stays free for later tensors; then :data:`SAMPLE` of them, and
        fewer once that would take more than a 64th of what is left.
        """
        left = max(0, self._budget - self._used - self._promised - _ENTRY)
        if left - numel * element_size >= self._budget // _SAMPLED_SHARE:
            kept = numel
        else:
            kept = min(numel, SAMPLE, left // _OF_LEFT // element_size)
        self._promised += kept * element_size + _ENTRY
        return None if kept == numel else kept

    def add(self, call: KeptCall) -> None:
        """Write a call that has ended.

        Raises:
            UsageError: a tensor has no plain elements (it is sparse or quantised).
        ValueError: a call of that name and number was added before.
        """
        label = f"{call.name}#{call.number + 1}"
        if label in self._labels:
            raise ValueError(f"{label} was recorded already")
        self._labels.add(label)
        before, stored = self._end, len(self._spooled)
        inputs = [self._entry(f"{label}.in{index}", tensor) for index, tensor in enumerate(call.inputs)]
        outputs = [self._entry(f"{label}.out{index}", tensor) for index, tensor in enumerate(call.outputs)]
        self._calls.append(
            CallEntry(name=call.name, number=call.number, kind=call.kind, inputs=inputs, outputs=outputs)
        )
        asked = sum(tensor.values.nbytes + _ENTRY for tensor in (*call.inputs, *call.outputs))
        self._promised = max(0, self._promised - asked)
        new = _HEADER_ENTRY + len(label)
        self._used += self._end - before + _escaped(json.dumps(self._calls[-1])) + new * (len(self._spooled) - stored)

    def _entry(self, key: str, kept: KeptTensor) -> TensorEntry:
        try:
            elements = read_bytes(kept.values)
        except (RuntimeError, TypeError) as error:
            reason = f"{key} is a {kept.values.layout} tensor of {kept.dtype}, which cannot be recorded"
            raise UsageError(f"{reason}; leave out its layer with --depth.") from error
        known = DTYPES.get(kept.dtype)
        shape = list(kept.values.shape) if known else [len(elements)]
        about = f"{kept.dtype}{shape}".encode()
        digest = hashlib.sha256(about + hashlib.sha256(elements).digest()).digest()
        if digest not in self._spooled:
            with _disk_errors(self._path):
                self._open_spool().write(elements)
            itemsize = kept.values.element_size()
            self._spooled[digest] = _Spooled(key, known or "U8", shape, itemsize, self._end, len(elements))
            self._end += len(elements)
        dtype = str(kept.dtype).removeprefix("torch.")
        return TensorEntry(key=self._spooled[digest].key, shape=list(kept.shape), dtype=dtype, whole=kept.whole)

    def _open_spool(self) -> IO[bytes]:
        if self._spool is None:
            raise RuntimeError("a recording is written inside the block that opens it")
        return self._spool

    def _finish(self, spool: IO[bytes]) -> None:
        # The format allows for no gaps: with the largest elements first, all of them are aligned.
        tensors = sorted(self._spooled.values(), key=lambda tensor: -tensor.itemsize)
        header = _header(tensors, {MARK: str(SCHEMA), "facts": self._facts, "calls": json.dumps(self._calls)})
        if len(header) > _LARGEST_HEADER:
            raise UsageError(f"{len(self._calls)} calls are too many for one recording; record fewer with --depth.")
        with _appearing(self._path) as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for tensor in tensors:
                _copy(spool, file, tensor)


def _escaped(text: str) -> int:
    """The length of a text as a string in JSON."""
    return len(json.dumps(text)) + 2


def _header(tensors: Sequence[_Spooled], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset := offset + tensor.size]
        entries[tensor.key] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-(8 + len(text)) % _ALIGNED)


def _copy(spool: IO[bytes], file: IO[bytes], tensor: _Spooled) -> None:
    spool.seek(tensor.start)
    for start in range(0, tensor.size, _PIECE):
        file.write(spool.read(min(_PIECE, tensor.size - start)))


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at ``path``, whole, when the block ends; it has no name before, if the disk allows that."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    draft.unlink(missing_ok=True)
    try:
        file: IO[bytes] = os.fdopen(os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    except (AttributeError, OSError):  # not on this system, or not on this file system
        file = draft.open("wb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not draft.exists():
                _name(file, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _name(file: IO[bytes], path: Path) -> None:
    """Give a file without a name this one."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Python follows the link to the file only where a folder is given.
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about a file that is written into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentUnfit(f"Cannot write {path}: the disk is full; free some space or record less.") from error
        raise UsageError(f"Cannot write {path}: {error.strerror}; name another file for the recording.") from error


# Recordings as they are read: the facts at once, the tensors of a call when it is asked for.


class Recording:
    """A recording that was read: its facts, and its calls, whose tensors are read when they are asked for."""

    def __init__(self, facts: RunFacts, calls: Mapping[tuple[str, int], KeptCall]) -> None:
        self.facts = facts
        self._calls = calls

    def calls(self) -> Mapping[tuple[str, int], KeptCall]:
        """The calls by name and number, in the order in which they ended. Nothing read is kept."""
        return self._calls


def read(path: Path) -> Recording:
    """Open a recording.

    Raises:
        EnvironmentUnfit: safetensors is not installed.
        UsageError: the file cannot be read, is no recording, is damaged, or was written by a newer version.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise EnvironmentUnfit("Recordings need safetensors: pip install 'fuzzcompile[profile]'.") from error
    try:
        with path.open("rb"):
            pass  # the library's own errors do not say why a file cannot be opened
        file = safe_open(str(path), framework="pt")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; name a recording.") from error
    except SafetensorError as error:
        raise UsageError(
            f"{path} is no whole .safetensors file ({error}); copy it again, or make it with --record."
        ) from error
    return _recording(path, file)


def _recording(path: Path, file: Any) -> Recording:
    metadata = file.metadata() or {}
    if MARK not in metadata:
        raise UsageError(f"{path} holds tensors but is no recording; make one with --record.")
    try:
        if (schema := int(metadata[MARK])) > SCHEMA:
            raise UsageError(
                f"{path} was recorded by a newer fuzzcompile (schema {schema}, this one reads {SCHEMA}); update it."
            )
        facts = _read_facts(json.loads(metadata["facts"]))
        calls = _Calls(file, json.loads(metadata["calls"]))
    except FuzzcompileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the shapes that damage can take in JSON
        raise UsageError(
            f"The recording {path} is damaged ({type(error).__name__}: {error}); record it again."
        ) from error
    return Recording(facts, calls)


def _read_facts(fields: Mapping[str, Any]) -> RunFacts:
    leaves = {
        what: {name: Leaf(leaf["sha256"], leaf["dtype"], tuple(leaf["shape"])) for name, leaf in fields[what].items()}
        for what in ("weights", "inputs")
    }
    return RunFacts(**{**fields, **leaves})


class _Calls(Mapping[tuple[str, int], KeptCall]):
    """The table of calls, over an open file."""

    def __init__(self, file: Any, entries: Sequence[CallEntry]) -> None:
        self._file = file
        self._entries = {(str(entry["name"]), int(entry["number"])): entry for entry in entries}
        present = set(file.keys())
        for entry in entries:
            for tensor in (*entry["inputs"], *entry["outputs"]):
                self._check(tensor, present)

    def _check(self, tensor: TensorEntry, present: set[str]) -> None:
        if tensor["key"] not in present:
            raise KeyError(tensor["key"])
        stored = self._file.get_slice(tensor["key"]).get_shape()
        if _dtype(tensor) in DTYPES and len(stored) != (len(tensor["shape"]) if tensor["whole"] else 1):
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
        if dtype not in DTYPES:
            values = values.view(dtype).reshape(shape if entry["whole"] else (-1,))
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
    case: Case,
    device: torch.device,
    side: Side,
    path: Path,
    *,
    look: Look,
    math_kernel: bool = False,
) -> RecordedRun:
    """Run ``case`` as ``side`` says, and write its activations, outputs and gradients to ``path``.

    Args:
        case: the case.
        device: where the side runs, if it names no device.
        side: anything but a recording.
        path: the file.
        look: what to look at; its budget is that of the file.
        math_kernel: attention takes its math kernel, and TF32 is off.

    Raises:
        CannotRun: the program raises.
        EnvironmentUnfit: the disk is full, or there is no such device or kernel.
        UsageError: the file cannot be written.
    """
    facts = _facts(case, device, side)
    with (
        force_math_kernel() if math_kernel else contextlib.nullcontext(),
        RecordingWriter(path, facts, budget=look.budget) as writer,
    ):
        written = _Written(writer)
        if side.is_compiled:
            run = run_side(case, device, side, look)
            for key, call in run.calls.items():
                if key[0] != WHOLE:
                    written.again(call)
            observation = run.observation
        else:
            observation = _streamed(case, device, side, look, written)
        written.again(whole(observation))
        for value in observation.values:
            if value.kind == "gradient" and isinstance(value.value, torch.Tensor):
                written.again(KeptCall(value.name, 0, value.kind, [], [KeptTensor.of(value.value)]))
    return RecordedRun(str(path), str(side), written.count, path.stat().st_size)


def _facts(case: Case, device: torch.device, side: Side) -> RunFacts:
    return collect_facts(case, build(case, side.device(device)), str(side), side.device(device))


@dataclass
class _Written:
    """Adds calls to a recording, sampled as its budget says."""

    writer: RecordingWriter
    count: int = 0

    def keep(self, tensor: torch.Tensor) -> KeptTensor:
        """As much of a tensor as the budget leaves room for."""
        return KeptTensor.of(tensor, self.writer.most(tensor.numel(), tensor.element_size()))

    def add(self, call: KeptCall) -> None:
        """Write a call whose tensors were kept so."""
        self.writer.add(call)
        self.count += 1

    def again(self, call: KeptCall) -> None:
        """Write a call whose tensors were kept whole."""
        inputs, outputs = (
            [self.keep(kept.values) if kept.whole else kept for kept in tensors]
            for tensors in (call.inputs, call.outputs)
        )
        self.add(KeptCall(call.name, call.number, call.kind, inputs, outputs))


def _streamed(case: Case, device: torch.device, side: Side, look: Look, written: _Written) -> Observation:
    """Run in eager mode and write each call as it ends."""
    program = side.built(case, device)
    with (
        side.attention(),
        collecting(program, look, written.keep, written.add) as called,
        side.numerics(program.dtype),
    ):
        observation = observe(case, program, called)
    refuse_failed(case, side, observation)
    return observation


def replayed(case: Case, device: torch.device, side: Side) -> SideRun:
    """A recording in the place of a run; what differs between both machines is among the notes.

    Raises:
        CaseError: it was made of another program, other weights or other inputs.
        UsageError: it cannot be read.
    """
    recording = read(Path(side.argument))
    notes = check_same(recording.facts, _facts(case, device, Side("eager")))
    calls = recording.calls()
    gradients = [
        Value(name, call.outputs[0].values, "gradient")
        for (name, _), call in ((key, calls[key]) for key in calls)
        if call.kind == "gradient" and call.outputs[0].whole
    ]
    outputs = [Value(f"out{i}", kept.values, "output") for i, kept in enumerate(calls[WHOLE, 0].outputs)]
    return SideRun(calls, Observation((*outputs, *gradients)), notes=(f"recorded as {recording.facts.side}", *notes))
