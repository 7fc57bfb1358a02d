"""An error of the compiler is placed in the file that raised it, though no compile without that file can be made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.source_probes import ROOT, replace_code
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.kernels.kernel_suspects import find_lost_kernel
from fuzzcompile.diagnosis.kernels.wrapper_program import Flaw, find_program_flaw
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.observation import GeneratedPlace

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
CAPTURE = "torch/_functorch/_aot_autograd/graph_capture.py"
FAKE = "torch/_subclasses/fake_impls.py"
WRAPPERS = "torch/_prims_common/wrappers.py"
SCHEDULER = "torch/_inductor/scheduler.py"
CPP = "torch/_inductor/codegen/cpp.py"
WRAPPER = "torch/_inductor/codegen/wrapper.py"
PRODUCTS = "return (lambda x: (x @ x.T) @ ((x @ x.T) @ x)), (x,)"  # library calls alone: nothing is compiled by g++


def case(body: str, settings: str = "") -> str:
    return f"import torch\n{settings}\n\ndef make():\n    x = torch.linspace(-1, 1, 12).reshape(3, 4)\n    {body}\n"


@contextlib.contextmanager
def planted(file: str, before: str, after: str, on: str = "") -> Iterator[int]:
    """The first ``before`` in a file of torch (on a line that holds ``on``) is ``after``; gives its line."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    there = [(n, text) for n, text in enumerate(lines, 1) if before in text and on in text]
    if not there:
        pytest.skip(f"{file} of this torch has no {before}")
    line, text = there[0]
    column = text.index(before)
    initialise_patterns(CPU)
    change = replace_code(file, (line, column), (line, column + len(before)), after, lambda: None)
    change.install()
    try:
        yield line
    finally:
        change.remove()


def report(write_case: Any, source: str) -> dict[str, Any]:
    path: Path = write_case(source)
    return triage(load_case(path), CPU).to_json()


def test_an_error_without_a_rule_is_placed_in_the_file_that_raised_it(write_case):
    with planted(CAPTURE, "propagate_input_mutation_stacktraces(fw_module.graph)", "fw_module.planted") as line:
        answer = report(write_case, case("return (lambda x: x.cos()), (x,)"))
    culprit = answer["culprit"]
    assert (culprit["stage"], culprit["source"], culprit["line"]) == ("functionalization", CAPTURE, line)
    assert culprit["details"]["raised"][0]["function"] == "aot_dispatch_base_graph"
    assert answer["confidence"] == "low"
    assert answer["signature"].startswith("functionalization:AttributeError:")


def test_an_error_of_a_fake_tensor_says_where_in_its_rule_it_rose(write_case):
    with planted(FAKE, "dim if dim >= 0 else dim + ndim", "dim.planted") as line:
        answer = report(write_case, case("return (lambda x: x.select(0, 1) + 1), (x,)"))
    assert answer["culprit"]["rewrite"] == "aten.select.int"
    assert answer["culprit"]["details"]["raised"][0]["line"] == line


def test_an_error_that_python_turned_into_another_is_seen_in_the_operator_alone(write_case):
    """``*`` answers a TypeError of a fake tensor with one of its own, which has no frame of the compiler."""
    source = case("return (lambda x: x * 2.0), (x,)")
    with planted(WRAPPERS, "isinstance(out, (tuple, list))", "out is None") as line:
        answer = report(write_case, source)
    raised = answer["culprit"]["details"]["raised"]
    assert answer["verdict"] == "compile_error"
    assert (raised[0]["source"], raised[0]["function"]) == (WRAPPERS, "_fn")
    assert raised[0]["line"] == line + 1


def test_a_program_that_deletes_a_buffer_too_early_names_what_decides_how_long_buffers_live(write_case):
    with planted(SCHEDULER, "used_buffers - future_used_buffers", "used_buffers"):
        answer = report(write_case, case(PRODUCTS))
    culprit, second = answer["culprit"], answer["contributors"][0]
    assert (answer["verdict"], answer["confidence"]) == ("runtime_error", "low")
    assert (culprit["stage"], culprit["source"]) == ("scheduler", SCHEDULER)
    assert second["source"] == WRAPPER
    assert culprit["details"]["program"] == Flaw.FREED.value
    assert "aten.mm" in culprit["details"]["operators"]


@pytest.mark.slow
def test_a_program_that_allocates_nothing_names_the_wrapper_alone(write_case):
    with planted(WRAPPER, "name in V.graph.removed_buffers", "name.startswith('buf')"):
        answer = report(write_case, case(PRODUCTS))
    assert (answer["culprit"]["stage"], answer["culprit"]["source"]) == ("codegen", WRAPPER)
    assert answer["contributors"] == []


@pytest.mark.slow
def test_a_program_that_returns_too_little_names_the_wrapper(write_case):
    with planted(WRAPPER, "output_refs", "not output_refs", on="if output_refs:"):
        answer = report(write_case, case(PRODUCTS))
    assert (answer["culprit"]["stage"], answer["culprit"]["source"]) == ("runtime", WRAPPER)
    assert answer["culprit"]["details"]["expected"] == 1


@pytest.mark.parametrize(
    ("file", "before", "body", "stage"),
    [
        (SCHEDULER, "scheduler_node.codegen(V.graph.wrapper_code)", PRODUCTS, "scheduler"),
        (WRAPPER, "self.writeline(f\"{kernel}({', '.join(args)})\")", PRODUCTS, "codegen"),
        pytest.param(
            CPP, "self.scheduled_nodes += nodes", "return (lambda x: x.sin()), (x,)", "codegen", marks=pytest.mark.slow
        ),
    ],
)
def test_an_operator_that_the_program_computes_nowhere_names_what_left_it_out(write_case, file, before, body, stage):
    how = Compilation(kernels=True)
    with planted(file, before, ""):
        trial = Experiments(load_case(write_case(case(body))), CPU).trial(how)
    named = find_lost_kernel(trial.ledger)
    assert named is not None and named.culprit is not None
    assert (named.culprit.stage, named.culprit.source) == (stage, file)


PROGRAM = """\
cpp_fused_add_sin_0 = async_compile.cpp_pybinding(['const float*', 'float*'], 'code')

def call(args):
    primals_1, tangents_1 = args
    buf1 = empty(4)
    cpp_fused_add_sin_0(buf0, buf1)
    buf0 = empty(4)
    # Topologically Sorted Source Nodes: [c], Original ATen: [aten.cumsum, aten.neg]
    buf2 = torch.ops.aten.cumsum.default(buf3, 0)
    cpp_fused_add_sin_0(buf1, buf4)
    buf5 = buf1; del buf1  # reuse
    return (buf1, s0, )
"""


@pytest.mark.parametrize(
    ("line", "error", "flaw", "operators"),
    [
        (4, "ValueError: too many values to unpack (expected 2)", Flaw.INPUTS, ()),
        (6, "UnboundLocalError: cannot access local variable 'buf0' where", Flaw.EARLY, ("add_sin",)),
        (9, "NameError: name 'buf3' is not defined", Flaw.MISSING, ("aten.cumsum", "aten.neg")),
        (12, "UnboundLocalError: local variable 'buf1' referenced before", Flaw.FREED, ("add_sin",)),
        (12, "NameError: name 's0' is not defined", Flaw.MISSING, ()),
    ],
)
def test_the_flaw_of_a_generated_program(line, error, flaw, operators):
    flawed = find_program_flaw(GeneratedPlace(PROGRAM, line), error)
    assert flawed is not None
    assert (flawed.flaw, flawed.operators) == (flaw, operators)
    assert flawed.backward
    assert not flawed.written
    assert flawed.is_reused == (flaw is Flaw.FREED)


def test_what_a_kernel_writes_is_no_value_that_another_should_have_made():
    flawed = find_program_flaw(GeneratedPlace(PROGRAM, 10), "NameError: name 'buf4' is not defined")
    assert flawed is not None
    assert flawed.written


def test_an_error_that_the_text_does_not_explain_is_left_alone():
    assert find_program_flaw(GeneratedPlace(PROGRAM, 9), "RuntimeError: mat1 and mat2") is None
    assert find_program_flaw(GeneratedPlace("def call(:", 1), "NameError: name 'buf3' is not defined") is None
