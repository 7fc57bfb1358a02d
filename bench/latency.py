"""How long `fuzzcompile triage` takes beside the plain script, for small and real programs.

    python bench/latency.py [--only WORD] [--kernels cached|cold|both] [--repeat N] [--json FILE]
    python bench/latency.py --phases SCRIPT

Each program is a script that calls ``torch.compile``. It is run as it stands and triaged, in turn, each time in a fresh
process; medians and their ratio are printed, and the processor time of triage's parent and of its worker (with g++).
*Cached* means that both find their kernels in a cache that one run of each has filled; *cold* gives every run an empty
one. ``--phases`` starts a worker's work in this process and prints where its time goes; the first table ends with it.
Wall-clock times mean something on an idle machine only; the processor times beside them mean something on any.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from nested_clock import NestedClock, now

_HERE = Path(__file__).resolve().parent
_LIMIT = 900.0
# Runs a command line of fuzzcompile (or a script) and writes what this process and its children took.
_MEASURED = """
import atexit, resource, runpy, sys
def note():
    own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(sys.orig_argv[-1], "w") as file:
        print(own.ru_utime + own.ru_stime, below.ru_utime + below.ru_stime, file=file)
atexit.register(note)  # the first to be registered is the last to run
sys.argv = sys.argv[1:-1]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

_ONE_LINER = """
import torch

print(torch.compile(lambda x: torch.softmax(x * 2, -1))(torch.randn(8, 16)).sum())
"""
_BLOCK = """
import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


block = torch.compile(Block())
x = torch.randn(2, 32, 64, requires_grad=True)
block(x).square().mean().backward()
print(x.grad.norm())
"""
_TRANSFORMERS = """
import torch
from transformers import {config}, {model}

torch.manual_seed(0)
model = torch.compile({model}({config}({sizes})).eval())
with torch.no_grad():
    print(model(torch.randint(0, 100, (2, 16))).last_hidden_state.norm())
"""
# A torchvision that was built for another torch would stop transformers, which can do without.
_TRANSFORMERS = "import sys\n\nsys.modules['torchvision'] = None" + _TRANSFORMERS
_GPT2 = _TRANSFORMERS.format(
    config="GPT2Config",
    model="GPT2Model",
    sizes="vocab_size=100, n_embd=64, n_layer=12, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0",
)
_BERT = _TRANSFORMERS.format(
    config="BertConfig",
    model="BertModel",
    sizes="vocab_size=100, hidden_size=64, num_hidden_layers=12, num_attention_heads=4, intermediate_size=128",
)
PROGRAMS: Mapping[str, str] = {
    "one-liner": _ONE_LINER,
    "block, forward and backward": _BLOCK,
    "GPT-2, 12 layers": _GPT2,
    "BERT, 12 layers": _BERT,
    "a culprit among rewrites": (_HERE / "buried" / "issue_195320_script.py").read_text(encoding="utf-8"),
}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose names hold this word")
    parser.add_argument("--kernels", choices=("cached", "cold", "both"), default="both")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--phases", type=Path, help="print where the time of a worker goes for this script")
    arguments = parser.parse_args()
    if arguments.phases is not None:
        print_phases(arguments.phases)
        return
    _describe()
    chosen = {name: text for name, text in PROGRAMS.items() if arguments.only in name}
    kernels = ("cached", "cold") if arguments.kernels == "both" else (arguments.kernels,)
    rows = [measured(name, text, how, arguments.repeat) for name, text in chosen.items() for how in kernels]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    for name, text in chosen.items():
        with tempfile.TemporaryDirectory(prefix="latency-") as folder:
            print(f"\n{name}: the worker, processor seconds of its own and wall-clock seconds, kernels cached")
            script = Path(folder, "script.py")
            script.write_text(text, encoding="utf-8")
            for _ in range(2):  # the first run fills the cache
                phases = subprocess.run(
                    [sys.executable, __file__, "--phases", str(script)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    check=True,
                )
            print(phases.stdout, end="", flush=True)


@dataclass(frozen=True)
class Taken:
    """What one command took: seconds of wall-clock time, of its own processor time, and of its children's."""

    wall: float
    own: float
    below: float


@dataclass(frozen=True)
class Row:
    """Medians for one program; ``verdict`` is that of triage."""

    program: str
    kernels: str
    plain: Taken
    triage: Taken
    verdict: str | None

    @property
    def ratio(self) -> float:
        """How many times the plain script's wall-clock time triage takes."""
        return self.triage.wall / self.plain.wall


def _describe() -> None:
    import torch

    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {len(os.sched_getaffinity(0))} processors")
    print(f"load {os.getloadavg()[0]:.1f} before the first run\n")
    print(
        f"{'program':30}{'kernels':8}{'plain':>8}{'triaged':>9}{'ratio':>7}   "
        "processor seconds: plain + g++, triage's parent + worker"
    )


def measured(name: str, text: str, kernels: str, repeat: int) -> Row:
    """Run and triage one program in turn, and print the medians."""
    with tempfile.TemporaryDirectory(prefix="latency-") as folder:
        script = Path(folder, "script.py")
        script.write_text(text, encoding="utf-8")
        triage = ["-m", "fuzzcompile", "triage", "--json", str(script)]
        plain_runs, triage_runs, verdict = list[Taken](), list[Taken](), None
        if kernels == "cached":
            shared = Path(folder, "kernels")
            for command in ([str(script)], triage):
                _ran(command, shared)
        for number in range(repeat):
            caches = [shared] * 2 if kernels == "cached" else [Path(folder, f"{word}{number}") for word in "pt"]
            plain_runs.append(_ran([str(script)], caches[0])[0])
            taken, output = _ran(triage, caches[1])
            triage_runs.append(taken)
            verdict = json.loads(output)["verdict"]
    row = Row(name, kernels, _median(plain_runs), _median(triage_runs), verdict)
    print(
        f"{name:30}{kernels:8}{row.plain.wall:7.1f}s{row.triage.wall:8.1f}s{row.ratio:7.2f}   "
        f"{row.plain.own:.1f} + {row.plain.below:.1f}, {row.triage.own:.1f} + {row.triage.below:.1f}  {verdict}",
        flush=True,
    )
    return row


def _ran(command: list[str], cache: Path) -> tuple[Taken, str]:
    """What a command line of Python took with this kernel cache, and what it printed."""
    with tempfile.NamedTemporaryFile("r") as usage:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, *command, usage.name],
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
            check=False,
        )
        wall = time.perf_counter() - start
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        own, below = map(float, usage.read().split())
    return Taken(wall, own, below), done.stdout


def _median(runs: list[Taken]) -> Taken:
    return Taken(*(statistics.median(getattr(run, part) for run in runs) for part in ("wall", "own", "below")))


# -- where the worker's time goes -----------------------------------------------------------------------


def print_phases(script: Path) -> None:
    """Do what a worker does for ``script``, in this process, and print the time of each phase."""
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]  # the library's `profile` is meant
    if "OMP_WAIT_POLICY" not in os.environ:  # as in a worker's environment
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    gc.disable()  # as fuzzcompile.diagnosis.worker.local_pool does
    with _phase("import of torch"):
        import torch
        import torch._inductor.codecache
    with contextlib.ExitStack() as stack:
        with _phase("start of the look at the toolchain"):
            from fuzzcompile.compiler.kernel_cache import prepare_toolchain

            stack.enter_context(prepare_toolchain(wanted=True))
        with _phase("import of the compiler"):
            import torch._dynamo
            import torch._inductor.compile_fx  # noqa: F401
        with _phase("import of fuzzcompile"):
            from fuzzcompile.diagnosis.worker.judge import judge_file, prepare
            from fuzzcompile.model.conditions import Conditions
            from fuzzcompile.model.judge_task import JudgeTask
        with _phase("preparation of the worker"):
            prepare(Conditions(), threads=2)
        with _phase("end of the look at the toolchain"):
            stack.close()
    clock = _watch()
    report = judge_file(JudgeTask(path=str(script), seconds=_LIMIT, thorough=False)).report
    clock.turn()
    for (_, name), spent in clock.spent.items():
        _print_phase(name, *spent)
    cost = report["cost"]
    print(f"    {report['verdict']}: {cost['compiles']} compiles, {cost['screens']} screens, {cost['replays']} replays")


def _watch() -> NestedClock:
    """Watch the functions that judging consists of."""
    from fuzzcompile.diagnosis import engine
    from fuzzcompile.diagnosis.trials.experiments import Experiments
    from fuzzcompile.diagnosis.worker import judge
    from fuzzcompile.run import runs

    clock = NestedClock(("", "the rest of judging"))
    clock.watch(judge, "load", phase="reading the case")
    clock.watch(runs, "run_eager", phase="eager and perturbed runs")
    clock.watch(runs, "run_float64", phase="float64 runs")
    clock.watch(Experiments, "trial", phase="compiles and their judgement")
    clock.watch(engine, "measure_steps", phase="replays")
    clock.watch(engine, "decide", phase="decision")
    clock.watch(engine, "attribute", phase="attribution apart from its compiles")
    return clock


@contextlib.contextmanager
def _phase(name: str) -> Iterator[None]:
    start = now()
    yield
    _print_phase(name, *(after - before for before, after in zip(start, now(), strict=True)))


def _print_phase(name: str, wall: float, processor: float) -> None:
    print(f"    {name:38}{processor:6.2f}{wall:7.2f}", flush=True)


if __name__ == "__main__":
    main()
