"""Check that vetoed names exist, so that a misspelt name is not taken for a rewrite that changes nothing.

What torch registers is known only where torch is imported: a worker lists it, and the list is kept in the user's cache
for this torch. Without a list, a name of which the source of torch's passes spells no beginning is refused at once.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions, matches_veto
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.model.stages import STAGES
from fuzzcompile.model.versions import __version__, installed_torch
from fuzzcompile.programs.casefiles.case_file import CaseFile, local_modules, other_packages
from fuzzcompile.run.pool.worker import WorkerStartFailed
from fuzzcompile.run.pool.worker_pool import WorkerPool

# Each with its stage, its name, and its name without variant.
Rules = Collection[tuple[str, str, str]]

_RULES: Callable[[], list[tuple[str, str, str]]] = NamedFunction("fuzzcompile.compiler.source_probes:list_rules")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"_\d+$")
# By torch's convention passes take a graph, handlers of patterns a match; SDPA patterns are numbered.
_RULE = re.compile(r"def (?:(\w+)\(\s*(?:graph|gm|graph_module|match)\b|(\w+_pattern_\d+)\()")
_NEAREST = 3
_SECONDS = 300.0


class VetoCheck:
    """The vetoes of a command, and the cases: what a case or plant defines or imports may register a pass."""

    def __init__(self, conditions: Conditions, files: Collection[CaseFile] = ()) -> None:
        self._conditions = conditions
        own = {custom.target.name for custom in conditions.custom.passes}
        self._vetoes = [name for name in conditions.vetoes if name not in own]
        self._files = files

    def check(self) -> bool:
        """Refuse names that mean nothing, as far as that is known without torch; whether a worker must be asked.

        Raises:
            UsageError: a name means nothing; the message lists the nearest ones.
        """
        for name in self._vetoes:
            stage, colon, _ = name.partition(":")
            if colon and stage not in STAGES:
                near = difflib.get_close_matches(stage, STAGES, _NEAREST, 0.5) or STAGES
                raise UsageError(f"--veto {name}: there is no stage {stage!r}; use {', '.join(near)}.")
        doubtful = self._list_doubtful(())
        if not doubtful or self._conditions.custom:  # only a worker knows what the user's own modules register
            return bool(doubtful)
        kept = self._read_cache()
        if kept is not None:
            self._refuse(self._list_doubtful(kept), {name for rule in kept for name in rule[1:]})
            return False
        # A name that is made as torch runs differs from its source in what follows a number (pass_pattern_{index}).
        text = "\n".join(path.read_text(encoding="utf-8") for path in _list_pass_files())
        unknown = [name for name in doubtful if re.split(r"[*?\[\d]", _strip_stage(name))[0] not in text]
        self._refuse(unknown, {rule or numbered for rule, numbered in _RULE.findall(text)})
        return True

    def ask_worker(self, pool: WorkerPool) -> None:
        """Refuse names that mean nothing to a worker of the pool.

        Raises:
            UsageError: a name means nothing; the message lists the nearest ones.
            EnvironmentUnfit: no worker can be started.
        """
        try:
            rules = pool.schedule(_RULES, label="list rewrites", time_limit=_SECONDS).result()
        except WorkerStartFailed as error:
            raise make_start_error(error) from error
        if not (self._conditions.plants or self._conditions.custom):  # they register rewrites of their own
            self._write_cache(rules)
        self._refuse(self._list_doubtful(rules), {name for rule in rules for name in rule[1:]})

    def _list_doubtful(self, rules: Rules) -> list[str]:
        """The names that mean no rule, and no word of the files, the plants or a package that a case imports."""
        doubtful = [name for name in self._vetoes if not _is_known_rule(name, rules)]
        if not doubtful:
            return []
        words = {word for text in self._iterate_texts() for word in _WORD.findall(text)}
        unknown = [name for name in doubtful if not any(matches_veto(word, word, _strip_stage(name)) for word in words)]
        return [name for name in unknown if not self._is_in_packages(name)]

    def _is_in_packages(self, veto: str) -> bool:
        head = re.split(r"[*?\[]", _strip_stage(veto))[0].encode()
        folders = [find_package_folder(package) for file in self._files for package in other_packages(file)]
        files = (path for folder in folders if folder is not None for path in folder.rglob("*.py"))
        return any(head in path.read_bytes() for path in files)

    def _iterate_texts(self) -> Iterator[str]:
        for plant in self._conditions.plants:
            yield plant.read_text(encoding="utf-8")
        for file in self._files:
            yield file.source
            for module in local_modules(file):
                with contextlib.suppress(OSError):
                    yield module.read_text(encoding="utf-8", errors="replace")

    def _refuse(self, unknown: Collection[str], rules: Collection[str]) -> None:
        for name in unknown:
            names = {*rules, *(_NUMBER.sub("", rule) for rule in rules)}
            near = difflib.get_close_matches(_strip_stage(name), sorted(names), _NEAREST, 0.5)
            nearest = f"; the nearest are {', '.join(near)}" if near else ""
            raise UsageError(
                f"--veto {name} names no rewrite or pass of torch {installed_torch()}{nearest}. "
                f"`{hints.format_command('passes')}` lists them."
            )

    # -- the list in the user's cache ------------------------------------------------------------

    def _read_cache(self) -> Rules | None:
        try:
            return [
                (stage, name, base)
                for stage, name, base in json.loads(self._locate_cache().read_text(encoding="utf-8"))
            ]
        except (OSError, ValueError, TypeError):
            return None

    def _write_cache(self, rules: Rules) -> None:
        path = self._locate_cache()
        draft = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # the next command asks a worker again
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(list(rules)), encoding="utf-8")
            draft.replace(path)

    def _locate_cache(self) -> Path:
        from platformdirs import user_cache_path  # few commands have a veto

        state = [(str(path), path.stat().st_mtime_ns) for path in _list_pass_files()]
        key = repr((installed_torch(), __version__, self._conditions.device, self._conditions.target, state))
        return user_cache_path("fuzzcompile") / "rules" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def check_vetoes(conditions: Conditions, files: Collection[CaseFile] = ()) -> None:
    """Refuse vetoes that mean nothing; a worker is started only where the user's cache does not know.

    Raises:
        UsageError: a name means nothing; the message lists the nearest ones.
        EnvironmentUnfit: no worker can be started.
    """
    vetoes = VetoCheck(conditions, files)
    if vetoes.check():
        with open_pool(conditions, 1) as pool:
            vetoes.ask_worker(pool)


def _is_known_rule(name: str, rules: Rules) -> bool:
    stage, colon, rest = name.partition(":")
    wanted = rest if colon else name
    return any(
        (not colon or own_stage in ("", stage)) and matches_veto(rewrite, base, wanted)
        for own_stage, rewrite, base in rules
    )


def _strip_stage(veto: str) -> str:
    stage, colon, rest = veto.partition(":")
    return (rest if colon else stage).removeprefix("=")


def find_package_folder(package: str) -> Path | None:
    """The folder of an installed package, which is not imported; None if there is no such folder."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(folders[0]) if folders else None


def _list_pass_files() -> list[Path]:
    """The files that define the installed torch's passes, or name them."""
    root = find_package_folder("torch")
    globs = ("_inductor/fx_passes/**/*.py", "_inductor/*.py", "_functorch/**/*.py")
    return [] if root is None else sorted(path for glob in globs for path in root.glob(glob))
