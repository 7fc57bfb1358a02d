"""Process-wide state that a case may change, restored after the case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from fuzzcompile.compiler.kernel_cache import share_headers
from fuzzcompile.compiler.target.target_process import interpret_own_kernels
from fuzzcompile.compiler.torch_config import preserve_config
from fuzzcompile.programs.capture.script_process import preserve_process
from fuzzcompile.run.device import Numerics


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restore threads, dtypes, grad and autocast modes, configs and the like after the block.

    In a process that compiles for a target, Triton kernels of the case are interpreted in it.
    """
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with preserve_config(), preserve_process(), interpret_own_kernels():
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
