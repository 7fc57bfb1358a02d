"""Settings that guard the frames of an error of the compiler, in each of the ways in which code is guarded."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch._functorch._activation_checkpointing import remat_using_tags_for_fwd_loss_bwd_graph_pass as remat

from fuzzcompile.compiler.watch.guarding_settings import list_guarded_places
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

ON = "pattern_matcher"  # by default

GUARDED = {
    "around": """
        if config.pattern_matcher and graph:
            fail()
    """,
    "by name": """
        import torch
        if torch._inductor.config.pattern_matcher:
            for _ in range(2):
                fail()
    """,
    "imported": """
        from torch._inductor import config as own
        if own.pattern_matcher:
            fail()
    """,
    "left before": """
        if not config.pattern_matcher:
            return
        fail()
    """,
    "of two": """
        config.pattern_matcher and fail()
    """,
    "else": """
        fail() if config.pattern_matcher else None
    """,
}
UNGUARDED = {
    "off": """
        if not config.freezing:
            fail()
    """,
    "behind": """
        fail()
        if config.pattern_matcher:
            return
    """,
    "beside": """
        if config.pattern_matcher:
            graph = 1
        fail()
    """,
    "of something else": """
        if graph.pattern_matcher:
            fail()
    """,
}


class Graph:
    pattern_matcher = True


def raise_in(body: str) -> BaseException:
    """An error that rises in a function of a file of the compiler's, which a body calls."""
    text = textwrap.dedent(body).strip("\n")
    source = f"def run(graph):\n{textwrap.indent(text, '    ')}\n\n\ndef fail():\n    raise ValueError('planted')\n"
    file = str(Path(torch.__file__).parent / "_inductor" / f"made_up_{abs(hash(body))}.py")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, object] = {"config": torch._inductor.config, "__name__": "torch._inductor.made_up"}
    exec(compile(source, file, "exec"), names)
    with pytest.raises(ValueError) as raised:
        names["run"](Graph())  # type: ignore[operator]
    return raised.value


@pytest.mark.parametrize("body", GUARDED.values(), ids=GUARDED)
def test_a_setting_that_is_on_and_guards_a_frame_is_found_with_the_function_behind_it(body: str):
    (place,) = list_guarded_places(raise_in(body))
    assert (place.config, place.key, place.function) == ("inductor", ON, "fail")


@pytest.mark.parametrize("body", UNGUARDED.values(), ids=UNGUARDED)
def test_what_is_off_or_guards_nothing_is_not(body: str):
    assert list_guarded_places(raise_in(body)) == ()


def test_an_error_behind_a_setting_is_proved_and_worked_around_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def raise_here(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        raise ValueError("planted behind a setting")

    monkeypatch.setattr(remat, "remat_using_tags_for_fwd_loss_bwd_graph", raise_here)
    (tmp_path / "case.py").write_text(
        "import torch\n\ndef program(x):\n    return x.sin() + 1\n\ndef make():\n    return program, (torch.ones(3),)\n"
    )
    report = triage(load_case(tmp_path / "case.py"), torch.device("cpu")).to_json()
    assert report["verdict"] == "compile_error"
    culprit = report["culprit"]
    key = "remat_using_tags_for_fwd_loss_bwd_graph"
    assert culprit["necessary"] is True and culprit["details"]["setting"] == f"functorch.{key}"
    assert culprit["stage"] == "functionalization" and culprit["source"].endswith("graph_compile.py")
    assert report["workaround"]["how"] == f"torch._functorch.config.{key} = False" and report["workaround"]["verified"]
