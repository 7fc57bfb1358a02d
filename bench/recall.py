"""How much of what can be wrong in the compiler is found: mutation testing of torch.compile, judged by fuzzcompile.

    python bench/recall.py [--mutants 200] [--budget 180] [--workers 2] [--seed 17] [--stages lowering codegen]
    python bench/recall.py --show ID          # the mutant as a file for `fuzzcompile triage CASE --plant`
    python bench/recall.py --only ID [ID ...] # hunt these mutants again
    python bench/recall.py --report reports/recall-2.13.md
    python bench/recall.py --like ANSWERS [--strategy uniform] [--sources CASES --state FOLDER]

With --like, the mutants of an earlier run are hunted once more to compare: cases in random order, or those of another
generator. Such a hunt ends with the first bug and attributes nothing; the report takes its answers with --beside.

A pool of generated cases is judged once by the compiler as it is, with the lines that each compile reaches. Mutants are
drawn from the lines that a case without a bug reaches, the same number for each stage. Each is made in memory in a
worker of its own, which judges cases that reach the line (cheap and diverse ones first) as a campaign's worker does,
until one shows a bug or its budget is spent. Whatever was judged is in the folder of --state and is not judged again:
the command may be interrupted at any time and started again, with a larger pool or more mutants too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from recalling.answers import Answer, read_answers
from recalling.fresh import Fresh
from recalling.hunting import Plan, hunt
from recalling.places import MUTATED_STAGES, stage_of_files
from recalling.reading import Reading
from recalling.sampling import Site, reach, sampled, sites
from recalling.survey import Survey, Unjudged, drawn
from recalling.table import report_of

from fuzzcompile.model.signatures import hash_source


def main() -> None:
    """Survey, hunt, report."""
    given = _parser().parse_args()
    survey = Survey(given.state)
    compared = given.like is not None
    answers = given.state / f"{'compared' if compared else 'answers'}-{given.strategy}.jsonl"
    if given.report is None:
        cases = itertools.islice(_sources(given.sources) if given.sources else drawn(given.seed), given.cases)
        survey.fill(cases, given.workers, given.full)
    stages = stage_of_files()
    clean = [case for case in survey.pool if case.clean]
    reached = {number for case in clean for number in case.shown.reached}
    possible = sites(stages, survey.probes)
    found = [site for site in possible if site.probe in reached]
    if given.show:
        print(next(site.mutation.plant() for site in found if site.mutation.id == given.show), end="")
        return
    if given.report is None:
        steered = given.strategy == "steered"
        plan = Plan(given.budget, steered, given.seed, not compared, fresh=steered and not given.sources)
        hunting = _Hunting(survey, answers, plan, possible if compared else found)
        only = [answer.of.id for answer in _tried(given.like)] if compared else given.only
        hunting.run(given.mutants, given.workers, given.stages, only)
    beside = {name: _tried(Path(path)) for name, _, path in (pair.partition("=") for pair in given.beside)}
    reaching = reach(stages, survey.probes, possible, reached)
    reading = Reading.of(given.read)
    text = report_of(read_answers(answers), reaching, survey.pool, _reasons(given.reasons), beside, reading)
    (given.report or given.state / "report.md").write_text(text, encoding="utf-8")
    print(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200, help="how many, over all stages")
    parser.add_argument("--budget", type=float, default=180.0, help="processor seconds for each mutant")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="mutants at a time")
    parser.add_argument("--seed", type=int, default=17, help="of the pool, of the sample and of the order of cases")
    parser.add_argument("--stages", nargs="+", choices=MUTATED_STAGES, default=list(MUTATED_STAGES))
    parser.add_argument("--strategy", choices=("steered", "uniform"), default="steered")
    parser.add_argument("--cases", type=int, default=300, help="size of the pool")
    parser.add_argument("--full", type=float, default=0.4, help="share of the pool that is judged with generated code")
    parser.add_argument("--sources", type=Path, help='cases as JSON lines, {"source": ...}')
    parser.add_argument("--state", type=Path, default=Path("recall-state"), help="the folder of what was judged")
    parser.add_argument("--reasons", type=Path, default=Path(__file__).with_name("recall_reasons.json"))
    parser.add_argument("--read", type=Path, default=Path(__file__).with_name("recall_read.json"))
    parser.add_argument("--report", type=Path, help="only write the report of what was judged")
    parser.add_argument("--only", nargs="+", metavar="ID", help="hunt these mutants, even if they were hunted")
    parser.add_argument("--like", type=Path, metavar="ANSWERS", help="hunt the mutants of this file, to compare")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=ANSWERS", help="report these beside")
    parser.add_argument("--show", metavar="ID", help="print a mutant as a plant")
    return parser


class _Hunting:
    """Hunts mutants in parallel and stores each answer as it comes."""

    def __init__(self, survey: Survey, answers: Path, plan: Plan, found: Sequence[Site]) -> None:
        self.survey, self.path, self.plan, self.found = survey, answers, plan, found
        self.answers = read_answers(answers)
        self._stopped, self._lock = threading.Event(), threading.Lock()

    def run(self, mutants: int, workers: int, stages: Sequence[str], only: Sequence[str] | None) -> None:
        """Hunt what is missing of the sample; Ctrl-C ends the mutants that are being hunted, unanswered."""
        queues = self._queues(mutants, stages, only)
        total = sum(wanted for _, wanted in queues)
        began, before = time.monotonic(), len(self.answers)
        with Fresh(self.survey, 1, self.plan.seed) as fresh, ThreadPoolExecutor(workers) as executor:
            try:
                for _ in as_completed([executor.submit(self._next, queue, fresh) for queue in _in_turn(queues)]):
                    self._say(len(self.answers) - before, total, time.monotonic() - began)
            except KeyboardInterrupt:
                self._stopped.set()
                executor.shutdown(cancel_futures=True)
                print("\nInterrupted: run the command again to go on.", file=sys.stderr)

    def _queues(
        self, mutants: int, stages: Sequence[str], only: Sequence[str] | None
    ) -> list[tuple[Iterator[Site], int]]:
        """For each stage, the mutants to try in order, and how many answers are missing."""
        done = {answer.of.id for answer in self.answers}
        if only:
            again = set(only) - (set() if self.plan.attribute else done)
            chosen = [site for site in self.found if site.mutation.id in again]
            return [(iter(chosen), len(chosen))]
        answered = Counter(answer.stage for answer in self.answers if answer.is_installed)
        samples = {stage: order for stage, order in sampled(self.found, self.plan.seed).items() if stage in stages}
        share, rest = divmod(mutants, max(1, len(samples)))
        queues = []
        for number, stage in enumerate(stage for stage in stages if stage in samples):
            fresh = (site for site in samples[stage] if site.mutation.id not in done)
            queues.append((fresh, max(0, share + (number < rest) - answered[stage])))
        return queues

    def _next(self, queue: Iterator[Site], fresh: Fresh) -> None:
        """Hunt the next mutant of a stage that can be installed; those before it are noted."""
        while not self._stopped.is_set():
            with self._lock:
                site = next(queue, None)
            if site is None:
                return
            answer = hunt(site, list(self.survey.pool), fresh, self.plan, self._stopped.is_set)
            if self._stopped.is_set():
                return
            with self._lock, self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer)) + "\n")
                self.answers.append(answer)
            self._tell(answer)
            if answer.is_installed:
                return

    def _tell(self, answer: Answer) -> None:
        mutation = answer.of
        said = f"{answer.outcome} {answer.verdict} {f'named by {answer.named}' if answer.named else ''}".strip()
        print(f"\r{mutation.id} {answer.stage:17} {said:45} {mutation.place} {mutation.diff}", file=sys.stderr)

    def _say(self, done: int, total: int, seconds: float) -> None:
        print(f"\r{done} of {total} mutants after {seconds / 60:.0f} min", end="", file=sys.stderr, flush=True)


def _in_turn(queues: Sequence[tuple[Iterator[Site], int]]) -> Iterator[Iterator[Site]]:
    """Each queue as often as answers are missing, one after the other, so that a part of the run is stratified too."""
    for turn in range(max((wanted for _, wanted in queues), default=0)):
        yield from (queue for queue, wanted in queues if turn < wanted)


def _sources(path: Path) -> Iterator[Unjudged]:
    for line in path.read_text(encoding="utf-8").splitlines():
        source = json.loads(line)["source"]
        yield Unjudged(hash_source(source), source, ())


def _tried(path: Path) -> list[Answer]:
    return [answer for answer in read_answers(path) if answer.is_installed]


def _reasons(path: Path) -> dict[str, str]:
    """By id of a survivor, why it was missed, as a person read it."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


if __name__ == "__main__":
    main()
