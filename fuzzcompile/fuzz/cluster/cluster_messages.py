"""What a campaign and a Dask worker tell each other: plain data, pickled, with the files that conditions name."""

from __future__ import annotations

import functools
import hashlib
import pickle
import pickletools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.custom import ObjectPath
from fuzzcompile.model.errors import UsageError, format_message
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.model.versions import PACKAGE, __version__
from fuzzcompile.run.pool.worker import make_remote_error, pickle_error

# A plant or a pass is source code: more than this is a mistake, and every Dask worker would get it.
_MOST_BYTES = 4 * 2**20


@dataclass(frozen=True)
class HostCharter:
    """What a Dask worker needs for the cases of one campaign, whose name no other campaign has.

    The name is also that of its plugin on a Dask worker, and of the events that say which of its tasks begin. It takes
    ``slots`` cases at once, in a pool that ``opens`` opens (`dask_host.open_local`), with ``share`` of its machine's
    processors: several Dask workers may share a machine. Machines share no file system: ``texts`` are those of the
    files that the conditions name, by path on the driver.
    """

    campaign: str
    conditions: Conditions
    texts: Mapping[str, str]
    opens: Callable[..., Any]
    slots: int = 0
    share: float = 1.0

    def unpack(self, folder: Path) -> Conditions:
        """Return the conditions for this machine, with the files written to the empty ``folder``.

        Files keep their names, which reports show; each is written to a folder of its own.
        """
        here = {path: folder / str(number) / Path(path).name for number, path in enumerate(self.texts)}
        for path, text in self.texts.items():
            here[path].parent.mkdir()
            here[path].write_text(text, encoding="utf-8")

        def move(target: Any) -> Any:
            own = isinstance(target, ObjectPath) and target.is_file
            return replace(target, module=str(here[target.module])) if own else target

        custom, plants = self.conditions.custom, tuple(here[str(path)] for path in self.conditions.plants)
        passes = tuple(replace(each, target=move(each.target)) for each in custom.passes)
        custom = replace(custom, passes=passes, backend=move(custom.backend))
        return replace(self.conditions, plants=plants, custom=custom)


def read_named_files(conditions: Conditions) -> dict[str, str]:
    """Return the text of the files that conditions name, by path; raise UsageError if one cannot be sent."""
    targets = [*(each.target for each in conditions.custom.passes), conditions.custom.backend]
    own = [target.module for target in targets if isinstance(target, ObjectPath) and target.is_file]
    texts = {}
    for path in (*map(str, conditions.plants), *own):
        try:
            texts[path] = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be sent to a cluster: {format_message(error, 200)}.") from error
        if len(texts[path]) > _MOST_BYTES:
            raise UsageError(f"{path} cannot be sent to a cluster: it has more than {_MOST_BYTES >> 20} MiB.")
    return texts


@dataclass(frozen=True)
class WorkerOffer:
    """A Dask worker before torch is imported: versions, a hash of its fuzzcompile's files, and cases at once.

    ``torch`` is empty where none is installed; ``gpu`` tells whether torch might find one.
    """

    version: str
    code: str
    torch: str
    gpu: bool
    slots: int


@dataclass(frozen=True)
class WorkerRequirements:
    """The torch of a campaign's workers, with or without a build (None: any), and whether they have GPUs."""

    torch: str | None = None
    gpu: bool | None = None

    def explain_refusal(self, offer: WorkerOffer) -> str | None:
        """Return the reason why a Dask worker does not fit; None if it fits."""
        here, there = f"{__version__} ({compute_code_digest()})", f"{offer.version} ({offer.code})"
        if here != there:
            return f"it has fuzzcompile {there}, and the campaign runs fuzzcompile {here}; install the same there"
        if not offer.torch:
            return "no torch is installed there"
        if self.torch is not None and self.torch not in (offer.torch, offer.torch.partition("+")[0]):
            return f"it has torch {offer.torch}, and the campaign is for torch {self.torch}"
        if self.gpu is not None and self.gpu != offer.gpu:
            if self.gpu:
                return "it has no GPU, and the campaign runs on GPUs"
            return "it has a GPU, and the campaign runs on CPUs; --device cpu takes such workers too"
        return None if offer.slots else "its Dask resource fuzzcompile=0 keeps campaigns off it"

    def narrow(self, offers: Iterable[WorkerOffer], *, any_device: bool) -> WorkerRequirements:
        """Narrow to the kind of worker with most slots: a campaign runs under one torch, on one kind of device.

        If no offer fits, nothing is narrowed. ``any_device``: cases may run on any.
        """
        slots = Counter[tuple[str, bool]]()
        for offer in offers:
            if self.explain_refusal(offer) is None:
                slots[offer.torch, offer.gpu] += offer.slots
        if not slots:
            return self
        torch, gpu = max(slots, key=lambda kind: (slots[kind], kind))
        return replace(self, torch=torch, gpu=self.gpu if any_device else gpu)


def explain_difference(first: WorkerDescription, here: WorkerDescription) -> str | None:
    """Return why results from ``here`` do not compare with those of the ``first`` worker; None if they do."""
    if first.environment["torch"] != here.environment["torch"]:
        return f"it runs torch {here.environment['torch']}, and the campaign torch {first.environment['torch']}"
    if first.device != here.device:
        return f"its cases would run on {here.device}, and the campaign's run on {first.device}"
    if first.custom != here.custom:
        return "it has another version of the passes or the backend of your own"
    missing = sorted(set(here.lacks) - set(first.lacks))
    return f"its torch lacks what the campaign draws: {', '.join(missing[:5])}" if missing else None


def explain_failed_offer(error: Exception) -> str:
    """Return the reason why a Dask worker answered with an error when asked for its offer."""
    text = format_message(error, 200)  # Dask may wrap the error in another that says it
    if match := re.search(r"No module named \W*(fuzzcompile[\w.]*)", text):
        return "no fuzzcompile is installed there" if match[1] == "fuzzcompile" else "its fuzzcompile is older"
    return f"it cannot be asked for its fuzzcompile ({text})"


@functools.cache
def compute_code_digest() -> str:
    """Return a short hash of the installed fuzzcompile's files: version numbers do not tell two checkouts apart."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".toml", ".json") and path.is_file():
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class Unhosted(Exception):
    """The Dask worker serves the campaign no longer: a task is to run elsewhere. Its cause is what the host lacks."""


@dataclass(frozen=True)
class CallOnUnpickling:
    """A call that unpickling runs, on a Dask worker: the scheduler, which unpickles nothing, needs no fuzzcompile."""

    function: Callable[..., object]
    args: tuple[object, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return self.function, self.args


def make_portable(error: BaseException) -> Exception:
    """Return the error, or its kind and text if it is torch's, say: the driver may have no torch."""
    package, pickled = type(error).__module__.partition(".")[0], pickle_error(error)
    own = package == "fuzzcompile" or (package == "builtins" and not _needs_torch(pickled))
    portable: Exception = pickle.loads(pickled) if own else make_remote_error(error)
    return portable


def _needs_torch(pickled: bytes) -> bool:
    return any(str(argument).partition(".")[0] == "torch" for _, argument, _ in pickletools.genops(pickled))
