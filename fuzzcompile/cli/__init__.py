"""The command line: parse, call one library function, print."""

from fuzzcompile.cli.main import main

__all__ = ["main"]
