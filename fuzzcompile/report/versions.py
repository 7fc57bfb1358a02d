"""What a result depends on, as lines to publish."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzcompile.model.privacy import scrub

# Only these are published, in this order.
_VERSIONS = {
    "torch": "PyTorch",
    "torch_git": "PyTorch commit",
    "device": "Device",
    "target": "Device told to the compiler",
    "device_name": "Device name",
    "device_capability": "Compute capability",
    "driver": "Driver",
    "cuda": "CUDA",
    "hip": "HIP",
    "triton": "Triton",
    "cxx": "C++ compiler",
    "cpu": "CPU",
    "cpu_capability": "CPU capability",
    "cpu_count": "CPUs",
    "threads": "Threads",
    "python": "Python",
    "platform": "Platform",
    "libc": "libc",
}


def versions(environment: Mapping[str, object]) -> list[tuple[str, str]]:
    """Labels and values of the known parts of an environment (:func:`fuzzcompile.run.environment.describe`)."""
    known = ((label, environment.get(key)) for key, label in _VERSIONS.items())
    return [(label, scrub(str(value))) for label, value in known if value not in (None, "")]
