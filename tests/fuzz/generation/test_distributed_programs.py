"""Programs of several processes: what is drawn, what a file says, and that eager mode runs it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.file_triage import triage_sources
from fuzzcompile.front.cli.main import main
from fuzzcompile.fuzz.campaign.case_sources import GeneratorSource
from fuzzcompile.fuzz.distributed_programs.grammar import KINDS, MOST_PROCESSES
from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, compute_generator_version, list_names
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.programs.casefiles.case_file import count_processes, read_case_file

TWO = Profile(nproc=2)
OWN = sorted({name.name for name in list_names(distributed=True)} - {name.name for name in list_names()})
OF_VALUES = ("miscompile", "wrong_gradient", "wrong_mutation", "nonfinite")


def list_distributed(drawn: Profile, count: int) -> list[GeneratedCase]:
    return [draw_case_at(5, index, drawn) for index in range(count)]


@pytest.fixture(scope="module")
def programs() -> list[GeneratedCase]:
    return list_distributed(TWO, 1500)


def test_every_name_is_drawn_and_every_drawn_one_has_a_name(programs):
    drawn = {name for case in programs for name in case.spec.distribution}
    known = {name.name for name in list_names(distributed=True)}
    assert drawn <= known
    assert set(OWN) <= drawn


def test_without_processes_no_draw_and_no_recipe_changes():
    assert all(draw_case_at(0, index, Profile()).spec.distributed is None for index in range(200))
    assert compute_generator_version() != compute_generator_version(distributed=True)
    assert GeneratorSource(TWO).name == "nproc=2" and GeneratorSource(Profile()).name == ""


def test_a_program_is_drawn_again_from_its_choices(programs):
    assert all(from_choices(case.choices, TWO) == case for case in programs[:20])


@pytest.mark.parametrize("nproc", [2, 3, 4])
def test_a_case_is_a_file_that_torchrun_runs_too(nproc: int, tmp_path: Path):
    for case in list_distributed(Profile(nproc=nproc), 60):
        path = tmp_path / "case.py"
        path.write_text(case.source, encoding="utf-8")
        file = read_case_file(path)
        assert file.kind == "case" and count_processes(file.source) == nproc
        assert 'dist.init_process_group("gloo")' in case.source and '__name__ == "__main__"' in case.source


def test_nothing_reads_what_was_not_waited_for(programs):
    late = 0
    for case in programs:
        lines = case.source.splitlines()
        for at, line in enumerate(lines):
            begun = re.fullmatch(r"\s+(y\d+) = torch\.ops\._c10d_functional\.(?!wait)\w+\(.*", line)
            if begun is None:
                continue
            waits = f"{begun[1]} = torch.ops._c10d_functional.wait_tensor({begun[1]})"
            end = next(index for index, other in enumerate(lines) if other.strip() == waits)
            between = lines[at + 1 : end]
            late += bool(between)
            assert not any(re.search(rf"\b{begun[1]}\b", other) for other in between), case.source
    assert late > 20


def test_meshes_have_as_many_places_as_there_are_processes():
    for nproc in (2, 3, 4, 6):
        for case in list_distributed(Profile(nproc=nproc), 200):
            mesh = case.spec.distributed.mesh
            assert not mesh or torch.Size(mesh).numel() == nproc
    assert any(case.spec.distributed.mesh == (2, 2) for case in list_distributed(Profile(nproc=4), 100))


@pytest.fixture
def call() -> Iterator[Callable[[str], list[torch.Tensor]]]:
    """Runs a program of an imitated group in eager mode: what it returns, and gradients."""

    def run(source: str) -> list[torch.Tensor]:
        module = types.ModuleType("distributed_case")
        sys.modules[module.__name__] = module
        exec(compile(source, "case.py", "exec"), module.__dict__)
        try:
            torch.manual_seed(0)
            model, inputs = vars(module)["make"]()
            outputs = [leaf for leaf in pytree.tree_leaves(model(*inputs)) if isinstance(leaf, torch.Tensor)]
            outputs = [take_part(leaf) for leaf in outputs]
            flowing = [leaf for leaf in outputs if leaf.requires_grad]
            if vars(module).get("BACKWARD") and flowing:
                torch.stack([leaf.double().sum() for leaf in flowing]).sum().backward()
            gradients = [leaf.grad for leaf in inputs if leaf.grad is not None]
            return [take_part(leaf).detach().clone() for leaf in (*outputs, *gradients)]
        finally:
            dist.destroy_process_group()
            del sys.modules[module.__name__]

    yield run


def take_part(leaf: Any) -> torch.Tensor:
    part: torch.Tensor = leaf.to_local() if hasattr(leaf, "to_local") else leaf
    return part


@pytest.mark.parametrize("nproc", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_programs_of_many_processes_run_alike_twice_with_the_others_imitated(nproc: int, call):
    drawn, refused = list_distributed(Profile(nproc=nproc), 60), 0
    assert nproc > MOST_PROCESSES
    for case in drawn:
        assert count_processes(case.source) is None and f"world_size={nproc}" in case.source
        if case.spec.training:
            continue
        try:
            first, again = call(case.source), call(case.source)
        except (RuntimeError, NotImplementedError):  # a layout that torch does not divide, dtypes that do not mix
            refused += 1
            continue
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, again, strict=True)), case.source
    assert refused <= 0.1 * len(drawn)


def find_case(name: str) -> GeneratedCase:
    """The first case that has a name, steered towards it."""
    steered = TWO.steer({name: 5000})
    return next(case for case in (draw_case_at(1, at, steered) for at in range(4000)) if name in case.features)


def judge(case: GeneratedCase) -> dict[str, Any]:
    (answer,) = triage_sources({"case.py": case.source}, Conditions("cpu", limits=Limits(seconds=300.0)))
    assert answer.report is not None, answer.error
    return dict(answer.report)


@pytest.mark.slow
def test_a_drawn_program_is_judged_by_two_processes():
    steered = TWO.steer({kind: 0 for kind, _ in KINDS if kind != "sharded_tensors"})
    report = judge(draw_case_at(1, 3, steered))
    assert report["verdict"] in ("equal", "rounding")
    assert any(output["name"].startswith("rank1.") for output in report["evidence"]["outputs"])


@pytest.mark.slow
def test_a_campaign_judges_every_case_by_as_many_processes(tmp_path: Path):
    corpus, summary = tmp_path / "corpus.db", tmp_path / "summary.json"
    arguments = ["run", "--device", "cpu", "--nproc", "2", "--budget", "3c", "--corpus", str(corpus), "--screen-only"]
    command = [sys.executable, "-m", "fuzzcompile", *arguments, "--summary", str(summary)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    with Store.open(str(corpus), create=False) as store:
        (campaign,) = store.campaigns()
        assert "nproc=2" in str(campaign.settings["stream"])
        assert store.counters().runs == 3


@pytest.mark.parametrize(
    "others", [("--cluster", "local:1"), ("--focus", "mm"), ("--target", "cuda:sm_90"), ("--from", "c.py")]
)
def test_what_draws_other_programs_is_refused(others: tuple[str, str], tmp_path: Path, capsys):
    with contextlib.chdir(tmp_path):
        Path("c.py").write_text("import torch\n\ndef make():\n    return torch.relu, (torch.ones(2),)\n", "utf-8")
        with pytest.raises(SystemExit) as ending:
            main(("run", "--nproc", "2", *others))
    assert ending.value.code == 2
    assert "leave out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_program_with_each_name_gives_no_wrong_values(name: str):
    """Errors of the compiler are findings: of them torch has some."""
    assert judge(find_case(name))["verdict"] not in OF_VALUES
