"""How soon a rule of the compiler fires with `run --focus`, beside a campaign without a focus.

    python bench/focus.py FOLDER [--rules N] [--seconds S] [--unfocused T] [--seed SEED] [--workers W]

Of the passes and patterns that the installed torch registers and that can be reached on the CPU, N are drawn at random.
One campaign without a focus runs for T seconds on an empty corpus; then each rule has a campaign of its own, focused on
it, for at most S seconds, also on an empty corpus, which is stopped when the rule has fired. Both are watched alike: no
finding is minimized, and the corpus is read every second. Given are seconds of wall time and of processor time since
the command was started, workers and compilers included. What is done is kept in FOLDER, so that the command can be
stopped and given again.

Wall times mean something on an idle machine only. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.facts import facts

Rule = tuple[str, str]
# The command line of fuzzcompile without minimizing: on an empty corpus, that would take most of a campaign's time, and
# what is compared is how soon cases reach a rule.
_REACHING = """
import fuzzcompile.fuzz.campaign.work_queue as work
from fuzzcompile.front.cli import main
work.LEAST_SEARCH = float("inf")
main()
"""
_EVERY = 1.0  # seconds between two looks at a corpus
_SOON = 120.0
# A rule is reached late that a campaign without a focus has not reached after this share of its time.
_LATE = 0.25


@dataclass(frozen=True)
class Fired:
    """When a rule first fired, in seconds of wall and of processor time; None if it never did. ``why`` says more."""

    wall: float | None
    processor: float | None
    why: str = ""


def main() -> None:
    """Measure what is missing, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rules", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=_SOON)
    parser.add_argument("--unfocused", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    # A shell ignores Ctrl-C for what runs in its background, and so would the campaigns that are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given.folder.mkdir(parents=True, exist_ok=True)
    names = drawn(reachable(), given.rules, given.seed)
    without = unfocused(given.folder, given.unfocused, given.seed, given.workers)
    focused = {}
    for number, rule in enumerate(names):
        focused[rule] = one_focused(given.folder, rule, given.seconds, given.seed, given.workers)
        print(f"{number + 1} of {len(names)}: {':'.join(rule)} {focused[rule]}", file=sys.stderr, flush=True)
    print(report(focused, without, given))


def reachable() -> list[Rule]:
    """Passes and patterns that can fire on the CPU under some setting, tables of patterns left out."""
    rows = [row for row in list_known_rules(torch.device("cpu")) if row.kind in ("pass", "pattern")]
    tables = {(row.stage, row.pass_name) for row in rows if row.kind == "pattern"}

    def can_fire(row: KnownRule) -> bool:
        is_table = row.kind == "pass" and (row.stage, row.name) in tables
        return not is_table and facts().find_reason(row.stage, row.name, "cpu") is None

    return list(dict.fromkeys((row.stage, row.name) for row in rows if can_fire(row)))


def drawn(rules: Sequence[Rule], count: int, seed: int) -> list[Rule]:
    """The rules to measure: the first of one order, so that more of them begin with the same."""
    order = sorted(rules)
    random.Random(seed).shuffle(order)
    return order[:count]


def unfocused(folder: Path, seconds: float, seed: int, workers: int) -> Mapping[Rule, Fired]:
    """When a campaign without a focus first reached each rule."""
    stored = folder / f"unfocused-{seconds:.0f}-{seed}.json"
    if not stored.exists():
        seen: dict[Rule, Fired] = {}

        def note(fired: Collection[Rule], wall: float, processor: float) -> bool:
            for rule in fired:
                seen.setdefault(rule, Fired(wall, processor))
            return False

        _campaign(folder / "unfocused.db", [], seconds, seed, workers, note)
        stored.write_text(json.dumps([[*rule, fired.wall, fired.processor] for rule, fired in seen.items()]))
    return {(stage, name): Fired(wall, processor) for stage, name, wall, processor in json.loads(stored.read_text())}


def one_focused(folder: Path, rule: Rule, seconds: float, seed: int, workers: int) -> Fired:
    """When a campaign focused on a rule first reached it."""
    stored = folder / f"focused-{'-'.join(rule)}-{seconds:.0f}-{seed}.json"
    if not stored.exists():
        first: list[Fired] = []

        def note(fired: Collection[Rule], wall: float, processor: float) -> bool:
            if rule in fired:
                first.append(Fired(wall, processor))
            return bool(first)

        corpus = folder / f"{'-'.join(rule)}.db"
        said = _campaign(corpus, ["--focus", ":".join(rule)], seconds, seed, workers, note)
        stored.write_text(json.dumps(asdict(first[0] if first else Fired(None, None, said))))
    return Fired(**json.loads(stored.read_text()))


def _campaign(
    corpus: Path,
    arguments: Sequence[str],
    seconds: float,
    seed: int,
    workers: int,
    note: Callable[[Collection[Rule], float, float], bool],
) -> str:
    """Run a campaign on an empty corpus until ``note`` is content; what its summary said of the focus."""
    corpus.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-c",
        _REACHING,
        "run",
        *arguments,
        "--budget",
        f"{seconds:.0f}s",
        "--seed",
        f"{seed}",
    ]
    command += ["--workers", f"{workers}", "--corpus", str(corpus)]
    start = time.monotonic()
    said = corpus.with_suffix(".txt")
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        processor = _Processor(process.pid)
        while process.poll() is None and time.monotonic() - start < seconds + 60.0:
            time.sleep(_EVERY)
            if note(_fired(corpus), time.monotonic() - start, processor.seconds()):
                break
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60.0)
    lines = said.read_text().splitlines()
    return next((line for line in reversed(lines) if line.startswith("Focus: ")), lines[-1] if lines else "")


class _Processor:
    """Processor time of a process and all that it started, those that have ended included."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self._seen: dict[int, float] = {}

    def seconds(self) -> float:
        """Seconds up to now."""
        try:
            alive = [self.root, *self.root.children(recursive=True)]
        except psutil.Error:  # it has ended
            alive = []
        for process in alive:
            try:
                times = process.cpu_times()
                self._seen[process.pid] = times.user + times.system
            except psutil.Error:  # of that one, what was seen last counts
                continue
        return sum(self._seen.values())


def _fired(corpus: Path) -> set[Rule]:
    """The rules that some case of a corpus made fire; none while there is no corpus."""
    try:
        with Store.open(str(corpus), create=False) as store:
            return {(row.stage, row.rewrite) for row in store.coverage() if row.outcome == "fired"}
    except CorpusError:
        return set()


# -- the report -------------------------------------------------------------------------------------


def report(focused: Mapping[Rule, Fired], without: Mapping[Rule, Fired], given: argparse.Namespace) -> str:
    """The report, in Markdown."""
    return "\n".join([*_head(given), *_summary(focused, without, given), *_table(focused, without), *_never(focused)])


def _head(given: argparse.Namespace) -> Iterator[str]:
    yield "# A focus: seconds to the first firing\n"
    yield (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[1]:.1f} in the last five minutes; {given.workers} worker(s), seed {given.seed}.\n"
    )
    yield (
        f"{given.rules} of the passes and patterns that can fire on the CPU, drawn at random. Each had a focused "
        f"campaign of at most {given.seconds:.0f} s; one campaign without a focus had {given.unfocused:.0f} s. No "
        "finding was minimized. Seconds are counted from the start of the command: importing torch is in them.\n"
    )


def _summary(focused: Mapping[Rule, Fired], without: Mapping[Rule, Fired], given: argparse.Namespace) -> Iterator[str]:
    soon = [rule for rule, fired in focused.items() if fired.wall is not None and fired.wall <= _SOON]
    either = [rule for rule, fired in focused.items() if fired.wall is not None or rule in without]
    late = [rule for rule in either if (_wall(without.get(rule)) or given.unfocused) >= _LATE * given.unfocused]
    quick = [fired for fired in focused.values() if fired.processor is not None and fired.processor <= _SOON]
    yield (
        f"- With a focus, {len(soon)} of {len(focused)} fired within 2 minutes ({_share(len(soon), len(focused))}), "
        f"{len(quick)} within 2 minutes of processor time ({_share(len(quick), len(focused))})."
    )
    yield f"- Without, {sum(rule in without for rule in focused)} fired within {given.unfocused:.0f} s."
    yield f"- {len(late)} rules are reached late without a focus (after {_LATE * given.unfocused:.0f} s, or never)."
    for what in ("wall", "processor"):
        total = given.unfocused if what == "wall" else max((f.processor or 0.0 for f in without.values()), default=0.0)
        gains = [
            (getattr(without.get(rule, Fired(None, None)), what) or total) / value
            for rule in late
            if (value := getattr(focused[rule], what)) is not None
        ]
        if gains:
            median = statistics.median(gains)
            yield f"- Of those, the median is reached {median:.1f} times sooner in {what} time (at least)."
    yield ""


def _table(focused: Mapping[Rule, Fired], without: Mapping[Rule, Fired]) -> Iterator[str]:
    yield "| stage | rule | focused: s | processor s | unfocused: s | processor s |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for rule, fired in sorted(focused.items()):
        plain = without.get(rule, Fired(None, None))
        cells = [*rule, *map(_shown, (fired.wall, fired.processor, plain.wall, plain.processor))]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _never(focused: Mapping[Rule, Fired]) -> Iterator[str]:
    never = {rule: fired for rule, fired in focused.items() if fired.wall is None}
    yield f"## Never fired with a focus: {len(never)}\n"
    yield from (f"- `{':'.join(rule)}`: {fired.why}" for rule, fired in never.items())


def _wall(fired: Fired | None) -> float | None:
    return None if fired is None else fired.wall


def _shown(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


if __name__ == "__main__":
    main()
