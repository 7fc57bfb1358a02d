"""Ways to run a program, as a case file's ``PATH`` spells them. Needs no torch."""

from __future__ import annotations

COMPILE, EXPORT, AOTI = "compile", "export", "aoti"
PATHS = (COMPILE, EXPORT, AOTI)
"""``torch.compile``; ``torch.export``, whose program runs in eager mode; AOTInductor, which compiles that program."""
