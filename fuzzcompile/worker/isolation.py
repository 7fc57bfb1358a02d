"""Process-wide state that a case may change, restored after the case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from fuzzcompile.capture import preserved_process
from fuzzcompile.compiler.configs import preserved_config
from fuzzcompile.compiler.headers import share_headers
from fuzzcompile.compiler.target.process import own_kernels_run
from fuzzcompile.execution.device import Numerics


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restore threads, dtypes, grad and autocast modes, configs and the like after the block.

    In a process that compiles for a target, Triton kernels of the case are interpreted in it.
    """
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with preserved_config(), preserved_process(), own_kernels_run():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(grad)
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)
        torch.autograd.set_detect_anomaly(False)
        torch.compiler.set_stance("default")
        torch.use_deterministic_algorithms(deterministic)
        Numerics().apply()
        share_headers()
