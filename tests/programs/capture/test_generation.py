"""Scripts that generate text with transformers, unedited: prefill and decode steps of each kind of key-value cache."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzcompile.diagnosis.oracle.judgement import have_same_bits
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.run.case import Case
from fuzzcompile.run.runs import run_eager, run_float64

pytest.importorskip("transformers")
CPU = torch.device("cpu")
# A torchvision built for another torch fails to import, and most models of transformers with it.
OPERATORS = """
import torch
try:
    import torchvision
except ImportError:
    pass
except RuntimeError:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
SIZES = "hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, \
vocab_size=97, max_position_embeddings=64, eos_token_id=None, bos_token_id=0, pad_token_id=0"
MODELS = {
    "gpt2": "transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=97, \
n_positions=64, eos_token_id=None, bos_token_id=0, pad_token_id=0))",
    "llama": f"transformers.LlamaForCausalLM(transformers.LlamaConfig({SIZES}))",
    "mistral": f"transformers.MistralForCausalLM(transformers.MistralConfig({SIZES}, sliding_window=4))",
    "gemma2": f"transformers.Gemma2ForCausalLM(transformers.Gemma2Config({SIZES}, head_dim=8, sliding_window=4))",
    "t5": "transformers.T5ForConditionalGeneration(transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, \
num_heads=4, vocab_size=97, decoder_start_token_id=0, eos_token_id=None, pad_token_id=0))",
}
HEAD = (
    "import torch, transformers\ntorch.manual_seed(0)\nmodel = {model}.eval()\ninputs = torch.randint(1, 97, (1, 5))\n"
)
GENERATE = "model.generate(inputs, max_new_tokens=6, do_sample=False)\n"
STATIC = "model.generation_config.cache_implementation = 'static'\n"
COMPILED = "model.forward = torch.compile(model.forward)\n"
# What the cache is, the model, the script, and tensors that a decode step must write.
SCRIPTS = {
    "dynamic": ("gpt2", COMPILED + GENERATE, "layers.1.keys"),
    "static": ("llama", STATIC + "model.compile()\n" + GENERATE, "layers.1.cumulative_length"),
    "sliding": ("mistral", COMPILED + GENERATE, "layers.1.values"),
    "static and sliding": ("gemma2", STATIC + COMPILED + GENERATE, "layers.0.keys"),
    "encoder and decoder": ("t5", COMPILED + GENERATE, "self_attention_cache.layers.1.keys"),
    "compiled by generate": (
        "llama",
        "c = transformers.CompileConfig()\nc._compile_all_devices = True\n"
        "model.generate(inputs, max_new_tokens=6, cache_implementation='static', compile_config=c)\n",
        "layers.1.keys",
    ),
    "loop": (
        "mistral",
        "cache = transformers.DynamicCache(config=model.config)\nstep = torch.compile(model)\n"
        "with torch.inference_mode():\n  for _ in range(4):\n"
        "    out = step(inputs, past_key_values=cache)\n    inputs = out.logits[:, -1:].argmax(-1)\n",
        "layers.1.values",
    ),
}
Loader = Callable[..., Case]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Loader]:
    exec(OPERATORS, {})

    def write(kind: str, *, call: int) -> Case:
        model, text, _ = SCRIPTS[kind]
        path = tmp_path / "script.py"
        path.write_text(HEAD.format(model=MODELS[model]) + text)
        return load(path, CPU, call=call)

    with isolate_process():
        yield write


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_decode_step_begins_with_the_cache_as_it_was(script: Loader, kind: str):
    case = script(kind, call=3)
    first, (exact, _) = run_eager(case, CPU), run_float64(case, CPU)
    assert first.failure is None
    assert have_same_bits(first, run_eager(case, CPU))
    last = f"call{len(case.calls)}." if case.calls else ""
    written = first.index_by_name()[f"{last}tensor past_key_values.{SCRIPTS[kind][2]} after the call"].value
    assert written.numel() and written.abs().max() > 0
    for value in first.values:
        if value.is_tensor and value.value.is_floating_point():
            torch.testing.assert_close(
                value.value.double(), exact.index_by_name()[value.name].value, rtol=1e-5, atol=1e-5
            )


PLANT = OPERATORS + textwrap.dedent(
    """
    from torch._inductor.decomposition import decompositions

    right = decompositions[torch.ops.aten.index_copy.default]

    def index_copy(x, dim, index, tensor):
        return right(x, dim, index - 1 if index.numel() == 1 else index, tensor)

    decompositions[torch.ops.aten.index_copy.default] = index_copy
    """
)


def judged(path: Path, plant: Path, *options: str) -> dict[str, Any]:
    """The answer of ``triage`` for one script."""
    command = ["triage", str(path), "--plant", str(plant), "--device", "cpu", "--timeout", "500", "--json", *options]
    done = subprocess.run(
        [sys.executable, "-m", "fuzzcompile", *command], capture_output=True, text=True, timeout=560, check=False
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_wrong_write_into_the_cache_is_found_in_the_decode_step_that_makes_it(tmp_path: Path):
    plant, path = tmp_path / "plant.py", tmp_path / "script.py"
    plant.write_text(PLANT)
    path.write_text(HEAD.format(model=MODELS["llama"]) + STATIC + COMPILED + GENERATE)
    assert judged(path, plant, "--call", "1")["verdict"] in ("equal", "rounding")
    report = judged(path, plant)  # the prefill is right, so that the later calls are looked at
    assert report["verdict"] == "miscompile"
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == ("decomposition", "aten.index_copy.default")
    assert report["culprit"]["site"].startswith("cache_utils.py")
