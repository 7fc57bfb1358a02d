"""Faults behind the graph passes are named and proved: lowerings, fusion, generated code, the wrapper."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import behind_plants as plants
import pytest
import torch
from behind_plants import aten
from torch._inductor.codegen import cpp
from torch._inductor.virtualized import V
from watching import make_compilation

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.kernels.kernel_proofs import search_behind_graphs
from fuzzcompile.diagnosis.stages.stage_table import BACKEND_STAGES
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
MOST_COMPILES = 8


@dataclass(frozen=True, eq=False)
class Fault:
    """A planted fault: a body over ``x`` and ``y``, the plant, and what must be named."""

    name: str
    body: str
    install: Callable[[], contextlib.AbstractContextManager]
    stage: str
    rewrite: str
    settings: str = ""
    shapes: str = "(8, 33), (8, 33)"
    details: dict = field(default_factory=dict)
    proved: bool = True

    def __str__(self) -> str:
        return self.name


def lowered(target, wrong):
    return lambda: plants.lowering(target, wrong)


PRODUCT = "torch.exp(x) * y - torch.sin(x)"
TRAINED = 'GRAD, BACKWARD = "enabled", True'
SCALAR = 'OPTIONS = {"cpp.simdlen": 1}'
FAULTS = [
    Fault("pointwise", PRODUCT, lowered(aten.exp.default, plants.scaled), "lowering", "aten.exp.default"),
    Fault("lowering that raises", PRODUCT, lowered(aten.sin.default, plants.raising), "lowering", "aten.sin.default"),
    Fault("vectors", PRODUCT, lambda: plants.wrong_vector("exp"), "codegen", "CppVecOverrides.exp",
          details={"vectorised": True, "operators": ["exp"]}),
    Fault("scalars", PRODUCT, plants.wrong_scalar, "codegen", "CppOverrides.exp", settings=SCALAR,
          details={"vectorised": False}),
    Fault("vectorised reduction", "(x * y).sum(-1) + 1", plants.wrong_vector_sum, "codegen",
          "vectorised reduction:sum"),
    Fault("C++ that does not compile", PRODUCT, plants.no_such_vector, "codegen", "CppVecOverrides.sin"),
    Fault("a shape that a later lowering cannot use", "x.sum(1, keepdim=True).permute(1, 0) * y[:1, :8]",
          lowered(aten.sum.dim_IntList, plants.dimension_dropped), "lowering", "aten.sum.dim_IntList",
          details={"operator": "permute"}),
    Fault("C++ compiler", "(x * (y * 1e14)).softmax(-1)", plants.contracted, "codegen",
          "enable_floating_point_contract_flag"),
    Fault("loop split", "x + y.unsqueeze(-1).expand(-1, 4, 16).reshape(x.shape)", plants.loops_cut_short, "codegen",
          "CppScheduling.try_loop_split", shapes="(4, 64), (4, 4)"),
    Fault("wrapper", "(x.exp() * y, x.sin() + y)", plants.first_output_twice, "runtime", "wrapper", proved=False),
]  # fmt: skip
BEFORE_CODE = [
    Fault("constants of a loop", "torch.tensor(7, dtype=torch.uint8).neg() + x", plants.folded_without_width,
          "lowering", "IndexPropagation"),
    Fault("an operator that became a part of an index", "x + torch.remainder(torch.arange(33) - 7, 5)",
          plants.remainders_as_in_c, "lowering", "IndexPropagation"),
    pytest.param(
        Fault("places in the order of loops",
              "torch.argmax(torch.nn.functional.adaptive_avg_pool1d(x.transpose(0, 1), 2))", contextlib.nullcontext,
              "lowering", "aten.argmax.default", shapes="(4, 4, 3), (1,)"),
        marks=pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="later ones have it right"),
    ),
    Fault("an index that occurs twice", "x.index_put_((y.long(),), x[y.long()] * 2)", plants.values_unrealized,
          "lowering", "aten.index_put_.default", shapes="(2, 3), (2,)"),
]  # fmt: skip
VIEW = Fault("part of a tensor that a library reads", "x[:, 16:] @ y", plants.offsets_of_views_lost, "codegen",
             "aten.slice.Tensor", shapes="(8, 32), (16, 4)")  # fmt: skip
LOST_WRITE = Fault(
    "write of a custom operator",
    "(lambda z: (torch.ops.fuzzcompile_tests.twice(z), z * y)[1])(x.exp())",
    plants.copies_written,
    "lowering",
    "fuzzcompile_tests.twice.default",
    proved=False,
)
UNREPEATED = Fault(
    "memory of an operator that has none of its own",
    "(lambda z: torch.as_strided(z, (3, 2), z.stride()) + 1)(x[:1, :1].tile((3, 2)))",
    lowered(aten.repeat.default, plants.expanded),
    "lowering",
    "aten.repeat.default",
)
INLINED = Fault(
    "common subexpression of one loop",
    "torch.sin(x - y) + torch.cos(y - x) * (y - x)",
    plants.differences_confused,
    "codegen",
    "fusion",
)
READ_LATE = Fault(
    "memory read by the loop that writes it",
    "x.copy_(x.flip(0) * 2)",
    plants.readers_forgotten,
    "lowering",
    "in-place write",
    shapes="(64,), (64,)",
    details={"stored": "prims.rev.default"},
)
TINY_DIVISOR = Fault(
    "divisor that float32 rounds",
    "x % 1e-30",
    plants.no_remainder,
    "codegen",
    "CppVecOverrides.remainder",
)
CONFUSED = Fault(
    "common subexpression",
    "(torch.sin(x - y), torch.cos(y - x) * (y - x))",
    plants.differences_confused,
    "codegen",
    "fusion",
)
TWO_CAUSES = Fault(
    "two lowerings",
    "(torch.erf(x) * 2, torch.exp(y) - 1)",
    lambda: plants.lowerings_of(aten.erf.default, aten.exp.default),
    "lowering",
    "aten.erf.default",
)
BAD_DIMENSION = Fault(
    "lowering that raises inside torch",
    "torch.amax(x * y, -1) + 1",
    lowered(aten.amax.default, plants.no_such_dimension),
    "lowering",
    "aten.amax.default",
)
REFUSED_SUM = Fault(
    "second reduction that does not compile",
    "((x * y).sum(-1), (x + y).sum(-1))",
    plants.no_second_vector_sum,
    "codegen",
    "vectorised reduction:sum",
)
ATTENTION = Fault(
    "library called wrongly",
    "torch.nn.functional.scaled_dot_product_attention(x, y, x * y)",
    lowered(aten._scaled_dot_product_flash_attention_for_cpu.default, plants.called_otherwise),
    "lowering",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    shapes="(2, 2, 6, 16), (2, 2, 6, 16)",
)
MORE_FAULTS = [
    Fault("backward", "torch.tanh(x * y).sum(-1)", lowered(aten.mul.Tensor, plants.in_backward), "lowering",
          "aten.mul.Tensor", settings=TRAINED, details={"graph": "backward"}),
    Fault("index out of bounds", "torch.gather(x, 1, (y * 0).long() + 5) * 2",
          lowered(aten.gather.default, plants.out_of_bounds), "lowering", "aten.gather.default"),
    Fault("cat", "torch.cat([x * 2, y + 1], 1).relu()", lowered(aten.cat.default, plants.last_negated), "lowering",
          "aten.cat.default"),
    Fault("one of several results", "torch.nn.functional.layer_norm(x * y, [33])",
          lowered(aten.var_mean.correction, plants.first_result_scaled), "lowering", "aten.var_mean.correction"),
    Fault("several uses", "torch.nn.functional.gelu(x).sum(-1) + torch.nn.functional.gelu(y * 2).amax(-1)",
          lowered(aten.erf.default, plants.scaled), "lowering", "aten.erf.default"),
    Fault("reduction", "torch.amax(x * y, -1) + 1", lowered(aten.amax.default, plants.of_magnitudes), "lowering",
          "aten.amax.default"),
    Fault("part of softmax", "torch.softmax(x + y, -1) @ y.T", lowered(aten.sub.Tensor, plants.scaled), "lowering",
          "aten.sub.Tensor"),
    Fault("index", "torch.gather(x, 1, (y * 0).long() + 5) * 2", lowered(aten.gather.default, plants.neighbours),
          "lowering", "aten.gather.default"),
    Fault("arithmetic of vectors", "torch.tanh(x * y).sum(-1)", plants.wrong_difference, "codegen",
          "CppVecOverrides.sub", settings=TRAINED),
    Fault("scalars that do not compile", PRODUCT, plants.no_such_scalar, "codegen", "CppOverrides.sin",
          settings=SCALAR),
    Fault("fusion", "(x.mul_(2.0), x.add_(x.flip(0) + y))[1]", plants.always_fused, "scheduler", "fusion",
          shapes="(64,), (64,)"),
]  # fmt: skip


def experiments_of(folder: Path, fault: Fault) -> Experiments:
    path = folder / "case.py"
    path.write_text(
        f"import torch\n{fault.settings}\ndef make():\n    torch.manual_seed(0)\n"
        f"    def program(x, y):\n        return {fault.body}\n"
        f"    return program, tuple(torch.randn(s, requires_grad={'BACKWARD' in fault.settings}) for s in"
        f" ({fault.shapes}))\n"
    )
    initialise_patterns(CPU)
    return Experiments(load_case(path), CPU, Compilation())


def attributed(folder: Path, fault: Fault) -> tuple[Attribution | None, int]:
    """The attribution, and the compiles that it took after the fault was seen."""
    with fault.install():
        experiments = experiments_of(folder, fault)
        trial = experiments.trial()
        assert trial.judgement.verdict.is_bug
        before = experiments.counts.compiles
        ablator = Ablator(experiments, trial)
        found = search_behind_graphs(BACKEND_STAGES, ablator)
    if found is not None:
        found.ablations = ablator.ablations
    return found, experiments.counts.compiles - before


@pytest.fixture(scope="module")
def attribution_of(tmp_path_factory: pytest.TempPathFactory):
    """Attributes a fault, once."""
    return functools.cache(lambda fault: attributed(tmp_path_factory.mktemp("case"), fault))


@pytest.fixture(
    scope="module",
    params=[*FAULTS, *(pytest.param(fault, marks=pytest.mark.slow) for fault in MORE_FAULTS)],
    ids=str,
)
def found(request: pytest.FixtureRequest, attribution_of):
    return request.param, *attribution_of(request.param)


def test_the_fault_is_named(found):
    fault, attribution, _ = found
    assert attribution is not None
    culprit = attribution.culprit
    assert culprit is not None
    assert (culprit.stage, culprit.rewrite, culprit.pass_name) == (fault.stage, fault.rewrite, None)
    assert {key: culprit.details[key] for key in fault.details} == fault.details
    assert "." not in culprit.family


def test_it_is_proved_in_few_compiles(found):
    fault, attribution, compiles = found
    assert compiles <= MOST_COMPILES
    assert attribution.culprit.necessary is (True if fault.proved else None)
    assert attribution.culprit.confidence == ("high" if fault.proved else "low")
    assert any(ablation.repairs for ablation in attribution.ablations) is fault.proved


def test_the_reader_sees_where(found):
    fault, attribution, _ = found
    culprit = attribution.culprit
    if fault.stage in ("lowering", "codegen") and "reduction" not in fault.rewrite:
        assert culprit.source == "behind_plants.py"
    if fault.stage != "runtime" and fault.rewrite != "aten.cat.default":  # the pass that makes that cat keeps no line
        assert culprit.site.startswith("case.py:6 #")
    culprit.to_json()


@pytest.mark.slow
def test_loops_of_other_ranges_are_left_apart_alone(attribution_of):
    first, second = (f"({each} - {each}.amax(-1, keepdim=True)).exp()" for each in "xy")
    body = f"(lambda x, y: x / y.sum(-1, keepdim=True) + y / x.sum(-1, keepdim=True))({first}, {second})"
    name = "CppScheduling.codegen_outer_loop_node"
    attribution, _ = attribution_of(Fault("outer loops", body, plants.local_buffers_shared, "codegen", name))
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.source) == ("codegen", name, "behind_plants.py")
    assert culprit.necessary is True


def test_lowering_and_vectors_of_one_operator_are_told_apart(attribution_of):
    one, other = (next(fault for fault in FAULTS if fault.name == name) for name in ("pointwise", "vectors"))
    assert one.body == other.body
    first, second = (attribution_of(fault)[0].culprit for fault in (one, other))
    assert (first.stage, first.rewrite) == ("lowering", "aten.exp.default")
    assert (second.stage, second.rewrite) == ("codegen", "CppVecOverrides.exp")
    assert first.signature != second.signature


@pytest.mark.slow
def test_code_that_is_wrong_only_beside_other_code_is_no_operators_fault(attribution_of):
    attribution, compiles = attribution_of(CONFUSED)
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.family) == ("codegen", "fusion", "sub")
    assert (culprit.necessary, culprit.confidence) == (True, "low")
    assert {"sub", "cos"} <= set(culprit.details["operators"])
    assert compiles <= MOST_COMPILES


@pytest.mark.slow
@pytest.mark.parametrize("fault", [INLINED, READ_LATE], ids=str)
def test_one_loop_that_is_right_where_its_operators_stand_alone_is_proved_by_that(attribution_of, fault):
    attribution, compiles = attribution_of(fault)
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite) == (fault.stage, fault.rewrite)
    assert {key: culprit.details[key] for key in fault.details} == fault.details
    assert culprit.necessary is True
    assert compiles <= MOST_COMPILES + 2  # of code for loops that are right apart, much is asked


@pytest.mark.slow
@pytest.mark.parametrize("fault", BEFORE_CODE, ids=str)
def test_loops_that_are_wrong_before_they_are_code_are_their_builders_fault(attribution_of, fault):
    attribution, compiles = attribution_of(fault)
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == (fault.stage, fault.rewrite, True)
    assert culprit.source is not None
    assert compiles <= MOST_COMPILES


@pytest.mark.parametrize("fault", [VIEW, LOST_WRITE, UNREPEATED], ids=str)
def test_what_a_right_operator_reads_is_not_its_fault(attribution_of, fault):
    """Of a view that the generated program makes wrongly, a write that its reader never sees, and memory too short."""
    attribution, compiles = attribution_of(fault)
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite) == (fault.stage, fault.rewrite)
    assert culprit.necessary is (True if fault.proved else None)
    assert culprit.confidence == ("high" if fault.proved else "low")
    assert compiles <= MOST_COMPILES


WRITTEN = """
import torch

def written(x):
    full = torch.full([3], 7.0)
    torch.ops.fuzzcompile_tests.twice(full)
    return full * x

def make():
    return written, (torch.arange(3.0),)
"""


@pytest.mark.slow
def test_a_write_that_a_lowering_loses_is_not_the_fault_of_what_writes_in_place(write_case):
    """The pass without which nothing is written in place is necessary too, and its graph is right."""
    with plants.writes_forgotten():
        report = triage(load_case(write_case(WRITTEN)), CPU).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == (LOST_WRITE.stage, LOST_WRITE.rewrite)
    assert culprit["necessary"] and report["confidence"] == "high"


@pytest.mark.slow
def test_the_rounding_of_a_constant_in_the_ir_makes_no_lowering_wrong(attribution_of):
    culprit = attribution_of(TINY_DIVISOR)[0].culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("codegen", "CppVecOverrides.remainder", True)


@pytest.mark.slow
def test_independent_causes_are_contributors_and_no_one_alone_is_necessary(attribution_of):
    attribution, _ = attribution_of(TWO_CAUSES)
    named = [attribution.culprit, *attribution.contributors]
    assert [(one.rewrite, one.family) for one in named] == [("aten.erf.default", "erf"), ("aten.exp.default", "exp")]
    assert [(one.necessary, one.siblings) for one in named] == [(False, ()), (False, ())]


def test_the_line_of_torch_that_raised_is_shown(attribution_of):
    culprit = attribution_of(BAD_DIMENSION)[0].culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("lowering", "aten.amax.default", True)
    assert culprit.source == "torch/_inductor/lowering.py"
    lines = (Path(torch.__file__).parents[1] / culprit.source).read_text().splitlines()
    assert any(word in lines[culprit.line - 1] for word in ("raise", "assert"))


PERMUTED = Fault(
    "permuted", "x.exp().view(2, 4, 33).permute(1, 2, 0).contiguous() + 1", plants.permutation_not_inverted, "lowering",
    "aten.permute.default",
)  # fmt: skip


def test_the_lowering_of_a_view_is_proved_by_the_copy_that_aten_makes(attribution_of):
    attribution, _ = attribution_of(PERMUTED)
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == (PERMUTED.stage, PERMUTED.rewrite, True)


@pytest.mark.slow
def test_a_library_called_wrongly_goes_by_the_operator_not_by_the_choice_of_its_result(attribution_of):
    culprit = attribution_of(ATTENTION)[0].culprit
    assert (culprit.stage, culprit.rewrite) == (ATTENTION.stage, ATTENTION.rewrite)
    assert culprit.family == "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.slow
def test_the_statement_that_the_compiler_refuses_names_the_reduction(attribution_of):
    culprit = attribution_of(REFUSED_SUM)[0].culprit
    assert (culprit.stage, culprit.rewrite, culprit.family) == ("codegen", "vectorised reduction:sum", "reduction:sum")
    assert (culprit.necessary, culprit.details["vectorised"]) == (True, True)


def test_a_fault_of_a_graph_pass_is_left_alone(tmp_path: Path):
    from planting import PLANTS

    plant = next(plant for plant in PLANTS.values() if plant.name == "pass after the gradients")
    initialise_patterns(CPU)
    path = tmp_path / "case.py"
    path.write_text(f"import programs\nmake = programs.{plant.program.__name__}\n")
    with plant.install():
        experiments = Experiments(load_case(path), CPU, make_compilation(config=plant.config))
        trial = experiments.trial()
        assert trial.judgement.verdict.is_bug
        assert search_behind_graphs(BACKEND_STAGES, Ablator(experiments, trial)) is None
    assert experiments.counts.compiles == 1


TEMPLATED = """
import torch
from torch import nn

OPTIONS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
CONFIG = {"inductor": {"freezing": True}}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(16, 32)

    def forward(self, x):
        return torch.relu(self.line(x))

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(9, 16),)
"""


@pytest.mark.slow
def test_a_template_of_products_that_is_wrong_is_named(write_case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels leave out the last term of every sum."""
    import torch._inductor.compile_fx  # before its templates, which it imports in a cycle
    from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate

    original = CppGemmTemplate.render

    def shorter(template: Any, *args: Any, **kwargs: Any) -> str:
        return re.sub(r"(int64_t K = )(\d+)", lambda m: f"{m[1]}{int(m[2]) - 1}", original(template, *args, **kwargs))

    monkeypatch.setattr(CppGemmTemplate, "render", shorter)
    report = triage(load_case(write_case(TEMPLATED)), torch.device("cpu"))
    culprit = report.attribution.culprit
    assert report.verdict == "miscompile"
    assert culprit is not None
    assert (culprit.stage, culprit.family, culprit.necessary) == ("codegen", "CppGemmTemplate", True)


TWICE = """
import torch

BACKWARD = True

def program(x):
    first, second = torch.nn.functional.gelu(x).chunk(2, -1)
    return second.amax(), first

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 3, 2, requires_grad=True),)
"""


@pytest.mark.slow
def test_an_operator_that_rounds_otherwise_in_vectors_than_in_scalars_is_named(write_case):
    """A maximum of what vectors gave, whose gradient looks for it among what scalars gave: no kernel is wrong."""
    with plants.rounded_vector("erf"):
        report = triage(load_case(write_case(TWICE)), CPU).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("nonfinite", "codegen", "CppVecOverrides.erf")
    assert culprit["necessary"] and "erf in scalars" in [ablation["toggle"] for ablation in report["ablations"]]


PLACES = """
import torch

DYNAMIC = True

def make():
    return (lambda x: torch.argmin(torch.adaptive_avg_pool1d(x, 2))), (-torch.arange(30.0).double().view(2, 5, 3),)
"""


@pytest.mark.slow
def test_a_place_is_computed_by_a_reduction_whatever_is_stored(write_case, monkeypatch: pytest.MonkeyPatch):
    """Of several loops, the place counts the last alone; where what is reduced is stored, there is but one."""
    combine = cpp.reduction_combine

    def miscounted(*given: object, index: object = None, **named: object) -> object:
        return combine(*given, index=V.kernel.itervars[-1] if index is not None else None, **named)

    monkeypatch.setattr(cpp, "reduction_combine", miscounted)
    culprit = triage(load_case(write_case(PLACES)), CPU).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("codegen", "scalar reduction:argmin")
    assert culprit["necessary"] and culprit["details"]["stored"] == "aten._adaptive_avg_pool2d.default"


WHERE_NOTHING_LOOKS_WRONG = [
    # The lowering hands on its argument, which is written to later: every value is right when it is made.
    ("y = x[torch.arange(8)]\n    x.mul_(2)\n    return y", lambda: plants.lowering(aten.index.Tensor, plants.unmoved),
     "lowering", "aten.index.Tensor"),
    # The pass says of arguments that they need no copies, and leaves the graph as it is.
    ("y = x.clone()\n    torch.ops.fuzzcompile_tests.twice(y)\n    return y, x.sin()",
     plants.copies_left_out, "post_grad", "reinplace_inplaceable_ops"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("body", "plant", "stage", "rewrite"), WHERE_NOTHING_LOOKS_WRONG, ids=["lowering", "pass"])
def test_where_everything_looks_right_what_a_compile_is_right_without_is_named(tmp_path, body, plant, stage, rewrite):
    path = tmp_path / "case.py"
    path.write_text(
        f"import torch\n\n\ndef f(x):\n    {body}\n\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return f, (torch.randn(8, 3),)\n"
    )
    with plant():
        culprit = triage(load_case(path), device=CPU).attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == (stage, rewrite, True)
