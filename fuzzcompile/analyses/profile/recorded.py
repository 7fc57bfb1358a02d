"""Recordings as they are read: the facts at once, the tensors of a call when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.analyses.profile.identity import Facts, Leaf
from fuzzcompile.analyses.profile.kept import KeptCall, KeptTensor
from fuzzcompile.analyses.profile.recording import DTYPES, MARK, SCHEMA, CallEntry, TensorEntry
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError


class Recording:
    """A recording that was read: its facts, and its calls, whose tensors are read when they are asked for."""

    def __init__(self, facts: Facts, calls: Mapping[tuple[str, int], KeptCall]) -> None:
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
        facts = _facts(json.loads(metadata["facts"]))
        calls = _Calls(file, json.loads(metadata["calls"]))
    except FuzzcompileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the shapes that damage can take in JSON
        raise UsageError(
            f"The recording {path} is damaged ({type(error).__name__}: {error}); record it again."
        ) from error
    return Recording(facts, calls)


def _facts(fields: Mapping[str, Any]) -> Facts:
    leaves = {
        what: {name: Leaf(leaf["sha256"], leaf["dtype"], tuple(leaf["shape"])) for name, leaf in fields[what].items()}
        for what in ("weights", "inputs")
    }
    return Facts(**{**fields, **leaves})


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
