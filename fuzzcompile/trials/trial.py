"""Results of one run and of one compile of a case: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.execution.observation import Observation
from fuzzcompile.execution.seeds import streams_now
from fuzzcompile.oracle.judgement import Judgement

_NO_CODE = ("eager", "aot_eager", "aot_eager_decomp_partition")  # backends that generate no code


@dataclass(frozen=True)
class Run:
    """One run. ``ends`` are fingerprints of the random streams after it, by stream."""

    observation: Observation
    ends: Mapping[str, str]

    @classmethod
    def ended(cls, observation: Observation) -> Run:
        """A run that has ended just now: nothing may have drawn random numbers since."""
        return cls(observation, streams_now())


@dataclass(frozen=True)
class Trial:
    """One compile of a case: how it was compiled, what the compiled program showed, and the judgement on it.

    Attributes:
        seconds: time to build, compile and run the program.
        sampled: names of the values that were judged by their distribution over many seeds, because their random
            numbers could not be aligned with eager's; None if no value was.
        runtime: seconds that a call of the compiled program takes; None unless ``how.timed``.
        draws_others: whether it draws other random numbers than eager, though promised eager's, and is right otherwise.
    """

    how: Compilation
    observation: Observation
    judgement: Judgement
    ledger: Ledger
    seconds: float
    sampled: tuple[str, ...] | None = None
    runtime: float | None = None
    draws_others: bool = False


@dataclass
class Counts:
    """Number of compiles and screens made for a case so far.

    Attributes:
        compiles: full compiles.
        screens: compiles without code generation.
        runtime: seconds that a call takes when compiled as for the verdict; None until that was timed.
    """

    compiles: int = 0
    screens: int = 0
    runtime: float | None = None

    def add(self, how: Compilation) -> None:
        """Count one compile."""
        if how.screen or how.backend in _NO_CODE:
            self.screens += 1
        else:
            self.compiles += 1
