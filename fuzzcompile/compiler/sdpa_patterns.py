"""Which of Inductor's SDPA patterns can fire on a device: those that fire when their own search functions are compiled.

Each registered variant brings a function and example inputs. It is screened (no code is generated) with gradients
where the variant is one of training, in the dtypes of the variant, and where it drops out under both random streams.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.case import CompileSettings
from fuzzcompile.compiler.catalogue import known_to
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.session import Compilation, compiling
from fuzzcompile.errors import EnvironmentUnfit

_MODULE = "torch._inductor.fx_passes.fuse_attention"
_LISTED = "_get_sfdp_patterns"
_FAMILY = "_sfdp_pattern_"
# Dynamo traces no function that stands in a file of torch, so copies of them live in a module of this name.
_HOME = "fuzzcompile_sdpa_patterns"
_DROPOUT = "dropout_p"


@dataclass(frozen=True)
class Variant:
    """One registered variant of a pattern, as it can be called.

    ``inputs`` are examples (shapes, strides, dtypes; their values are nothing), ``scalars`` what else is passed.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    scalars: Mapping[str, float]
    training: bool

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """What floating inputs of the variant's own dtype are tried in: half patterns serve bfloat16 as well."""
        own = self.inputs[0].dtype
        return (own, torch.bfloat16) if own == torch.float16 else (own,)

    @property
    def random_modes(self) -> tuple[bool, ...]:
        """Values of ``fallback_random`` that make a difference."""
        return (True, False) if self.scalars.get(_DROPOUT) else (True,)


@dataclass(frozen=True)
class Tried:
    """What came of one variant: the names of the patterns that fired, and why none could be compiled, if so."""

    name: str
    fired: frozenset[str]
    trouble: str | None = None


def variants(device: torch.device) -> list[Variant]:
    """Every variant that the installed torch has for ``device``, in the order in which they are registered.

    Raises:
        EnvironmentUnfit: this torch has no such list, or one of another form.
    """
    initialise_patterns(device)
    try:
        module = importlib.import_module(_MODULE)
        listed = getattr(module, _LISTED)
        found = list(listed(device) if inspect.signature(listed).parameters else listed())
        return [_variant(name, registered, _functions(module)) for name, registered in found]
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise EnvironmentUnfit(
            f"This torch's list of SDPA patterns ({_MODULE}.{_LISTED}) is not where fuzzcompile looks for it "
            f"({type(error).__name__}: {error}), so the patterns that can fire here are not known."
        ) from error


def try_all(device: torch.device, found: Sequence[Variant]) -> Iterator[Tried]:
    """Compile the variants one after another, some 0.5 s each; see :class:`Tried`."""
    for variant in found:
        fired, done, trouble = set[str](), False, ""
        for dtype in variant.dtypes:
            for fallback_random in variant.random_modes:
                try:
                    fired |= _fired(variant, device, dtype, fallback_random)
                    done = True
                except Exception as error:  # some functions name a dtype themselves and take no other
                    trouble = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        yield Tried(variant.name, frozenset(fired), None if done else trouble)


def registered(device: torch.device) -> list[str]:
    """The names of the SDPA patterns that are registered for ``device``: variants that repeat another are not."""
    rows = known_to(device)
    return [row.name for row in rows if row.kind == "pattern" and row.name.startswith(_FAMILY)]


def _variant(name: str, registered: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Variant:
    function = functions[registered["search_fn"].__name__]  # what holds the dropout at 0 goes by the same name
    scalars = dict(registered["scalar_workaround"] or {})
    if _DROPOUT in inspect.signature(function).parameters:
        scalars.setdefault(_DROPOUT, 0.0)
    training = registered["trace_fn"].__name__ != "fwd_only"
    return Variant(name, function, tuple(registered["example_inputs"]), scalars, training)


@functools.cache
def _functions(module: types.ModuleType) -> Mapping[str, Callable[..., Any]]:
    """The search functions as dynamo traces them: from no file of torch, and calling each other's copies."""
    home = types.ModuleType(_HOME)
    own = vars(home).copy()
    home.__dict__.update({**vars(module), **own})
    for name, function in vars(module).items():
        if name.startswith(_FAMILY) and isinstance(function, types.FunctionType):
            code = function.__code__.replace(co_filename=f"{_HOME}.py")
            copy = types.FunctionType(code, vars(home), name, function.__defaults__, function.__closure__)
            copy.__kwdefaults__ = function.__kwdefaults__
            setattr(home, name, copy)
    sys.modules[_HOME] = home  # dynamo's guards look globals up in the module that a function says it is from
    return {name: function for name, function in vars(home).items() if name.startswith(_FAMILY)}


def _fired(variant: Variant, device: torch.device, dtype: torch.dtype, fallback_random: bool) -> set[str]:
    inputs = [_input(example, variant, device, dtype) for example in variant.inputs]
    function, scalars = variant.function, dict(variant.scalars)
    how = Compilation(screen=True, record=False, fallback_random=fallback_random)
    gradients = torch.set_grad_enabled(variant.training)
    with gradients, compiling(CompileSettings(), how) as session, warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        session.compile(lambda *given: function(*given, **scalars))(*inputs)
    reached = (label.rewrite for label, outcome in session.ledger.coverage if outcome == "fired")
    return {name for name in reached if name.startswith(_FAMILY)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is logged: torch reports what dynamo could not trace, which is no news here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _input(example: torch.Tensor, variant: Variant, device: torch.device, dtype: torch.dtype) -> torch.Tensor | float:
    """Values of the example's form; a scale is a plain number, as the patterns' checks want it."""
    if example.dim() == 0:
        return 2.0
    own = variant.inputs[0].dtype
    made = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=device)
    with torch.no_grad():
        made.copy_(torch.ones(example.shape))
    if example.dtype == own:
        made = made.to(dtype)
    return made.requires_grad_(variant.training and example.requires_grad)
