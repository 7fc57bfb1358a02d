"""The kernel that is taken where a GPU would time several: what the selector returns differs between torches."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzcompile.compiler.target import kernel_launch

pytest.importorskip("triton", reason="kernels are interpreted with Triton alone")


class Choice:
    def output_node(self) -> str:
        return "node"


def of_torch_2_11(selector: Any, name: str, choices: Any, nodes: Any, layout: Any, return_choice: bool = False) -> Any:
    raise AssertionError("nothing is timed")


def of_torch_2_13(selector: Any, name: str, choices: Any, nodes: Any, layout: Any) -> Any:
    raise AssertionError("nothing is timed")


@pytest.mark.parametrize("times", [1, 2])
def test_the_choice_goes_with_the_node_where_this_torch_expects_it(times: int) -> None:
    def chosen(original: Any, **asked: bool) -> Any:
        for _ in range(times):  # a compile within another replaces it twice
            original = kernel_launch.choose_first(Session(), original)
        return original(None, "mm", [choice], [], None, **asked)

    choice = Choice()
    assert chosen(of_torch_2_11) == "node"
    assert chosen(of_torch_2_11, return_choice=True) == ("node", choice)
    assert chosen(of_torch_2_13) == ("node", choice)


class Session:
    templates = False
