import gc
import inspect

import torch
from torch._inductor import lowering, utils

from fuzzcompile.compiler.source_probes import watch_lines
from fuzzcompile.model.focus_plan import Span


def _span(function) -> Span:
    source, first = inspect.getsourcelines(function)
    return Span("torch/_inductor/utils.py", first, first + len(source) - 1)


def test_only_the_branch_that_ran_is_executed_and_the_function_is_restored():
    own = utils.ceildiv.__code__
    with watch_lines([_span(utils.ceildiv)]) as lines:
        assert utils.ceildiv(7, 2) == 4
        once = lines.list_executed()
        lines.reached.clear()
        assert not lines.list_executed()
    assert utils.ceildiv.__code__ is own
    taken = {span.first - own.co_firstlineno for span in once}
    assert taken
    assert len(once) < len(lines.probes)


def test_functions_behind_decorators_and_those_the_collector_skips_are_watched():
    gc.freeze()
    try:
        with watch_lines([Span("torch/_inductor/lowering.py")]) as lines:
            assert lines.unwatched == []
            assert lowering.decode_dtype(torch.bool) is torch.bool
            assert lines.list_executed()
    finally:
        gc.unfreeze()


def test_what_cannot_be_watched_is_said():
    with watch_lines([Span("torch/_inductor/there_is_none.py")]) as lines:
        pass
    assert "there_is_none.py" in lines.unwatched[0]
