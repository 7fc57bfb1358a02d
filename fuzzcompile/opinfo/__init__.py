"""Operators from torch's own tables (OpInfo): their sample and error inputs as case files.

`cells` says what there is to judge, as plain data that needs no torch; everything else runs in a worker, which needs
what torch's test tables need (the extra ``opinfo``).
"""

from fuzzcompile.opinfo.cells import Cell, Operator, Written, cells_of, ordered

__all__ = ["Cell", "Operator", "Written", "cells_of", "ordered"]
