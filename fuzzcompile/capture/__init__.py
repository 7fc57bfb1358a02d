"""Scripts that call ``torch.compile`` as cases: run them up to a compiled call, and keep that call."""

from fuzzcompile.capture.process import preserved_process
from fuzzcompile.capture.script import load_script

__all__ = ["load_script", "preserved_process"]
