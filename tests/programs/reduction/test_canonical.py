"""The key of a program must not hang on names, and must on everything that is computed."""

from __future__ import annotations

import pytest

from fuzzcompile.programs.ir.case_text import program_key

CASE = """
import torch
import torch.nn.functional as F


def program(x, weight):
    h = x.transpose(1, 2)
    return F.softmax(h @ weight, dim=-1)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 3, 4), torch.randn(3, 5))
"""
RENAMED = '''
"""What this shows."""
from torch.nn import functional as fn
import torch as t  # the library

def attention_scores(activation: t.Tensor, a_long_name_for_a_matrix) -> t.Tensor:
    """A docstring."""
    product = activation.transpose(1, 2) @ a_long_name_for_a_matrix
    return fn.softmax(product, dim=-1)

def make():
    t.manual_seed(0)
    first = t.randn(2, 3, 4)
    return attention_scores, (first, t.randn(3, 5))

if __name__ == "__main__":
    model, inputs = make()
    print(t.compile(model)(*inputs))
'''
MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.norm = nn.LayerNorm(3)

    def scaled(self, x):
        return x * self.weight

    def forward(self, x):
        y = self.norm(x)
        y += 1
        return self.scaled(y) + y

def make():
    return Model(), (torch.zeros(2, 3),)
"""
MODULE_RENAMED = """
import torch.nn
import torch

class Block(torch.nn.Module):
    def __init__(module):
        super().__init__()
        module.gain = torch.nn.Parameter(torch.ones(3))
        module.ln = torch.nn.LayerNorm(3)

    def apply_gain(module, activation):
        return activation * module.gain

    def forward(module, tokens):
        hidden = module.ln(tokens)
        hidden += 1
        return module.apply_gain(hidden) + hidden

def make():
    return Block(), (torch.zeros(2, 3),)
"""


@pytest.mark.parametrize(("source", "renamed"), [(CASE, RENAMED), (MODULE, MODULE_RENAMED)], ids=["function", "module"])
def test_names_do_not_count(source, renamed):
    assert program_key(source) == program_key(renamed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dim=-1", "dim=-2"),
        ("F.softmax", "F.log_softmax"),
        ("torch.randn(2, 3, 4)", "torch.randn(2, 3, 5)"),
        ("h @ weight", "weight @ h"),
        ("\ndef make", '\nGRAD = "enabled"\n\n\ndef make'),
        ("x.transpose(1, 2)", "x.transpose(1, 2).contiguous()"),
        ("return program, (", "return (lambda x, weight: weight @ x), ("),
    ],
)
def test_what_is_computed_counts(before, after):
    assert before in CASE
    assert program_key(CASE) != program_key(CASE.replace(before, after))


def test_without_sizes_numbers_count_by_their_kind():
    def key(before: str, after: str) -> str:
        assert before in CASE
        return program_key(CASE.replace(before, after), sizes=False)

    same = key("torch.randn(2, 3, 4)", "torch.randn(2, 3, 5)")
    assert same == key("torch.randn(2, 3, 4)", "torch.randn(7, 3, 9)") == program_key(CASE, sizes=False)
    assert same != key("torch.randn(2, 3, 4)", "torch.randn(1, 3, 4)")
    assert same != key("torch.randn(2, 3, 4)", "torch.randn(2, 0, 4)")
    assert same != key("dim=-1", "dim=1")


def test_a_write_between_a_value_and_its_use_counts():
    late = CASE.replace("    return F", "    x.mul_(2)\n    return F")
    early = CASE.replace("    h = x", "    x.mul_(2)\n    h = x")
    assert program_key(late) != program_key(early)


def test_a_value_that_is_used_twice_is_not_computed_twice():
    shared = CASE.replace("h @ weight", "h @ h.mT").replace("x.transpose(1, 2)", "x.clone()")
    assert program_key(shared) != program_key(CASE.replace("h @ weight", "x.clone() @ x.clone().mT"))


def test_a_text_that_is_no_python_has_a_key_of_its_own():
    assert program_key("no python (") != program_key("no python ((")
    assert len(program_key(CASE)) == 64
