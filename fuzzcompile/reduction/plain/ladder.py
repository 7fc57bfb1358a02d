"""Runs plain scripts: which one shows the bug, alone and under each backend."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.contract import RungJson
from fuzzcompile.reduction.alone import Ran, run_alone
from fuzzcompile.reduction.plain import rungs
from fuzzcompile.reduction.plain.outputs import line_of
from fuzzcompile.reduction.plain.script import Plain

BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
# No backend: `torch.compile` switched off, so that a script that shows anything there shows no bug of the compiler.
_OFF = "off"
_NOT_RUN = "not run"
# The order of trying: whether the script shows the bug, and whether it is silent without a compiler.
_TRIED = ("inductor", _OFF, "eager", "aot_eager", "aot_eager_decomp_partition")
# Seconds for one process, and least seconds that are worth starting one for.
_LIMIT = 90.0
_LEAST = 5.0


@dataclass(frozen=True)
class Seen:
    """The results of a plain script: its ladder, whether it shows the bug, and its output when run alone."""

    plain: Plain
    shows: bool
    output: str
    ladder: Sequence[RungJson]


@dataclass(frozen=True)
class _Rung:
    result: str
    output: str


@dataclass(frozen=True)
class Clock:
    """Time for all processes together: ``end`` is on the clock of `time.monotonic`."""

    end: float

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """Return a clock that ends in so many seconds."""
        return cls(time.monotonic() + seconds)

    @property
    def limit(self) -> float | None:
        """Seconds for one more process; None if there is no time for one."""
        left = min(_LIMIT, self.end - time.monotonic())
        return left if left >= _LEAST else None


def climbed(candidates: Sequence[Plain], clock: Clock) -> Seen:
    """Try plain scripts until one shows the bug and is silent without a compiler; run that one alone.

    All of it takes two processes, and one more for each rung behind a crash. What there is no time for is not run.
    """
    dies = [plain for plain in candidates if plain.check.kind == "dies"]
    if dies:
        return _one_by_one(dies[0], clock)
    seen = _tried([[_rung(plain, backend) for backend in _TRIED] for plain in candidates], clock)
    best = next((number for number in range(len(candidates)) if _is_honest(candidates[number], seen, number)), None)
    plain = candidates[best or 0]
    alone = _alone(plain, "inductor", clock)
    found = {**seen.get(best or 0, {}), "inductor": alone}
    ladder = [_as_json(backend, found.get(backend) or _alone(plain, backend, clock), plain) for backend in BACKENDS]
    shows = rungs.shows(plain.check.kind, alone.result) and best is not None
    return Seen(plain, shows, alone.output, ladder)


def _rung(plain: Plain, backend: str) -> dict[str, str]:
    script = plain.text(None if backend == "inductor" else backend)
    return {"backend": backend, "script": script, "check": plain.check.kind}


def _tried(candidates: Sequence[Sequence[Mapping[str, str]]], clock: Clock) -> dict[int, dict[str, _Rung]]:
    """Return the result of each candidate under each backend that was tried, by its number."""
    found: dict[int, dict[str, _Rung]] = {}
    driver = Path(rungs.__file__).read_text(encoding="utf-8")
    limit = clock.limit
    if limit is None:
        return {}
    ran = run_alone(driver, timeout=limit, beside={"scripts.json": json.dumps(candidates)}, wanted=["seen.jsonl"])
    for line in ran.files.get("seen.jsonl", "").splitlines():
        entry = json.loads(line)
        own = found.setdefault(entry["candidate"], {})
        own[entry["backend"]] = _Rung(str(entry.get("result") or "raises"), str(entry.get("output") or _death(ran)))
    return found


def _is_honest(plain: Plain, seen: Mapping[int, Mapping[str, _Rung]], number: int) -> bool:
    own = seen.get(number, {})
    return (
        "inductor" in own
        and rungs.shows(plain.check.kind, own["inductor"].result)
        and _OFF in own
        and own[_OFF].result == "right"
    )


def _one_by_one(plain: Plain, clock: Clock) -> Seen:
    """The ladder of a script that may take its process down."""
    found = {backend: _alone(plain, backend, clock) for backend in BACKENDS}
    ladder = [_as_json(backend, found[backend], plain) for backend in BACKENDS]
    shows = found["inductor"].result == "raises" and found["eager"].result == "right"
    return Seen(plain, shows, found["inductor"].output, ladder)


def _alone(plain: Plain, backend: str, clock: Clock) -> _Rung:
    limit = clock.limit
    if limit is None:
        return _Rung(_NOT_RUN, "no time was left")
    ran = run_alone(plain.text(None if backend == "inductor" else backend), timeout=limit)
    if plain.check.kind == "dies":
        return _Rung("right" if ran.status == 0 else "raises", ran.output if ran.status == 0 else _death(ran))
    return _Rung(rungs.result_of(plain.check.kind, ran.output, ran.status), ran.output)


def _death(ran: Ran) -> str:
    return f"{ran.output}\nthe process ended with status {ran.status}"


def _as_json(backend: str, rung: _Rung, plain: Plain) -> RungJson:
    says = "" if rung.result == "right" else line_of(rung.output)
    if plain.check.kind == "accepts" and rung.result != _NOT_RUN:
        says = (
            "accepts what eager refuses" if rung.result == "wrong" else f"raises as eager does: {line_of(rung.output)}"
        )
    return RungJson(backend=backend, result=rung.result, says=says)
