"""The adapter of Inductor's C++: operators of refused statements, names and lines of what generates code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fuzzcompile.compiler.watch.ledger import KernelStatement
from fuzzcompile.diagnosis.kernels.code_generators import CODE_GENERATORS, CPP

GCC = """/tmp/k.main.cpp: In function 'void kernel(const float*, float*)':
/tmp/k.main.cpp:{line}: error: {error}
   {number} | {statement}
      |      ^~~~
"""


@pytest.mark.parametrize(
    ("statement", "operators"),
    [
        ("auto tmp2 = tmp1.no_such_function();", ("sin",)),
        ("    auto tmp2 = tmp0 * tmp1;", ("mul",)),  # one name, in two loops
        ("auto at_Half_tmp_acc1_vec = at::vec::convert<at::Half>(tmp_acc1_vec);", ("reduction:sum",)),
        ("return tmp1.pow(3);", ("pow",)),
        ("int nothing;", ()),
    ],
)
def test_a_refused_statement_leads_to_its_operator(statement, operators):
    statements = [
        KernelStatement("tmp2", "tmp1.no_such_function()", "sin"),
        KernelStatement("tmp2", "tmp0 * tmp1", "mul"),
        KernelStatement("tmp3", "[&]\n{\n    return tmp1.pow(3);\n}()", "pow"),
        KernelStatement("tmp_acc1", "reduction (torch.float32, 'sum', tmp2)", "reduction:sum"),
    ]
    message = GCC.format(line="93:26", number=93, error="it is wrong", statement=statement)
    assert CPP.list_refused_operators(statements, message) == operators
    assert CPP.find_complaint(message) == "it is wrong"


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("operator", ["exp", "erf", "reduction:sum", "loop"])
def test_the_line_is_where_torch_defines_it(operator, vectorised):
    code = CPP.find_code(operator, vectorised=vectorised)
    assert code.source == "torch/_inductor/codegen/cpp.py"
    function = {"reduction:sum": "reduction", "loop": "load"}.get(operator, operator)
    lines = (Path(torch.__file__).parents[1] / code.source).read_text().splitlines()
    assert any(f"def {function}(" in line for line in lines[code.line - 1 : code.line + 2])


def test_vectors_and_scalars_have_names_of_their_own():
    names = {
        CPP.find_code(operator, vectorised=vectorised).name
        for operator in ("exp", "reduction:max")
        for vectorised in (0, 1)
    }
    assert names == {"CppVecOverrides.exp", "CppOverrides.exp", "vectorised reduction:max", "scalar reduction:max"}


def test_an_operator_that_this_torch_does_not_have_has_a_name_and_no_line():
    code = CPP.find_code("no_such_operator")
    assert (code.name, code.source, code.line) == ("CppOverrides.no_such_operator", None, None)


def test_names_of_code_generators_are_unique():
    assert len({generator.name for generator in CODE_GENERATORS}) == len(CODE_GENERATORS)
