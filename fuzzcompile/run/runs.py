"""One run of a case: eager, float64, perturbed, or through a callable that the compiler made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from fuzzcompile.model.errors import CaseError
from fuzzcompile.run.building import RUN_SEED, Program, build
from fuzzcompile.run.case import Arguments, Case
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.exhaustion import first_line, is_exhausted_memory, memory_errors
from fuzzcompile.run.float64 import Float64Mode
from fuzzcompile.run.freeing import give_back
from fuzzcompile.run.lost_gpu import wait_for
from fuzzcompile.run.noise import UlpNoise
from fuzzcompile.run.observation import Failure, Observation, Value
from fuzzcompile.run.observing import backward, bits, gradients, mutations, outputs
from fuzzcompile.run.promised import random_state
from fuzzcompile.run.trees import structure
from fuzzcompile.run.warned import recorded, texts
from fuzzcompile.run.worker import say

# Rounds of timing: at most, at least, and the seconds after which no further round begins.
_ROUNDS, _FEWEST_ROUNDS, _TIMING = 30, 3, 0.5


def run_eager(case: Case, device: torch.device, *, noise_seed: int | None = None, double: bool = False) -> Observation:
    """Run the case in eager mode; with ``noise_seed``, every operator's result is moved by up to one ulp.

    With ``double`` the program's tensors are converted to float64, while its own casts stay as they are.
    """
    say("running it in eager mode" if noise_seed is None else "running it in eager mode, to measure its rounding")
    mode = UlpNoise(noise_seed) if noise_seed is not None else contextlib.nullcontext()
    program = build(case, device, double=double, streamed=True)
    return observe(case, program, program.model, around=mode)


def run_float64(case: Case, device: torch.device, *, keep_casts: bool = True) -> tuple[Observation, bool]:
    """Run the case in float64.

    Args:
        case: the case to run.
        device: where to run it.
        keep_casts: let the program's own casts to bfloat16 and float16 round their values to those types.

    Returns:
        The observation, and whether the program contains such casts.
    """
    say("running it in float64")
    program = build(case, device, double=True, streamed=True)
    mode = Float64Mode(keep_casts=keep_casts, native=program.dtype)
    return observe(case, program, program.model, around=mode), mode.saw_cast


def observe(
    case: Case,
    program: Program,
    target: Callable[..., object],
    *,
    around: contextlib.AbstractContextManager[object] | None = None,
    describe_failure: Callable[[BaseException], Failure] | None = None,
    seed: int | None = None,
) -> Observation:
    """Drive ``target`` through the calls of the case.

    Exceptions of the program, forward and backward, become the observation's ``failure``.

    Args:
        case: says how the target is called.
        program: the inputs of each call.
        target: the program's model, or its compiled form.
        around: a context that is entered around all calls.
        describe_failure: turns an exception into a failure; the default cannot tell the compiler's from the program's.
        seed: seeds the random generators; the case's own seed by default.

    Raises:
        MemoryError: memory is exhausted, however torch reports it.
        KeyboardInterrupt: the user interrupts.
    """
    give_back()  # what was made on the way to the program
    start = time.perf_counter()
    with memory_errors(), recorded() as caught:
        try:
            with grad_mode(case.grad), case.ambient(), around or contextlib.nullcontext():
                observation = _observed(case, program, target, start, seed)
        except _ProgramError as wrapped:
            describe = describe_failure or plain_failure
            observation = Observation(failure=describe(wrapped.error), seconds=time.perf_counter() - start)
    return replace(observation, warnings=texts(caught))


def _observed(
    case: Case, program: Program, target: Callable[..., object], start: float, seed: int | None = None
) -> Observation:
    if seed is not None:
        seed_everything(seed)
    else:
        reseed(case)
    values: list[Value] = []
    structures: list[str] = []
    earlier: dict[str, object] = {}
    for number, arguments in enumerate(program.calls):
        if number and program.state is not None:
            program.state.enter(number)
        prefix = f"call{number}." if len(program.calls) > 1 else ""
        before = bits(program, arguments)
        with _program_code():
            output = drive(case, target, arguments)
            wait_for((output, arguments))
        structures.append(structure(output))
        values += outputs(prefix, output, program, arguments, earlier)
        if case.backward:
            with _program_code():
                backward(output, required=case.state is None)
                wait_for((output, arguments))
        values += mutations(prefix, before, program, arguments)
        if case.backward or case.state is not None:
            accumulated = gradients(prefix, program, arguments)
            values += accumulated if case.backward else [value for value in accumulated if value.is_tensor]
    values += random_state(case)
    return Observation(tuple(values), None, "; ".join(structures), time.perf_counter() - start)


def time_calls(case: Case, program: Program, target: Callable[..., object]) -> float | None:
    """Time the calls of the case and their backward.

    Returns:
        Seconds, the least of several rounds without the first. None for a script's callable, whose state is not
        restored between rounds, and None if a call raises.
    """
    if case.state is not None:
        return None
    rounds: list[float] = []
    begun = time.perf_counter()
    with memory_errors(), recorded(), grad_mode(case.grad), case.ambient():
        while len(rounds) <= _ROUNDS and (len(rounds) < _FEWEST_ROUNDS or time.perf_counter() - begun < _TIMING):
            start = time.perf_counter()
            try:
                for arguments in program.calls:
                    output = drive(case, target, arguments)
                    if case.backward:
                        backward(output, required=False)
            except (KeyboardInterrupt, MemoryError):
                raise
            except Exception:  # the program's own exception: a program that fails has no time
                return None
            rounds.append(time.perf_counter() - start)
    return min(rounds[1:])


def reseed(case: Case) -> None:
    """Set the random state in which every run of the case begins."""
    if case.reseed is not None:
        case.reseed()
    else:
        seed_everything(RUN_SEED)


class _ProgramError(Exception):
    """Carries an exception of the program itself, as opposed to ours."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _program_code() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, CaseError):
        raise
    except BaseException as error:  # the program's own, SystemExit too: what it raises is what is observed
        if is_exhausted_memory(error):
            raise
        raise _ProgramError(error) from error


def plain_failure(error: BaseException) -> Failure:
    """Describe an exception of the program itself."""
    return Failure(type(error).__name__, first_line(error))


@contextlib.contextmanager
def grad_mode(name: str) -> Iterator[None]:
    """Enter the grad mode of a case: ``no_grad``, ``inference_mode`` or ``enabled``."""
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(name, torch.enable_grad)
    with context():
        yield


def drive(case: Case, target: Callable[..., object], arguments: object) -> object:
    """Call ``target`` with the inputs of one call, through the case's ``run`` if it has one."""
    if case.run is not None:
        return case.run(target, arguments)
    if isinstance(arguments, Arguments):
        return target(*arguments.args, **arguments.kwargs)
    if isinstance(arguments, dict):
        return target(**arguments)
    return target(*arguments) if isinstance(arguments, tuple) else target(arguments)
