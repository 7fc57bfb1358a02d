"""Measure the house: its rooms, the arrows between them, and the sizes of files and functions.

    python tools/rooms.py             # the measures
    python tools/rooms.py --mermaid   # the picture of ARCHITECTURE.md
    python tools/rooms.py --check     # exit with 1 if ARCHITECTURE.md shows another picture

An arrow is an import of any kind: at the top of a module, inside a function, or under ``TYPE_CHECKING``. Rooms are
listed from the top of the house to its ground; an arrow points down.
"""

from __future__ import annotations

import ast
import functools
import statistics
import sys
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOT = REPOSITORY / "fuzzcompile"
# Modules of the top level that belong to no room.
OUTSIDE = {"fuzzcompile", "__main__", "extend"}
BEGIN, END = "<!-- rooms: drawn by tools/rooms.py -->", "<!-- end of rooms -->"


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_name(module: str) -> str:
    """Return the room of a module; the package itself is ``fuzzcompile``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


@functools.cache
def read_modules() -> dict[str, ast.Module]:
    """Map each module of the package to its syntax tree."""
    return {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def list_imports(tree: ast.Module, *, running: bool = False) -> set[str]:
    """Return the modules of the package that a module imports; with ``running``, those at its top level alone."""
    modules, names = read_modules(), set()
    for node in tree.body if running else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {
                full if (full := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & modules.keys()


def count_arrows() -> Counter[tuple[str, str]]:
    """Count the imports between each two rooms."""
    arrows: Counter[tuple[str, str]] = Counter()
    for module, tree in read_modules().items():
        for imported in list_imports(tree):
            if room_name(module) != room_name(imported):
                arrows[room_name(module), room_name(imported)] += 1
    return arrows


def order_rooms() -> tuple[list[str], set[tuple[str, str]]]:
    """Return the rooms from top to ground, and the arrows that point up where there is no such order."""
    arrows = count_arrows()
    left = {room for arrow in arrows for room in arrow}
    ordered: list[str] = []
    upward: set[tuple[str, str]] = set()
    while left:
        entered = {room: sum(n for (a, b), n in arrows.items() if b == room and a in left) for room in left}
        room = min(sorted(left), key=lambda name: entered[name])
        upward |= {(a, b) for a, b in arrows if b == room and a in left}
        ordered.append(room)
        left.remove(room)
    return ordered, upward


def find_circles() -> list[set[str]]:
    """Return the groups of modules that import each other in a circle, whatever the kind of import."""
    graph = {module: list_imports(tree) for module, tree in read_modules().items()}
    reach: dict[str, set[str]] = {}
    for module in graph:
        seen, todo = set(), [module]
        while todo:
            for imported in graph[todo.pop()] - seen:
                seen.add(imported)
                todo.append(imported)
        reach[module] = seen
    circles = {frozenset(m for m in reach[module] if module in reach[m]) for module in graph if module in reach[module]}
    return sorted((set(circle) for circle in circles), key=len, reverse=True)


def longest_chain() -> int:
    """Return the number of modules in the longest chain of imports at the top level of modules."""
    graph = {module: list_imports(tree, running=True) for module, tree in read_modules().items()}

    @functools.cache
    def depth(module: str) -> int:
        return 1 + max((depth(imported) for imported in graph[module] if imported != module), default=0)

    return max(depth(module) for module in graph)


def draw() -> str:
    """Return the picture: Mermaid, each room with its sentence, an arrow where one room imports another.

    An arrow that two others imply is left out.
    """
    ordered, _ = order_rooms()
    arrows = set(count_arrows())
    shown = [
        (a, b)
        for a, b in sorted(arrows)
        if not any((a, m) in arrows and _leads(arrows, m, b) for m in ordered if m != b)
    ]
    lines = [BEGIN, "```mermaid", "flowchart TD"]
    for room in ordered:
        if room not in OUTSIDE:
            docstring = ast.get_docstring(read_modules()[f"fuzzcompile.{room}"]) or ""
            lines.append(f'    {room}["<b>{room}/</b><br>{docstring.splitlines()[0]}"]')
    lines += [f"    {a} --> {b}" for a, b in shown if not {a, b} & OUTSIDE]
    return "\n".join([*lines, "```", END])


def _leads(arrows: set[tuple[str, str]], start: str, end: str) -> bool:
    seen, todo = {start}, [start]
    while todo:
        room = todo.pop()
        if (room, end) in arrows:
            return True
        following = {b for a, b in arrows if a == room} - seen
        seen |= following
        todo.extend(following)
    return False


def measure() -> dict[str, str]:
    """Return the figures of the house, by name."""
    modules = read_modules()
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    names = Counter(path.name for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    packages = {".".join(name.split(".")[:-1]) for name in modules} - {""}
    return {
        "lines": f"{sum(lengths):,}",
        "files": f"{len(lengths)}",
        "packages": f"{len(packages)}",
        "rooms at the top level": f"{len({room_name(m) for m in modules} - OUTSIDE)}",
        "arrows between rooms": f"{len(count_arrows())}",
        "arrows that point up": f"{len(order_rooms()[1])}",
        "modules in circles": f"{sum(map(len, find_circles()))}",
        "longest import chain": f"{longest_chain()}",
        "lines of a module (median, p95, most)": _spread(lengths),
        "lines of a function (median, p95, most)": _spread(functions),
        "file names used twice": f"{sum(count > 1 for count in names.values())}",
        "words of ARCHITECTURE.md": f"{len((REPOSITORY / 'ARCHITECTURE.md').read_text(encoding='utf-8').split()):,}",
    }


def _spread(values: list[int]) -> str:
    return f"{statistics.median(values):.0f}, {sorted(values)[int(0.95 * len(values))]}, {max(values)}"


def main() -> None:
    """Print the measures or the picture, or check the picture of ARCHITECTURE.md."""
    if "--mermaid" in sys.argv:
        print(draw())
    elif "--check" in sys.argv:
        if draw() not in (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"):
            sys.exit(
                "ARCHITECTURE.md shows another picture: put the output of `python tools/rooms.py --mermaid` there."
            )
    else:
        print("\n".join(f"{name}: {value}" for name, value in measure().items()))


if __name__ == "__main__":
    main()
