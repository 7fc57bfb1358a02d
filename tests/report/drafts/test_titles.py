"""Titles name the user's operation and what goes wrong with it, for every verdict and many causes."""

from __future__ import annotations

import pytest
from findings import CASE, CULPRIT, SHOWN, WRONG, facts
from triage_reports import output

from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.titles import LONGEST, title
from fuzzcompile.report.wording import make_claim, summary

STRIDE = output(finding="stride", detail="eager (4, 2, 1), compiled (4, 1, 2)", view_raises=True)
OTHER_STRIDE = output(finding="stride", detail="eager (4, 1, 2), compiled (4, 2, 1)", view_raises=False)
DTYPE = output(finding="dtype", detail="eager torch.bfloat16, compiled torch.float32")
SHAPE = output(finding="shape", detail="eager (2, 1), compiled (2,)")
GRAD = output(finding="requires_grad", detail="eager True, compiled False")
GAINED = output(finding="alias", detail="eager: out0 is a copy; compiled: shares memory with input0")
OF_OUTPUT = output(finding="alias", detail="eager: out0 is a copy; compiled: shares memory with out1")
LOST = output(finding="alias", detail="eager: out0 shares memory with input0; compiled: a copy")
MOVED = output(finding="alias", detail="eager: out0 shares memory with a only; compiled: shares memory with b")
NOT_FINITE = output(finding="nonfinite", at={"eager": 1.5, "compiled": None, "non_finite": "nan"}, non_finite="nan")
INFINITE = output(finding="nonfinite", at={"eager": 1.5, "compiled": None, "non_finite": "-inf"}, non_finite="-inf")
OTHERWISE = output(finding="nonfinite", at={"eager": None, "compiled": None, "non_finite": "inf"}, non_finite="inf")
ZERO = output(finding="far", at={"eager": 2.5, "compiled": 0.0}, max_abs_error_compiled=2.5)


ADD = "torch.add(x, a @ b, alpha=0.5)"


def claimed(finding: IssueFacts) -> str:
    """What follows the subject in the first sentence, of which a title may leave out parts."""
    claim = make_claim(finding)
    return f"{claim.does}{claim.under}{claim.condition}{claim.then}"


@pytest.mark.parametrize(
    ("verdict", "entry", "detail", "effect"),
    [
        ("miscompile", WRONG, "", "gives wrong values under torch.compile"),
        ("miscompile", ZERO, "", "gives 0 under torch.compile instead of 2.5"),
        ("wrong_gradient", WRONG, "", "gives wrong gradients under torch.compile"),
        ("nonfinite", NOT_FINITE, "", "returns NaN under torch.compile, where eager is finite"),
        ("nonfinite", INFINITE, "", "returns -inf under torch.compile, where eager is finite"),
        ("nonfinite", OTHERWISE, "", "returns other infinities or NaNs than eager under torch.compile"),
        ("precision_loss", WRONG, "", "loses precision under torch.compile"),
        ("metadata", STRIDE, "", "returns a non-contiguous tensor under torch.compile, so `.view()` raises"),
        ("metadata", OTHER_STRIDE, "", "returns a tensor with other strides under torch.compile than in eager"),
        ("metadata", DTYPE, "", "returns torch.float32 under torch.compile instead of torch.bfloat16"),
        ("metadata", SHAPE, "", "returns shape (2,) under torch.compile instead of (2, 1)"),
        ("metadata", GRAD, "", "returns a tensor with requires_grad=False under torch.compile instead of True"),
        ("metadata", None, "eager returns a tuple", "returns another dtype or shape under torch.compile than in eager"),
        ("aliasing", GAINED, "", "shares memory with its input under torch.compile"),
        ("aliasing", OF_OUTPUT, "", "shares memory with another tensor under torch.compile"),
        ("aliasing", LOST, "", "returns a copy under torch.compile, where eager returns a view"),
        ("aliasing", MOVED, "", "shares other memory under torch.compile than in eager"),
        ("aliasing", output(finding="missing"), "", "changes other tensors than in eager under torch.compile"),
        ("compile_error", None, "CppCompileError: no match", "fails to compile: CppCompileError: no match"),
        ("compile_error", None, "TypeError: a Vec<float>", "fails to compile: `TypeError: a Vec<float>`"),
        ("runtime_error", None, "RuntimeError: bad view", "raises under torch.compile: RuntimeError: bad view"),
        (
            "accepts_invalid",
            None,
            "eager raises ValueError: alpha must be positive; compiled runs",
            "is accepted under torch.compile, where eager raises ValueError",
        ),
        ("crash", None, "", "crashes the process under torch.compile"),
        ("stale", WRONG, "", "runs a stale graph"),
        ("timeout", None, "", "does not finish under torch.compile, where eager does"),
        ("nondeterministic", WRONG, "", "gives other results from run to run under torch.compile"),
    ],
)
def test_a_title_says_what_goes_wrong(verdict, entry, detail, effect):
    entries = [entry] if entry else []
    finding = facts(verdict, *entries, detail=detail, cause=None, evidence={"outputs": entries})
    assert claimed(finding) == effect
    assert len(title(finding)) <= LONGEST and title(finding).startswith(("`torch.add", "A compiled program"))


def test_every_verdict_that_is_a_bug_has_words_of_its_own():
    titles = {title(facts(str(verdict), WRONG, cause=None)) for verdict in Verdict if verdict.is_bug}
    assert len(titles) == sum(verdict.is_bug for verdict in Verdict)
    assert not [text for text in titles if "behaves differently" in text]


@pytest.mark.parametrize(
    ("detail", "effect"),
    [
        ("only eager has it", "does not change its input under torch.compile, but eager does"),
        ("only compiled has it", "changes its input under torch.compile, which eager leaves as it is"),
    ],
)
@pytest.mark.parametrize("verdict", ["miscompile", "aliasing"])
def test_an_input_that_only_one_run_changes_says_more_than_what_follows_from_it(verdict, detail, effect):
    after = output("input0 after the call", finding="missing", detail=detail)
    told = summary(facts(verdict, WRONG, after))
    assert told.startswith(
        f"A program with `torch.add(x, a @ b, alpha=0.5)` {effect}".replace("torch.compile", "`torch.compile`")
    )
    state = {**after, "name": "attribute count after the call"}
    assert effect.replace("input", "state") == claimed(facts(verdict, WRONG, state))


SOFTMAX = "scores.softmax(-2) @ v"


@pytest.mark.parametrize(
    ("expression", "fingerprint", "before", "after", "effect"),
    [
        ("F.elu(x, alpha=2.0)", "elu(alpha)", "alpha=2.0", "alpha=1.0", "`F.elu(x, alpha=2.0)` ignores `alpha`"),
        ("x.std(correction=0)", "std(correction)", "x.std(correction=0)", "x.std()", "ignores `correction`"),
        (SOFTMAX, "softmax(dim)", "softmax(-2)", "softmax(-1)", f"`{SOFTMAX}` is computed as `scores.softmax(-1) @ v`"),
        ("g(x)", "softmax(dim)", "y.softmax(-2)", "y.softmax(-1)", "ignores `dim` of `softmax`"),
        ("torch.matmul(y, x)", "softmax(dim)", "dim=-2", "dim=-1", "`torch.matmul(y, x)` ignores `dim` of `softmax`"),
    ],
)
def test_what_is_ignored_is_named(expression, fingerprint, before, after, effect):
    cause = {"fingerprint": fingerprint, "kind": "argument", "before": before, "after": after, "computes": "neighbour"}
    plain = f"def f(x, y):\n    return {expression}"
    finding = facts(cause=cause, shown={**SHOWN, "expression": expression, "plain": plain})
    assert f"{effect} under `torch.compile`" in summary(finding) and "wrong" not in title(finding)


def test_one_argument_of_a_long_call_is_named_by_its_keyword():
    before, after = (f"torch.gru(x, h, [w, u, w, u], False, 2, 1.0, {value}, False, False)" for value in (True, False))
    cause = {"fingerprint": "gru(training)", "kind": "argument", "before": before, "after": after}
    cause |= {"still": "fires", "computes": "neighbour"}
    told = facts(cause=cause, shown={**SHOWN, "expression": before, "plain": before})
    assert title(told) == "`torch.gru` ignores `training` under torch.compile"
    said = "With `training=False` instead of `training=True` the result is correct; compiled, it is the same with both."
    assert said in summary(told)


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        ("torch.cat([split_1, split_0])", "torch.cat([split_0, split_1])", "ignores the order of its `tensors`"),
        ("torch.cat([split_1, split_0])", "torch.cat([split_0])", "gives wrong values"),
    ],
)
def test_names_that_the_reader_does_not_see_are_not_told(before, after, effect):
    cause = {"fingerprint": "cat(tensors)", "kind": "argument", "before": before, "after": after}
    text = title(
        facts(cause={**cause, "computes": "neighbour"}, shown={**SHOWN, "expression": "torch.cat(x.split(2))"})
    )
    assert text == f"`torch.cat(x.split(2))` {effect} under torch.compile"


@pytest.mark.parametrize(
    ("kind", "before", "condition"),
    [
        ("layout", "torch.randn(2, 3).transpose(0, 1)", " for a transposed input"),
        ("layout", "k.permute(1, 0)", " for a permuted input"),
        ("layout", "x.expand(3, 4)", " for an expanded input"),
        ("layout", "torch.randn(4)[::2]", " for a sliced input"),
        ("layout", "torch.as_strided(x, s, t)", " for a non-contiguous input"),
        ("sharing", "x", " when one tensor is used twice"),
        ("sharing", "x.mul_(2)", ""),
        ("layout", "k with strides (1, 4)", " for a non-contiguous input"),
        ("dtype", "bfloat16 and float16", " for bfloat16 and float16"),
        ("dtype", "mask of bool", " for bool"),
        ("size of 1", "x of shape (1, 2)", " for a size of 1"),
        ("size", "size of 3", ""),
    ],
)
def test_on_which_inputs(kind, before, condition):
    cause = {"fingerprint": kind, "kind": kind.split()[0], "before": before, "after": "x", "computes": "neighbour"}
    assert claimed(facts(cause=cause)) == f"gives wrong values under torch.compile{condition}"
    assert title(facts(cause=cause)).endswith(condition)


def test_the_layout_of_a_value_inside_the_program_is_not_called_an_inputs():
    cause = {
        "fingerprint": "layout",
        "kind": "layout",
        "before": "d.unfold(0, 2, 1)",
        "after": "d.unfold(0, 2, 1).clone()",
    }
    assert "input" not in title(facts(cause=cause))


def test_a_condition_stands_before_what_follows_from_it():
    cause = {"fingerprint": "dtype", "kind": "dtype", "before": "mask of bool", "after": "mask of float32"}
    text = title(facts("compile_error", cause=cause, detail="TypeError: no"))
    assert text == "`torch.add(x, a @ b, alpha=0.5)` fails to compile for bool: TypeError: no"
    text = claimed(facts("metadata", STRIDE, cause={**cause, "kind": "layout", "before": "x.permute(1, 0)"}))
    assert text.endswith("tensor under torch.compile for a permuted input, so `.view()` raises")


def test_the_message_of_the_cpp_compiler_says_more_than_that_it_failed():
    log = "CppCompileError: C++ compile error\nk.cpp:3:5: error: no match for 'at::vec::clamp'\nk.cpp:4:5: error: also"
    finding = facts("compile_error", cause=None, detail="CppCompileError: C++", shown={**SHOWN, "error_log": log})
    assert claimed(finding).endswith("fails to compile: CppCompileError: no match for 'clamp'")
    assert title(finding) == "`torch.add` fails to compile: CppCompileError: no match for 'clamp'"


def test_a_title_names_no_pass_and_no_device():
    text = title(facts(cause=None))
    assert "addmm" not in text and "pass_pattern" not in text and "cpu" not in text and "[" not in text


def test_an_old_finding_is_called_by_the_code_that_was_matched_or_reduced():
    lines = [{"code": "y = a @ b", "nodes": []}, {"code": "return torch.sub(x, y, alpha=3)", "nodes": []}]
    matched = {**CULPRIT, "details": {"matched": lines}}
    assert title(facts(shown={}, cause=None, culprit=matched)).startswith("`torch.sub(x, y, alpha=3)` gives")
    assert title(facts(shown={}, cause=None)).startswith("`torch.add(x, a @ b, alpha=0.5)` gives")
    decomposed = {**CULPRIT, "rewrite": "aten.trace.default"}
    source = CASE.replace("    return", "    t = torch.trace(a)\n    return")
    text = title(facts(shown={}, cause=None, culprit=decomposed, reproducer=source))
    assert text.startswith("`torch.trace(a)` gives")
    assert title(facts(shown={}, cause=None, culprit=decomposed, reproducer=None)).startswith("`aten.trace` gives")


@pytest.mark.parametrize(
    ("detail", "expression", "expected"),
    [
        ("AssertionError: " + "very " * 100, "x.sin()", "`x.sin()` fails to compile: AssertionError: very very"),
        ("Outer: InnerError: f.cpp:17: no list " + "at " * 30, "x.sin()", "`x.sin()` fails to compile: InnerError: no"),
        ("AssertionError: " + "<x> " * 100, "f(" * 35, "A program with `torch.add` and `@` fails to compile: Assert"),
        ("AnErrorOfManyLetters" * 4 + "Error: why", "x.sin()", "`x.sin()` fails to compile"),
    ],
)  # fmt: skip
def test_nothing_is_cut_off_within_a_word(detail, expression, expected):
    text = title(
        facts("compile_error", detail=detail, cause=None, shown={**SHOWN, "expression": expression}, culprit=None)
    )
    assert len(text) <= LONGEST and "…" not in text and text.count("`") % 2 == 0
    assert text.startswith(expected) and text.split()[-1] in ("compile", *detail.split())


@pytest.mark.parametrize(
    ("constants", "tag"),
    [
        ("", ""),
        ("OPTIONS = {'fallback_random': True}\n", ""),
        ("OPTIONS = {'max_autotune': True}\n", "[opt-in max_autotune] "),
        ("OPTIONS = {'post_grad_fusion_options': {'normalization_pass': {}, 'cat_pass': {}}}\n", "[opt-in cat_pass] "),
        ("MODE = 'reduce-overhead'\n", "[opt-in reduce-overhead] "),
        ("DYNAMIC = True\n", ""),
    ],
)  # fmt: skip
def test_what_is_off_by_default_stands_in_front(constants, tag):
    source = CASE.replace("import torch\n", f"import torch\n{constants}", 1)
    finding = facts(cause=None, reproducer=source)
    assert title(finding).startswith(f"{tag}`torch.add")


@pytest.mark.parametrize(
    ("plain", "subject"),
    [
        ("def f(x):\n    y = x.unfold(0, 2, 1)\n    y.add_(1)\n    return (y,)", "A program with `unfold` and `add_`"),
        (
            "def f(x):\n    return torch.vmap(lambda y: y.sin(), x)",
            "A program with `torch.vmap` and `sin`",
        ),
        ("def f(x):\n    return x", "A program"),
    ],
)
def test_a_program_is_called_by_its_operations_where_no_expression_stands_for_it(plain, subject):
    finding = facts(
        "wrong_gradient", WRONG, cause=None, culprit=None, shown={**SHOWN, "plain": plain, "expression": "(y,)"}
    )
    assert title(finding).startswith(f"{subject} gives wrong gradients")


def test_a_construct_of_python_is_called_by_its_name():
    culprit = {"stage": "dynamo", "rewrite": "set ^= set", "family": "set ^= set"}
    assert title(facts(cause=None, culprit=culprit, shown={}, reproducer=None)).startswith(
        "`set ^= set` gives wrong values"
    )


def test_what_a_family_of_rules_is_about():
    finding = facts(cause=None, culprit={**CULPRIT, "family": "sfdp"}, shown={**SHOWN, "expression": "weights @ v"})
    assert title(finding) == "Attention gives wrong values under torch.compile"


def test_a_report_without_anything_has_a_title():
    assert title(IssueFacts({"verdict": "crash"}, None, {})) == "A program crashes the process under torch.compile"


def test_the_title_of_a_stale_graph_says_what_changed():
    culprit = {"stage": "dynamo", "details": {"kind": "guard", "between_calls": ["self.scale: 2.0, then 3.0"]}}
    said = title(facts("stale", WRONG, cause=None, culprit=culprit))
    assert said == "A compiled program runs a stale graph after `self.scale` changed"


@pytest.mark.parametrize(
    ("verdict", "culprit", "others", "said"),
    [
        (
            "miscompile",
            {
                "stage": "dynamo",
                "rewrite": "Pair == Pair",
                "details": {"kind": "path", "expected": "true", "got": "false", "traced call": 1},
            },
            {},
            "`Pair == Pair` is false under torch.compile instead of true",
        ),
        (
            "miscompile",
            {"stage": "dynamo", "rewrite": "LOAD_DEREF self", "details": {"kind": "value"}},
            {},
            "A program gives wrong values under torch.compile",
        ),
        (
            "miscompile",
            {"stage": "lowering", "rewrite": "model.spread_.default", "details": {}},
            {},
            "`model.spread_` gives wrong values under torch.compile",
        ),
        (
            "miscompile",
            {"stage": "lowering", "rewrite": None, "details": {"output of": "bilinear"}},
            {},
            "A program with `bilinear` gives wrong values under torch.compile",
        ),
        (
            "miscompile",
            {"stage": "functionalization", "rewrite": "f", "nodes": ["fill__1"], "details": {"kind": "analysis"}},
            {},
            "A program with `fill_` gives wrong values under torch.compile",
        ),
        (
            "compile_error",
            {
                "stage": "codegen",
                "rewrite": "F.x",
                "details": {"error": "CppCompileError: no", "operators": ["maximum"]},
            },
            {"detail": "LoweringException: AssertionError: "},
            "`F.x` fails to compile with AssertionError",
        ),
        (
            "compile_error",
            {"stage": "fake_tensor", "rewrite": "F.x", "details": {}},
            {"detail": f"RuntimeError: /build/{'a' * 60}/R_0.cpp:8834: expected concrete integers"},
            "`F.x` fails to compile: RuntimeError: expected concrete integers",
        ),
        (
            "compile_error",
            {"stage": "dynamo", "rewrite": "F.x", "details": {}},
            {"detail": f"InternalTorchDynamoError: {'Very' * 10}Error: Variable({'y' * 9}) is not a constant"},
            "`F.x` fails to compile: Variable(yyyyyyyyy) is not a constant",
        ),
    ],
)
def test_a_title_names_what_the_evidence_names(verdict, culprit, others, said):
    entries = [WRONG] if verdict == "miscompile" else []
    proved = {"necessary": True, "family": "", **culprit}
    assert title(facts(verdict, *entries, cause=None, culprit=proved, shown={}, reproducer=None, **others)) == said


def test_an_effect_that_is_lost_is_named():
    lost = output("change of set(layer.Held.features) after the call", finding="missing", detail="only eager has it")
    culprit = {"stage": "dynamo", "rewrite": "side effects", "details": {"kind": "effect"}}
    said = title(facts("miscompile", lost, cause=None, culprit=culprit, shown={}, reproducer=None))
    assert said == "A program does not change `Held.features` under torch.compile, but eager does"
