"""The source: needs torch alone, holds nothing unused, formatted as a person would leave it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.fuzz.generation.rendering import render
from fuzzcompile.fuzz.generation.spec import NEAR_MISSES, Attention, Block, CaseSpec, Dims, Mask, Part
from fuzzcompile.fuzz.idioms.registry import idioms
from fuzzcompile.fuzz.stateful_programs.rows import load_definitions
from fuzzcompile.model.package_files import find_template_folder

ALLOWED = ("torch", "nn", "functional", "SDPBackend", "sdpa_kernel", *load_definitions()[0])
DIMS = Dims(batch=2, sequence=5, heads=3, head_dim=4)


def test_only_torch_is_imported_and_no_line_is_long(many: list[GeneratedCase]) -> None:
    for case in many[:200]:
        source = case.source
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert all(name.name in ALLOWED for name in node.names)
    assert sum(not fits(case) for case in many) <= 0.01 * len(many)


def fits(case: GeneratedCase) -> bool:
    """Whether no line is longer than the 100 letters of PyTorch's own sources."""
    return max(len(line) for line in case.source.splitlines()) <= 100


def test_ruff_has_nothing_to_say(tmp_path: Path, many: list[GeneratedCase]) -> None:
    pytest.importorskip("ruff")
    for index, case in enumerate(filter(fits, many[:300])):
        (tmp_path / f"case_{index}.py").write_text(render(case.spec, described=True))
    ruff = [sys.executable, "-m", "ruff"]
    checks = [  # E711, E712, F507: how Python's own types are called is no style
        [
            *ruff,
            "check",
            "--isolated",
            "--no-cache",
            "--select",
            "E,F,W,I",
            "--ignore",
            "E711,E712,F507",
            "--line-length",
            "100",
        ],
        [*ruff, "format", "--isolated", "--no-cache", "--check", "--line-length", "100"],
    ]
    for check in checks:
        result = subprocess.run([*check, str(tmp_path)], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout


def test_each_idiom_has_its_template_and_a_summary() -> None:
    for idiom in idioms():
        assert (find_template_folder() / "idioms" / f"{idiom.name}.py.j2").is_file()
        assert idiom.summary


def test_each_idiom_is_drawn(many: list[GeneratedCase]) -> None:
    drawn = {name for case in many for name in case.spec.idioms}
    known = {idiom.name for idiom in idioms()}
    assert drawn <= known
    for rare in known - drawn:
        often = Profile(near_misses=False, weights=(("plain", 0), (rare, 10_000)))
        assert any(rare in draw_case_at(0, index, often).spec.idioms for index in range(500)), rare


def test_each_near_miss_says_what_it_does() -> None:
    assert all(operator.summary.endswith(".") for operator in NEAR_MISSES)


def test_a_permuted_key_is_used_without_a_transpose() -> None:
    source = render(CaseSpec(Attention("attention_mul", key_permuted=True), DIMS))
    assert "k = k.permute(0, 2, 3, 1)" in source
    assert "scores = (q @ k) * 0.5" in source
    assert "k = torch.randn(2, 5, 3, 4)" in source
    assert "q = torch.randn(2, 3, 5, 4)" in source


def test_a_mask_of_a_wider_dtype_is_cast_back_before_the_value() -> None:
    wide = render(CaseSpec(Attention("attention_masked", mask=Mask(dtype="float64")), DIMS))
    assert "weights = scores.softmax(-1).to(v.dtype)" in wide
    narrow = render(CaseSpec(Attention("attention_masked", mask=Mask(dtype="float16")), DIMS))
    assert ".to(" not in narrow


def test_einsum_projections_hold_weights_and_biases_for_each_element_of_the_batch() -> None:
    attention = Attention("attention_div", projection="projection_einsum", layout="heads_last")
    source = render(CaseSpec(attention, DIMS))
    assert 'q = torch.einsum("bid,bdh->bih", x, self.query_weight) + self.query_bias' in source
    assert "self.query_weight = nn.Parameter(torch.randn(2, 12, 12) * 0.2887)" in source
    assert "self.query_bias = nn.Parameter(torch.randn(2, 1, 12) * 0.1)" in source


def test_norms_stand_before_or_after_the_branch() -> None:
    attention = Attention("attention_mul", projection="projection_linear", layout="heads_last")
    block = Block(norm="layer_norm", feed_forward=Part("feed_forward_gelu"))
    assert "x = x + self.attention(self.attention_norm(x))" in render(CaseSpec(attention, DIMS, block))
    after = render(CaseSpec(attention, DIMS, Block(norm="layer_norm", placement="post")))
    assert "return self.attention_norm(x + self.attention(x))" in after


def test_a_stack_passes_the_mask_on_and_starts_from_token_ids() -> None:
    attention = Attention("attention_masked", layout="heads_last", mask=Mask("causal"))
    source = render(CaseSpec(attention, DIMS, Block(layers=2), embedding="embedding_lookup"))
    assert "self.blocks = nn.ModuleList(Block() for _ in range(2))" in source
    assert "x = block(x, mask)" in source
    assert "tokens = torch.randint(0, 32, (2, 5))" in source
    assert 'mask = torch.full((1, 1, 5, 5), float("-inf")).triu(1)' in source


def test_half_precision_and_gradients_are_stated_where_the_values_are_made() -> None:
    attention = Attention("attention_mul", projection="projection_linear", layout="heads_last")
    source = render(CaseSpec(attention, DIMS, dtype="bfloat16", training=True, backward=True))
    assert "BACKWARD = True" in source
    assert "x = torch.randn(2, 5, 12, dtype=torch.bfloat16, requires_grad=True)" in source
    assert "return Model().to(torch.bfloat16).train(), (x,)" in source
