"""Models of transformers and timm from bundled configurations, as case files: random weights, nothing downloaded."""

from fuzzcompile.models.architectures import Architecture, architecture, names
from fuzzcompile.models.cases import SIZES, Size, case_file, case_text

__all__ = ["SIZES", "Architecture", "Size", "architecture", "case_file", "case_text", "names"]
