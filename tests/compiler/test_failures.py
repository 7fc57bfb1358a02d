"""Exceptions in the compiler are laid at the door of the rewrite, pass or stage that raised them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import planting
import programs
import pytest
import torch
from torch._inductor.fx_passes import joint_graph, post_grad
from watching import make_compilation, run

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import open_session
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.observation import Failure

SIN, COS = planting.aten.sin.default, planting.aten.cos.default


def failing_pass(graph: torch.fx.Graph) -> None:
    raise ValueError("planted in a pass")


def in_handler(operator=SIN) -> AbstractContextManager[None]:
    return planting.handler(joint_graph.patterns, operator, planting.raise_in_handler)


def in_check() -> AbstractContextManager[None]:
    return planting.handler(post_grad.pass_patterns[2], SIN, planting.sin_off, planting.raise_in_check)


def in_backward() -> AbstractContextManager[None]:
    return planting.handler(post_grad.pass_patterns[1], COS, planting.raise_in_handler)


@contextmanager
def in_lowering():
    from torch._inductor.lowering import lowerings

    def failing_lowering(*args: object) -> None:
        raise ValueError("planted in a lowering")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lowerings, SIN, failing_lowering)
        yield


def compile_and_fail(
    install: Callable[[], AbstractContextManager[None]],
    program: Callable,
    *,
    backward: bool = False,
    vetoes: tuple[str, ...] = (),
    config: dict | None = None,
) -> tuple[Label | None, Failure | None]:
    initialise_patterns(torch.device("cpu"))
    target, inputs = program()
    with install(), open_session(CompileSettings(), make_compilation(vetoes=vetoes, config=config)) as session:
        try:
            run(session.compile(target), target, inputs, backward=backward)
        except Exception as error:
            return session.ledger.failed_in, session.describe_failure(error)
    return session.ledger.failed_in, None


@pytest.mark.parametrize(
    ("install", "rewrite", "outcome", "checks"),
    [(in_handler, "raise_in_handler", "fired", []), (in_check, "sin_off", "refused", ["its check raises ValueError"])],
    ids=["handler", "check"],
)
def test_a_match_whose_rule_raises_is_a_match(install, rewrite: str, outcome: str, checks: list[str]):
    initialise_patterns(torch.device("cpu"))
    target, inputs = programs.sine()
    with install(), open_session(CompileSettings(), make_compilation()) as session, pytest.raises(Exception):  # noqa: B017
        run(session.compile(target), target, inputs)
    ledger = session.ledger
    assert [how for label, how in ledger.coverage if label.rewrite == rewrite] == [outcome]
    assert [why for label, why in ledger.checks if label.rewrite == rewrite] == checks


@pytest.mark.parametrize(
    "install, program, rewrite, stage, backward, message",
    [
        (in_handler, programs.sine, "raise_in_handler", "joint_graph", False, "planted in a handler"),
        (in_check, programs.sine, "sin_off", "post_grad", False, "planted in a check"),
        (in_backward, programs.sine_trained, "raise_in_handler", "post_grad", True, "planted in a handler"),
        (in_lowering, programs.sine, "lowering", "lowering", False, "planted in a lowering"),
    ],
    ids=["handler", "check", "handler in the backward graph", "lowering"],
)
def test_exception_is_laid_at_the_door_of_what_raised_it(
    install, program, rewrite: str, stage: str, backward: bool, message: str
):
    label, failure = compile_and_fail(install, program, backward=backward)
    assert label is not None
    assert (label.stage, label.rewrite) == (stage, rewrite)
    assert failure is not None
    assert (failure.phase, failure.stage) == ("compile", stage)
    assert message in failure.message


@pytest.mark.parametrize(
    "install, program, rewrite, backward",
    [
        (in_handler, programs.sine, "raise_in_handler", False),
        (in_check, programs.sine, "sin_off", False),
        (in_backward, programs.sine_trained, "raise_in_handler", True),
    ],
    ids=["handler", "check", "handler in the backward graph"],
)
def test_veto_of_the_failing_rewrite_lets_the_compile_succeed(install, program, rewrite: str, backward: bool):
    label, failure = compile_and_fail(install, program, backward=backward, vetoes=(rewrite,))
    assert (label, failure) == (None, None)


def test_failing_pass_is_named():
    config = {"post_grad_custom_post_pass": failing_pass}
    label, failure = compile_and_fail(planting.nothing, programs.sine, config=config)
    assert label is not None
    assert (label.stage, label.pass_name, label.rewrite, label.source) == (
        "post_grad",
        "post_grad_custom_post_pass",
        "failing_pass",
        "test_failures.py",
    )
    assert failure is not None
    assert failure.type_name == "ValueError"


def test_program_that_raises_is_no_failure_of_the_compiler():
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        raise ValueError("the user's own")

    label, failure = compile_and_fail(planting.nothing, lambda: (program, programs.tensors((2,))))
    assert label is None
    assert failure is not None
    assert (failure.type_name, failure.phase, failure.stage) == ("ValueError", "run", None)


def test_what_an_operator_says_stands_behind_dynamos_headline():
    reshaped = compile_and_fail(nullcontext, lambda: (lambda x: x.sin().view(7), [torch.ones(2, 3)]))[1]
    assert reshaped is not None and reshaped.stage == "dynamo"
    assert "shape '[7]' is invalid" in reshaped.message
