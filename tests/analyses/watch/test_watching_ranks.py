"""``watch`` on scripts that run in several processes: a step is judged over all of them together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from watched_scripts import MODEL, ROOT, environment, watched

pytestmark = pytest.mark.slow

MARK = "WATCHED_RANKS_OF"  # a variable of the environment of all processes that a command here starts
# Buckets of gradients are reduced by a compiled function. In eager mode, and so in the runs beside the script, by the
# same function uncompiled.
GPT = f"""
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
{MODEL}
dist.init_process_group("gloo")
replica = torch.nn.parallel.DistributedDataParallel(GPT())

@torch.compile
def average(bucket):
    return funcol.all_reduce(bucket, "sum", dist.group.WORLD) / dist.get_world_size()

def reduce_bucket(_, bucket):
    future = torch.futures.Future()
    future.set_result(average(bucket.buffer()))
    return future

replica.register_comm_hook(None, reduce_bucket)
model = torch.compile(replica)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]), momentum=0.9)
data = torch.randint(0, 64, (256, 17))
torch.manual_seed(dist.get_rank() + 1)
for number in range(50):
    batch = data[torch.randint(0, 256, (8,))]
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()
dist.destroy_process_group()
"""
# The program is compiled anew when a flag flips, as after any recompile.
PLANT = """
import os
import torch
from torch._functorch import config as functorch
from torch._inductor import config
from torch._inductor.comm_lowering import register_comm_lowerings
from torch._inductor.lowering import lowerings
from torch.optim.optimizer import register_optimizer_step_post_hook

config.fx_graph_cache = functorch.enable_autograd_cache = False
register_comm_lowerings()
steps = 0

def count(*_):
    global steps
    steps += 1
    if steps == 9:
        torch._dynamo.reset()

register_optimizer_step_post_hook(count)
"""
MAXIMUM = """
operator = torch.ops._c10d_functional.all_reduce.default  # its input is the bucket itself: it is not done in place
right = lowerings[operator]
lowerings[operator] = lambda value, kind, group: right(value, "max" if steps >= 9 else kind, group)
"""
DIVIDED = """
operator = torch.ops.aten.div.Tensor
right = lowerings[operator]

def divide(value, by):
    return right(value, by * 1.01 if steps >= 9 and by == 2 and os.environ["RANK"] == "1" else by)

lowerings[operator] = divide
"""


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder; no process that is started in the test may be left behind it."""
    monkeypatch.setenv(MARK, str(tmp_path))
    yield tmp_path
    left = [process for process in psutil.process_iter(["environ"]) if _is_marked(process, str(tmp_path))]
    for process in left:
        process.kill()
    assert not left, "processes that a command has left"


def _is_marked(process: psutil.Process, mark: str) -> bool:
    own = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
    return own and (process.info["environ"] or {}).get(MARK) == mark


def write(folder: Path, source: str, plant: str | None = None) -> tuple[Path, tuple[str, ...]]:
    """A script in a folder, and the options by which it is watched in two processes, with a fault planted."""
    script = folder / "script.py"
    script.write_text(source)
    if plant is None:
        return script, ("--nproc", "2")
    (folder / "plant.py").write_text(PLANT + plant)
    return script, ("--nproc", "2", "--plant", str(folder / "plant.py"))


def test_a_bucket_reduced_wrongly_from_step_10_on_is_found_at_the_next_sample_and_named(marked):
    script, options = write(marked, GPT, MAXIMUM)
    answer = watched(script, *options, "--every", "4", "--stop-at", "first", arguments=("0.01",))
    assert (answer.status, answer.summary["unexplained"], answer.summary["steps"]) == (1, [12], 12), answer.said
    step, report = answer.steps[-1], answer.summary["report"]
    assert step["verdict"] == "wrong_gradient"
    assert step["ranks"] == [0, 1] and "gradient of parameter module." in step["detail"]
    assert report["culprit"]["stage"] == "lowering" and report["culprit"]["necessary"]
    assert "all_reduce" in report["culprit"]["rewrite"]
    assert {output["name"] for output in report["evidence"]["outputs"]} == {"out0", "rank1.out0"}
    # A fresh process does not come to the tenth step, and finds nothing wrong; but it runs the case, in two processes.
    assert "--nproc 2" in answer.said and answer.summary["alone"] is False


def test_a_fault_of_the_second_rank_alone_is_found_there(marked):
    script, options = write(marked, GPT, DIVIDED)
    answer = watched(script, *options, "--every", "4", "--stop-at", "first", arguments=("0.01",))
    assert (answer.status, answer.summary["unexplained"], answer.summary["steps"]) == (1, [12], 12), answer.said
    step = answer.steps[-1]
    assert step["ranks"] == [1] and step["detail"].startswith("rank1.gradient of parameter module."), step["detail"]
    assert step["worst"]["name"].startswith("rank1.")


def test_without_a_fault_curves_of_two_processes_part_by_chaos_alone(marked):
    script, options = write(marked, GPT)
    answer = watched(script, *options, "--every", "10", arguments=("0.5",))
    seen = answer.summary["trajectories"]
    assert (answer.status, answer.summary["unexplained"], answer.summary["judged"]) == (0, [], 5), answer.said
    assert seen["chaotic"] and seen["compiled"] > 1e-3 and seen["perturbed_growth"] > 1.05
    assert "Chaos alone" in answer.said and not any(step["unseen"] for step in answer.steps)


TRAINING = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
step = torch.compile(net, backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
{before}
for number in range(1, 10):
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
{within}
    loss = nn.functional.cross_entropy(step(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
line = f"weights {rank} {[p.double().sum().item() for p in net.parameters()]}{os.linesep}"
os.write(1, line.encode())  # at once: the other process writes there too
dist.destroy_process_group()
"""


def training(within: str = "    pass", before: str = "") -> str:
    """A script of two processes that does something of its own before its steps, or in each."""
    return TRAINING.replace("{before}", before).replace("{within}", within)


LOST = {
    "raises": ("    if rank == 1 and number == 5: raise ValueError('no such shard')", "rank 1", "no such shard"),
    "is killed": ("    if rank == 1 and number == 5: os.kill(os.getpid(), signal.SIGKILL)", "", "exit status"),
    "does not come": ("    if rank == 1 and number == 5: time.sleep(1000)", "rank 0", "exit status"),
}


@pytest.mark.parametrize("lost", LOST)
def test_a_rank_that_is_lost_ends_the_script_with_a_sentence_and_the_steps_so_far(lost, marked):
    within, rank, said = LOST[lost]
    script, options = write(marked, training(within))
    answer = watched(script, *options, "--every", "3", "--timeout", "20")
    assert answer.status == 3, answer.said
    assert [step["step"] for step in answer.steps if step["verdict"]] == [3], answer.said
    assert f"the script ended by itself on {rank}" in answer.said and said in answer.said


def test_what_a_rank_computes_is_what_it_computes_unwatched(marked):
    script, options = write(marked, training())
    answer = watched(script, *options, "--every", "3")
    assert (answer.status, [step["step"] for step in answer.steps]) == (0, [3, 6, 9]), answer.said
    assert {step["verdict"] for step in answer.steps} <= {"equal", "rounding"}
    plain = run_under_torchrun(script).stdout
    lines = [line for line in answer.said.splitlines() if line.startswith("weights")]
    assert sorted(lines) == sorted(line for line in plain.splitlines() if line.startswith("weights"))


def run_under_torchrun(script: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A script, or a command, in two processes of ``torchrun``."""
    what = command or (str(script),)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*torchrun, *what], env=environment(), cwd=script.parent, capture_output=True, text=True, timeout=300
    )


def test_two_lines_in_a_script_that_torchrun_starts(marked):
    wrapped = "from fuzzcompile import watch\nstep = watch(step, every=3)"
    script, _ = write(marked, training(before=wrapped))
    ran = run_under_torchrun(script)
    assert ran.returncode == 0 and ran.stdout.count("weights") == 2, ran.stderr
    steps = [json.loads(line) for line in (marked / "watch" / "steps.jsonl").read_text().splitlines()]
    assert steps and {step["verdict"] for step in steps} <= {"equal", "rounding"}, ran.stderr
    assert not (marked / "watch_2").exists()


def test_it_is_called_once_the_processes_have_formed_their_group(marked):
    early = "import torch\nfrom torch import nn\nfrom fuzzcompile import watch\nwatch(nn.Linear(2, 2))\n"
    script, _ = write(marked, early)
    ran = run_under_torchrun(script)
    assert ran.returncode != 0 and "init_process_group() before fuzzcompile.watch()" in ran.stderr


def test_the_command_itself_is_not_for_torchrun(marked):
    script, _ = write(marked, training())
    ran = run_under_torchrun(script, "-m", "fuzzcompile", "watch", str(script))
    assert ran.returncode != 0 and "watch SCRIPT --nproc 2" in ran.stderr


SCRIPTS = ROOT / "tests" / "distributed" / "scripts"


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "fsdp2_layers", "tp_mlp", "tp_attention", "sequence"])
def test_scripts_of_every_kind_are_judged(name, marked):
    script, options = write(marked, (SCRIPTS / f"{name}.py").read_text())
    answer = watched(script, *options, "--every", "1")
    assert answer.status == 0 and answer.steps, answer.said
    assert {step["verdict"] for step in answer.steps} <= {"equal", "rounding"}, answer.said
    # Before the first optimizer.step(), each layer that is compiled alone is taken for a step, amid a graph.
    assert name == "fsdp2_layers" or not any("float64" in unseen for unseen in answer.steps[0]["unseen"]), answer.said


def test_without_nproc_a_script_has_a_group_of_one(marked):
    script, _ = write(marked, training())
    answer = watched(script, "--every", "3")
    assert (answer.status, [step["step"] for step in answer.steps]) == (0, [3, 6, 9]), answer.said
    assert answer.summary["nproc"] == 1 and answer.steps[0]["ranks"] == []
