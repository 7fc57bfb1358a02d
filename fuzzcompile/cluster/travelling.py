"""Conditions sent to other machines: files travel as their content, because machines share no file system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzcompile.custom import Target
from fuzzcompile.errors import UsageError
from fuzzcompile.worker.conditions import Conditions

# A plant or a pass is source code: more than this is a mistake, and every Dask worker would get it.
_MOST_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Packed:
    """Conditions, and the text of the files that they name, by the paths that they have on the sender's machine."""

    conditions: Conditions
    texts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, conditions: Conditions) -> Packed:
        """Return conditions with the text of the files that they name.

        Raises:
            UsageError: a file cannot be read as text, or is too large.
        """
        return cls(conditions, tuple((path, _text(Path(path))) for path in dict.fromkeys(_files(conditions))))

    def unpacked(self, folder: Path) -> Conditions:
        """Return the conditions for this machine, with the files written to the empty ``folder``.

        Files keep their names, which reports show; each is written to a folder of its own.
        """
        here: dict[str, Path] = {}
        for number, (path, text) in enumerate(self.texts):
            here[path] = folder / str(number) / Path(path).name
            here[path].parent.mkdir()
            here[path].write_text(text, encoding="utf-8")

        def moved(target: Target) -> Target:
            return replace(target, module=str(here[target.module])) if target.is_file else target

        custom = self.conditions.custom
        return replace(
            self.conditions,
            plants=tuple(here[str(path)] for path in self.conditions.plants),
            custom=replace(
                custom,
                passes=tuple(replace(each, target=moved(each.target)) for each in custom.passes),
                backend=moved(custom.backend) if isinstance(custom.backend, Target) else custom.backend,
            ),
        )


def _files(conditions: Conditions) -> Iterator[str]:
    yield from map(str, conditions.plants)
    targets = [*(each.target for each in conditions.custom.passes), conditions.custom.backend]
    yield from (target.module for target in targets if isinstance(target, Target) and target.is_file)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be sent to a cluster: {' '.join(str(error).split())[:200]}.") from error
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path} cannot be sent to a cluster: it has more than {_MOST_BYTES >> 20} MiB.")
    return text
