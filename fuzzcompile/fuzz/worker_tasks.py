"""Functions of a campaign that run in a worker, by name: the process that submits them needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fuzzcompile.model.focus_plan import FocusPlan, FocusQuestion
from fuzzcompile.model.judge_task import NamedFunction

if TYPE_CHECKING:
    from fuzzcompile.fuzz.case_survey import Survey
    from fuzzcompile.fuzz.opinfo_cells import CellSource, OpInfoCell, OpInfoOperator
    from fuzzcompile.programs.edits.pattern_program import PatternProgram


LIST_OPERATORS: Callable[[tuple[str, ...]], tuple[OpInfoOperator, ...]] = NamedFunction(
    "fuzzcompile.fuzz.opinfo_cases:list_operators"
)
"""The operators of torch's own tables: those named, or all."""

WRITE_CELLS: Callable[[Sequence[OpInfoCell]], list[CellSource]] = NamedFunction(
    "fuzzcompile.fuzz.opinfo_cases:write_cells"
)
"""The case files of cells of a sweep over these operators."""

SURVEY: Callable[[str], Survey] = NamedFunction("fuzzcompile.fuzz.case_survey:survey_case")
"""The properties of a case file that can be varied, found on the worker's device."""

PATTERNS: Callable[[tuple[str, str]], tuple[PatternProgram, ...]] = NamedFunction(
    "fuzzcompile.fuzz.focus.focus_worker:make_programs"
)
"""Programs that make a rule of the compiler fire, given its stage and name, made on the worker's device."""

FOCUS: Callable[[FocusQuestion], FocusPlan] = NamedFunction("fuzzcompile.fuzz.focus.focus_worker:find_focus_plan")
"""The aims of a focus in the installed torch, on the worker's device."""
