"""Settings of a user for a project: ``[tool.fuzzcompile]`` of pyproject.toml and environment variables. No torch.

Precedence: the command line, the environment, pyproject.toml, what is built in.
"""

from fuzzcompile.settings.corpus_place import FILE_NAME, place_of_corpus
from fuzzcompile.settings.ignored import Ignored
from fuzzcompile.settings.in_force import InForce, Source, in_force
from fuzzcompile.settings.table import KEYS, SETTINGS, Setting, setting

__all__ = [
    "FILE_NAME",
    "KEYS",
    "SETTINGS",
    "Ignored",
    "InForce",
    "Setting",
    "Source",
    "in_force",
    "place_of_corpus",
    "setting",
]
