"""The Triton adapter on kernels that Inductor's Triton code generator wrote in this process; no GPU is needed.

See :mod:`triton_on_cpu` for how they are generated and executed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch._inductor.codegen.triton import TritonKernel, TritonKernelOverrides
from triton_on_cpu import triton_on_cpu

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.diagnosis.attribution.culprit import Ablator
from fuzzcompile.diagnosis.kernels.code_generators import TRITON, find_generator
from fuzzcompile.diagnosis.kernels.kernel_proofs import search_behind_graphs
from fuzzcompile.diagnosis.stages.backend_stages import Codegen
from fuzzcompile.diagnosis.stages.stage_table import BACKEND_STAGES
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import CompileSettings

CPU = torch.device("cpu")
PRODUCT = "torch.exp(x) * y - torch.sin(x)"
SUM = "(x * y).sum(-1)"
SOURCE = "torch/_inductor/codegen/triton.py"


@pytest.fixture(scope="module")
def lowered():
    """A pointwise kernel, watched: what Inductor generated for it, and the results of the run."""
    initialise_patterns(CPU)
    x, y = torch.randn(8, 33), torch.randn(8, 33)
    with triton_on_cpu(), open_session(CompileSettings(), Compilation(kernels=True)) as session:
        result = session.compile(lambda x, y: torch.exp(x) * y - torch.sin(x))(x, y)
    assert torch.allclose(result, torch.exp(x) * y - torch.sin(x))
    assert not session.ledger.unseen
    (graph,) = session.ledger.lowered
    return graph


def test_a_kernel_knows_its_code_generator(lowered):
    (kernel,) = lowered.kernels
    assert "@triton.jit" in lowered.sources[kernel.name]
    assert find_generator(lowered, kernel.name) is TRITON
    assert find_generator(lowered) is TRITON


def test_the_operators_of_a_buffer(lowered):
    (kernel,) = lowered.kernels
    assert TRITON.list_operators(kernel.scheduled, kernel.writes[-1]) == ["exp", "mul", "sin", "sub"]
    assert not TRITON.is_vectorised(lowered.sources[kernel.name])


@pytest.mark.parametrize(
    ("written", "operator"),
    [("libdevice.exp(", "exp"), ("tl_math.sin(", "sin"), (" * ", "mul"), (" - ", "sub"), ("tl.load(in_ptr0", "load")],
)
def test_each_line_belongs_to_an_operator(lowered, written, operator):
    (kernel,) = lowered.kernels
    body = lowered.sources[kernel.name].partition("xmask = ")[2].splitlines()
    line = next(line for line in body if "tmp" in line and written in line)
    assert TRITON.find_operator(lowered.statements[kernel.name], line) == operator


@pytest.mark.parametrize("operator", ["exp", "sin", "sqrt", "sigmoid", "where", "load_seed", "reduction:sum", "loop"])
def test_the_line_is_where_torch_defines_it(lowered, operator):
    code = TRITON.find_code(operator)
    function = {"reduction:sum": "reduction", "loop": "load"}.get(operator, operator)
    assert code.name == (operator if function != operator else f"TritonKernelOverrides.{operator}")
    assert code.source == SOURCE
    lines = (Path(torch.__file__).parents[1] / SOURCE).read_text().splitlines()
    # Decorators come first.
    assert any(f"def {function}(" in line for line in lines[code.line - 1 : code.line + 3])


MESSAGE = """at 5:11:
def kernel(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    {line}
           ^
NameError('no_such_function is not defined')"""


def test_a_refused_statement_leads_to_its_operator(lowered):
    (kernel,) = lowered.kernels
    line = next(line.strip() for line in lowered.sources[kernel.name].splitlines() if "tl_math.sin(" in line)
    message = MESSAGE.format(line=line)
    assert TRITON.list_refused_operators(lowered.statements[kernel.name], message) == ("sin",)
    assert TRITON.find_complaint(message) == "NameError('no_such_function is not defined')"
    assert TRITON.find_complaint("out of memory") is None


# -- faults planted in the code generator -----------------------------------------------------------


def refused(name):
    TritonKernelOverrides._setup_libdevice_routing()
    return mock.patch.object(TritonKernelOverrides, name, staticmethod(lambda x: f"tl_math.no_such_function({x})"))


def wrong(name):
    TritonKernelOverrides._setup_libdevice_routing()  # done once, and it copies what it finds
    original = getattr(TritonKernelOverrides, name)
    planted = staticmethod(lambda *args: f"({original(*args)} * 1.01)")
    return mock.patch.object(TritonKernelOverrides, name, planted)


def wrong_sum():
    """Sums are 1 % too large."""
    original = TritonKernel.reduction

    def planted(kernel, dtype, src_dtype, kind, value):
        result = original(kernel, dtype, src_dtype, kind, value)
        return (
            result
            if kind != "sum"
            else kernel.cse.generate(kernel.compute, f"{result} * 1.01", dtype=dtype, shape=result.shape)
        )

    return mock.patch.object(TritonKernel, "reduction", planted)


def attributed(folder: Path, body: str, fault: contextlib.AbstractContextManager):
    path = folder / "case.py"
    path.write_text(
        "import torch\ndef make():\n    torch.manual_seed(0)\n"
        f"    return (lambda x, y: {body}), (torch.randn(8, 33), torch.randn(8, 33))\n"
    )
    initialise_patterns(CPU)
    with triton_on_cpu(), fault:
        experiments = Experiments(load_case(path), CPU, Compilation())
        trial = experiments.trial()
        assert trial.judgement.verdict.is_bug
        ablator = Ablator(experiments, trial)
        found = search_behind_graphs(BACKEND_STAGES, ablator)
    assert found is not None
    return found.culprit, ablator.ablations


@pytest.mark.parametrize("operator", ["exp", "sin"])
def test_a_wrong_operator_is_named_by_triton_and_not_by_cpp(tmp_path, operator):
    culprit, ablations = attributed(tmp_path, PRODUCT, wrong(operator))
    assert (culprit.stage, culprit.rewrite) == ("codegen", f"TritonKernelOverrides.{operator}")
    assert (culprit.family, culprit.necessary) == (operator, True)
    assert culprit.source == "test_triton.py"  # where the planted form is defined
    assert culprit.details["code_generator"] == "Triton"
    assert "simdlen" not in " ".join(ablation.toggle for ablation in ablations)
    assert "simdlen" not in str(list(Codegen().workarounds(culprit, {})))


def test_a_wrong_reduction_is_named_by_its_kind(tmp_path):
    culprit, _ = attributed(tmp_path, SUM, wrong_sum())
    assert (culprit.stage, culprit.rewrite, culprit.family) == ("codegen", "reduction:sum", "reduction:sum")
    assert culprit.necessary is True


def test_an_operator_that_triton_refuses_is_named(tmp_path):
    culprit, _ = attributed(tmp_path, PRODUCT, refused("sin"))
    assert (culprit.stage, culprit.rewrite, culprit.family) == ("codegen", "TritonKernelOverrides.sin", "sin")
    assert (culprit.necessary, culprit.confidence) == (True, "high")
    assert culprit.details["error"] == "CompilationError: NameError('no_such_function is not defined')"
