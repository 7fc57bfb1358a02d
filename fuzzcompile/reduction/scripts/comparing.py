"""The comparison that a reproducer makes, as expressions for its template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fuzzcompile.contract import OutputJson
from fuzzcompile.reduction.scripts import tolerances
from fuzzcompile.reduction.scripts.driving import Driving
from fuzzcompile.reduction.scripts.probe import Observable

Form = Literal[
    "values",
    "apart",
    "apart in float64",
    "integers",
    "metadata",
    "memory",
    "raises",
    "accepts",
    "nondeterministic",
    "process",
]
_PROPERTIES = {
    "dtype": "out.dtype",
    "shape": "tuple(out.shape)",
    "strides": "[s for n, s in zip(out.shape, out.stride()) if n > 1]",
}


@dataclass(frozen=True)
class Target:
    """One observable that the script compares: the expression for it, and its evidence, if there is any.

    ``partner`` is the expression for a tensor that shares its memory in one of the runs.
    """

    observable: Observable
    expression: str
    evidence: OutputJson = field(default_factory=OutputJson)
    partner: str = ""


@dataclass(frozen=True)
class Script:
    """The data of the template ``reports/reproducer.py.j2``; ``drive`` runs the case."""

    drive: Driving
    form: Form
    targets: tuple[Target, ...] = ()
    property_name: str = ""
    remark: str = ""
    limit: int = 120

    @property
    def flat(self) -> bool:
        """Return whether one model and one set of inputs serve all runs, so that the script needs no loop."""
        probe = self.drive.probe
        return (
            probe.repeatable
            and self.form != "memory"
            and (probe.float64 or self.form != "values")
            and not (self.drive.calls or self.several)
            and all(target.observable.kind == "output" for target in self.targets)
        )

    @property
    def several(self) -> bool:
        """Return whether more than one observable is compared."""
        return len(self.targets) > 1

    @property
    def tensors(self) -> bool:
        """Return whether tensors are compared, not Python objects."""
        return all(target.observable.is_tensor for target in self.targets)

    @property
    def shown(self) -> str:
        """The expression for what is compared, after a run."""
        expressions = [_compared(target) for target in self.targets]
        return f"[{', '.join(expressions)}]" if self.several else expressions[0]

    def show(self, call: str) -> str:
        """The same, with the call in place of ``out``."""
        return self.shown.replace("(out)", f"({call})") if "(out)" in self.shown else call + self.shown[3:]

    @property
    def names(self) -> str:
        """The names of the observables, as the text of a tuple."""
        return "({})".format(", ".join(f'"{target.observable.name}"' for target in self.targets))

    @property
    def nonfinite(self) -> bool:
        """Return whether NaN or infinity is part of a right answer."""
        return self.drive.probe.nonfinite

    @property
    def difference(self) -> str:
        """The largest difference between compiled and eager."""
        dtypes = [target.observable.dtype for target in self.targets]
        complex_ = any(dtype is not None and dtype.is_complex for dtype in dtypes)
        wide = ".to(torch.complex128)" if complex_ else ".double()"
        if self.nonfinite:
            return f"distance(compiled{wide}, eager{wide}).max().item()"
        return f"(compiled{wide} - eager{wide}).abs().max().item()"

    @property
    def bound(self) -> str:
        """The expression for the largest allowed error."""
        if self.form == "apart in float64":
            return f"{_number(tolerances.FLOAT64_SHARE)} * {self._largest('eager')}"
        pairs = [(target.observable, target.evidence) for target in self.targets]
        if self.form == "apart":
            return f"{_number(tolerances.share_apart(pairs))} * {self._largest('eager')}"
        allowed = tolerances.allowed(pairs)
        share = f" + {_number(allowed.share)} * {self._largest('exact')}" if allowed.share else ""
        return f"{allowed.factor:g} * error_eager{share}"

    @property
    def metadata(self) -> str:
        """The expression for the metadata that is compared."""
        if self.property_name == "structure":
            return "tree_structure(out)"
        return _PROPERTIES.get(self.property_name) or f"({', '.join(_PROPERTIES.values())})"

    @property
    def equal(self) -> str:
        """The expression for two runs being the same, in the form that repeats runs."""
        if self.several:
            return "all(map(torch.equal, out, outs[0]))"
        return "torch.equal(out, outs[0])" if self.tensors else "(out == outs[0])"

    @property
    def heading(self) -> str:
        """The start of the line of figures (torch, device, what is measured), as part of an f-string."""
        gpu = ", {torch.cuda.get_device_name()}" if self.drive.device.startswith("cuda") else ""
        figures = {
            "values": ", error vs fp64:",
            "apart": ", compiled differs from eager by:",
            "apart in float64": ", in float64 compiled differs from eager by:",
            "integers": ", elements that differ from eager:" if self.tensors else ":",
        }
        return "torch {torch.__version__}" + gpu + figures.get(self.form, ":")

    @property
    def sharing(self) -> str:
        """The pairs of tensors whose memory is compared, as part of an f-string."""
        return ", ".join(f"{target.expression} and {target.partner}" for target in self.targets).replace('"', "'")

    def _largest(self, run: str) -> str:
        finite = ".nan_to_num(0, 0, 0)" if self.nonfinite else ""
        return f"{run}{finite}.abs().max().item()"


def _compared(target: Target) -> str:
    return f"memory({target.expression}) == memory({target.partner})" if target.partner else target.expression


def _number(value: float) -> str:
    """Two digits, without leading zeros in the exponent: 1.3e-6."""
    return f"{value:.2g}".replace("e-0", "e-")
