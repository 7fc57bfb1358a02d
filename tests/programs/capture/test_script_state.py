"""What a captured callable keeps between calls is set back, whatever it is kept in; what cannot be is refused."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import run_eager

CPU = torch.device("cpu")
Loader = Callable[[str], Case]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Loader]:
    def write(text: str) -> Case:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return load(path, CPU)

    with isolate_process():
        yield write


KEPT_IN = {
    "deque": "from collections import deque\nkept = deque([1])\ndef f(x): kept.append(1); return x * len(kept)",
    "namespace": "from types import SimpleNamespace as N\nkept = N(n=1)\ndef f(x): kept.n += 1; return x * kept.n",
    "class attribute": "class K: n = 1\ndef f(x): K.n += 1; return x * K.n",
    "array": "import numpy as np\nkept = np.ones(2)\ndef f(x): kept[0] += 1; return x * float(kept[0])",
    "NumPy generator": "import numpy as np\nkept = np.random.default_rng(1)\ndef f(x): return x * float(kept.random())",
    "Python generator": "import random\nkept = random.Random(1)\ndef f(x): return x * kept.random()",
    "torch generator": "kept = torch.Generator().manual_seed(1)\ndef f(x): return x * torch.rand(1, generator=kept)",
    "set": "kept = {1}\ndef f(x): kept.add(len(kept) + 1); return x * len(kept)",
    "instance": "class K:\n  def __init__(self): self.n = 1\nkept = K()\ndef f(x): kept.n += 1; return x * kept.n",
    "rebound tensor": "kept = torch.ones(1)\ndef f(x):\n  global kept\n  kept = kept + 1\n  return x * kept",
}


@pytest.mark.parametrize("kind", KEPT_IN)
def test_state_is_set_back(script: Loader, kind: str):
    case = script(f"import torch\n{KEPT_IN[kind]}\ntorch.compile(f)(torch.ones(2))\n")
    first, second, third = (run_eager(case, CPU).values[0].value for _ in range(3))
    assert torch.equal(first, second)
    assert torch.equal(first, third)


@pytest.mark.parametrize("kept", ["iter([1.0, 2.0])", "iter(range(1, 99))"])
def test_what_cannot_be_set_back_is_refused(script: Loader, kept: str):
    case = script(f"import torch\nkept = {kept}\ntorch.compile(lambda x: x * next(kept))(torch.ones(2))\n")
    with pytest.raises(CannotJudge, match="does not do the same twice"):
        triage(case, CPU)


UNWRITTEN = """
import torch
from itertools import count
kept = count(1.0)  # in place of memory that nothing has written to: other values each time, of one shape and dtype

def shortened(graph, inputs):
    return lambda *given: [value[:1] for value in graph(*given)]

torch.compile(lambda x: x.sin() * next(kept), backend=shortened)(torch.ones(3))
"""


def test_another_shape_than_all_eager_runs_have_is_a_bug_whatever_the_values(script: Loader):
    report = triage(script(UNWRITTEN), CPU)
    assert report.verdict == "metadata" and [each.finding for each in report.comparisons] == ["shape"]
    assert report.confidence == "low" and not report.eager_deterministic


def test_a_step_that_differentiates_itself_gets_no_backward_of_ours(script: Loader):
    case = script(
        """
        import torch
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        @torch.compile
        def step(x):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            return loss
        step(torch.ones(1, 2))
        """
    )
    assert not case.backward
    seen = run_eager(case, CPU)
    assert seen.failure is None
    assert {"parameter model.weight after the call", "gradient of parameter model.weight"} <= set(seen.index_by_name())


def test_an_input_that_is_a_result_may_be_written_to(script: Loader):
    case = script(
        """
        import torch
        layer = torch.nn.Linear(2, 2)
        def act(x): return x.mul_(2).relu()
        out = torch.compile(act)(layer(torch.ones(1, 2)))
        out.sum().backward()
        """
    )
    seen = run_eager(case, CPU)
    assert seen.failure is None


def test_a_view_of_a_result_may_be_written_to_and_shares_its_memory(script: Loader):
    case = script(
        """
        import torch
        def act(every, even):
            even.add_(1)
            return every * 1
        base = torch.ones(4, requires_grad=True).add(0)
        torch.compile(act)(base[:], base[::2])
        """
    )
    seen = run_eager(case, CPU)
    assert seen.failure is None
    assert seen.index_by_name()["out0"].value.tolist() == [2, 1, 2, 1]


def test_attributes_of_inputs_are_kept(script: Loader):
    case = script(
        """
        import torch
        x = torch.ones(4, 2)
        x.scale = 3.0
        torch._dynamo.mark_dynamic(x, 0)
        torch.compile(lambda x: x * x.scale)(x)
        """
    )
    (given,) = build(case, CPU).calls[0].args
    assert given.scale == 3.0
    assert given._dynamo_dynamic_indices == {0}


def test_a_decorated_class_is_compiled_when_its_instances_are_called(script: Loader):
    case = script(
        """
        import torch
        @torch.compile
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
            def forward(self, x): return self.layer(x)
        Model()(torch.ones(1, 2))
        """
    )
    target, arguments = case.make()
    assert type(target).__name__ == "Model"
    assert len(arguments.args) == 1
    assert "parameter layer.weight" in build(case, CPU).collect_tensors()


def test_copies_of_a_compiled_module_are_compiled_for_themselves(script: Loader):
    case = script(
        """
        import copy, torch
        compiled = torch.compile(torch.nn.Linear(2, 2).eval())
        assert compiled.training is False
        other = copy.deepcopy(compiled)
        torch.nn.init.constant_(other._orig_mod.weight, 7.0)
        other(torch.ones(1, 2))
        """
    )
    assert float(case.make()[0].weight[0, 0]) == 7.0


@pytest.mark.parametrize(
    "text",
    [
        "```python\nimport torch\ntorch.compile(lambda x: x)(torch.ones(1))\n```\n",
        ">>> import torch\n>>> f = torch.compile(lambda x: x)\n>>> f(torch.ones(1))\ntensor([1.])\n",
        "%matplotlib inline\n!pip list\nimport torch\ntorch.compile(lambda x: x)(torch.ones(1))\n",
        "\ufeffimport torch\ntorch.compile(lambda x: x)(torch.ones(1))\n",
        "import torch\ndef make(n): return torch.compile(lambda x: x + n)\nmake(1)(torch.ones(1))\n",
        "import torch\ndef build(): return torch.compile(lambda x: x)\nmaker = build()\nmaker(torch.ones(1))\n",
    ],
    ids=["fence", "prompts", "notebook", "byte order mark", "a function called make", "built elsewhere"],
)
def test_what_people_paste_is_read(script: Loader, text: str):
    assert run_eager(script(text), CPU).failure is None


def test_nothing_of_one_file_reaches_the_next(tmp_path: Path):
    helper = "torch.set_autocast_enabled('cpu', True)\ntorch.compiler.set_stance('force_eager')\n"
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside.py").write_text(f"VALUE = {value}\n")
        (tmp_path / name / "script.py").write_text(
            f"import torch\nfrom beside import VALUE\n{helper}"
            "torch.compile(lambda x: x @ x * VALUE)(torch.ones(2, 2))\n"
        )
    seen = []
    for name in ("one", "two"):
        with isolate_process():
            seen.append(run_eager(load(tmp_path / name / "script.py", CPU), CPU).values[0].value)
    assert [float(value[0, 0]) for value in seen] == [2.0, 4.0]
    assert not torch.is_autocast_enabled("cpu")
    compiled = torch.compile(lambda x: x + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1)), torch.tensor([2.0]))


DOUBLED = """
    import torch
    from torch.overrides import TorchFunctionMode

    class Doubles(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen = getattr(self, "seen", ()) + (func,)
            out = func(*args, **(kwargs or {}))
            return out * 2 if isinstance(out, torch.Tensor) else out

    x, mode = torch.ones(2, 3), Doubles()
    with mode:
        torch.compile(torch.Tensor.sin)(x)
"""


def test_a_mode_of_the_scripts_own_sees_its_calls_and_no_others(script: Loader):
    case = script(DOUBLED)
    (mode,) = case.modes
    seen = run_eager(case, CPU).index_by_name()
    assert torch.equal(seen["out0"].value, 2 * torch.ones(2, 3).sin())
    assert set(mode.seen) == {torch.Tensor.sin}
