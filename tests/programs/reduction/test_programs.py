"""Programs as data: what is written for them computes what the captured graph computes, and reads well."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fuzzcompile.compiler.operators.graph_capture import capture_functional, capture_graphs
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.ir.case_source import (
    CaseText,
    count_model_lines,
    input_expression,
    write_program,
    write_source,
)
from fuzzcompile.programs.ir.evaluation import evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
from fuzzcompile.programs.ir.tracing import Untranslatable, translate_graph

CPU = torch.device("cpu")


def captured(write_case, body: str, inputs: str, settings: str = "") -> Program:
    """The program that a function's one graph is."""
    source = (
        f"import torch\nimport torch.nn.functional as F\n{settings}\ndef function(*inputs):\n"
        + "".join(f"    {line}\n" for line in body.splitlines())
        + f"def make():\n    torch.manual_seed(0)\n    return function, {inputs}\n"
    )
    (graph,) = capture_graphs(load_case(write_case(source)), CPU)
    return translate_graph(graph.module, graph.inputs, graph.parameters, {})


def result_of(program: Program):
    """What the written case returns in eager, and what its statements return one by one."""
    text = write_program(program)
    values = dict(text.values)
    namespace = {"__file__": "case.py"}
    source = text.source.replace('torch.load(Path(__file__).with_name("values.pt"))', "VALUES_GIVEN")
    namespace["VALUES_GIVEN"] = values
    exec(source, namespace)
    model, inputs = namespace["make"]()
    return model(*inputs)


BODIES = [
    ("x, y = inputs\nreturn -(x + y) * 2 / (x - y) ** 2 - (x - (y - x))", "(torch.randn(3), torch.randn(3))"),
    (
        "x, = inputs\na, b, c = x.chunk(3, -1)\nreturn torch.softmax(a @ b.transpose(-2, -1), dim=-1) @ c",
        "(torch.randn(2, 3, 6),)",
    ),
    (
        "x, = inputs\ny = x.clone()\ny[1:, 0] = x[:-1, 1]\ny += 1\ny.mul_(2)\nreturn y[..., None], x.T + 1",
        "(torch.randn(3, 3),)",
    ),
    (
        "x, = inputs\nreturn F.layer_norm(F.gelu(x), (4,)), F.dropout(x, 0.5, False), torch.cat([x, x], 1)",
        "(torch.randn(2, 4),)",
    ),
    (
        "x, m = inputs\ny = torch.where(m, x, float('-inf'))\nreturn y.max(-1).values, x.bfloat16().sum(0, True)",
        "(torch.randn(2, 4), torch.rand(2, 4) > 0.5)",
    ),
    (
        "x, = inputs\nwith torch.autocast('cpu', dtype=torch.bfloat16):\n    y = x @ x\nreturn y.float() + 1",
        "(torch.randn(4, 4),)",
    ),
    (
        "x = inputs[0]\ny = F.scaled_dot_product_attention(x, x, x, is_causal=True)\nreturn y, torch.fft.fft(x).real",
        "(torch.randn(1, 1, 4, 4),)",
    ),
]


@pytest.mark.parametrize(("body", "inputs"), BODIES)
def test_the_written_case_computes_what_the_program_does(write_case, body, inputs):
    program = captured(write_case, body, inputs)
    namespace = {"torch": torch, "F": F}
    exec("def function(*inputs):\n" + "".join(f"    {line}\n" for line in body.splitlines()), namespace)
    torch.manual_seed(0)
    expected = namespace["function"](*eval(inputs, namespace))
    torch.testing.assert_close(result_of(program), expected, rtol=0, atol=0, equal_nan=True)
    assert evaluate(program).failed is None


def test_names_of_torch_are_those_that_users_write(write_case):
    body, inputs = BODIES[1]
    source = write_source(captured(write_case, body, inputs))
    assert "torch.softmax(" in source and ".transpose(-2, -1)" in source and " @ " in source
    assert "aten" not in source and "torch._" not in source and "torch.ops" not in source


def test_what_has_no_public_name_is_refused(write_case):
    with pytest.raises(Untranslatable, match="public"):
        captured(write_case, "return torch.func.vmap(torch.sin)(inputs[0])", "(torch.randn(3),)")


def test_parameters_of_a_module_become_inputs(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(
        "import torch\nfrom torch import nn\ndef make():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).eval(), (torch.randn(1, 3),)\n"
    )
    (graph,) = capture_graphs(load_case(path), CPU)
    program = translate_graph(graph.module, graph.inputs, graph.parameters, {})
    assert sum(one.parameter for one in program.inputs) == 4
    as_module = Program(program.inputs, program.statements, program.outputs, as_module=True)
    assert "self." in write_source(as_module) and "nn.Parameter(" in write_source(as_module)


def chain(*statements: Statement, outputs: object, inputs: tuple[str, ...] = ("x",)) -> Program:
    made = tuple(Input.from_tensor(name, torch.randn(2, 3)) for name in inputs)
    return Program(made, statements, outputs)


def test_dead_code_goes_and_writes_that_matter_stay():
    program = chain(
        Statement("a", "method", "clone", (Ref("x"),)),
        Statement("b", "method", "sin", (Ref("y"),)),
        Statement("view", "getitem", "getitem", (Ref("a"), 0)),
        Statement("write", "method", "mul_", (Ref("view"), 2)),
        outputs=Ref("a"),
        inputs=("x", "y"),
    )
    assert [s.name for s in program.without_dead_code().statements] == ["a", "view", "write"]
    assert [one.name for one in program.without_dead_code().inputs] == ["x"]
    torch.testing.assert_close(result_of(program)[0], 2 * program.inputs[0].values[0])


def test_a_write_is_not_moved_across_a_use():
    program = chain(
        Statement("before", "operator", "*", (Ref("x"), 3)),
        Statement("write", "method", "zero_", (Ref("x"),)),
        Statement("after", "operator", "+", (Ref("before"), Ref("x"))),
        outputs=Ref("after"),
    )
    values = program.inputs[0].values.clone()
    torch.testing.assert_close(result_of(program), 3 * values)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4).transpose(1, 2),
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(1, 3).expand(4, 3),
        torch.randn(4, 9)[:, 2:5],
        torch.randn(2, 3).to(torch.bfloat16),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(2, 1, 3).transpose(0, 1),
    ],
)
def test_inputs_are_written_with_their_strides(tensor):
    from dataclasses import replace

    one = replace(Input.from_tensor("x", tensor), fill="randn")
    made = eval(input_expression(one))
    assert made.shape == tensor.shape and made.dtype == tensor.dtype
    sizes = [d for d in range(tensor.ndim) if tensor.shape[d] > 1] if tensor.numel() else []
    assert [made.stride(d) for d in sizes] == [tensor.stride(d) for d in sizes]


def test_lines_are_counted_without_imports_blanks_and_comments():
    assert count_model_lines("import torch\n\n# note\ndef f(x):\n    return x\n") == 2


def test_names_never_shadow(write_case):
    body = "sum, torch_ = inputs[0], inputs[1]\nmake = sum + torch_\nmodel = make * 2\nreturn model.sin() + make"
    program = captured(write_case, body, "(torch.randn(3), torch.randn(3))")
    tree = ast.parse(write_source(program))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert not names & {"sum", "make", "torch", "program"}


CONTEXTS = [
    "from torch.nn.attention import SDPBackend, sdpa_kernel\nx, = inputs\nwith sdpa_kernel(SDPBackend.MATH):\n"
    "    y = F.scaled_dot_product_attention(x, x, x)\nreturn y + 1",
    "x, = inputs\nwith torch.enable_grad():\n    y = x.sin()\nreturn y.cos()",
]


@pytest.mark.parametrize("body", CONTEXTS, ids=["sdpa_kernel", "grad mode"])
def test_blocks_are_written_as_blocks(write_case, body):
    program = captured(write_case, body, "(torch.randn(1, 1, 2, 4),)")
    assert [s.form for s in program.statements].count("enter") == 1 == write_source(program).count("with torch.")
    (x,) = (one.values for one in program.inputs)
    wanted = F.scaled_dot_product_attention(x, x, x) + 1 if "sdpa" in body else x.sin().cos()
    torch.testing.assert_close(result_of(program), wanted)


def test_sizes_of_any_value_are_read_off_the_inputs(write_case):
    source = (
        "import torch\ndef make():\n    return (lambda x, y: y.sum() + x.new_ones(x.shape[0] * 2)), "
        "(torch.randn(3, 4), torch.randn(5))\n"
    )
    (graph,) = capture_graphs(load_case(write_case(source)), CPU, dynamic=True)
    program = translate_graph(graph.module, graph.inputs, graph.parameters, {})
    text = write_source(program)
    assert ".size(0)" in text and "3" not in text.partition("def make")[0]
    (y,) = (one.values for one in program.inputs if len(one.shape) == 1)
    torch.testing.assert_close(result_of(program), y.sum() + torch.ones(6))


TRANSFORMED = """import torch
from torch.func import grad, vmap
def function(x, index):
    y = vmap(grad(lambda row: (row[:3].softmax(0) * row[1:]).sum() / 2))(x)
    return (-y)[:, 1:3].to(torch.float64), y[index], torch.arange(2, 8, 2), torch.full_like(x, 2.0).mT
def make():
    torch.manual_seed(0)
    return function, (torch.randn(3, 4), torch.tensor([2, 0]))
"""


def test_transforms_are_worked_out_in_the_functional_graph(write_case):
    case = load_case(write_case(TRANSFORMED))
    (graph,) = capture_functional(case, CPU)
    program = translate_graph(graph.module, graph.inputs, graph.parameters, {})
    text = write_source(program)
    assert "vmap" not in text and "torch.ops" not in text and "prims" not in text
    model, inputs = case.make()
    for one, wanted in zip(result_of(program), model(*inputs), strict=True):
        torch.testing.assert_close(one, wanted)


def test_recorded_values_are_kept_under_the_names_by_which_the_text_reads_them():
    """A cut leaves names of the compiler's such as these, and a second look at them gave one of them another name."""
    inputs = tuple(Input.from_tensor(name, torch.ones(2)) for name in ("x_1", "getitem_1"))
    program = Program(inputs, (Statement("s", "function", "torch.stack", ([Ref(i.name) for i in inputs],)),), Ref("s"))
    text = write_program(program)
    assert len(text.values) == 2 and all(f'VALUES["{name}"]' in text.source for name in text.values)


@pytest.mark.parametrize("tensor", [torch.arange(9.0)[::8][:1], torch.ones(1), torch.tensor(2 + 1j), torch.ones(0)])
def test_a_case_is_told_by_the_bits_of_its_recorded_values(tensor):
    """One element is contiguous whatever its stride is."""
    first, same, other = (CaseText("", {"a": values}) for values in (tensor, tensor.clone(), tensor + 1))
    assert first.digest != other.digest or not tensor.numel()
    assert (first.digest == same.digest) == (tensor.stride() == tensor.clone().stride())
