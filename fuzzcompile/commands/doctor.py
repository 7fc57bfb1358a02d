"""Checks that a campaign can run on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from fuzzcompile.commands import attention_kernels
from fuzzcompile.commands.checks import Check
from fuzzcompile.commands.examined_target import examine_target
from fuzzcompile.compiler import conformance
from fuzzcompile.compiler.patches import PATCHES
from fuzzcompile.corpus import Store
from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.execution.toolchain import cxx_compiler, toolchain_fault
from fuzzcompile.facts import facts_of, known_versions


def examine(device_option: str, corpus: str | None, target: str | None = None) -> list[Check]:
    """All checks, in the order in which they are worth reading; those of a target are last."""
    of_target = () if target is None else examine_target(target)
    return [*_checks(device_option, corpus), *of_target]


def _checks(device_option: str, corpus: str | None) -> Iterator[Check]:
    yield _torch()
    try:
        device = resolve(device_option)
    except FuzzcompileError as error:
        yield Check("device", False, str(error), "Choose another --device.")
        device = torch.device("cpu")
    facts = describe(device)
    yield Check("device", True, f"{device}: {facts.get('device_name') or facts.get('cpu') or device.type}")
    if device.type == "cuda":
        yield Check("driver", facts.get("driver") is not None, str(facts.get("driver")), needed=False)
    yield _attention(device)
    fault = toolchain_fault()
    found = fault or str(facts.get("cxx") or cxx_compiler())
    yield Check("C++ compiler", fault is None, found, needed=device.type == "cpu")
    yield _hooks()
    yield _corpus(corpus)
    yield _compiles(device)


def _torch() -> Check:
    found = f"{torch.__version__} (git {str(torch.version.git_version)[:10]})"
    known = [".".join(map(str, minor)) for minor in known_versions()]
    advice = f"fuzzcompile knows torch {known[0]} to {known[-1]}; install one of these if attribution fails."
    if (note := facts_of(str(torch.__version__)).note) is not None:
        found += f"; {note}"
    return Check("torch", conformance.is_known(), found, advice, needed=False)


def _attention(device: torch.device) -> Check:
    answered = attention_kernels.answers(device)
    usable = dict.fromkeys(backend.name for each in answered for backend in each.backends if backend.usable)
    return Check(
        "SDPA backends",
        bool(usable),
        ", ".join(usable) or "none",
        needed=False,
        lines=tuple(attention_kernels.table(answered)),
        attention=tuple(each.to_json() for each in answered),
    )


def _hooks() -> Check:
    """Try every function of torch that is replaced while a compile is watched."""
    failed = conformance.probe()
    shows = {patch.name: patch.shows for patch in PATCHES}
    lines = [f"{len(PATCHES) - len(failed)} of {len(PATCHES)} hold"]
    lines += [f"{name} does not ({why}): {shows[name]} are not watched" for name, why in failed.items()]
    return Check(
        "hooks",
        not failed,
        "; ".join(lines),
        "This torch's internals are not those that fuzzcompile knows. Reports say what was not watched.",
        needed=len(failed) == len(PATCHES),
    )


def _corpus(location: str | None) -> Check:
    try:
        with Store.open(location) as store:
            counters = store.counters()
            return Check("corpus", True, f"{store.location}: {counters.cases} cases, {counters.findings} findings")
    except FuzzcompileError as error:
        return Check("corpus", False, str(error), "Choose another place with --corpus.")


def _compiles(device: torch.device) -> Check:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    x = torch.arange(64.0, device=device).reshape(8, 8)
    start = time.perf_counter()
    try:
        right = torch.allclose(torch.compile(small)(x), small(x))
    except Exception as error:  # of any kind: it is what is to be shown
        text = " ".join(str(error).split())[:160]
        return Check("torch.compile", False, f"{type(error).__name__}: {text}", "Repair the compiler toolchain.")
    return Check("torch.compile", right, f"a small program compiles in {time.perf_counter() - start:.1f} s")
