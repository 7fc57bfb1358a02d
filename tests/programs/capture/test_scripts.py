"""Scripts that call torch.compile, run up to the call that becomes the case. Nothing is compiled here."""

from __future__ import annotations

import os
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.model import hints
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.run.case import Arguments, Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import observe, run_eager, run_float64

CPU = torch.device("cpu")
Loader = Callable[..., Case]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Loader]:
    def write(
        text: str, *, call: int | None = None, device: torch.device = CPU, arguments: tuple[str, ...] = ()
    ) -> Case:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return load(replace(read_case_file(path), arguments=arguments), device, call=call)

    with isolate_process():
        yield write


def made(case: Case) -> tuple[object, Arguments]:
    target, arguments = case.make()
    assert isinstance(arguments, Arguments)
    return target, arguments


FORMS = {
    "function": "def f(x): return x + 1\ntorch.compile(f)(X)",
    "lambda": "torch.compile(lambda x: x + 1)(X)",
    "decorator": "@torch.compile\ndef f(x): return x + 1\nf(X)",
    "decorator with arguments": "@torch.compile(dynamic=False)\ndef f(x): return x + 1\nf(X)",
    "module": "m = nn.Linear(3, 3)\ntorch.compile(m)(X)",
    "module.compile": "m = nn.Linear(3, 3)\nm.compile()\nm(X)",
    "method": "m = nn.Linear(3, 3)\nm.forward = torch.compile(m.forward)\nm(X)",
    "bound method": "m = nn.Linear(3, 3)\ntorch.compile(m.forward)(X)",
    "decorated method": ("class M(nn.Module):\n  @torch.compile\n  def forward(self, x): return x + 1\nM()(X)"),
    "partial": "import functools\nfunctools.partial(torch.compile, dynamic=False)(lambda x: x + 1)(X)",
    "imported": "from torch import compile as c\nc(lambda x: x + 1)(X)",
    "older entry": "import torch._dynamo as d\nd.optimize('inductor')(lambda x: x + 1)(X)",
    "callable object": "class C:\n  def __call__(self, x): return x + 1\ntorch.compile(C())(X)",
    "under main": "def main():\n  torch.compile(lambda x: x + 1)(X)\nif __name__ == '__main__':\n  main()",
    "twice compiled": "torch.compile(torch.compile(lambda x: x + 1))(X)",
    "swallowing": "try:\n  torch.compile(lambda x: x + 1)(X)\nexcept:\n  pass",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_torch_compile_is_captured(script: Loader, form: str):
    case = script(f"import torch\nfrom torch import nn\nX = torch.ones(2, 3)\n{FORMS[form]}\n")
    program = build(case, CPU)
    assert callable(program.model)
    assert not run_eager(case, CPU).failure
    tensors = [value for value in program.calls[0].args if isinstance(value, torch.Tensor)]
    assert len(tensors) == 1
    assert torch.equal(tensors[0], torch.ones(2, 3))


def test_settings_of_the_compile_are_those_of_the_case(script: Loader):
    case = script(
        """
        import torch, torch._inductor.config as inductor
        import torch._dynamo
        inductor.max_fusion_size = 7
        torch._dynamo.config.capture_scalar_outputs = True
        f = torch.compile(lambda x: x, options={"epilogue_fusion": False}, dynamic=True, fullgraph=True)
        f(torch.ones(1))
        """
    )
    settings = case.settings
    assert settings.options == {"epilogue_fusion": False}
    assert settings.inductor == {"max_fusion_size": 7}
    assert settings.dynamo == {"capture_scalar_outputs": True}
    assert (settings.dynamic, settings.fullgraph, settings.backend) == (True, True, "inductor")
    assert torch._inductor.config.max_fusion_size != 7  # it is the case's, not this process's


def test_backend_and_mode_are_kept(script: Loader):
    case = script(
        """
        import torch
        def mine(graph, inputs): return graph.forward
        torch.compile(lambda x: x, backend=mine)(torch.ones(1))
        """
    )
    assert callable(case.settings.backend)
    assert script("import torch\ntorch.compile(lambda x: x, mode='max-autotune')(torch.ones(1))").settings.mode == (
        "max-autotune"
    )


@pytest.mark.parametrize(
    ("context", "grad"),
    [("torch.no_grad()", "no_grad"), ("torch.inference_mode()", "inference_mode"), ("torch.enable_grad()", "enabled")],
)
def test_grad_mode_is_that_of_the_call(script: Loader, context: str, grad: str):
    assert script(f"import torch\nf = torch.compile(lambda x: x)\nwith {context}:\n  f(torch.ones(1))").grad == grad


def test_backward_is_compared_where_the_script_differentiates(script: Loader):
    text = "import torch\nm = torch.nn.Linear(2, 2)\ny = torch.compile(m)(torch.ones(1, 2))\n"
    assert not script(text).backward
    assert script(text + "y.sum().backward()\n").backward
    assert not script("import torch\ny = torch.compile(lambda x: x)(torch.ones(1))\ny.backward()\n").backward


def test_autocast_and_flags_surround_every_run(script: Loader):
    case = script(
        """
        import torch
        torch.set_default_dtype(torch.float64)
        torch.backends.mkldnn.enabled = False
        f = torch.compile(lambda x: (x @ x, torch.zeros(2), torch.backends.mkldnn.enabled))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            f(torch.ones(2, 2, dtype=torch.float32))
        """
    )
    torch.set_default_dtype(torch.float32)
    torch.backends.mkldnn.enabled = True
    product, zeros, onednn = run_eager(case, CPU).values
    assert product.value.dtype == torch.bfloat16
    assert zeros.value.dtype == torch.float64
    assert onednn.value is False
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.mkldnn.enabled


def test_random_numbers_are_those_of_the_script(script: Loader):
    case = script(
        """
        import random, torch
        torch.manual_seed(5); random.seed(5)
        torch.rand(3)
        torch.compile(lambda x: x + torch.rand(4) + random.random())(torch.zeros(4))
        """
    )
    torch.manual_seed(5)
    random.seed(5)
    torch.rand(3)
    expected = torch.rand(4) + random.random()
    for _ in range(2):
        assert torch.equal(run_eager(case, CPU).values[0].value, expected)


def test_what_the_callable_closes_over_is_fresh_in_every_run(script: Loader):
    case = script(
        """
        import torch
        norm = torch.nn.BatchNorm1d(3)
        seen, table, count = [], {"calls": 0}, 0
        def step(x):
            global count
            count += 1
            seen.append(count)
            table["calls"] += 1
            return norm(x), count, len(seen), table["calls"]
        torch.compile(step)(torch.arange(6.0).view(2, 3))
        """
    )
    runs = [run_eager(case, CPU) for _ in range(2)]
    for run in runs:
        assert [value.value for value in run.values[1:4]] == [1, 1, 1]
        named = {value.name for value in run.values if value.kind == "mutation"}
        assert "buffer norm.running_mean after the call" in named
    assert torch.equal(runs[0].values[0].value, runs[1].values[0].value)


def test_an_optimizer_step_runs_in_float64_too(script: Loader):
    case = script(
        """
        import torch
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.Adam(model.parameters())
        @torch.compile
        def train(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        for _ in range(3):
            train(torch.ones(2, 3))
        """,
        call=2,
    )
    eager, (exact, _) = run_eager(case, CPU), run_float64(case, CPU)
    again = run_eager(case, CPU)
    name = "parameter model.weight after the call"
    assert torch.equal(eager.index_by_name()[name].value, again.index_by_name()[name].value)
    assert exact.index_by_name()[name].value.dtype == torch.float64
    torch.testing.assert_close(
        eager.index_by_name()[name].value.double(), exact.index_by_name()[name].value, rtol=1e-5, atol=1e-6
    )


def test_arguments_are_kept_as_they_are_at_the_call(script: Loader):
    case = script(
        """
        import torch
        base = torch.arange(12.0)
        views = base[2:8].view(2, 3).t(), base[::2], base.new_ones(1).expand(4)
        torch.compile(lambda a, *, pair: a + 1)(views[0], pair=(views[1], views[2]))
        base.zero_()
        """
    )
    _, arguments = made(case)
    a, (b, c) = arguments.args[0], arguments.kwargs["pair"]
    assert (a.stride(), b.stride(), c.stride()) == ((1, 3), (2,), (0,))
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert a[0, 0] == 2.0


def test_a_module_given_as_an_argument_is_state(script: Loader):
    case = script(
        """
        import torch
        model = torch.nn.BatchNorm1d(2)
        torch.compile(lambda module, x: module(x))(model, torch.randn(4, 2))
        """
    )
    first, second = run_eager(case, CPU), run_eager(case, CPU)
    names = [value.name for value in first.values]
    assert any("running_mean" in name for name in names)
    for one, other in zip(first.values, second.values, strict=True):
        assert torch.equal(one.value, other.value)


def test_later_calls_come_with_the_earlier_ones_of_other_shapes(script: Loader):
    text = """
        import torch
        f = torch.compile(lambda x: x + 1)
        g = torch.compile(lambda x: x - 1)
        for size in (2, 2, 3):
            f(torch.ones(size))
        g(torch.ones(9))
        """
    assert [c.args[0].shape[0] for c in build(script(text, call=3), CPU).calls] == [2, 3]
    assert [c.args[0].shape[0] for c in build(script(text, call=4), CPU).calls] == [9]
    with pytest.raises(CaseError, match=r"makes 4 calls .*so there is no call 5"):
        script(text, call=5)


def test_what_was_compiled_is_listed(script: Loader):
    case = script(
        """
        import torch
        def one(x): return x
        def two(x): return x
        f = torch.compile(one)
        g = torch.compile(two)
        f(torch.ones(1))
        torch.compile(lambda x: x)(torch.ones(2))
        """
    )
    judged, others, later = case.notes
    assert "call 1" in judged and "one (line 5)" in judged
    assert "two (line 6)" in others
    assert "line 8" in later


def test_a_script_for_cuda_runs_on_the_cpu(script: Loader):
    case = script(
        """
        import torch
        assert torch.cuda.is_available()
        device = torch.device("cuda", 0)
        class M(torch.nn.Module):
            def forward(self, x):
                return x + torch.ones(3, device="cuda:0") + torch.ones(3).cuda()
        torch.cuda.synchronize()
        start = torch.cuda.Event(enable_timing=True)
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            torch.compile(M().to(device).cuda())(torch.ones(3, device=f"cuda:{0}"))
        """
    )
    assert run_eager(case, CPU).values[0].value.tolist() == [3.0, 3.0, 3.0]
    assert any("another kind of device" in note for note in case.notes)
    assert not torch.cuda.is_available() or torch.cuda.device_count()


OWN = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def grow(x):
    return torch.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y + x), (torch.tensor(0), torch.zeros(2)))

model = torch.nn.Linear(2, 2)
q = torch.ones(1, 1, 16, 4)
flex_attention(q, q, q, block_mask=create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu"))
grow(torch.ones(2))
model.compile()
CALL
"""


@pytest.mark.parametrize(
    ("call", "judged"), [("model(torch.ones(2))", "Linear"), ("torch.compile(grow)(torch.ones(2))", "grow")]
)
def test_what_torch_compiles_of_its_own_is_no_call_of_the_script(script: Loader, call: str, judged: str):
    notes = script(OWN.replace("CALL", call)).notes
    assert notes[0].startswith(f"judged: call 1 of the script, {judged} ")


def test_printing_arguments_and_exits_do_no_harm(script: Loader, capfd: pytest.CaptureFixture[str]):
    case = script(
        """
        import os, subprocess, sys, torch
        print("hello", sys.argv)
        os.write(1, b"below Python\\n")
        assert len(sys.argv) == 1 and sys.argv[0].endswith("script.py")
        torch.compile(lambda x: x)(torch.ones(1))
        sys.exit(3)
        """
    )
    assert made(case)
    assert capfd.readouterr().out == ""
    assert sys.modules["__main__"].__file__ == str(case.path.resolve())


def test_the_process_is_set_back_after_the_case(tmp_path: Path):
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys, torch\nos.environ['SEEN_BY_NOBODY'] = '1'\nos.chdir('/')\nsys.path.append('/nowhere')\n"
        "torch.set_default_dtype(torch.float64)\ntorch.compile(lambda x: x)(torch.ones(1))\n"
    )
    before = (sys.modules["__main__"], list(sys.argv), list(sys.path), Path.cwd(), torch.compile)
    with isolate_process():
        load(path, CPU)
    assert before == (sys.modules["__main__"], list(sys.argv), list(sys.path), Path.cwd(), torch.compile)
    assert "SEEN_BY_NOBODY" not in os.environ
    assert torch.get_default_dtype() == torch.float32


def test_a_script_that_deletes_itself_is_still_a_case(script: Loader):
    case = script(
        """
        import os, torch
        os.remove(__file__)
        torch.compile(lambda x: x)(torch.ones(1))
        """
    )
    assert not case.path.exists()
    assert not run_eager(case, CPU).failure


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os\nos.environ['TORCHINDUCTOR_FREEZING'] = '1'\nimport torch", "`export TORCHINDUCTOR_FREEZING=1`"),
        ("import os, torch\nos.environ['TORCH_LOGS'] = '+inductor'", "TORCH_LOGS after it imports torch"),
        ("import os, torch\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp'; os.environ['MINE'] = '1'", None),
    ],
)
def test_a_variable_that_torch_has_read_already_is_pointed_out(script: Loader, program: str, said: str | None):
    case = script(f"{program}\ntorch.compile(lambda x: x)(torch.ones(1))\n")
    late = [note for note in case.notes if "without effect" in note]
    assert [said in note for note in late] == [True] if said is not None else not late


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\nprint('compile')\n", "never calls torch.compile"),
        ("x = 1\n", "no make"),
        ("import torch\ntorch.compile(lambda x: x)\n", r"compiles .*\(line 2\) but never calls it"),
        ("import torch\n1 / 0\ntorch.compile\n", "raises ZeroDivisionError: division by zero in line 2"),
        (
            "import no_such_module_at_all\nimport torch\ntorch.compile\n",
            r"needs the module 'no_such_module_at_all' in line 1.*`python -m pip install no_such_module_at_all`",
        ),
        ("import torch, sys\nsys.exit('no GPU here')\ntorch.compile\n", r"exits \(no GPU here\) before it calls"),
        ("import torch, sys\nsys.exit(0)\ntorch.compile\n", r"exits \(status 0\) before it calls torch.compile"),
        ("def f(:\n torch.compile\n", "not valid Python"),
    ],
)
def test_what_is_no_case_is_said_in_one_sentence(script: Loader, text: str, message: str):
    with pytest.raises(CaseError, match=message) as raised:
        script(text)
    assert len(str(raised.value).splitlines()) == 1


def test_a_case_file_has_no_calls_to_choose_from(script: Loader):
    with pytest.raises(CaseError, match="--call is for scripts"):
        script("def make(): ...\n", call=2)


TAKES_STEPS = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--data", default="no_such_folder/data.pt")
parser.add_argument("--compile", action="store_true")
given = parser.parse_args()
model = torch.nn.Linear(2, 2)
x = torch.load(given.data) if given.steps > 1 else torch.ones(1, 2)
if given.compile:
    model = torch.compile(model)
model(x)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"wants other arguments \(.*required: --steps\).*`fuzzcompile triage \S*script.py -- \.\.\.`"),
        (("--steps", "x"), r"argument --steps: invalid int value: 'x'"),
        (("--steps", "1"), r"unless its arguments ask for it: `.*script.py -- --steps 1 --compile`"),
        (("--steps", "3"), r"needs 'no_such_folder/data.pt' in line 9, which is not there: name another in its arg"),
    ],
)
def test_arguments_that_a_script_lacks_are_named_with_the_command(script: Loader, arguments, message, monkeypatch):
    monkeypatch.setattr(hints, "find_program", lambda: ["fuzzcompile"])
    with pytest.raises(CaseError, match=message) as raised:
        script(TAKES_STEPS, arguments=arguments)
    assert "fuzzcompile triage" in str(raised.value)


def test_a_script_gets_the_arguments_that_follow_its_name(script: Loader):
    assert made(script(TAKES_STEPS, arguments=("--steps", "1", "--compile")))
    with pytest.raises(CaseError, match="a case file, which takes no arguments"):
        script("def make(): ...\n", arguments=("--steps", "1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "open('data/train.bin')",
            "needs 'data/train.bin' in line 2, which is not there: put it there, or make random",
        ),
        (
            "import urllib.error as e\ntry: raise e.URLError('no')\nexcept OSError: raise ValueError",
            "wants to download",
        ),
        (
            "import torch.no_such_part",
            r"needs the module 'torch.no_such_part' in line 2.*install another version of torch",
        ),
        ("open('script.py')", r"it is beside the script: `cd \S+ && \S.* triage script.py`"),
        (
            "import sys\nsys.argv[1]",
            r"IndexError: .*fix the script, or give it other arguments after `--`: `.* -- \.\.\.`",
        ),
        ("from .other import x", r"module of a package.*run_module\(\"script\", run_name=\"__main__\"\)"),
    ],
)
def test_what_a_script_lacks_is_named_with_what_to_do(script: Loader, text: str, message: str, monkeypatch):
    monkeypatch.chdir("/")
    with pytest.raises(CaseError, match=message) as raised:
        script(f"import torch\n{text}\ntorch.compile(torch.sin)(torch.ones(1))\n")
    assert len(str(raised.value).splitlines()) == 1


def test_a_module_of_the_project_is_found_in_a_folder_above(tmp_path: Path):
    path = tmp_path / "project" / "scripts" / "train.py"
    (tmp_path / "project" / "layers_of_mine").mkdir(parents=True)
    path.parent.mkdir()
    path.write_text("import torch\nfrom layers_of_mine import a\ntorch.compile(a)(1)\n")
    with isolate_process(), pytest.raises(CaseError, match=r"which is not installed: it is in \S+: `PYTHONPATH=\S+ "):
        load(path, CPU)


def test_a_library_is_told_that_there_is_no_gpu(script: Loader, tmp_path: Path):
    """It has a way of its own without one, on which no call of CUDA is made."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "asks_for_a_gpu.py").write_text("import torch\nFOUND = torch.cuda.is_available()\n")
    text = "import sys, torch\nsys.path.append({!r})\nimport asks_for_a_gpu\nassert torch.cuda.is_available()\n"
    text += "assert asks_for_a_gpu.FOUND == {}\ntorch.compile(torch.sin)(torch.ones(1))\n"
    assert made(script(text.format(str(library), torch.cuda.is_available())))


def test_a_tracker_logs_no_run_of_a_script_that_is_judged(script: Loader, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tmp_path / "wandb.py").write_text("import os\nassert os.environ['WANDB_MODE'] == 'disabled'\n")
    case = script("import torch, wandb\ntorch.compile(torch.sin)(torch.ones(1))\n")
    assert any(note.startswith("wandb logs nothing while the script is judged") for note in case.notes)


def test_compiled_modules_keep_names_and_attributes(script: Loader):
    case = script(
        """
        import torch
        class M(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
                self.scale = 3
            def forward(self, x): return self.layer(x) * self.scale
        compiled = torch.compile(M())
        assert list(compiled.state_dict()) == ["_orig_mod.layer.weight", "_orig_mod.layer.bias"]
        assert isinstance(compiled, torch.nn.Module)
        compiled.scale = 4
        assert compiled.eval().training is False
        compiled.load_state_dict(compiled.state_dict())
        compiled(torch.ones(1, 2))
        """
    )
    target, _ = made(case)
    assert isinstance(target, nn.Module)
    assert (target.scale, target.training) == (4, False)  # type: ignore[comparison-overlap]


def test_compiled_parts_inside_a_captured_model_call_through(script: Loader):
    case = script(
        """
        import torch
        class M(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.compile(torch.nn.Linear(2, 2))
                self.helper = torch.compile(lambda x: x * 2)
            def forward(self, x): return self.helper(self.inner(x))
        torch.compile(M())(torch.ones(1, 2))
        """
    )
    program = build(case, CPU)
    observation = observe(case, program, torch.compile(program.model, backend="eager"))
    torch._dynamo.reset()
    assert not observation.failure
    assert torch.equal(observation.values[0].value, run_eager(case, CPU).values[0].value)
