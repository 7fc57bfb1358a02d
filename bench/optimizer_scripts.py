"""Training scripts of ``bench/optimizers.py``: optimizers of torch with each setting, schedulers, clipping and more.

What there is to try is read from torch: classes of ``torch.optim``, ``lr_scheduler`` and ``swa_utils``, and their
signatures. Written by hand are only models, and values for arguments that have no default.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils

_SCRIPT = """\
import torch
from torch import nn

import fuzzcompile

torch.manual_seed(0)
model = {model}
optimizer = torch.optim.{optimizer}
{before}

def step(x):
{step}


@torch.compile
def train(batches):
    return [step(x) for x in batches]


batches = {batches}
report = fuzzcompile.triage(train, batches)
"""
# The first on which eager mode can take a step is used: some optimizers take matrices only, or sparse gradients.
_MODELS = (
    ("nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4, bias=False))", "torch.randn(4, 16, 8).unbind()"),
    (
        "nn.Sequential(nn.Linear(8, 12, bias=False), nn.Tanh(), nn.Linear(12, 4, bias=False))",
        "torch.randn(4, 16, 8).unbind()",
    ),
    ("nn.Embedding(20, 8, sparse=True)", "torch.randint(20, (4, 16)).unbind()"),
)
_WITH_BUFFERS = (
    "nn.Sequential(nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4))",
    "torch.randn(4, 16, 8).unbind()",
)
_STEP = ["optimizer.zero_grad()", "loss = model(x).square().mean()", "loss.backward()"]
_IMPLEMENTATIONS = ("foreach", "fused")
# Arguments of schedulers that have no default, or one for thousands of steps.
_SCHEDULES = {
    "lr_lambda": "lambda epoch: 0.5**epoch",
    "step_size": "2",
    "milestones": "[2]",
    "gamma": "0.5",
    "T_max": "4",
    "T_0": "2",
    "total_iters": "3",
    "total_steps": "8",
    "step_size_up": "2",
    "base_lr": "1e-3",
    "max_lr": "1e-1",
    "patience": "0",
    "swa_lr": "1e-3",
    "anneal_epochs": "2",
    "schedulers": "[torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 1)]",
}
_LR = "lr=1e-2"
_TENSOR_LR = "lr=torch.tensor(1e-2)"


@dataclass(frozen=True)
class Program:
    """A training script: an optimizer, what is made before the first step, and the statements of a step."""

    optimizer: str
    arguments: tuple[str, ...] = ()
    extra: str = ""
    before: tuple[str, ...] = ()
    step: tuple[str, ...] = (*_STEP, "optimizer.step()", "return loss.detach()")
    model: tuple[str, str] = _MODELS[0]
    left_out: str = field(default="", compare=False)  # the reason why there is nothing to judge

    @property
    def name(self) -> str:
        """What a table calls it."""
        call = f"{self.optimizer}({', '.join(self.arguments)})"
        return f"{call}, {self.extra}" if self.extra else call

    @property
    def source(self) -> str:
        """The script."""
        model, batches = self.model
        arguments = ["model.parameters()", *([] if any(x.startswith("lr=") for x in self.arguments) else [_LR])]
        return _SCRIPT.format(
            model=model,
            batches=batches,
            optimizer=f"{self.optimizer}({', '.join([*arguments, *self.arguments])})",
            before="".join(f"{line}\n" for line in self.before),
            step="\n".join(f"    {line}" for line in self.step),
        )

    def run_eagerly(self) -> Mapping[str, Any]:
        """The names of the script after its steps, without triage and without a compile.

        Raises:
            Exception: of the program.
        """
        names: dict[str, Any] = {}
        plain = self.source.replace("import fuzzcompile\n", "").replace("@torch.compile\n", "")
        lines = [
            *plain.splitlines()[:-1],
            "before = [p.detach().clone() for p in model.parameters()]",
            "train(batches)",
        ]
        exec("\n".join(lines), names)
        return names

    def measure_updates(self) -> list[float]:
        """The root mean square of each parameter's change over the steps in eager mode; empty where they raise."""
        try:
            names = self.run_eagerly()
        except Exception:  # of the program, and a row of the table
            return []
        return [
            (now.detach() - then).double().square().mean().sqrt().item()
            for now, then in zip(names["model"].parameters(), names["before"], strict=True)
        ]


def list_programs() -> list[Program]:
    """All programs, those with nothing to judge among them."""
    programs = [*_vary_optimizers(), *_add_schedulers(), *_add_clipping(), *_add_scalers(), *_add_averages()]
    return list({program.source: program for program in programs}.values())


def _list_optimizers() -> list[type[torch.optim.Optimizer]]:
    classes = (each for each in vars(torch.optim).values() if inspect.isclass(each))
    return [each for each in classes if issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer]


@cache
def _fit(optimizer: type[torch.optim.Optimizer]) -> Program:
    """The optimizer by itself, on the first model that it takes."""
    program = Program(optimizer.__name__)
    if inspect.signature(optimizer.step).parameters["closure"].default is inspect.Parameter.empty:
        closure = ("def closure():", *(f"    {line}" for line in (*_STEP, "return loss")), "")
        program = replace(program, step=(*closure, "return optimizer.step(closure).detach()"))
    for model in _MODELS:
        fitted = replace(program, model=model)
        if not (why := _explain_refusal(fitted)):
            return fitted
    return replace(program, left_out=why)


def _explain_refusal(program: Program) -> str:
    try:
        program.run_eagerly()
    except Exception as error:  # of the program
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _vary_optimizers() -> Iterator[Program]:
    """Each implementation, by itself and with each setting."""
    for optimizer in _list_optimizers():
        plain, parameters = _fit(optimizer), inspect.signature(optimizer.__init__).parameters
        choices = [(f"{name}=True",) for name in _IMPLEMENTATIONS if name in parameters]
        for choice in [("foreach=False",) if "foreach" in parameters else (), *choices]:
            program = replace(plain, arguments=choice)
            yield program
            for setting in _list_settings(parameters):
                yield _set(program, setting, parameters)


def _list_settings(parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, ...]]:
    if (zeros := _set_zeros(parameters)) != ():
        yield zeros
    if "Tensor" in str(parameters["lr"].annotation):
        yield (_TENSOR_LR,)
    for name, parameter in parameters.items():
        if isinstance(parameter.default, bool):
            yield (f"{name}={not parameter.default}",)


def _set_zeros(parameters: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    """The terms that are switched off by a coefficient of 0, all of them switched on."""
    numbers = (name for name, parameter in parameters.items() if type(parameter.default) in (int, float))
    return tuple(f"{name}=0.1" for name in numbers if parameters[name].default == 0)


def _set(program: Program, setting: tuple[str, ...], parameters: Mapping[str, inspect.Parameter]) -> Program:
    """The program with a setting; if its optimizer cannot be made so, with the other terms switched on too."""
    changed = replace(program, arguments=(*program.arguments, *setting))
    why = _explain_construction(changed)
    if why and not _explain_construction(
        fuller := replace(changed, arguments=(*changed.arguments, *_set_nesterov(parameters)))
    ):
        return fuller
    return replace(changed, left_out=why)


def _set_nesterov(parameters: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    return ("momentum=0.9",) if "momentum" in parameters else ()


def _explain_construction(program: Program) -> str:
    return _explain_refusal(replace(program, step=("return x",)))


def _use(program: Program, extra: str, before: Sequence[str] = (), **lines: Sequence[str]) -> Program:
    """The program with statements before its steps, after the backward pass, and around the optimizer's step."""
    backward = lines.get("backward", ("loss.backward()",))
    update = lines.get("update", ("optimizer.step()",))
    step = (*_STEP[:-1], *backward, *update, "return loss.detach()")
    changed = replace(program, extra=extra, before=tuple(before), step=step)
    return replace(changed, left_out=_explain_construction(changed))


_ADAMW = Program("AdamW", ("foreach=False",))
_SGD = Program("SGD", ("foreach=False", "momentum=0.9"))


def _add_schedulers() -> Iterator[Program]:
    classes = [each for each in vars(lr_scheduler).values() if inspect.isclass(each)]
    schedulers = [each for each in classes if issubclass(each, lr_scheduler.LRScheduler)]
    for scheduler in [*schedulers, swa_utils.SWALR]:
        if scheduler.__name__.endswith("LRScheduler"):  # the base class, and its former name
            continue
        for program in (_ADAMW, _SGD, replace(_ADAMW, arguments=("foreach=False", _TENSOR_LR))):
            yield _schedule(program, scheduler)


def _schedule(program: Program, scheduler: type[lr_scheduler.LRScheduler]) -> Program:
    parameters = inspect.signature(scheduler.__init__).parameters
    given = [f"{name}={_SCHEDULES[name]}" for name in parameters if name in _SCHEDULES]
    module = scheduler.__module__.removeprefix("torch.optim.")
    made = f"scheduler = torch.optim.{module}.{scheduler.__name__}({', '.join([*given, 'optimizer=optimizer'])})"
    stepped = "loss.detach()" if "metrics" in inspect.signature(scheduler.step).parameters else ""
    return _use(program, scheduler.__name__, [made], update=("optimizer.step()", f"scheduler.step({stepped})"))


def _add_clipping() -> Iterator[Program]:
    utils = "torch.nn.utils"
    calls = [
        f"{utils}.clip_grad_norm_(model.parameters(), 1e-2)",
        f"{utils}.clip_grad_norm_(model.parameters(), 1e-2, foreach=True)",
        f"{utils}.clip_grad_norm_(model.parameters(), 1e-2, norm_type=float('inf'))",
        f"{utils}.clip_grad_norm_(model.parameters(), 1e-2, error_if_nonfinite=True)",
        f"{utils}.clip_grad_value_(model.parameters(), 1e-3)",
        f"{utils}.clip_grad_value_(model.parameters(), 1e-3, foreach=True)",
    ]
    for call in calls:
        for program in (_ADAMW, _SGD):
            shown = call.removeprefix(f"{utils}.").replace("model.parameters(), ", "")
            yield _use(program, shown, backward=("loss.backward()", call))


def _add_scalers() -> Iterator[Program]:
    """With a scale that fits, and with one that overflows, so that the first steps are left out."""
    programs = [replace(_ADAMW, arguments=(choice,)) for choice in ("foreach=False", "foreach=True", "fused=True")]
    for program in (*programs, _SGD):
        for arguments in ('"cpu", init_scale=1024.0, growth_interval=2', '"cpu", init_scale=2.0**127'):
            made = f"torch.amp.GradScaler({arguments})"
            update = ("scaler.step(optimizer)", "scaler.update()")
            factor = "3 * " if "127" in arguments else ""
            backward = (f"scaler.scale({factor}loss).backward()",)
            yield _use(program, made, [f"scaler = {made}"], backward=backward, update=update)
    clip = ("scaler.unscale_(optimizer)", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)")
    made = 'torch.amp.GradScaler("cpu", init_scale=1024.0)'
    backward, update = ("scaler.scale(loss).backward()", *clip), ("scaler.step(optimizer)", "scaler.update()")
    yield _use(_ADAMW, f"{made}, unscale_ and clip_grad_norm_", [f"scaler = {made}"], backward=backward, update=update)


def _add_averages() -> Iterator[Program]:
    names = [name for name in swa_utils.__all__ if name.startswith("get_")]
    keywords = {name: "multi_avg_fn" if "multi" in name else "avg_fn" for name in names}
    given = [
        f"{keyword}=torch.optim.swa_utils.{name}({'0.9' if 'decay' in _list_parameters(name) else ''})"
        for name, keyword in keywords.items()
    ]
    for program in (_ADAMW, _SGD):
        for arguments in ("", "use_buffers=True", *given):
            made = f"torch.optim.swa_utils.AveragedModel({', '.join(['model', *([arguments] if arguments else [])])})"
            shown = made.replace("torch.optim.swa_utils.", "")
            update = ("optimizer.step()", "averaged.update_parameters(model)")
            fitted = replace(program, model=_WITH_BUFFERS) if "buffers" in arguments else program
            yield _use(fitted, shown, [f"averaged = {made}"], update=update)


def _list_parameters(name: str) -> Sequence[str]:
    return list(inspect.signature(getattr(swa_utils, name)).parameters)
