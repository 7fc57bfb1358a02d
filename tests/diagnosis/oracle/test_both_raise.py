"""Eager and compiled both raise: a refusal of the program in other words, or an error of the compiler's own."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import _meta_registrations
from torch._dynamo.variables import builtin
from torch._inductor import lowering
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._subclasses import fake_tensor

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.report.verdict_text import meaning
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.raise_sites import RaisedError, RaiseSite

SOURCE = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda x, i: {body}), (torch.randn(4), torch.tensor([{index}]))
"""


def slip(*args: object, **kwargs: object) -> object:
    return {}["nothing"]


@pytest.fixture
def judged(write_case):
    def judge(body: str, index: int = 7):
        path = write_case(SOURCE.format(body=body, index=index))
        return triage(load_case(path), torch.device("cpu")).to_json()

    return judge


@pytest.mark.parametrize(
    "body", ["torch.sinh(x)[i]", "torch.mm(x, x)", "torch.cat([x, x[None]]).sinh()", "torch.complex(x, i)"]
)
def test_a_program_that_both_refuse_is_invalid(judged, body):
    report = judged(body)
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)
    assert "eager raises" in report["detail"]
    assert report["confidence"] == "high"


@pytest.mark.parametrize("path", ["export", "aoti"])
def test_a_refusal_that_the_compiler_hands_on_from_a_module_of_its_own_is_none_of_its_errors(write_case, path):
    """The operator refuses its arguments in eager mode, and while AOTAutograd traces what calls it."""
    body = "torch.nn.functional.adaptive_avg_pool3d(x.new_ones(1, 2, 3, 4), output_size=())"
    source = f"PATH = {path!r}\n" + SOURCE.format(body=body, index=0)
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)


@pytest.mark.parametrize(("message", "verdict"), [("an integer is no index", "invalid"), ("", "compile_error")])
def test_an_assertion_about_arguments_refuses_them_if_it_says_so(judged, message: str, verdict: str):
    def check(dtype: torch.dtype) -> torch.dtype:
        raise AssertionError(*filter(None, [message]))

    with mock.patch.object(_meta_registrations, "corresponding_complex_dtype", check):
        assert judged("torch.complex(x, torch.ones(3))")["verdict"] == verdict


def test_a_lowering_that_fails_by_itself_is_a_bug_whatever_eager_raises(judged):
    with mock.patch.dict(lowering.lowerings, {torch.ops.aten.sinh.default: slip}):
        report = judged("torch.sinh(x)[i]")
    assert (report["verdict"], report["is_bug"]) == ("compile_error", True)
    assert "KeyError" in report["detail"] and "IndexError" in report["detail"]
    assert "eager raises another" in meaning(report)
    assert (report["culprit"]["stage"], report["culprit"]["family"]) == ("lowering", "sinh")


def test_a_shape_function_that_slips_is_a_bug_too(judged):
    with mock.patch.object(fake_tensor.FakeTensorMode, "_dispatch_impl", slip):
        assert judged("torch.mm(x, x)")["verdict"] == "compile_error"


def test_what_dynamo_calls_an_error_of_its_own_is_one(judged):
    def misuse(*args: object, **kwargs: object) -> int:
        return len(3)  # type: ignore[arg-type]

    with mock.patch.object(builtin.BuiltinVariable, "call_function", misuse):
        report = judged("torch.mm(x, x) if len(x.shape) else x")
    assert (report["verdict"], report["is_bug"]) == ("compile_error", True)


# The message names the operator that gave the tensor: another one, where AOTAutograd traces the backward pass.
OVERWRITTEN = """
import torch
def program(a, b):
    b.add_(1.0)
    return a.sin() * b, a.detach().add_(1)
def run(model, inputs):
    a = inputs[0] * 1
    b = inputs[1] * 1
    return model(a, b), a, b
def make():
    torch.manual_seed(0)
    return program, (torch.randn(6, requires_grad=True),torch.randn(6, requires_grad=True))
BACKWARD = True
"""


def test_a_refusal_that_names_another_operator_is_the_same(write_case):
    report = triage(load_case(write_case(OVERWRITTEN)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)


# The program refuses its argument by itself, and the compiled one gets on to something else.
TWO_WAYS = """
import torch

@torch.compiler.disable
def look_up(x):
    return x * {{}}["scale"]

def check(x):
    raise ValueError("bad shape of x")

def program(x, i):
    if torch.compiler.is_compiling():
        return {body}
    return check(x)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4), torch.tensor([7]))
"""


@pytest.fixture
def judged_two_ways(write_case):
    def judge_body(body: str):
        return triage(load_case(write_case(TWO_WAYS.format(body=body))), torch.device("cpu")).to_json()

    return judge_body


@pytest.mark.parametrize(
    ("body", "raised"),
    [
        ("x.unsqueeze(9)", "IndexError"),  # a decomposition
        ("torch.mm(x, x)", "TorchRuntimeError"),  # a meta function
        ("torch.sinh(x)[i]", "RuntimeError"),  # a kernel
        ("look_up(torch.sinh(x))", "KeyError"),  # the program, behind a graph break
    ],
)
def test_of_unlike_errors_nothing_tells_whether_compiled_is_at_fault(judged_two_ways, body: str, raised: str):
    report = judged_two_ways(body)
    assert (report["verdict"], report["is_bug"], report["confidence"]) == ("invalid", False, "low")
    (note,) = (note for note in report["evidence"]["notes"] if note.startswith("both raise unlike errors"))
    assert "eager ValueError: bad shape of x" in note and f"compiled {raised}: " in note


def test_generated_code_that_slips_is_a_bug_whatever_eager_raises(judged_two_ways, monkeypatch):
    finish = PythonWrapperCodegen.generate_return

    def slip_first(self: PythonWrapperCodegen, *args: object) -> None:
        self.wrapper_call.writeline("{}['nothing']")
        finish(self, *args)

    monkeypatch.setattr(PythonWrapperCodegen, "generate_return", slip_first)
    report = judged_two_ways("torch.sinh(x)")
    assert (report["verdict"], report["is_bug"]) == ("runtime_error", True)
    assert "KeyError" in report["detail"] and "ValueError" in report["detail"]
    assert "eager raises another" in meaning(report)


REFUSED = Failure("ValueError", "bad shape of x")
IN_GENERATED = RaiseSite("kernels.py", "generated", "implied")


def judge_errors(eager: Failure, compiled: Failure) -> Judgement:
    refused = Observation(failure=eager)
    return judge(Observations(refused, refused, refused, (), Observation(failure=compiled)))


def in_compile(name: str, file: str, message: str = "no such element", **more) -> Failure:
    return Failure(name, message, "compile", raised=((file, 7, "lower"),), origin=name, worded=True, **more)


@pytest.mark.parametrize(
    "compiled",
    [
        Failure("IndexError", "list index out of range"),
        Failure("KeyError", "'scale'"),
        in_compile("TypeError", "torch/_dynamo/variables/builder.py"),
        in_compile("IndexError", "torch/_decomp/decompositions.py"),
    ],
    ids=lambda failure: f"{failure.type_name}-{failure.phase}",
)
def test_an_error_of_another_kind_is_unlike(compiled: Failure):
    judgement = judge_errors(REFUSED, compiled)
    assert (judgement.verdict, judgement.confidence) == ("invalid", "low")
    assert str(REFUSED) in judgement.note and str(compiled) in judgement.note


@pytest.mark.parametrize(
    ("eager", "compiled"),
    [
        (REFUSED, Failure("ValueError", "x is empty")),
        (REFUSED, Failure("UnicodeError", "no text")),  # a class below eager's
        (Failure("IndexError", "no such row"), Failure("LookupError", "nothing there")),  # one above it
        (
            REFUSED,  # what the compiler's own error wraps
            Failure(
                "BackendCompilerFailed",
                "backend failed",
                "compile",
                chain=(RaisedError(("BackendCompilerFailed",), "backend failed"), RaisedError(("ValueError",), "no")),
            ),
        ),
        (Failure("IndexError", "index 7 is out of bounds"), Failure("RuntimeError", "index out of bounds: 0 <= i < 4")),
    ],
)
def test_errors_of_one_class_or_of_the_same_words_are_alike(eager: Failure, compiled: Failure):
    judgement = judge_errors(eager, compiled)
    assert (judgement.verdict, judgement.confidence, judgement.note) == ("invalid", "high", "")


def test_errors_that_have_nothing_but_exception_in_common_are_unlike():
    assert judge_errors(Failure("KeyError", "'scale'"), Failure("IndexError", "no such row")).confidence == "low"


@pytest.mark.parametrize("how", ["called", "implied"])
def test_an_operator_refuses_its_arguments_and_an_instruction_of_a_decomposition_slips(how: str):
    """In Python, an index that is out of range is an error of the code that has it."""
    eager = Failure("RuntimeError", "4D expected", site=RaiseSite("case.py", "program", "called"))
    site = RaiseSite("torch/_refs/__init__.py", "torch", how)
    judgement = judge_errors(eager, in_compile("IndexError", site.file, site=site))
    assert (judgement.verdict, judgement.confidence) == ("invalid", "high" if how == "called" else "low")


@pytest.mark.parametrize(
    ("site", "verdict"),
    [
        (IN_GENERATED, "runtime_error"),
        (RaiseSite("torch/_functorch/_aot_autograd/runtime_wrappers.py", "torch", "implied"), "runtime_error"),
        (RaiseSite("case.py", "program", "implied"), "invalid"),
        (RaiseSite("torch/_tensor.py", "torch", "called"), "invalid"),
    ],
)
def test_a_compiled_program_slips_in_the_compilers_code_alone(site: RaiseSite, verdict: str):
    assert judge_errors(REFUSED, Failure("KeyError", "'scale'", site=site)).verdict == verdict


def test_what_is_not_implemented_is_the_compilers_own_if_a_statement_of_it_says_so():
    stated, called = (RaiseSite("kernels.py", "generated", how) for how in ("stated", "called"))
    assert judge_errors(REFUSED, Failure("NotImplementedError", "no", site=stated)).verdict == "runtime_error"
    assert judge_errors(REFUSED, Failure("NotImplementedError", "no", site=called)).verdict == "invalid"
    file = "torch/_dynamo/symbolic_convert.py"
    while_compiling = in_compile("NotImplementedError", file, site=RaiseSite(file, "torch", "stated"))
    assert judge_errors(REFUSED, while_compiling).verdict == "compile_error"


def test_a_slip_that_eager_makes_too_is_the_programs():
    slip = Failure("KeyError", "'scale'", site=IN_GENERATED)
    assert judge_errors(Failure("KeyError", "'size'"), slip).verdict == "invalid"
