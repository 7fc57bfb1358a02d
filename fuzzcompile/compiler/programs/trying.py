"""Whether a program makes its rule fire, seen in a compile without code generation."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.case import Case, load_case
from fuzzcompile.compiler.ledger import Label, Ledger
from fuzzcompile.compiler.quiet import quiet
from fuzzcompile.compiler.session import Compilation, check_settings, compiling
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.building import build
from fuzzcompile.execution.runs import observe
from fuzzcompile.generation.patterned import PatternProgram, render
from fuzzcompile.stage_names import LOWERING


@dataclass(frozen=True)
class Tried:
    """One program compiled: what became of each rule, by stage and name, and which operators would be lowered.

    ``changed`` are the rules that left another graph behind: a handler may run and find nothing to do.
    """

    fired: frozenset[tuple[str, str]]
    refused: frozenset[tuple[str, str]]
    changed: frozenset[tuple[str, str]] = frozenset()
    trouble: str | None = None


def runs(program: PatternProgram) -> bool:
    """Whether the forward of a program runs in eager mode on the CPU."""
    namespace: dict[str, Any] = {}
    with quiet(), torch.no_grad():
        try:
            exec(render(program), namespace)
            model, inputs = namespace["make"]()
            model(*inputs)
        except Exception:  # of any kind: it is asked whether there is one
            return False
    return True


def compiled(program: PatternProgram, device: torch.device) -> Tried:
    """Compile a program up to code generation, as a screened case is."""
    with _as_case(program) as case, quiet():
        try:
            check_settings(case.settings)
            built = build(case, device)
        except (CaseError, MemoryError) as error:
            return Tried(frozenset(), frozenset(), trouble=str(error))
        how = Compilation(screen=True, fallback_random=bool(program.settings.get("fallback_random", True)))
        with compiling(case.settings, how) as session:
            observed = observe(case, built, session.compile(built.model), describe_failure=session.describe_failure)
            failure = observed.failure
            return _tried(session.ledger, None if failure is None else str(failure))


def _tried(ledger: Ledger, trouble: str | None) -> Tried:
    outcomes: dict[str, set[tuple[str, str]]] = {"fired": set(), "refused": set(), "vetoed": set()}
    for label, outcome in ledger.coverage:
        outcomes[outcome] |= _names(label)
    behind = {(reached.stage, reached.name) for reached in ledger.reached}
    for frame in ledger.frames:
        last = [record.snapshots[-1] for record in frame.records if record.snapshots]
        behind |= {(LOWERING, call) for snapshot in last for call in snapshot.calls}
    changed = {name for _, _, rewrite in ledger.rewrites() for name in _names(rewrite.label)}
    return Tried(
        frozenset(outcomes["fired"] | changed | behind),
        frozenset(outcomes["refused"]),
        frozenset(changed | behind),
        trouble,
    )


def _names(label: Label) -> set[tuple[str, str]]:
    """A rule, and the pass that runs it."""
    return {(label.stage, label.rewrite), (label.stage, label.pass_name or label.rewrite)}


@contextlib.contextmanager
def _as_case(program: PatternProgram) -> Iterator[Case]:
    """The program as a loaded case."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "pattern.py")
        path.write_text(render(program), encoding="utf-8")
        yield load_case(path)
