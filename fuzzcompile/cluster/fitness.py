"""The requirements of a campaign on Dask workers, and the reason, in one sentence, why a worker does not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import fuzzcompile
from fuzzcompile.cluster.messages import Offer, code_digest
from fuzzcompile.errors import message_of
from fuzzcompile.worker.tasks import Surroundings


@dataclass(frozen=True)
class Wanted:
    """The requirements of a campaign on its workers.

    Attributes:
        torch: the version, with or without a build (``2.15.0``, ``2.15.0+cpu``); None for any.
        gpu: True if there must be a GPU, False if there must be none; None for either.
    """

    torch: str | None = None
    gpu: bool | None = None

    def refusal(self, offer: Offer) -> str | None:
        """Return the reason why a Dask worker does not fit; None if it fits."""
        if (offer.version, offer.code) != (fuzzcompile.__version__, code_digest()):
            return (
                f"it has fuzzcompile {offer.version} ({offer.code}), and the campaign runs fuzzcompile "
                f"{fuzzcompile.__version__} ({code_digest()}); install the same there"
            )
        if not offer.torch:
            return "no torch is installed there"
        if self.torch is not None and self.torch not in (offer.torch, offer.torch.partition("+")[0]):
            return f"it has torch {offer.torch}, and the campaign is for torch {self.torch}"
        if self.gpu is not None and self.gpu != offer.gpu:
            return (
                "it has no GPU, and the campaign runs on GPUs"
                if self.gpu
                else "it has a GPU, and the campaign runs on CPUs; --device cpu takes such workers too"
            )
        if offer.slots < 1:
            return "its Dask resource fuzzcompile=0 keeps campaigns off it"
        return None

    def narrowed(self, offers: Iterable[Offer], *, any_device: bool) -> Wanted:
        """Narrow to the kind of worker with most slots: a campaign runs under one torch, on one kind of device.

        Args:
            offers: the present offers; if none fits, nothing is narrowed.
            any_device: True if cases may run on any device.
        """
        slots = Counter[tuple[str, bool]]()
        for offer in offers:
            if self.refusal(offer) is None:
                slots[offer.torch, offer.gpu] += offer.slots
        if not slots:
            return self
        torch, gpu = max(slots, key=lambda kind: (slots[kind], kind))
        return replace(self, torch=torch, gpu=self.gpu if any_device else gpu)


def unlike(first: Surroundings, here: Surroundings) -> str | None:
    """Return the reason why results from ``here`` do not compare with those of the ``first`` worker; None if they do.

    Both workers fit the requirements, and have described their surroundings when they started.
    """
    if first.environment["torch"] != here.environment["torch"]:
        return f"it runs torch {here.environment['torch']}, and the campaign torch {first.environment['torch']}"
    if first.device != here.device:
        return f"its cases would run on {here.device}, and the campaign's run on {first.device}"
    if first.custom != here.custom:
        return "it has another version of the passes or the backend of your own"
    missing = sorted(set(here.lacks) - set(first.lacks))
    return f"its torch lacks what the campaign draws: {', '.join(missing[:5])}" if missing else None


def silent(error: Exception) -> str:
    """Return the reason why a Dask worker answered with an error when asked for its offer."""
    text = message_of(error, 200)  # Dask may wrap the error in another that says it
    if match := re.search(r"No module named \W*(fuzzcompile[\w.]*)", text):
        return "no fuzzcompile is installed there" if match[1] == "fuzzcompile" else "its fuzzcompile is older"
    return f"it cannot be asked for its fuzzcompile ({text})"


def machine_of(address: str) -> str:
    """Return the host in a Dask worker's address: workers of one host share its processors."""
    return urlsplit(address).hostname or address
