"""How a worker starts. Imports neither torch nor the compiler until it is called."""

from __future__ import annotations

import gc

from fuzzcompile.model.tasks import WorkerSetup


def start(setup: WorkerSetup) -> None:
    """Import what judging takes and prepare this process; the C++ toolchain is looked at meanwhile.

    Importing torch and its compiler makes 700,000 objects, none of them garbage to speak of, and the collector scans
    them again and again: a third of the processor time (measured: 3.3 s instead of 2.4 s). It is switched on again by
    :func:`~fuzzcompile.triage.judging.judge.calm_collector`.
    """
    gc.disable()
    from fuzzcompile.compiler.kernel_cache import prepare_toolchain

    with prepare_toolchain(wanted=setup.target is None):
        from fuzzcompile.triage.judging.judge import prepare

        prepare(setup)
