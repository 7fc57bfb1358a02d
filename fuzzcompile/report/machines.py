"""On how many machines a finding was seen, in one sentence that claims no more than was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzcompile.model.hints import CommandSubject

if TYPE_CHECKING:
    from fuzzcompile.corpus.machines import Machines


def seen_on(machines: Machines) -> str:
    """Where it was seen and where it did not show, without a full stop: for a draft and a page."""
    types = ", ".join(machines.processors)
    if machines.second_machine == "confirmed":
        said = f"confirmed on {machines.count} machines"
    else:
        said = "seen on one machine"
    if machines.one_type_only:
        return f"{said}; shows on one type of processor only ({types}), not on {', '.join(machines.clean_processors)}"
    said += f" ({types})" if types else ""
    if machines.clean:
        number = len(machines.clean)
        said += f"; {number} other machine{'' if number == 1 else 's'} judged the same program and did not show it"
    return said


def seen_on_and_next(machines: Machines, named: CommandSubject) -> str:
    """The same as a sentence for the terminal, with the command that asks a second machine."""
    said = seen_on(machines)
    if machines.second_machine == "pending":
        said += f"; another machine confirms it with `{named.format_command('fleet', 'confirm')}`"
    return f"{said[0].upper()}{said[1:]}."
