"""Recording which operator each expression of a kernel's code computes, while the code is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzcompile.compiler.kernels.kernel_watch import Watch


@dataclass(frozen=True)
class Statement:
    """The expression that was written for an operator of a loop (``reduction:sum``), and its variable."""

    variable: str
    expression: str
    operator: str


def wrap_operator(watch: Watch, original: Callable[..., object]) -> Callable[..., object]:
    """Record for which operator code is written."""

    def written(proxy: object, name: str, *args: object, **kwargs: object) -> object:
        with watch.writing(name):
            return original(proxy, name, *args, **kwargs)

    return written


def wrap_load(watch: Watch, original: Callable[..., object]) -> Callable[..., object]:
    """Record that a load is written."""

    def load(*args: object, **kwargs: object) -> object:
        with watch.writing("load"):
            return original(*args, **kwargs)

    return load


def wrap_reduction(watch: Watch, original: Callable[..., object]) -> Callable[..., object]:
    """Record which reduction is written."""

    def reduction(
        proxy: object, dtype: object, src_dtype: object, kind: str, *args: object, **kwargs: object
    ) -> object:
        with watch.writing(f"reduction:{kind}"):
            return original(proxy, dtype, src_dtype, kind, *args, **kwargs)

    return reduction


def wrap_generate(watch: Watch, original: Callable[..., object]) -> Callable[..., object]:
    """Record the expression written for the innermost operator."""

    def generate(cse: object, buffer: object, expression: object, *args: object, **kwargs: object) -> object:
        variable = original(cse, buffer, expression, *args, **kwargs)
        try:
            if watch.values and watch.operators:
                text = expression.getvalue() if hasattr(expression, "getvalue") else str(expression)
                watch.statements.append(Statement(str(variable), text, watch.operators[-1]))
        except Exception as error:  # the recorder never fails the compile that it watches
            watch.note(error)
        return variable

    return generate
