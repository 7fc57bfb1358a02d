"""The interpreter is checked before use, and a broken one is refused."""

import importlib.metadata
import importlib.util
from types import MappingProxyType

import pytest
import torch

from fuzzcompile.compiler.target import kernel_log, target_process
from fuzzcompile.run.torch_attributes import ReplacedAttribute

needs_triton = pytest.mark.skipif(
    target_process.explain_unfit_interpreter() is not None, reason=str(target_process.explain_unfit_interpreter())
)
if target_process.explain_unfit_interpreter() is None:
    from fuzzcompile.compiler.target import interpreter_checks, kernel_execution, kernel_launch, kernel_operations


@pytest.fixture
def afresh():
    """Whether kernels can be interpreted is found out once in a process: forget it, before and after."""
    yield target_process.explain_unfit_interpreter.cache_clear()
    target_process.explain_unfit_interpreter.cache_clear()
    if importlib.util.find_spec("triton") is not None and target_process.explain_unfit_interpreter() is None:
        interpreter_checks.find_failed_check.cache_clear()


def test_without_triton_one_sentence_says_what_to_install(monkeypatch, afresh):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert (
        target_process.explain_unfit_interpreter() == "Triton is not installed: run `pip install 'fuzzcompile[triton]'`"
    )


@needs_triton
def test_triton_of_another_torch_is_refused(monkeypatch, afresh):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.0.0" if name == "triton" else version(name))
    assert "does not go with torch" in target_process.explain_unfit_interpreter()


@needs_triton
def test_a_torch_whose_triton_is_not_known_is_refused(monkeypatch, afresh):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.99.0" if name == "torch" else version(name))
    assert "is not known" in target_process.explain_unfit_interpreter()


@needs_triton
@pytest.mark.parametrize(
    ("operation", "check"), [("create_dot", "matrix products"), ("cast_impl", "casts"), ("binary_op", "arithmetic")]
)
def test_an_interpreter_that_is_not_mended_fails_the_check_of_that(monkeypatch, afresh, operation, check):
    left = {name: mended for name, mended in kernel_operations.CORRECTED_OPERATIONS.items() if name != operation}
    if operation == "cast_impl":  # both ways in which floats are cast
        left.pop("create_fp_to_fp")
    monkeypatch.setattr(kernel_execution, "CORRECTED_OPERATIONS", MappingProxyType(left))
    interpreter_checks.find_failed_check.cache_clear()
    assert target_process.explain_unfit_interpreter().startswith(
        f"Triton's interpreter fails a check of its values ({check}"
    )


@needs_triton
def test_a_missing_place_is_named(monkeypatch, afresh):
    gone = ReplacedAttribute(
        "torch._inductor.async_compile", "AsyncCompile.no_longer", lambda session, original: original
    )
    monkeypatch.setattr(kernel_launch, "INTERPRETER_PLACES", (gone,))
    assert "has no torch._inductor.async_compile.AsyncCompile.no_longer" in target_process.explain_unfit_interpreter()


@needs_triton
def test_every_place_is_put_back():
    before = {place.name: getattr(place.find_owner(), place.leaf, None) for place in kernel_launch.INTERPRETER_PLACES}
    with target_process.interpret_triton(_target(), kernel_log.KernelLog()):
        inside = {
            place.name: getattr(place.find_owner(), place.leaf, None) for place in kernel_launch.INTERPRETER_PLACES
        }
    after = {place.name: getattr(place.find_owner(), place.leaf, None) for place in kernel_launch.INTERPRETER_PLACES}
    assert after == before
    assert all(inside[name] is not before[name] for name in before)


def _target():
    from fuzzcompile.model.targets import find_target

    return find_target("cuda:sm_90")


@needs_triton
def test_a_store_outside_of_the_buffers_does_nothing_and_is_noted():
    whole = torch.zeros(128)
    given, out = torch.ones(128), whole[:64].clone()
    signature = {"n": "constexpr"}
    arguments = {"x": given, "out": out, "n": 128}
    notes = kernel_execution.run_kernel(
        "convert",
        interpreter_checks.convert_kernel,
        arguments,
        signature,
        (1, 1, 1),
        kernel_log.ProgramOrder.FORWARD,
    )
    assert out.eq(1).all() and "store outside every buffer of the kernel (64 lanes of one block)" in notes


@needs_triton
def test_the_order_of_programs_shows_a_race():
    def last_wins(out):
        import triton.language as tl

        tl.store(out, tl.program_id(0))

    results = []
    for order in kernel_log.ProgramOrder:
        out = torch.zeros(1, dtype=torch.int32)
        kernel_execution.run_kernel("last_wins", last_wins, {"out": out}, {}, (4, 1, 1), order)
        results.append(int(out))
    assert results == [3, 0]
