"""Read CASE without torch: a case file, a script or a notebook, or the reason that it is none of them."""

from fuzzcompile.casefiles.notebook import Notebook
from fuzzcompile.casefiles.python import defines_make
from fuzzcompile.casefiles.reading import (
    SENT_SUFFIX,
    CaseFile,
    Kind,
    local_modules,
    looks_like_path,
    other_packages,
    read_case_file,
)
from fuzzcompile.casefiles.text import read_source

__all__ = [
    "SENT_SUFFIX",
    "CaseFile",
    "Kind",
    "Notebook",
    "defines_make",
    "local_modules",
    "looks_like_path",
    "other_packages",
    "read_case_file",
    "read_source",
]
