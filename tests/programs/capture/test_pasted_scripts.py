"""Scripts as they stand in public reports, and hostile ones, through the command as a user runs it.

``scripts/styles`` has one of each way in which reports call ``torch.compile``, the forms of the two that started this
project among them; ``scripts/hostile`` has what only scripts can do to a triager.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDED = ("equal", "rounding")
# Judged in every run of the tests, by one command.
QUICK: dict[str, Sequence[str]] = {
    "keyword_arguments_on_cuda": ROUNDED,
}
STYLES: dict[str, Sequence[str]] = {
    "attention_eval": ROUNDED,
    "lost_mutation": ("aliasing", "miscompile"),
    "asserts_on_numpy": ("nonfinite",),
    "decorated_function": ("equal",),
    "decorated_method": ("equal",),
    "dtypes_and_modes": ("rounding", "precision_casts"),
    "einsum_projections": ROUNDED,
    "exit_status": ("accepts_invalid",),
    "loss_and_gradients": ROUNDED,
    "model_from_a_file": ROUNDED,
    "module_compile_in_half": ROUNDED,
    "older_entry": ROUNDED,
    "run_by_backend": ("miscompile",),
    "training_loop": ROUNDED,
    "unittest_case": ("rounding", "precision_casts"),
}
# A tuple of verdicts, or a part of the sentence that says why there is none.
HOSTILE: dict[str, Sequence[str] | str] = {
    "called_in_a_thread": ("equal",),
    "closes_its_streams": ("equal",),
    "endless_calls": ("equal",),
    "exits_at_once": "ends its process (exit status 0) before anything is compiled",
    "exits_later": ("equal",),
    "fails_after_the_call": ("equal",),
    "prints_100_megabytes": ("equal",),
    "reads_arguments": ("equal",),
    "reads_input": "raises EOFError",
    "recurses": "raises RecursionError",
    "spawns_itself": ("equal",),
    "spawns_processes": ("equal",),
    "swallows_everything": ("equal",),
    "thread_that_stays": ("equal",),
    "wants_arguments": "wants other arguments (the following arguments are required: file)",
}
ENDLESS = ("endless_compiles", "swallows_for_ever")
# The command, and whether its own process imported torch, which takes seconds that its workers need.
COMMAND = """
import sys
from fuzzcompile.front.cli import main
try:
    main()
finally:
    if "torch" in sys.modules:
        print("torch was imported by the parent", file=sys.stderr)
"""
Answers = Mapping[str, dict[str, Any]]
needs_2_13 = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the expected verdicts are those of torch 2.13"
)


def triage(names: Sequence[str], *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and answers of one command."""
    files = [next(SCRIPTS.glob(f"*/{name}.py")) for name in names]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "triage", *map(str, files), "--device", "cpu", "--json", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "torch was imported" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def judged() -> Callable[[str], dict[str, Any]]:
    """The answer for one script; those of its group are judged by one command, when the first is asked for."""
    groups = (tuple(QUICK), (*STYLES, *HOSTILE))
    answers: dict[str, dict[str, Any]] = {}

    def answer(name: str) -> dict[str, Any]:
        if name not in answers:
            group = next(group for group in groups if name in group)
            _, found = triage(group, "--workers", "2", "--timeout", "100")
            assert [entry["case"] for entry in found] == list(group)
            answers.update((entry["case"], entry) for entry in found)
        return answers[name]

    return answer


@needs_2_13
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in STYLES)])
def test_a_script_as_pasted_is_judged(name: str, judged):
    report = judged(name)
    assert report["verdict"] in {**QUICK, **STYLES}[name], report.get("error") or report["detail"]
    assert report["evidence"]["notes"][0].startswith("judged: call 1 of the script")
    assert report["is_bug"] == (report["signature"] is not None)


def test_a_script_for_another_device_is_told_so(judged):
    notes = judged("keyword_arguments_on_cuda")["evidence"]["notes"]
    assert "where the script names another kind of device, cpu stood in for it" in notes


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_costs_its_own_answer_at_most(name: str, judged):
    answer, wanted = judged(name), HOSTILE[name]
    if isinstance(wanted, str):
        assert answer["verdict"] is None
        assert wanted in answer["error"]
    else:
        assert answer["verdict"] in wanted, answer.get("error") or answer["detail"]


@pytest.mark.slow
def test_a_script_that_never_calls_what_it_compiles_is_ended():
    status, answers = triage(ENDLESS, "--workers", "2", "--timeout", "10")
    assert status == 3
    for name, answer in zip(ENDLESS, answers, strict=True):
        assert answer["case"] == name and answer["verdict"] is None
        assert "still running after 10 s in line " in answer["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patching", "after", "wanted"),
    [("patches_torch", "run_by_backend", "miscompile"), ("exit_redefined", "exits_at_once", None)],
)
def test_what_a_script_patches_does_not_reach_the_next(patching: str, after: str, wanted: str | None):
    _, answers = triage((patching, after), "--workers", "1")
    assert answers[1]["verdict"] == wanted
    assert wanted or HOSTILE[after] in answers[1]["error"]
