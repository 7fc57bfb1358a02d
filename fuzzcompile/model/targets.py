"""Targets: devices that the compiler generates code for, apart from the device that runs it.

The compiler is told the published figures of one common product of the architecture (``cuda:sm_90``). Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from fuzzcompile.model.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A device that the compiler generates code for, and that need not be there."""

    kind: str  # ``cuda`` or ``rocm``
    arch: str  # the architecture as its vendor's compiler spells it (``sm_90``, ``gfx942``)
    product: str  # the product whose figures these are, as its driver names it
    # major and minor number of the architecture, as ``torch.cuda.get_device_capability`` gives them
    capability: tuple[int, int]
    processors: int  # multiprocessors (compute units)
    warp: int  # threads of a warp (wavefront)
    threads: int  # most threads that are resident on one multiprocessor
    registers: int  # 32-bit registers of one multiprocessor
    memory: int  # bytes of device memory
    l2_cache: int  # bytes
    shared_memory: int  # bytes of shared memory that one multiprocessor has
    shared_memory_of_block: int  # the most bytes of it that one block may ask for
    clock: int  # kHz
    memory_clock: int  # kHz
    memory_bus: int  # bits

    @property
    def name(self) -> str:
        """``cuda:sm_90``, as the command line spells it."""
        return f"{self.kind}:{self.arch}"

    @property
    def device_type(self) -> str:
        """The type of device as torch has it: ``cuda`` for ROCm too."""
        return "cuda"


# Sources: NVIDIA's architecture whitepapers (H100, A100, Turing) and the CUDA C++ programming guide's technical
# specifications per compute capability; AMD's CDNA 3 whitepaper and the data sheet of the MI300X.
_ALL = (
    Target("cuda", "sm_90", "NVIDIA H100 80GB HBM3", (9, 0), 132, 32, 2048, 65536, 85_029_158_912, 50 * 2**20,
           233_472, 232_448, 1_980_000, 2_619_000, 5120),
    Target("cuda", "sm_80", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 32, 2048, 65536, 85_097_971_712, 40 * 2**20,
           167_936, 166_912, 1_410_000, 1_593_000, 5120),
    Target("cuda", "sm_75", "Tesla T4", (7, 5), 40, 32, 1024, 65536, 15_828_320_256, 4 * 2**20,
           65_536, 65_536, 1_590_000, 5_001_000, 256),
    Target("rocm", "gfx942", "AMD Instinct MI300X", (9, 4), 304, 64, 2048, 131_072, 206_141_652_992, 4 * 2**20,
           65_536, 65_536, 2_100_000, 1_300_000, 8192),
)  # fmt: skip
TARGETS = MappingProxyType({target.name: target for target in _ALL})


def find_target(name: str) -> Target:
    """The target of this name; UsageError lists those that there are."""
    if name not in TARGETS:
        raise UsageError(f"{name!r} is not a target; use one of {', '.join(TARGETS)}.")
    return TARGETS[name]
