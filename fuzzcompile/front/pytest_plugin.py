"""The pytest plugin: the fixture ``assert_compiles_alike``.

Imports nothing but pytest until a test uses the fixture, because pytest loads it in every project of the environment.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fuzzcompile.model.verdicts import HARMLESS, Verdict

if TYPE_CHECKING:
    from fuzzcompile.front.api.report import Report


_BASELINE = "fuzzcompile_baseline"
# Verdicts under which compiled and eager are alike; those without a bug that are missing here compare nothing.
_ALIKE = (*HARMLESS, Verdict.PRECISION_CASTS)
AssertCompilesAlike = Callable[..., "Report"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fuzzcompile-baseline`` and its setting."""
    says = "known compiler bugs (`fuzzcompile triage --json` lines, or signatures): a test that shows one is an xfail"
    group = parser.getgroup("fuzzcompile", "fuzzcompile: torch.compile against eager")
    group.addoption("--fuzzcompile-baseline", metavar="FILE", dest=_BASELINE, help=says)
    parser.addini(_BASELINE, f"{says}; a path from the folder of this file", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a baseline that is not there before any test runs."""
    path = _find_baseline(config)
    if path is not None and not path.is_file():
        raise pytest.UsageError(f"the fuzzcompile baseline {path} does not exist")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker that judged the calls of this session."""
    module = sys.modules.get("fuzzcompile.front.api.triage")
    if module is not None:
        module.session.close()


@pytest.fixture
def assert_compiles_alike(request: pytest.FixtureRequest) -> AssertCompilesAlike:
    """Fail unless a compiled model computes what eager does, rounding aside.

    ``assert_compiles_alike(model, inputs, *, grad=None, dynamic=None, options=None, baseline=None)`` takes a module or
    a function, and as inputs one argument, a tuple of arguments, or a dict of keyword arguments. ``grad=True`` compares
    gradients too, ``options`` are those of ``torch.compile``; further keywords are those of ``triage.options()``. It
    returns the report, which is also a property of the test in JUnit files.

    A bug fails the test with its culprit and a workaround. A bug of the baseline is an expected failure (xfail). A call
    that cannot be judged fails.
    """
    configured = _find_baseline(request.config)

    def check(
        model: object,
        inputs: object,
        *,
        grad: bool | None = None,
        dynamic: bool | None = None,
        options: Mapping[str, object] | None = None,
        baseline: str | Path | None = None,
        **settings: Any,
    ) -> Report:
        __tracebackhide__ = True
        asked = {"grad": grad, "dynamic": dynamic, "options": options, "baseline": baseline or configured, **settings}
        report = _judge(model, inputs, {name: value for name, value in asked.items() if value is not None})
        # As record_property does, which warns under the default family of JUnit files and writes them all the same.
        request.node.user_properties.append(("fuzzcompile_verdict", report.verdict))
        request.node.user_properties.append(("fuzzcompile", json.dumps(report.to_json())))
        if report.json.get("known"):
            pytest.xfail(f"known compiler bug: {report.signature}")
        if report.is_bug:
            pytest.fail(f"compiled and eager differ\n{report}")
        if report.verdict not in _ALIKE:
            pytest.fail(f"fuzzcompile cannot say whether compiled and eager agree\n{report}")
        if report.confidence == "low":
            warnings.warn(f"fuzzcompile judged with low confidence: {'; '.join(report.notes)}", stacklevel=2)
        return report

    return check


def _judge(model: object, inputs: object, settings: Mapping[str, Any]) -> Report:
    __tracebackhide__ = True
    from fuzzcompile.front.api.triage import triage
    from fuzzcompile.model.errors import FuzzcompileError

    args = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
    kwargs = {str(name): value for name, value in inputs.items()} if isinstance(inputs, Mapping) else {}
    try:
        return triage.options(**settings)(model, *args, **kwargs)
    except FuzzcompileError as error:
        pytest.fail(f"fuzzcompile cannot judge this call: {error}")


def _find_baseline(config: pytest.Config) -> Path | None:
    given, setting = config.getoption(_BASELINE), config.getini(_BASELINE)
    if given:
        return Path(config.invocation_params.dir, given)
    folder = config.inipath.parent if config.inipath is not None else config.rootpath
    return Path(folder, setting) if setting else None
