"""Turn scripts that call ``torch.compile`` into cases: run a script up to a compiled call, and keep that call."""

from fuzzcompile.capture.process import preserved_process
from fuzzcompile.capture.script import load_script

__all__ = ["load_script", "preserved_process"]
