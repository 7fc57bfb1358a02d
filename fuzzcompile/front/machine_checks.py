"""Checks that a campaign can run on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.target.target_process import list_replaced
from fuzzcompile.compiler.watch import conformance
from fuzzcompile.compiler.watch.patch_table import PATCHES, REPLACED
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.file_triage import triage_sources
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import FuzzcompileError, describe_error
from fuzzcompile.model.facts import find_facts, is_tried_release, list_known_versions
from fuzzcompile.model.profile_contract import AttentionKernelsJson
from fuzzcompile.model.targets import find_target
from fuzzcompile.run.attention_backends import ask_kernels, format_kernel_table
from fuzzcompile.run.device import describe_environment, resolve_device
from fuzzcompile.run.subprocesses import find_cxx_compiler, find_toolchain_fault
from fuzzcompile.run.torch_attributes import find_missing


@dataclass(frozen=True)
class MachineCheck:
    """One check and its result."""

    name: str
    fine: bool
    found: str
    advice: str = ""
    needed: bool = True  # whether a campaign needs it to pass
    lines: tuple[str, ...] = ()  # a table below it
    attention: tuple[AttentionKernelsJson, ...] = ()  # that table as data


# Checks of a target on this machine: torch's places that answer for it, and how each stage is judged.

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
    stages: Mapping[str, str] = {}
    try:
        (answer,) = triage_sources({"small.py": _SMALL_PROGRAM}, Conditions("cpu", target=name))
    except FuzzcompileError as error:
        trouble: str | None = str(error)
    else:
        trouble = answer.error.replace(str(answer.path), "a small program") if answer.error is not None else None
        looked = (answer.report or {}).get("target")
        stages = looked["stages"] if looked is not None else {}
    for stage, way in stages.items():
        yield MachineCheck(f"{name} {stage}", not way.startswith("not looked at"), way, needed=False)
    count = sum(way.startswith(("real code", "interpreted", "replayed")) for way in stages.values())
    found = trouble or f"{count} stages of a small program can be looked at"
    yield MachineCheck(name, count > 0, found, "Install what the lines above ask for, or leave out --target.")


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
    answered = ask_kernels(device)
    usable = dict.fromkeys(backend["name"] for each in answered for backend in each["backends"] if backend["usable"])
    lines, kernels = tuple(format_kernel_table(answered)), ", ".join(usable) or "none"
    yield MachineCheck("SDPA backends", bool(usable), kernels, needed=False, lines=lines, attention=tuple(answered))
    fault = find_toolchain_fault()
    found = fault or str(facts.get("cxx") or find_cxx_compiler())
    yield MachineCheck("C++ compiler", fault is None, found, needed=device.type == "cpu")
    yield _check_hooks()
    try:
        with Store.open(corpus) as store:
            counters = store.counters()
            held = f"{store.location}: {counters.cases} cases, {counters.findings} findings"
        yield MachineCheck("corpus", True, held)
    except FuzzcompileError as error:
        yield MachineCheck("corpus", False, str(error), "Choose another place with --corpus.")
    yield _check_compiler(device)


def _check_torch() -> MachineCheck:
    found = f"{torch.__version__} (git {str(torch.version.git_version)[:10]})"
    known = [".".join(map(str, minor)) for minor in list_known_versions()]
    tried = f"{', '.join(known[:-1])} and {known[-1]}"
    advice = f"fuzzcompile was tried on the releases {tried} of torch; install one of these if attribution fails."
    if (note := find_facts(str(torch.__version__)).note) is not None:
        found += f"; {note}"
    return MachineCheck("torch", is_tried_release(torch.__version__), found, advice, needed=False)


def _check_hooks() -> MachineCheck:
    """Try every attribute of torch that is replaced, but for those of targets."""
    failed, lost = conformance.probe_patches(), conformance.probe_replaced()
    shows, known = {patch.name: patch.shows for patch in PATCHES}, len(PATCHES) + len(REPLACED)
    lines = [f"{known - len(failed) - len(lost)} of {known} hold"]
    lines += [f"{name} does not ({why}): {shows[name]} are not watched" for name, why in failed.items()]
    lines += [f"{name} does not ({why})" for name, why in lost.items()]
    return MachineCheck(
        "hooks",
        not failed and not lost,
        "; ".join(lines),
        "This torch's internals are not those that fuzzcompile knows. Reports say what was not watched.",
        needed=len(failed) == len(PATCHES),
    )


def _check_compiler(device: torch.device) -> MachineCheck:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    x = torch.arange(64.0, device=device).reshape(8, 8)
    start = time.perf_counter()
    try:
        right = torch.allclose(torch.compile(small)(x), small(x))
    except Exception as error:  # of any kind: it is what is to be shown
        return MachineCheck("torch.compile", False, describe_error(error, 200), "Repair the compiler toolchain.")
    return MachineCheck("torch.compile", right, f"a small program compiles in {time.perf_counter() - start:.1f} s")
