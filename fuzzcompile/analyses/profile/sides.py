"""The ways to run a model that a profile compares, by the names that users give them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import torch

from fuzzcompile.analyses.profile.side_names import DTYPES, spelled
from fuzzcompile.compiler.compile_changes import Backend, CompileMode, Veto
from fuzzcompile.compiler.session import Compilation, list_modes
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.attention_backends import force_kernel
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.device import resolve_device
from fuzzcompile.run.tensors import map_tensors

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


@dataclass(frozen=True)
class Side:
    """One way to run a model."""

    kind: str  # the name before the colon, or ``recording``
    argument: str = ""  # what stands behind it: a mode, an index, a kernel, a dtype, the path of a recording

    def __str__(self) -> str:
        """As the user spells it."""
        if self.kind == "recording":
            return self.argument
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def is_compiled(self) -> bool:
        """Return whether a compiler makes this run."""
        return self.kind in ("inductor", "aot_eager")

    @property
    def is_exact(self) -> bool:
        """Return whether it computes in float64 whatever the program's dtypes are."""
        return self.kind == "float64"

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that floating tensors are converted to; None leaves them."""
        return _DTYPES[self.argument] if self.kind == "dtype" else None

    def device(self, default: torch.device) -> torch.device:
        """Return the side's device, if other sides run on ``default``; EnvironmentUnfit if there is no such device."""
        return resolve_device(str(self)) if self.kind in ("cpu", "cuda") else default

    def compilation(self, vetoes: tuple[str, ...] = ()) -> Compilation:
        """Return the compilation of a compiled side, with these rewrites refused."""
        if self.kind == "inductor":
            return Compilation((Veto(vetoes), *([CompileMode(self.argument)] if self.argument else [])))
        return Compilation((Veto(vetoes), Backend("aot_eager")), record=False)

    def attention(self) -> contextlib.AbstractContextManager[object]:
        """A context in which attention takes the kernel of this side, if it names one."""
        return force_kernel(self.argument) if self.kind == "sdpa" else contextlib.nullcontext()

    def numerics(self, native: torch.dtype) -> contextlib.AbstractContextManager[object]:
        """A context in which operators compute in float64, if this side is ``float64``."""
        return exactly(native) if self.is_exact else contextlib.nullcontext()

    def built(self, case: Case, default: torch.device, *, double: bool = False) -> CaseProgram:
        """Fresh state of the case in the dtype of this side, or float64, on its device or else ``default``."""
        program = build(case, self.device(default), double=double or self.is_exact)
        dtype = self.dtype
        if dtype is None:
            return program

        def narrow(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        for tensor in program.collect_tensors().values():
            tensor.data = narrow(tensor.data)
        return replace(program, calls=map_tensors(narrow, program.calls), dtype=dtype)


EAGER = Side("eager")


def exactly(native: torch.dtype) -> Float64Mode:
    """A mode in which every operator of a program in ``native`` precision computes in float64."""
    return Float64Mode(keep_casts=False, native=native)


def parse(text: str) -> Side:
    """The side that ``text`` names; UsageError if it names none."""
    return Side(*spelled(text, list_modes()))


def parse_pair(against: Side, reference: Side, device: torch.device) -> str:
    """The kind of pair, by which :mod:`fuzzcompile.model.tolerances` lists what the sides may differ by."""
    kinds = {against.kind, reference.kind}
    if kinds & {"dtype", "float64"}:
        return "across_dtypes"
    places = {side.device(device).type for side in (against, reference) if side.kind != "recording"}
    if len(places) > 1 or "recording" in kinds:
        return "across_devices"
    return "across_backends" if kinds & {"sdpa", "aot_eager"} else "same_backend"
