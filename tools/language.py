"""Measure the language of the code, and fail where it is worse than the house allows.

    python tools/language.py [--list] [FOLDER]

Functions are verbs, classes are nouns, a docstring begins with a verb or a noun. Counted: docstrings that begin with a
wh-word, functions whose first word is a participle, functions named ``…_of``, and public classes that bear one name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "fuzzcompile"
WH_WORD = re.compile(r"(what|who|whose|whom|which|when|where|whether|why|how)\b", re.IGNORECASE)
# fmt: off
IRREGULAR = frozenset((
    "made", "held", "taken", "found", "seen", "given", "told", "known", "kept", "left", "written", "drawn", "shown",
    "heard", "said", "brought", "built", "sent", "spoken", "spelt", "lost", "bound", "chosen", "grown", "hidden",
    "done", "gone", "worn", "torn", "thrown", "thought", "meant", "met", "paid", "laid", "led", "fed", "felt", "got",
    "sold", "stood", "understood", "won", "broken", "woken", "frozen", "forgotten", "born", "borne", "beaten", "begun",
))
# They end like a participle and are none.
NOUNS_AND_VERBS = frozenset((
    "need", "seed", "feed", "speed", "embed", "embedding", "bed", "red", "shed", "exceed", "proceed", "padding",
    "string", "rating", "heading", "thing", "nothing", "everything", "something", "spacing", "setting", "bring", "ring",
    "sing", "finding", "warning", "spelling",
))
# fmt: on
LIMITS = {"wh-docstrings (%)": 3.0, "participles (%)": 6.0, "names ending in _of": 59, "class names used twice": 0}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_participle(word: str) -> bool:
    """Return whether a word is a participle: ``judged``, ``watching``, ``taken``."""
    return word in IRREGULAR or (word.endswith(("ed", "ing")) and word not in NOUNS_AND_VERBS)


@dataclass
class Language:
    """Counts over a tree, and the places behind each count."""

    docstrings: int = 0
    functions: int = 0
    places: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in LIMITS})
    classes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def read(self, path: Path) -> None:
        """Count a file."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self._read_docstring(tree, f"{path}:1")
        for node in definitions(tree):
            place = f"{path}:{node.lineno} {node.name}"
            self._read_docstring(node, place)
            if isinstance(node, ast.ClassDef):
                if not node.name.startswith("_"):
                    self.classes[node.name].append(place)
                continue
            self.functions += 1
            if is_participle(node.name.strip("_").split("_")[0]):
                self.places["participles (%)"].append(place)
            if node.name.endswith("_of"):
                self.places["names ending in _of"].append(place)

    def _read_docstring(self, node: Definition | ast.Module, place: str) -> None:
        text = ast.get_docstring(node)
        self.docstrings += text is not None
        if text and WH_WORD.match(text):
            self.places["wh-docstrings (%)"].append(place)

    def measure(self) -> dict[str, float]:
        """Return each measure of ``LIMITS``."""
        self.places["class names used twice"] = [" ".join(each) for each in self.classes.values() if len(each) > 1]
        counts = {name: float(len(places)) for name, places in self.places.items()}
        counts["wh-docstrings (%)"] *= 100 / max(1, self.docstrings)
        counts["participles (%)"] *= 100 / max(1, self.functions)
        return counts


def definitions(tree: ast.AST) -> Iterator[Definition]:
    """Yield all functions and classes of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def main() -> None:
    """Print the measures, and exit with 1 if one is over its limit."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--list"]
    roots = [Path(argument) for argument in arguments] or [ROOT]
    language = Language()
    for path in sorted(path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))):
        language.read(path)
    measures = language.measure()
    if "--list" in sys.argv:
        print("\n".join(f"{name}: {place}" for name in LIMITS for place in language.places[name]))
    for name, value in measures.items():
        print(f"{name}: {value:.1f} (limit {LIMITS[name]:g})")
    sys.exit(any(value > LIMITS[name] for name, value in measures.items()))


if __name__ == "__main__":
    main()
