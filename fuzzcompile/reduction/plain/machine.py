"""The output of ``torch.utils.collect_env`` on this machine, without its names."""

from __future__ import annotations

import functools
import getpass
import re
import socket

from fuzzcompile.privacy import scrub
from fuzzcompile.reduction.alone import run_alone

_LIMIT = 60.0


@functools.cache
def collected_environment() -> str:
    """The output of ``python -m torch.utils.collect_env``, without paths, hosts and users; empty if it fails.

    It takes seconds, so that it runs once in a process.
    """
    ran = run_alone("", command=("-W", "ignore", "-m", "torch.utils.collect_env"), timeout=_LIMIT)
    if ran.status != 0:
        return ""
    text = scrub(ran.output)
    for name, stands in ((socket.gethostname(), "HOST"), (_user(), "USER")):
        text = re.sub(rf"\b{re.escape(name)}\b", stands, text) if len(name) > 3 else text
    return "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in containers
        return ""
