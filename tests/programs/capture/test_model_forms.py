"""Models as users build them: adapters, tied weights, hooks, quantised layers, dataclasses; each call is captured."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.oracle.judgement import have_same_bits
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.run.runs import run_eager, run_float64

CPU = torch.device("cpu")
TIED = """
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8, bias=False)
            self.head.weight = self.embedding.weight
        def forward(self, ids): return self.head(torch.tanh(self.embedding(ids)))
    model = Tied()
"""
# The script, and what a run must show.
FORMS = {
    "tied weights": (
        TIED + "    torch.compile(model)(torch.arange(4)).logsumexp(-1).sum().backward()",
        {"out0", "gradient of parameter embedding.weight"},
    ),
    "hooks": (
        TIED
        + """
    seen = []
    model.head.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    compiled = torch.compile(model)
    model.head.register_forward_hook(lambda m, a, out: seen.append(out.shape))
    model.head.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    model.embedding.weight.register_hook(lambda g: g * 3)
    compiled(torch.arange(4)).logsumexp(-1).sum().backward()
    """,
        {"out0", "gradient of parameter embedding.weight", "change of len(head._forward_hooks.seen) after the call"},
    ),
    "adapter": (
        """
    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.a, self.b = base.requires_grad_(False), nn.Linear(4, 2, bias=False), nn.Linear(2, 4)
        def forward(self, x, *, scale): return self.base(x) + scale * self.b(self.a(x))
    model = nn.Sequential(nn.Linear(4, 4))
    model[0] = Adapter(model[0])
    compiled = torch.compile(model[0])
    compiled(x=torch.ones(1, 4), scale=2).sum().backward()
    """,
        {"out0", "gradient of parameter a.weight", "gradient of parameter b.weight", "gradient of parameter b.bias"},
    ),
    "8-bit weights": (
        """
    class Int8(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.register_buffer("scale", weight.abs().amax(1) / 127)
            self.register_buffer("weight", (weight / self.scale[:, None]).round().to(torch.int8))
        def forward(self, x): return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale
    torch.compile(Int8(torch.randn(3, 4)))(torch.ones(1, 4))
    """,
        {"out0"},
    ),
    "keywords in, dataclass out": (
        """
    import dataclasses
    @dataclasses.dataclass
    class Out:
        logits: torch.Tensor
        loss: torch.Tensor | None = None
        hidden: tuple = ()
    net = nn.Linear(4, 4)
    @torch.compile
    def run(batch, *, hidden=False):
        y = net(batch["x"])
        return Out(y, hidden=(y,) if hidden else ())
    run(batch={"x": torch.ones(1, 4)}, hidden=True)
    """,
        {"out0.logits", "out0.loss", "out0.hidden0"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_of_this_form_runs_alike_each_time(tmp_path: Path, form: str):
    text, names = FORMS[form]
    path = tmp_path / "script.py"
    path.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(text))
    with isolate_process():
        case = load(path, CPU)
        first, again, (exact, _) = run_eager(case, CPU), run_eager(case, CPU), run_float64(case, CPU)
    assert set(first.index_by_name()) == names
    assert have_same_bits(first, again)
    for name, value in first.index_by_name().items():
        if value.is_tensor:
            torch.testing.assert_close(value.value.double(), exact.index_by_name()[name].value, rtol=1e-5, atol=1e-6)
