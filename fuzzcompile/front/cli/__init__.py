"""The command line: parse, call one library function, print."""

from __future__ import annotations

from fuzzcompile.front.cli.main import main

__all__ = ["main"]
