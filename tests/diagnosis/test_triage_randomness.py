"""Programs that draw random numbers: compared value by value where the streams agree, by distribution elsewhere."""

from __future__ import annotations

import planting
import pytest
import torch
import torch.nn.functional as F
from torch._inductor.fx_passes import post_grad
from watching import make_compilation

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.oracle import random_streams
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.observation import Observation, Value

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
HEAD = "import random\nimport numpy\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
MAKE = "\ndef make():\n    torch.manual_seed(0)\n    return program, (torch.randn(2, 8, 32{}),)\n"
FORWARD, TRAINED = MAKE.format(""), MAKE.format(", requires_grad=True") + "BACKWARD = True\n"
NUMPY = "def program(x):\n    return x.sin() * torch.from_numpy(numpy.random.rand(32).astype(numpy.float32))\n"
DROPOUT = "def program(x):\n    return F.dropout(x.sin(), 0.3)\n"
ATTENTION = """
def program(q):
    q = q.view(2, 2, 8, 16)
    weights = (q @ q.cos().transpose(-2, -1) / 4.0).softmax(-1)
    return F.dropout(weights, 0.2) @ q.sin()
"""


@pytest.fixture
def judged(write_case):
    def judge(source: str, **how):
        return triage(load_case(write_case(HEAD + source)), CPU, JudgeTask(**how))

    return judge


# -- streams that agree -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression, drawn",
    [
        ("F.dropout(x.sin(), 0.3)", "torch CPU"),
        ("x.sin()[:, torch.randperm(8)] + torch.rand(32) * torch.randn_like(x)", "torch CPU"),
        ("x * torch.bernoulli(torch.full_like(x, 0.3)) + torch.empty_like(x).normal_()", "torch CPU"),
        ("torch.multinomial(x[0].softmax(-1), 5)", "torch CPU"),
        ("F.scaled_dot_product_attention(x, x.cos(), x.sin(), dropout_p=0.2)", "torch CPU"),
        ("x.sin() * random.random()", "Python"),
    ],
)
def test_programs_that_draw_alike_are_compared_value_by_value(judged, expression: str, drawn: str):
    report = judged(f"def program(x):\n    return {expression}\n" + FORWARD)
    assert report.verdict in ("equal", "rounding")
    assert report.confidence == "high"
    assert report.randomness == f"draws from {drawn}; compiled draws the same numbers"


@pytest.mark.slow
def test_multi_head_attention_with_dropout_is_compared_value_by_value(judged):
    report = judged(
        "class Program(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.attention = nn.MultiheadAttention(32, 2, dropout=0.2, batch_first=True)\n"
        "    def forward(self, x):\n"
        "        return self.attention(x, x, x, need_weights=False)[0]\n"
        "program = Program().train()\n" + TRAINED
    )
    assert (report.verdict, report.confidence) == ("rounding", "high")
    assert "same numbers" in report.randomness


def test_a_program_that_draws_nothing_says_so_and_costs_nothing_more(judged):
    report = judged("def program(x):\n    return F.dropout(x.sin(), 0.3, training=False)\n" + FORWARD, thorough=True)
    assert report.randomness is None
    assert report.cost.compiles == 1


def test_wrong_values_beside_an_aligned_stream_are_found(judged):
    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, planting.sin_off):
        report = judged(DROPOUT + FORWARD)
    assert (report.verdict, report.confidence) == ("miscompile", "high")
    assert report.attribution.culprit.rewrite == "sin_off"


# -- streams that do not ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [FORWARD, TRAINED], ids=["forward", "trained"])
def test_numpy_numbers_cannot_be_aligned_and_are_no_bug(judged, make: str):
    report = judged(NUMPY + make)
    assert (report.verdict, report.confidence) == ("rounding", "low")
    assert "not aligned" in report.randomness
    assert "16 seeds" in report.randomness
    assert {c.finding for c in report.comparisons} <= {"same", "close"}


@pytest.mark.slow
def test_what_does_not_hang_on_the_numbers_is_judged_as_ever(judged):
    source = NUMPY.replace("return x.sin()", "return x.exp(), x.sin()")
    with planting.replacement(post_grad.pass_patterns[1]):
        clean = judged(source + FORWARD)
    with planting.handler(post_grad.pass_patterns[1], planting.aten.exp.default, exp_off):
        wrong = judged(source + FORWARD)
    assert not clean.is_bug
    assert wrong.is_bug
    assert {c.name: c.finding for c in wrong.comparisons} == {"out0": "far", "out1": "close"}


@pytest.mark.slow
def test_another_distribution_is_a_bug_with_a_proved_culprit(judged):
    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, sin_far_off):
        report = judged(NUMPY + FORWARD)
    assert report.verdict == "miscompile"
    assert "differs over seeds" in report.detail
    assert (report.attribution.culprit.rewrite, report.attribution.culprit.necessary) == ("sin_far_off", True)


def exp_off(match, x):
    match.replace_by_example(lambda x: torch.exp(x) * 1.01, [x])


def sin_far_off(match, x):
    match.replace_by_example(lambda x: torch.sin(x) * 1.5, [x])


# -- the compiler's own stream ------------------------------------------------------------------------


@pytest.mark.parametrize("make", [FORWARD, pytest.param(TRAINED, marks=pytest.mark.slow)], ids=["forward", "trained"])
@pytest.mark.parametrize(
    "program",
    [
        DROPOUT,
        "def program(x):\n    return torch.rand(2, 1, 1) * F.dropout(x.bfloat16(), 0.5).float() + torch.randn(32)\n",
        pytest.param(ATTENTION, marks=pytest.mark.slow),
    ],
    ids=["dropout", "several draws", "attention"],
)
def test_clean_programs_stay_clean_under_the_compilers_own_stream(judged, program: str, make: str):
    report = judged(program + make, thorough=True)
    assert not report.is_bug, report.detail
    assert "fallback_random=False) no difference" in report.randomness


@pytest.mark.slow
def test_a_gradient_that_no_seed_moves_by_more_than_rounding_still_depends_on_the_numbers(judged):
    """In none of eager's samples is a weight of the one row dropped whose gradient is larger than rounding."""
    report = judged("""
OPTIONS = {"fallback_random": False}
BACKWARD = True
def program(q, k, v):
    weights = F.dropout(((q @ k.transpose(-2, -1)) * 0.3536).softmax(-1), 0.1)
    return weights @ v

def make():
    torch.manual_seed(465019)
    return program, tuple(torch.randn(1, 3, 2, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
""")
    assert report.verdict == "rounding"
    assert {each.detail for each in report.comparisons} == {"random: the same distribution over seeds"}


@pytest.mark.slow
def test_a_wrong_pattern_that_fires_only_there_is_found_and_proved(judged):
    with planting.attention_scale(3.0):
        quick = judged(ATTENTION + TRAINED)
        report = judged(ATTENTION + TRAINED, thorough=True)
    assert not quick.is_bug
    assert report.is_bug
    assert report.signature == "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
    assert report.attribution.culprit.necessary is True
    assert "own stream" in report.randomness


def test_the_mask_of_the_gradient_must_be_that_of_the_output(write_case):
    case = load_case(write_case(HEAD + DROPOUT + TRAINED))
    initialise_patterns(CPU)
    trial = Experiments(case, CPU, make_compilation(fallback_random=False)).trial()
    assert trial.sampled == ("out0", "gradient of input0")
    assert not trial.judgement.verdict.is_bug


def test_runs_under_seeds_begin_from_the_same_buffers(judged):
    report = judged(
        "class Program(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('count', torch.zeros(()))\n"
        "    def forward(self, x):\n"
        "        self.count.add_(1)\n"
        "        return self.count * 2, x * torch.from_numpy(numpy.random.rand(32).astype(numpy.float32))\n"
        "program = Program()\n" + FORWARD
    )
    assert not report.is_bug
    findings = {c.name: c.finding for c in report.comparisons}
    assert findings["out0"] == findings["buffer count after the call"] == "same"
    assert findings["out1"] == "close"


# -- the statistics -----------------------------------------------------------------------------------

VALUES = torch.randn(64, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.01, 5, 64)


def runs(draw, count: int = random_streams.SEEDS) -> list[random_streams.SampledRun]:
    return [random_streams.sample_run(draw()) for _ in range(count)]


def dropped(p: float = 0.3, scale: float = 1.0, values: torch.Tensor = VALUES, second: float | None = None):
    """Dropout and its gradient; with ``second`` the gradient has a mask of its own."""

    def draw() -> Observation:
        mask = (torch.rand(64) > p) / (1 - p)
        other = mask if second is None else (torch.rand(64) > second) / (1 - second)
        return Observation((Value("out0", values * mask * scale, "output"), Value("gradient", other, "gradient")))

    return draw


def plain(draw):
    return lambda: Observation((Value("out0", draw(), "output"),))


def test_u_has_its_exact_distribution():
    assert random_streams.rank_p_value([1, 2], [3, 4]) == pytest.approx(2 / 6)
    assert random_streams.rank_p_value(range(16), range(16, 32)) == pytest.approx(2 / 601080390)
    assert random_streams.rank_p_value([1] * 16, [1] * 16) == 1.0


def test_runs_from_one_distribution_do_not_differ():
    torch.manual_seed(0)
    draws = [
        dropped(),
        plain(lambda: torch.randn(5).exp().exp()),
        plain(lambda: torch.rand(1)),
        plain(lambda: torch.randperm(10)),
        plain(lambda: torch.ones(500) * torch.randn(1)),
    ]
    found = [random_streams.find_differences(runs(draw), runs(draw)) for draw in draws * 20]
    assert not any(found)


@pytest.mark.parametrize(
    "wrong, test",
    [
        (dropped(p=0.5), "zeros"),
        (dropped(scale=2.0), "RMS"),
        (dropped(scale=1.3), "single elements"),
        (dropped(values=VALUES.flip(0)), "single elements"),
        (dropped(second=0.3), "mask that it shares with out0"),
    ],
    ids=[
        "another p",
        "another scale",
        "a little of another scale",
        "right numbers in wrong places",
        "another mask in backward",
    ],
)
def test_runs_from_another_distribution_differ(wrong, test: str):
    torch.manual_seed(0)
    found = random_streams.find_differences(runs(dropped()), runs(wrong))
    assert any(test in one.test for one in found)


def test_rounding_makes_no_difference_however_regular():
    torch.manual_seed(0)
    one, other = runs(dropped()), runs(dropped(scale=1 + 1e-5))
    assert random_streams.find_differences(one, other) == []


def test_constants_do_not_vary():
    assert random_streams.find_varying(runs(plain(lambda: F.relu(VALUES)))) == ()
    assert random_streams.find_varying(runs(plain(lambda: torch.rand(2)))) == ("out0",)


def test_what_varies_on_either_side_or_in_any_bit_depends_on_random_numbers():
    constant, rare = plain(lambda: VALUES), runs(plain(lambda: VALUES * (torch.arange(64) != 3)), 1)
    assert random_streams.find_varying(runs(constant), [*runs(constant), *rare]) == ("out0",)
    assert random_streams.find_differences(runs(constant), [*runs(constant, 15), *rare]) == []
    floors = {"out0": 2 * float(VALUES.abs().max())}
    counted = [random_streams.sample_run(dropped()(), floors) for _ in range(random_streams.SEEDS)]
    assert {run["out0"].summaries[0] for run in counted} == {1.0}
    assert "out0" in random_streams.find_varying(counted)


def test_what_rounding_leaves_of_a_zero_is_no_difference():
    """The gradient of a key's bias is zero by symmetry: two implementations leave other remains of it."""

    def remains(size: float) -> Observation:
        values = torch.cat([VALUES, torch.randn(32) * size])
        return Observation((Value("gradient", values * (torch.rand(96) > 0.3), "gradient"),))

    eager = Observation((Value("gradient", torch.zeros(96), "gradient"),))
    moved = Observation((Value("gradient", torch.full((96,), 1e-8), "gradient"),))
    floors = random_streams.measure_floors(eager, [moved])
    expected = [remains(1e-8) for _ in range(random_streams.SEEDS)]
    actual = [remains(0.0) for _ in range(random_streams.SEEDS)]
    assert random_streams.find_differences(
        *([random_streams.sample_run(run) for run in sample] for sample in (expected, actual))
    )
    assert not random_streams.find_differences(
        *([random_streams.sample_run(run, floors) for run in sample] for sample in (expected, actual))
    )


@pytest.mark.slow
def test_a_check_that_only_eagers_numbers_bring_is_missing_for_users(judged):
    """With eager's numbers, the compiler calls a kernel that checks its deviations; else it decomposes the call."""
    source = "def program(x):\n    return torch.normal(torch.zeros_like(x), x)\n"
    report = judged(source + FORWARD)
    assert (report.verdict, report.attribution.culprit.family) == ("accepts_invalid", "normal")
    assert "fallback_random=False" in report.detail
    refused = judged(
        "def program(x):\n    return torch.multinomial(x - 10, 2)\n" + FORWARD.replace("(2, 8, 32)", "(2, 8)")
    )
    assert refused.verdict == "invalid"


@pytest.mark.slow
def test_another_mask_of_the_same_call_is_no_change_of_meaning(judged):
    """Fused attention makes its dropout anew, on scores that lie otherwise in memory, and so draws another mask."""
    source = (
        'OPTIONS = {"fallback_random": False}\nBACKWARD = True\n\ndef program(q, k, v):\n'
        "    weights = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)\n    return F.dropout(weights, 0.1) @ v\n\n"
        "def make():\n    torch.manual_seed(0)\n    return program, tuple(\n"
        "        torch.randn(3, 6, 15, 2, dtype=torch.float16, requires_grad=True) for _ in range(3)\n    )\n"
    )
    report = judged(source)
    assert not report.is_bug


@pytest.mark.slow
def test_every_seed_begins_with_the_state_that_make_sets(judged):
    """Between the calls, the case changes a global and an attribute: no seed may begin with what the last one left."""
    source = (
        'ACTIVATIONS = {"act": torch.tanh}\n\nclass Model(nn.Module):\n    def __init__(self):\n'
        "        super().__init__()\n        self.scale = 2.0\n\n    def forward(self, x):\n"
        '        return ACTIVATIONS["act"](x) * self.scale, torch.rand(8)\n\n'
        "def make():\n    torch.manual_seed(0)\n    ACTIVATIONS['act'] = torch.tanh\n"
        "    return Model(), (torch.linspace(-2, 2, 64),)\n\n"
        "def run(model, inputs):\n    first = model(*inputs)\n    ACTIVATIONS['act'] = torch.cos\n"
        "    model.scale = 3.0\n    return first, model(*inputs)\n"
    )
    report = judged(source, thorough=True)
    assert not report.is_bug, report.detail
    assert "16 seeds" in (report.randomness or "") or "no difference either" in (report.randomness or "")


UNMOVED = """
OPTIONS = {"fallback_random": True}

class State:
    pass

STATE = State()
word = "relu"

def program(x, y):
    x = x * "-".join(sorted((*word, "x"))).index("x")
    parts = [x * factor for factor in STATE.factors]
    x = x + parts[-1] if parts else x.sin()
    noise = x.repeat(2, 1, 1).norm(2, -3)
    noise.normal_()
    y.mul_(y)
    return x, torch.bernoulli((noise + 100).sigmoid())

def run(model, inputs):
    global word
    first = model(*inputs)
    word = "sigmoid"
    second = model(*inputs)
    STATE.factors.clear()
    return first, second, model(*inputs)

def make():
    global word
    torch.manual_seed(473861)
    word, STATE.factors = "relu", [1.5, 0.5, -1.0]
    return program, (torch.randn(1, 9, 24, dtype=torch.float16), torch.randn((9, 1)))
"""


@pytest.mark.slow
def test_values_without_random_numbers_in_them_keep_their_float64_reference(judged):
    """The float64 run draws other numbers than eager's; what does not depend on them is rounding in float16."""
    report = judged(UNMOVED)
    assert (report.verdict, report.confidence) == ("rounding", "low"), report.detail


def test_a_dtype_is_sure_whatever_is_drawn(judged):
    """#194547: the mean's dtype, which is the result's, is promoted with that of the deviation."""
    program = "def program(x):\n    return torch.normal(x.half(), x.abs())\n"
    report = judged(program + FORWARD, thorough=True)
    if not report.is_bug:
        pytest.skip(f"torch {torch.__version__} gives the dtype of eager mode")
    assert (report.verdict, report.confidence) == ("metadata", "high")
