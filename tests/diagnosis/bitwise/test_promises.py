"""Promises of equal bits: clean programs keep them, and what breaks one is named by graph, operator and kernel."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor.codegen import cpp
from torch._inductor.lowering import lowerings
from torch._inductor.output_code import CompiledFxGraph

from fuzzcompile.diagnosis.bitwise.execution import apply_contract, list_replaced_settings, strict_settings
from fuzzcompile.diagnosis.bitwise.promises import judge_bitwise
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.contract import PromiseJson, ReportJson
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case

aten = torch.ops.aten
CPU = torch.device("cpu")
PROGRAM = """
import torch
from torch.nn import functional as F
{settings}
def program(x, y):
    return {body}

def make():
    torch.manual_seed(0)
    return program, (torch.randn(5, 19).to(torch.{dtype}), torch.randn(5, 19).to(torch.{dtype}))
"""
CHAIN = "(x * y + x).relu() * 0.5 - y"


def judged(tmp_path: Path, body: str, dtype: str = "float32", settings: str = "") -> ReportJson:
    path = tmp_path / "case.py"
    path.write_text(PROGRAM.format(body=body, dtype=dtype, settings=settings))
    own = load_case(path)
    report = TriageReport(own.name, torch.__version__, "cpu", Verdict.ROUNDING, "high")
    return judge_bitwise(apply_contract(own), CPU, report, own=own, deadline=None).to_json()  # type: ignore[return-value]


def promise(report: ReportJson, name: str) -> PromiseJson:
    return next(each for each in report["contract"]["promises"] if each["promise"] == name)


def holding(report: ReportJson) -> dict[str, bool | None]:
    return {each["promise"]: each["holds"] for each in report["contract"]["promises"]}


# -- plants ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cast_left_out(target: Any) -> Iterator[None]:
    """The lowering of an operator does not see that eager rounds there."""
    from torch._inductor.virtualized import V

    original = lowerings[target]

    def planted(*args: Any, **kwargs: Any) -> Any:
        marked = V.graph.current_node.meta.pop("low_precision_pointwise_barrier", None)
        try:
            return original(*args, **kwargs)
        finally:
            if marked is not None:
                V.graph.current_node.meta["low_precision_pointwise_barrier"] = marked

    with mock.patch.dict(lowerings, {target: planted}):
        yield


@contextlib.contextmanager
def otherwise_in_the_tail(name: str, sign: str) -> Iterator[None]:
    """What is left behind the vectors is computed by other code, off by an ulp."""
    import torch._inductor.config as config

    def planted(a: object, b: object) -> str:
        return f"(({a} {sign} {b}) * decltype({a} {sign} {b})(1.0000002))"

    planted.__name__ = name
    with (
        config.patch({"cpp.enable_loop_tail_vec": False}),
        mock.patch.object(cpp.CppOverrides, name, staticmethod(planted)),
    ):
        yield


@contextlib.contextmanager
def counting(name: str) -> Iterator[None]:
    """The kernel keeps a number from call to call and adds it."""
    step = "[]{ static float kept = 0; kept += 1e-4f; return kept; }()"

    def planted(a: object, b: object) -> str:
        return f"(({a} - {b}) + at::vec::Vectorized<float>({step}))"

    planted.__name__ = name
    with mock.patch.object(cpp.CppVecOverrides, name, staticmethod(planted)):
        yield


@contextlib.contextmanager
def other_at_every_compile(target: Any) -> Iterator[None]:
    original, compiles = lowerings[target], itertools.count()

    def planted(*args: Any, **kwargs: Any) -> Any:
        return lowerings[aten.mul.Tensor](original(*args, **kwargs), 1.0 + 3e-7 * next(compiles))

    with mock.patch.dict(lowerings, {target: planted}):
        yield


@contextlib.contextmanager
def wrapper_that_counts() -> Iterator[None]:
    original, calls = CompiledFxGraph.__call__, itertools.count(1)

    def planted(compiled: Any, inputs: Any) -> Any:
        factor = 1 + 1e-6 * next(calls)
        return [value * factor for value in original(compiled, inputs)]

    with mock.patch.object(CompiledFxGraph, "__call__", planted):
        yield


@contextlib.contextmanager
def casts_dropped_in_code() -> Iterator[None]:
    """Generated code goes on with the value from before a cast, as it does without the strict settings."""
    from torch._inductor.virtualized import V

    with contextlib.ExitStack() as stack:
        for owner in (cpp.CppOverrides, cpp.CppVecOverrides):
            original = owner.to_dtype

            def planted(
                x: Any, dtype: Any, src_dtype: Any = None, use_compute_types: bool = True, made: Any = original
            ) -> Any:
                cast = made(x, dtype, src_dtype, use_compute_types)
                if dtype is torch.bfloat16 and (src_dtype or x.dtype) is torch.float:
                    V.kernel.cache_dtype_convert(x, torch.float, cast, dtype)
                return cast

            stack.enter_context(mock.patch.object(owner, "to_dtype", staticmethod(planted)))
        yield


# -- clean programs -------------------------------------------------------------------------------------


def test_the_settings_are_those_that_this_torch_has():
    settings = strict_settings()
    assert settings["emulate_precision_casts"] is True
    assert settings["cpp.enable_floating_point_contract_flag"] == "off"


def test_a_clean_chain_keeps_all_promises(tmp_path: Path):
    report = judged(tmp_path, CHAIN, "bfloat16")
    assert holding(report) == {"eager": True, "batch": True, "run_to_run": True}
    assert (report["verdict"], report["is_bug"], report["contract"]["name"]) == ("rounding", False, "bitwise")


CLEAN = [
    (CHAIN, "float32"),
    (CHAIN, "float16"),
    ("torch.tanh(x * y).to(torch.float32) + y.sigmoid()", "bfloat16"),
    ("x @ y.mT * 2", "bfloat16"),
    ("F.softmax(x, -1) * y", "bfloat16"),
]
OPEN = [
    ("F.layer_norm(x, (19,)) * y", "float32"),
    ("F.softmax(x * 3, -1)", "float32"),
    ("F.gelu(x) + y", "float32"),
    ("torch.add(x, y, alpha=0.7)", "float32"),
    ("torch.lerp(x, y, 0.3)", "bfloat16"),
    ("(x * 0.1 + 0.3) ** 3", "bfloat16"),
    ("x.abs() ** 1.7", "float16"),
    ("F.log_softmax(x, -1)", "bfloat16"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("body", "dtype"), CLEAN)
def test_clean_programs_equal_eager(tmp_path: Path, body: str, dtype: str):
    assert holding(judged(tmp_path, body, dtype))["eager"] is True


@pytest.mark.slow
@pytest.mark.parametrize(("body", "dtype"), OPEN)
def test_where_nothing_is_promised_bits_may_part(tmp_path: Path, body: str, dtype: str):
    report = judged(tmp_path, body, dtype)
    told = promise(report, "eager")
    assert (told["holds"], report["is_bug"]) == (None, False)
    assert told["outputs"] and told["first"] is not None and not told["first"]["promised"]


# -- what breaks a promise ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cast_left_out_is_named(tmp_path: Path):
    with cast_left_out(aten.sigmoid.default):
        report = judged(tmp_path, "y.sigmoid().sum(0) + x", "bfloat16")
    told = promise(report, "eager")
    assert (report["verdict"], report["is_bug"], told["holds"]) == ("precision_loss", True, False)
    first = told["first"]
    assert first is not None
    assert (first["operator"], first["graph"], first["stage"]) == ("aten.sigmoid.default", 0, "lowering")
    assert first["kernel"] is not None and first["kernel"].startswith("cpp_fused_") and "not rounded" in first["why"]
    culprit = report["culprit"]
    assert culprit is not None
    assert (culprit["rewrite"], culprit["necessary"], report["confidence"]) == ("aten.sigmoid.default", True, "high")


Plant = tuple[str, Callable[[], Any], str, str, str, str, str]
PLANTS: list[Plant] = [
    # promise, plant, body, dtype, verdict, operator, stage
    ("eager", lambda: cast_left_out(aten.tanh.default), "F.layer_norm(x.float(), (19,)) + torch.tanh(x).sum(0)",
     "bfloat16", "precision_loss", "aten.tanh.default", "lowering"),
    ("batch", lambda: otherwise_in_the_tail("sub", "-"), "(x * 2 - y) * 0.5 + x.abs()", "float32", "precision_loss",
     "aten.sub.Tensor", "codegen"),
    ("eager", lambda: otherwise_in_the_tail("add", "+"), "F.layer_norm(x, (19,)) * (x.abs() + y)", "float32",
     "precision_loss", "aten.add.Tensor", "codegen"),
    ("run_to_run", lambda: counting("sub"), "(x * y).relu() * (y - x)", "float32", "nondeterministic",
     "aten.sub.Tensor", "codegen"),
    ("run_to_run", lambda: other_at_every_compile(aten.exp.default), "x.exp() / (y.abs() + 1)", "float32",
     "nondeterministic", "aten.exp.default", "codegen"),
    ("eager", casts_dropped_in_code, "((x * y).to(torch.bfloat16).float() - x) * y", "float32", "precision_loss",
     "prims.convert_element_type.default", "codegen"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTS, ids=lambda planted: f"{planted[0]}: {planted[5]}")
def test_what_breaks_a_promise_is_named(
    tmp_path: Path, planted: tuple[str, Callable[[], Any], str, str, str, str, str]
):
    name, plant, body, dtype, verdict, operator, stage = planted
    with plant():
        report = judged(tmp_path, body, dtype)
    told = promise(report, name)
    assert (told["holds"], report["is_bug"], report["verdict"]) == (False, True, verdict)
    first = told["first"]
    assert first is not None
    assert (first["operator"], first["stage"], first["promised"]) == (operator, stage, True)
    assert first["kernel"] is not None and first["kernel"].startswith("cpp_fused_")


def test_a_wrapper_that_counts_is_the_graphs_own(tmp_path: Path):
    with wrapper_that_counts():
        report = judged(tmp_path, "x * y")
    told = promise(report, "run_to_run")
    first = told["first"]
    assert told["holds"] is False and first is not None
    assert (first["stage"], first["kernel"], first["graph"]) == ("runtime", None, 0)


# -- what is not looked at ------------------------------------------------------------------------------


def test_rows_that_depend_on_each_other_are_no_batch(tmp_path: Path):
    told = promise(judged(tmp_path, "x.relu() - x.amax(0)"), "batch")
    assert told["holds"] is None and "depends on the other rows" in told["why"]


def test_another_backend_promises_nothing(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(PROGRAM.format(body="x + y", dtype="float32", settings=""))
    own = load_case(path)
    import dataclasses

    other = dataclasses.replace(own, settings=dataclasses.replace(own.settings, backend="aot_eager"))
    report = TriageReport(own.name, torch.__version__, "cpu", Verdict.EQUAL, "high")
    answer = judge_bitwise(apply_contract(other), CPU, report, own=other, deadline=None).to_json()
    assert {each["holds"] for each in answer["contract"]["promises"]} == {None}


def test_settings_of_the_case_are_replaced(tmp_path: Path):
    path = tmp_path / "case.py"
    settings = 'OPTIONS = {"emulate_precision_casts": False, "max_fusion_size": 8}'
    path.write_text(PROGRAM.format(body="x + y", dtype="float32", settings=settings))
    own = load_case(path)
    assert list_replaced_settings(own) == ("emulate_precision_casts",)
    under = apply_contract(own).settings
    assert dict(under.options) == {"max_fusion_size": 8}
    assert under.inductor["emulate_precision_casts"] is True
