"""A run of a model in one ``.safetensors`` file, to be compared with a run on another machine.

The file holds the tensors of each call of each layer, whole or sampled, under names such as ``encoder.0#1.out0``. Its
metadata hold the facts that identify the run (:mod:`fuzzcompile.analyses.profile.identity`) and the table of calls.
Equal
tensors, such as the output of a layer and the input of the next, are stored once.
:mod:`fuzzcompile.analyses.profile.recorded` reads it.
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
from typing import IO, TypedDict

import torch

from fuzzcompile.analyses.profile.identity import Facts, bytes_of
from fuzzcompile.analyses.profile.kept import SAMPLE, KeptCall, KeptTensor
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError

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
    """Where the bytes of a tensor lie in the spool, and how the file describes them."""

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

    def __init__(self, path: Path, facts: Facts, *, budget: int) -> None:
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
        """How many elements of a tensor to keep, None for all; the answer is taken from the budget.

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
            elements = bytes_of(kept.values)
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
