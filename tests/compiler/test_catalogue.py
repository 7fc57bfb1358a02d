"""The catalogue against the compiler: what a compile books is in it, under the same name."""

from __future__ import annotations

import programs
import pytest
import torch
from torch import nn
from watching import watch

from fuzzcompile.compiler.rule_catalogue import list_known_rules

CPU = torch.device("cpu")


def sorted_values() -> programs.Program:
    """Random numbers, views, casts and a reduction: what many rules match."""

    def program(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x).to(torch.float64).to(torch.float32)
        return torch.cat([x.view(-1), (x + noise).reshape(5, 3).t().reshape(-1)]).softmax(0).sum() * 1.0

    return program, programs.tensors((3, 5))


def convolution() -> programs.Program:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).eval()
    return module, programs.tensors((2, 2, 4, 4))


def scattered() -> programs.Program:
    """Enough indices for a scatter into partitions."""

    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(16, 2).index_put((index,), x, accumulate=True)

    return program, (torch.ones(5000, 2), torch.arange(5000) % 16)


def equal_sums() -> programs.Program:
    return lambda x, y: (x + y) * (x * 2 + y * 3), programs.tensors((3, 5), (3, 5))


FUSION = {"post_grad_fusion_options": {"batch_aten_add": {"min_fuse_set_size": 2}}}
OPTIONS = {"pre_grad_fusion_options": {"normalization_pass": {}}, "post_grad_fusion_options": {"decompose_mm_pass": {}}}


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (programs.attention, {}),
        (sorted_values, {}),
        (sorted_values, OPTIONS),
        (programs.sine_trained, {}),
        (convolution, {"freezing": True}),
        (scattered, {"partitioned_scatter_enabled": True}),
        (equal_sums, FUSION),
    ],
)
@pytest.mark.parametrize("fallback_random", [True, False])
def test_what_a_compile_books_is_in_the_catalogue(make, config, fallback_random):
    target, inputs = make()
    training = make is programs.sine_trained
    with torch.set_grad_enabled(training):
        watched = watch(target, inputs, backward=training, screen=True, config=config, fallback_random=fallback_random)
    known = {(row.stage, row.name) for row in list_known_rules(CPU)}
    booked = {(label.stage, label.rewrite) for label, _ in watched.ledger.coverage}
    assert booked, "nothing was matched: the program proves nothing"
    assert booked - known == set()


def test_a_rule_is_listed_once_and_has_a_source():
    rows = list_known_rules(CPU)
    keys = [(row.stage, row.kind, row.pass_name, row.name, row.source, row.line) for row in rows]
    assert len(keys) == len(set(keys))
    patterns = [row for row in rows if row.kind == "pattern"]
    assert len(patterns) > 100 and [row.name for row in patterns if not row.source] == []


def test_a_rule_stands_under_the_pass_that_runs_it():
    rows = {(row.stage, row.name): row for row in list_known_rules(CPU) if row.kind == "pattern"}
    passes = {(row.stage, row.name) for row in list_known_rules(CPU) if row.kind == "pass"}
    assert {(row.stage, row.pass_name) for row in rows.values()} <= passes
    frozen = [row.name for row in list_known_rules(CPU) if row.kind == "pattern" and row.stage == "freezing"]
    assert len(frozen) == len(set(frozen)) > 10
