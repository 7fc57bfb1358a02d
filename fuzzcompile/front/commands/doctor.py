"""Checks that a campaign can run on this machine."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.compiler.target.target_patches import find_missing
from fuzzcompile.compiler.target.target_process import list_replaced
from fuzzcompile.compiler.watch import conformance
from fuzzcompile.compiler.watch.patch_table import PATCHES
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.commands.triage import triage_files
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.contract import TargetJson
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.facts import find_facts, list_known_versions
from fuzzcompile.model.profile_contract import AttentionKernelsJson
from fuzzcompile.model.targets import find_target
from fuzzcompile.run.attention_backends import AttentionBackend, list_backends
from fuzzcompile.run.device import describe_environment, resolve_device
from fuzzcompile.run.subprocesses import find_cxx_compiler, find_toolchain_fault

# One check of a machine.


@dataclass(frozen=True)
class MachineCheck:
    """One check and its result.

    ``needed`` tells whether a campaign needs it to pass, ``lines`` is a table below it, and ``attention`` that table
    as data.
    """

    name: str
    fine: bool
    found: str
    advice: str = ""
    needed: bool = True
    lines: tuple[str, ...] = ()
    attention: tuple[AttentionKernelsJson, ...] = ()


# Checks of a target on this machine: torch's places that answer for it, and how each stage is judged.

_UNEXAMINED = "not looked at"
_EXAMINED = ("real code", "interpreted", "replayed")
_SMALL_PROGRAM = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda x: torch.softmax(x * 2 + 1, -1)), (torch.randn(8, 8),)
"""


def examine_target(name: str) -> Iterator[MachineCheck]:
    """Check that torch can be told of the target, and how each stage of a small program is examined for it."""
    known = list_replaced(find_target(name))
    missing = find_missing(known)
    lines = [f"{len(known) - len(missing)} of {len(known)} answer for {name}"]
    lines += [f"{place} does not ({why})" for place, why in missing.items()]
    yield MachineCheck(
        "places of torch", not missing, "; ".join(lines), "Reports say what was not looked at.", needed=False
    )
    looked, trouble = _judge_small_program(name)
    for stage, way in (looked["stages"] if looked is not None else {}).items():
        yield MachineCheck(f"{name} {stage}", not way.startswith(_UNEXAMINED), way, needed=False)
    count = sum(way.startswith(_EXAMINED) for way in looked["stages"].values()) if looked is not None else 0
    found = trouble or f"{count} stages of a small program can be looked at"
    yield MachineCheck(name, count > 0, found, "Install what the lines above ask for, or leave out --target.")


def _judge_small_program(name: str) -> tuple[TargetJson | None, str | None]:
    """Return how each stage was examined, or the reason why none was."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "small.py")
        path.write_text(_SMALL_PROGRAM, encoding="utf-8")
        try:
            (answer,) = triage_files([path], Conditions("cpu", target=name), Question())
        except FuzzcompileError as error:
            return None, str(error)
    trouble = answer.error.replace(str(path), "a small program") if answer.error is not None else None
    return (answer.report or {}).get("target"), trouble


# A table of the kernels of ``scaled_dot_product_attention`` that a device has for typical inputs.

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDTHS = (64, 80, 256)
_INPUTS = ("plain", "causal", "masked", "training", "training, dropout")
_BATCH, _HEADS, _LENGTH = 1, 2, 64


@dataclass(frozen=True)
class KernelAnswer:
    """The answer of every kernel to one kind of inputs: usable, or the reason why not."""

    inputs: str
    width: int
    dtype: str
    backends: Sequence[AttentionBackend]

    @property
    def usable(self) -> str:
        """The kernels that take the inputs, the chosen one first."""
        names = [backend.name for backend in sorted(self.backends, key=lambda backend: not backend.chosen)]
        taken = {backend.name for backend in self.backends if backend.usable}
        return ", ".join(name for name in names if name in taken) or "none"

    def to_json(self) -> AttentionKernelsJson:
        """The entry of the contract."""
        backends = [backend.to_json() for backend in self.backends]
        return {"inputs": self.inputs, "head_dim": self.width, "dtype": self.dtype, "backends": backends}


def ask_kernels(device: torch.device) -> list[KernelAnswer]:
    """Ask about typical inputs of shape (1, 2, 64, head dim) on ``device``; runs no kernel."""
    return [
        KernelAnswer(inputs, width, str(dtype).removeprefix("torch."), _ask_backends(inputs, width, dtype, device))
        for inputs, width, dtype in itertools.product(_INPUTS, _WIDTHS, _DTYPES)
    ]


def format_kernel_table(answered: Sequence[KernelAnswer]) -> list[str]:
    """The answers as lines of text: the chosen kernel first, head dims of equal answers together, then refusals."""
    dtypes = list(dict.fromkeys(answer.dtype for answer in answered))
    rows = [["inputs", "head dim", *dtypes], *_format_rows(answered, dtypes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, *_list_refusals(answered)]


def _ask_backends(inputs: str, width: int, dtype: torch.dtype, device: torch.device) -> list[AttentionBackend]:
    training = inputs.startswith("training")
    query = torch.zeros(_BATCH, _HEADS, _LENGTH, width, dtype=dtype, device=device, requires_grad=training)
    mask = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool, device=device) if inputs == "masked" else None
    dropout = 0.1 if "dropout" in inputs else 0.0
    with torch.set_grad_enabled(training):
        try:
            return list_backends(query, query, query, attn_mask=mask, dropout_p=dropout, is_causal=inputs == "causal")
        except RuntimeError:  # torch knows no attention on this device
            return []


def _format_rows(answered: Sequence[KernelAnswer], dtypes: Sequence[str]) -> Iterator[list[str]]:
    cells = {(answer.inputs, answer.width, answer.dtype): answer.usable for answer in answered}
    for inputs in dict.fromkeys(answer.inputs for answer in answered):
        alike: dict[tuple[str, ...], list[str]] = {}
        for width in dict.fromkeys(answer.width for answer in answered):
            alike.setdefault(tuple(cells[inputs, width, dtype] for dtype in dtypes), []).append(str(width))
        for row, widths in alike.items():
            yield [inputs, ", ".join(widths), *row]


def _list_refusals(answered: Sequence[KernelAnswer]) -> Iterator[str]:
    """Each reason once, with the first inputs that it refuses."""
    seen = set()
    for answer in answered:
        for backend in answer.backends:
            if not backend.usable and (backend.name, backend.reason) not in seen:
                seen.add((backend.name, backend.reason))
                refused = f"{answer.inputs} {answer.dtype}, head dim {answer.width}"
                yield f"{backend.name} refuses {refused}: {backend.reason}"


def examine(device_option: str, corpus: str | None, target: str | None = None) -> list[MachineCheck]:
    """All checks, in the order in which they are worth reading; those of a target are last."""
    of_target = () if target is None else examine_target(target)
    return [*_list_checks(device_option, corpus), *of_target]


def _list_checks(device_option: str, corpus: str | None) -> Iterator[MachineCheck]:
    yield _check_torch()
    try:
        device = resolve_device(device_option)
    except FuzzcompileError as error:
        yield MachineCheck("device", False, str(error), "Choose another --device.")
        device = torch.device("cpu")
    facts = describe_environment(device)
    yield MachineCheck("device", True, f"{device}: {facts.get('device_name') or facts.get('cpu') or device.type}")
    if device.type == "cuda":
        yield MachineCheck("driver", facts.get("driver") is not None, str(facts.get("driver")), needed=False)
    yield _check_attention(device)
    fault = find_toolchain_fault()
    found = fault or str(facts.get("cxx") or find_cxx_compiler())
    yield MachineCheck("C++ compiler", fault is None, found, needed=device.type == "cpu")
    yield _check_hooks()
    yield _check_corpus(corpus)
    yield _check_compiler(device)


def _check_torch() -> MachineCheck:
    found = f"{torch.__version__} (git {str(torch.version.git_version)[:10]})"
    known = [".".join(map(str, minor)) for minor in list_known_versions()]
    advice = f"fuzzcompile knows torch {known[0]} to {known[-1]}; install one of these if attribution fails."
    if (note := find_facts(str(torch.__version__)).note) is not None:
        found += f"; {note}"
    return MachineCheck("torch", conformance.is_known(), found, advice, needed=False)


def _check_attention(device: torch.device) -> MachineCheck:
    answered = ask_kernels(device)
    usable = dict.fromkeys(backend.name for each in answered for backend in each.backends if backend.usable)
    return MachineCheck(
        "SDPA backends",
        bool(usable),
        ", ".join(usable) or "none",
        needed=False,
        lines=tuple(format_kernel_table(answered)),
        attention=tuple(each.to_json() for each in answered),
    )


def _check_hooks() -> MachineCheck:
    """Try every function of torch that is replaced while a compile is watched."""
    failed = conformance.probe_patches()
    shows = {patch.name: patch.shows for patch in PATCHES}
    lines = [f"{len(PATCHES) - len(failed)} of {len(PATCHES)} hold"]
    lines += [f"{name} does not ({why}): {shows[name]} are not watched" for name, why in failed.items()]
    return MachineCheck(
        "hooks",
        not failed,
        "; ".join(lines),
        "This torch's internals are not those that fuzzcompile knows. Reports say what was not watched.",
        needed=len(failed) == len(PATCHES),
    )


def _check_corpus(location: str | None) -> MachineCheck:
    try:
        with Store.open(location) as store:
            counters = store.counters()
            return MachineCheck(
                "corpus", True, f"{store.location}: {counters.cases} cases, {counters.findings} findings"
            )
    except FuzzcompileError as error:
        return MachineCheck("corpus", False, str(error), "Choose another place with --corpus.")


def _check_compiler(device: torch.device) -> MachineCheck:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    x = torch.arange(64.0, device=device).reshape(8, 8)
    start = time.perf_counter()
    try:
        right = torch.allclose(torch.compile(small)(x), small(x))
    except Exception as error:  # of any kind: it is what is to be shown
        text = " ".join(str(error).split())[:160]
        return MachineCheck("torch.compile", False, f"{type(error).__name__}: {text}", "Repair the compiler toolchain.")
    return MachineCheck("torch.compile", right, f"a small program compiles in {time.perf_counter() - start:.1f} s")
