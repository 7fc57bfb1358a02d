"""Division of the workers' time: between judging and minimizing, and between judging and proving.

Each share follows the results per second, within bounds: a corpus full of findings must not keep a campaign from
looking for more, and a flood of new findings must not leave all of them without a reproducer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Least share of the workers' time for minimizing, and the most while cases are judged.
LEAST, MOST = 0.25, 0.5
# Proofs may take this share of the time of judging before their time is cut.
_PROVING = 0.5
# Least share of its usual time that a proof gets: enough to try the likeliest suspects.
_SHORTEST = 0.25
# Earlier results are discounted by this factor after each further one.
_MEMORY = 0.98
# Prior: each activity starts as if it had one result in this many seconds.
_PRIOR_SECONDS = 60.0


@dataclass
class _Activity:
    """Time and discounted results of one kind of work."""

    seconds: float = 0.0
    lately: float = 0.0
    brought: float = 0.0

    def count(self, seconds: float, brought: float) -> None:
        self.seconds += seconds
        self.lately = self.lately * _MEMORY + seconds
        self.brought = self.brought * _MEMORY + brought

    @property
    def rate(self) -> float:
        """Results per second of a worker."""
        return (self.brought + 1.0) / (self.lately + _PRIOR_SECONDS)


@dataclass
class Shares:
    """Time and results of judging, proving and minimizing in a campaign; seconds are worker seconds."""

    _judging: _Activity = field(default_factory=_Activity)
    _minimizing: _Activity = field(default_factory=_Activity)
    _proving: _Activity = field(default_factory=_Activity)

    def judged(self, seconds: float, *, new_finding: bool, is_bug: bool, proved: bool) -> None:
        """Count a judged case; for a bug, most of the time goes into its proof."""
        self._judging.count(seconds, float(new_finding))
        if is_bug:
            self._proving.count(seconds, float(proved))

    def minimized(self, seconds: float, *, reproducer: bool) -> None:
        """Count a minimization, with or without a confirmed reproducer."""
        self._minimizing.count(seconds, float(reproducer))

    @property
    def minimizing(self) -> float:
        """The share of the workers' time for minimizing while cases are judged."""
        gain = self._minimizing.rate
        return min(MOST, max(LEAST, gain / (gain + self._judging.rate)))

    def may_minimize(self, running: int, workers: int, seconds: float) -> bool:
        """Return whether one more minimization may begin while cases are judged.

        Args:
            running: the number of running minimizations.
            workers: the number of workers. If the share of minimizing is less than one worker, it takes turns.
            seconds: worker seconds spent so far on the cases that are being judged.
        """
        own = self.minimizing * workers
        if own >= 1.0:
            return running < own
        spent = self._minimizing.seconds
        return not running and spent <= self.minimizing * (spent + self._judging.seconds + seconds)

    @property
    def proof(self) -> float:
        """The share of its usual time that a proof gets: less where proofs take long and prove little."""
        if self._proving.seconds <= _PROVING * max(self._judging.seconds, 10 * _PRIOR_SECONDS):
            return 1.0
        return min(1.0, max(_SHORTEST, self._proving.brought * _PRIOR_SECONDS / max(self._proving.lately, 1.0)))
