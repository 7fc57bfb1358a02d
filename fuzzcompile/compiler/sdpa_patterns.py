"""SDPA patterns of Inductor that can fire on a device, found by compiling their own search functions.

With gradients for a training variant, in each dtype of the variant, and with both random streams if it drops out.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.rule_catalogue import initialise_patterns, list_known_rules
from fuzzcompile.compiler.session import Compilation, open_session, silence_torch
from fuzzcompile.model.errors import EnvironmentUnfit, describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.run.case import CompileSettings

_MODULE, _, _LISTED = facts().names.sdpa_variants.partition(":")
FAMILY = facts().names.sdpa_family
# Dynamo traces no function that is defined in a file of torch, so copies live in a module of this name.
_HOME = "fuzzcompile_sdpa_patterns"
_DROPOUT = "dropout_p"


@dataclass(frozen=True)
class PatternVariant:
    """One registered variant of a pattern, in a form that can be called."""

    name: str
    function: Callable[..., object]
    inputs: tuple[torch.Tensor, ...]  # examples of the tensors; only shapes, strides and dtypes matter
    scalars: Mapping[str, float]  # the other arguments, by name
    training: bool  # whether it is compiled with gradients

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes to try for floating inputs: half patterns serve bfloat16 as well."""
        own = self.inputs[0].dtype
        return (own, torch.bfloat16) if own == torch.float16 else (own,)


@dataclass(frozen=True)
class VariantResult:
    """The patterns that fired for one variant; ``trouble`` is the error if it compiled in no dtype."""

    name: str
    fired: frozenset[str]
    trouble: str | None = None


def read_variants(device: torch.device) -> list[PatternVariant]:
    """Every variant that this torch has for ``device``, in order; EnvironmentUnfit where they are not found."""
    initialise_patterns(device)
    try:
        module = importlib.import_module(_MODULE)
        list_variants = getattr(module, _LISTED)
        takes_device = bool(inspect.signature(list_variants).parameters)
        listed = list_variants(device) if takes_device else list_variants()
        return [_make_variant(name, registered, _copy_search_functions(module)) for name, registered in listed]
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise EnvironmentUnfit(
            f"This torch's list of SDPA patterns ({_MODULE}.{_LISTED}) is not where fuzzcompile looks for it "
            f"({describe_error(error)}), so the patterns that can fire here are not known."
        ) from error


def try_variants(device: torch.device, candidates: Sequence[PatternVariant]) -> Iterator[VariantResult]:
    """Compile the variants one after another, some 0.5 s each."""
    for variant in candidates:
        fired, compiled, trouble = set[str](), False, ""
        random_modes = (True, False) if variant.scalars.get(_DROPOUT) else (True,)
        for dtype, fallback_random in itertools.product(variant.dtypes, random_modes):
            try:
                fired |= _find_fired(variant, device, dtype, fallback_random)
                compiled = True
            except Exception as error:  # some functions name a dtype themselves; a compile may raise anything
                trouble = describe_error(error, 220)
        yield VariantResult(variant.name, frozenset(fired), None if compiled else trouble)


def list_registered(device: torch.device) -> list[str]:
    """The names of the SDPA patterns that are registered for ``device``: variants that repeat another are not."""
    rows = list_known_rules(device)
    return [row.name for row in rows if row.kind == "pattern" and row.name.startswith(FAMILY)]


def _make_variant(
    name: str, registered: Mapping[str, Any], functions: Mapping[str, Callable[..., object]]
) -> PatternVariant:
    function = functions[registered["search_fn"].__name__]  # the wrapper that sets the dropout to 0 has its name
    scalars = dict(registered["scalar_workaround"] or {})
    if _DROPOUT in inspect.signature(function).parameters:
        scalars.setdefault(_DROPOUT, 0.0)
    training = registered["trace_fn"].__name__ != "fwd_only"
    return PatternVariant(name, function, tuple(registered["example_inputs"]), scalars, training)


@functools.cache
def _copy_search_functions(module: types.ModuleType) -> Mapping[str, Callable[..., object]]:
    home = types.ModuleType(_HOME)
    own = vars(home).copy()
    home.__dict__.update({**vars(module), **own})
    for name, function in vars(module).items():
        if name.startswith(FAMILY) and isinstance(function, types.FunctionType):
            code = function.__code__.replace(co_filename=f"{_HOME}.py")
            copy = types.FunctionType(code, vars(home), name, function.__defaults__, function.__closure__)
            copy.__kwdefaults__ = function.__kwdefaults__
            setattr(home, name, copy)
    sys.modules[_HOME] = home  # dynamo's guards look globals up in the module that a function names as its own
    return {name: function for name, function in vars(home).items() if name.startswith(FAMILY)}


def _find_fired(variant: PatternVariant, device: torch.device, dtype: torch.dtype, fallback_random: bool) -> set[str]:
    inputs = [_make_input(example, variant, device, dtype) for example in variant.inputs]
    function, scalars = variant.function, dict(variant.scalars)
    how = Compilation((InductorSettings({"fallback_random": fallback_random}),), screen=True, record=False)
    gradients = torch.set_grad_enabled(variant.training)
    with gradients, open_session(CompileSettings(), how) as session, silence_torch():
        session.compile(lambda *given: function(*given, **scalars))(*inputs)
    reached = (label.rewrite for label, outcome in session.ledger.coverage if outcome == "fired")
    return {name for name in reached if name.startswith(FAMILY)}


def _make_input(
    example: torch.Tensor, variant: PatternVariant, device: torch.device, dtype: torch.dtype
) -> torch.Tensor | float:
    """A tensor of ones like the example; a plain number for a scale, because the patterns' checks want one."""
    if example.dim() == 0:
        return 2.0
    own = variant.inputs[0].dtype
    made = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=device)
    with torch.no_grad():
        made.copy_(torch.ones(example.shape))
    if example.dtype == own:
        made = made.to(dtype)
    return made.requires_grad_(variant.training and example.requires_grad)
