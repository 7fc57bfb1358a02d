"""What the installed torch's source says of a rewrite: the classes that it shares its code with."""

from __future__ import annotations

import ast
from collections.abc import Collection
from importlib import metadata
from pathlib import Path


def base_classes(source: str, names: Collection[str], torch: str | None) -> list[str]:
    """The bases, from the same file, of the classes of torch that are called ``names``.

    A report is often about the base class, whose code its subclasses run.

    Args:
        source: the file, as ``torch/_inductor/...``.
        names: of the rewrite and its family.
        torch: the version that showed the bug; another one may be laid out otherwise, so that nothing is read.
    """
    try:
        installed = metadata.distribution("torch")
        if installed.version != torch:
            return []
        module = ast.parse(Path(str(installed.locate_file(source))).read_text(encoding="utf-8"))
    except (metadata.PackageNotFoundError, OSError, UnicodeDecodeError, SyntaxError):
        return []
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    bases = [base for name in names if name in classes for base in classes[name].bases]
    return list(dict.fromkeys(base.id for base in bases if isinstance(base, ast.Name) and base.id in classes))
