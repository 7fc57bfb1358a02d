"""What a watch was asked for. Needs no torch: the script's process reads it before the script imports torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

DEFAULT_EVERY = 100
"""Steps from one sample to the next."""


@dataclass(frozen=True)
class WatchSettings:
    """How a script is watched.

    Attributes:
        folder: where results are written; it exists.
        every: sample the steps ``every``, ``2 * every``, …
        steps: end the script after that many steps; None for as many as it makes.
        stop_at_first: end the script at the first step that rounding does not explain. The script then waits at the
            end of each sampled step for the verdict.
        plants: files to run once the script has imported torch.
        own_random: leave the compiler's own random stream to the script: steps that draw are then not judged.
        trajectory: steps for which eager trajectories beside the script are followed.
        seconds: time limit of each run beside the script, and of attributing one step.
        state_bytes: largest state of a written case; values beyond it are replaced by random ones.
    """

    folder: str
    every: int = DEFAULT_EVERY
    steps: int | None = None
    stop_at_first: bool = False
    plants: tuple[str, ...] = ()
    own_random: bool = False
    trajectory: int = 64
    seconds: float = 300.0
    state_bytes: int = 2**30

    @property
    def path(self) -> Path:
        """The folder as a path."""
        return Path(self.folder)

    def to_json(self) -> str:
        """The settings as text for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WatchSettings:
        """The settings that :meth:`to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "plants": tuple(fields["plants"])})
