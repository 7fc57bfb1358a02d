"""Which finding a report belongs to: refined, merged, kept apart; and all parts of a finding speak of one case."""

from __future__ import annotations

from typing import Any

import pytest
from corpus_examples import ENVIRONMENT, TORCH, bug, case, report, reproducer

from fuzzcompile.corpus.models import Related, Replay
from fuzzcompile.corpus.records import StoredReproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError

PLACE = "post_grad:torch/_inductor/fx_passes/mine.py:fold_scale"
AXIS, DTYPE = f"{PLACE}:sum(dim)", f"{PLACE}:dtype"
UNPROVED = "unattributed:-:program-"


def found(store: Store, signature: str, source: str, **fields: Any) -> str:
    """The public id of the finding that a new case hits."""
    recorded = store.record(None, case(source), ENVIRONMENT, bug(signature, **fields))
    return f"F{recorded.finding_id}"


def reduced(store: Store, finding: str, signature: str, source: str = "repro\n", **fields: Any) -> StoredReproducer:
    told = {name: fields.pop(name) for name in ("verdict", "culprit", "evidence") if name in fields}
    return store.add_reproducer(finding, reproducer(source, report=bug(signature, **told), **fields))


def test_a_reproducer_refines_its_finding(store: Store) -> None:
    found(store, PLACE, "a\n")
    assert reduced(store, "F1", AXIS) == StoredReproducer(1, AXIS)
    assert store.finding("F1").signature == AXIS
    assert store.finding(PLACE).public_id == "F1", "what it was called goes on meaning it"
    assert reduced(store, "F1", PLACE, "shorter\n") == StoredReproducer(1, AXIS), "what is known is not forgotten"


def test_one_that_was_not_confirmed_settles_nothing(store: Store) -> None:
    found(store, PLACE, "a\n")
    assert reduced(store, "F1", AXIS, confirmed=False) == StoredReproducer(1, PLACE)


@pytest.mark.parametrize("coarse", ["F3", "F4"])
def test_what_gets_the_same_signature_is_one_finding(store: Store, coarse: str) -> None:
    for cause in (f"{PLACE}:sum(keepdim)", f"{PLACE}:sum(dtype)"):
        found(store, cause, cause)
    for signature, source in zip((PLACE, AXIS) if coarse == "F3" else (AXIS, PLACE), ("a\n", "bb\n"), strict=True):
        found(store, signature, source)
    store.add_replay("F4", Replay("0" * 64, TORCH, None, "failing", ["failing"] * 3, "BUG", 1.0))
    store.keep_related("F4", [Related("https://example.org/1", "issue", "t", "open", 1.0, "w")], ["stride"])
    assert reduced(store, coarse, AXIS) == StoredReproducer(3, AXIS, merged=(4,))
    survivor = store.finding("F4")
    assert (survivor.public_id, survivor.hits, survivor.signature) == ("F3", 2, AXIS)
    assert store.replays("F3")[0].status == "failing" and store.related("F3")[0].url.endswith("/1")
    assert survivor.queries == ["stride"]
    assert store.best_reproducer("F4") is not None and survivor.first_seen < survivor.last_seen
    assert [f.public_id for f in store.findings()] == ["F1", "F2", "F3"] and store.integrity() == "ok"


def test_an_id_is_never_given_again(store: Store) -> None:
    found(store, AXIS, "a\n")
    found(store, f"{PLACE}:sum(keepdim)", "b\n")
    found(store, PLACE, "c\n")
    assert reduced(store, "F3", f"{PLACE}:sum(keepdim)").merged == (3,)
    assert found(store, "lowering:CppCompileError:no", "d\n") == "F4"
    with pytest.raises(UsageError):
        store.finding("F5")


def test_a_chain_of_merges_resolves_to_what_is_left(store: Store) -> None:
    for number in range(3):
        found(store, f"{UNPROVED}{number:012}", f"{number}\n")
    assert reduced(store, "F3", f"{UNPROVED}{1:012}").public_id == "F2"
    assert reduced(store, "F2", f"{UNPROVED}{0:012}", "smaller\n").public_id == "F1"
    assert {store.finding(name).public_id for name in ("F1", "F2", "F3", f"{UNPROVED}{2:012}")} == {"F1"}
    assert store.finding("F1").hits == 3


def test_a_coarse_hit_belongs_to_the_only_cause_of_its_place(store: Store) -> None:
    found(store, AXIS, "a\n")
    assert found(store, PLACE, "b\n") == "F1"
    found(store, f"{PLACE}:sum(keepdim)", "c\n")
    assert found(store, PLACE, "d\n") == "F3", "either could be meant"
    assert found(store, PLACE, "e\n") == "F3"
    assert found(store, f"{PLACE}_more", "f\n") == "F4", "another place that begins alike"
    assert found(store, AXIS, "g\n") == "F1"


@pytest.mark.parametrize(
    ("symptom", "verdict"), [("layout", "metadata"), ("dtype", "metadata"), ("nonfinite lost", "nonfinite")]
)
def test_a_coarse_hit_is_not_of_a_symptom_that_it_does_not_have(store: Store, symptom: str, verdict: str) -> None:
    found(store, f"{PLACE}:{symptom}", "a\n", verdict=verdict)
    assert found(store, PLACE, "b\n", verdict=verdict) == "F1"
    assert found(store, PLACE, "c\n", verdict="miscompile") == "F2"


def test_the_same_reduced_program_is_one_bug_whatever_was_blamed(store: Store) -> None:
    found(store, f"{UNPROVED}aaaaaaaaaaaa", "a\n")
    found(store, "partition:torch/_functorch/partitioners.py:cut", "b\n")
    assert reduced(store, "F1", f"{UNPROVED}cccccccccccc", program="k" * 64).merged == ()
    kept = reduced(store, "F2", "partition:torch/_functorch/partitioners.py:cut", "renamed\n", program="k" * 64)
    assert kept == StoredReproducer(1, "partition:torch/_functorch/partitioners.py:cut", merged=(2,))
    again = found(store, f"{UNPROVED}cccccccccccc", "c\n")
    assert again == "F1", "the program is known, under the name that it had"


def test_a_program_that_raises_is_not_the_one_that_is_wrong(store: Store) -> None:
    found(store, "lowering:CppCompileError:no", "a\n", verdict="compile_error")
    found(store, AXIS, "b\n")
    reduced(store, "F1", "lowering:CppCompileError:no", verdict="compile_error", program="k" * 64)
    assert reduced(store, "F2", AXIS, "other\n", program="k" * 64) == StoredReproducer(2, AXIS)
    assert len(store.findings()) == 2


def test_a_reproducer_of_another_cause_takes_its_case_along(store: Store) -> None:
    found(store, AXIS, "a\n")
    found(store, PLACE, "bb\n")
    assert store.finding("F1").hits == 2
    kept = reduced(store, "F1", DTYPE, case_sha256=case("bb\n").sha256)
    assert kept == StoredReproducer(2, DTYPE, is_new_finding=True)
    axis, dtype = store.findings()
    assert (axis.hits, axis.source, axis.reproducer_lines) == (1, "a\n", None)
    assert (dtype.hits, dtype.source, dtype.reproducer_lines) == (1, "bb\n", 1)
    assert store.best_reproducer("F1") is None and store.best_reproducer("F2") is not None


def test_a_name_that_nothing_else_bears_out_gives_way(store: Store) -> None:
    found(store, AXIS, "a\n")
    assert reduced(store, "F1", DTYPE, case_sha256=case("a\n").sha256) == StoredReproducer(1, DTYPE)


# One case


def test_a_confirmed_reproducer_speaks_for_the_finding(store: Store) -> None:
    stride = {"outputs": [{"name": "out0", "finding": "stride", "detail": "eager (4, 1), compiled (1, 4)"}]}
    found(store, AXIS, "wrong values\n")
    found(store, AXIS, "wrong strides, longer\n", verdict="metadata", evidence=stride, culprit=None)
    assert (store.finding("F1").severity, store.finding("F1").source) == ("silent", "wrong values\n")
    longer = case("wrong strides, longer\n").sha256
    reduced(store, "F1", AXIS, verdict="metadata", evidence=stride, culprit=None, case_sha256=longer)
    shown = store.finding("F1")
    assert (shown.verdict, shown.severity, shown.culprit) == ("metadata", "raising_layout", None)
    assert (shown.source, shown.report["verdict"]) == ("wrong strides, longer\n", "metadata")
    assert store.summaries()[0].severity == "raising_layout"
    reduced(store, "F1", AXIS, "worse\n" * 9, case_sha256=case("wrong values\n").sha256)
    shown = store.finding("F1")
    assert (shown.verdict, shown.severity, shown.source) == ("miscompile", "silent", "wrong values\n")
    best = store.best_reproducer("F1")
    assert best is not None and best.report == shown.report and best.case_sha256 == shown.source_sha256


def test_without_a_case_the_reproducer_is_the_case(store: Store) -> None:
    found(store, AXIS, "a\n")
    reduced(store, "F1", AXIS)
    assert store.finding("F1").source == "a\n", "of the same verdict"
    reduced(store, "F1", AXIS, verdict="compile_error")
    assert store.finding("F1").source == "repro\n"


def test_a_reproducer_that_is_not_confirmed_speaks_for_nothing(store: Store) -> None:
    found(store, AXIS, "a\n")
    for fields in ({"confirmed": False, "report": bug(AXIS, verdict="crash")}, {"report": None}, {"report": report()}):
        store.add_reproducer("F1", reproducer(str(fields), **fields))
        assert (store.finding("F1").verdict, store.finding("F1").source) == ("miscompile", "a\n")


def test_the_environment_is_that_of_the_report(store: Store) -> None:
    found(store, AXIS, "a\n")
    newer = {**ENVIRONMENT, "torch": "2.15.0+cpu"}
    store.record(None, case("b\n"), newer, bug(AXIS))
    assert store.environment_of("F1") == ENVIRONMENT
    reduced(store, "F1", AXIS, torch="2.15.0+cpu")
    assert store.environment_of("F1") == newer
    reduced(store, "F1", AXIS, torch="2.11.0", environment={"torch": "2.11.0", "cpu": "Epyc"})
    assert store.environment_of("F1") == {"torch": "2.11.0", "cpu": "Epyc"}
    reduced(store, "F1", AXIS, "s", lines=0, torch="2.12.0")
    assert store.environment_of("F1") == {"torch": "2.12.0", "device": "cpu"}, "no more than is known"


# Order


def test_the_worst_comes_first_then_what_is_proved_then_what_is_hit(store: Store) -> None:
    accepts, proved = {"verdict": "accepts_invalid"}, {"culprit": {"necessary": True}}
    for signature, fields in {
        "a:m.py:1": accepts,
        "a:m.py:2": {"verdict": "crash", "culprit": None},
        "a:m.py:3": {"culprit": None},
        "a:m.py:4": {"verdict": "crash", **proved},
        "a:m.py:5": proved,
        "a:m.py:6": {"culprit": None},
    }.items():
        found(store, signature, f"{signature}\n", **fields)
    found(store, "a:m.py:6", "again\n", culprit=None)
    assert [f.signature[-1] for f in store.summaries()] == ["5", "6", "3", "4", "2", "1"]
    assert [f.umbrella for f in store.summaries()][-1] == "validation"
    assert [f.is_minor for f in store.summaries()] == [False] * 5 + [True]


def test_layouts_are_grouped_by_stage(store: Store) -> None:
    harmless = {"outputs": [{"finding": "stride", "view_raises": False}]}
    raising = {"outputs": [{"finding": "stride", "view_raises": True}]}
    found(store, "decomposition:d.py:cat", "a\n", verdict="metadata", evidence=harmless)
    found(store, "decomposition:d.py:fmin", "b\n", verdict="metadata", evidence=raising)
    found(store, "post_grad:d.py:cat", "c\n", verdict="metadata", evidence=harmless)
    assert [f.umbrella for f in store.findings()] == ["layout-decomposition", None, "layout-post_grad"]
    assert [u.name for u in store.umbrellas()] == ["layout-decomposition", "layout-post_grad"]


def test_opt_in_passes_are_grouped_by_file(store: Store) -> None:
    opted = {"opt_in": ["pre_grad_fusion_options"]}
    found(store, "pre_grad:torch/_inductor/fx_passes/split_cat.py:unbind_cat:order", "a\n", **opted)
    found(store, "pre_grad:torch/_inductor/fx_passes/split_cat.py:split_stack:order", "b\n", **opted)
    found(store, "pre_grad:torch/_inductor/fx_passes/split_cat.py:merge:order", "c\n")
    assert [f.umbrella for f in store.findings()] == ["opt_in-split_cat"] * 2 + [None]
    assert [f.severity for f in store.findings()] == ["opt_in", "opt_in", "silent"]
    assert [f.place for f in store.summaries()] == sorted(f.place for f in store.summaries())
    assert store.summaries()[0].severity == "silent", "what nobody opted into comes first"


def test_a_script_judged_again_is_replaced_and_says_what_the_finding_is(store: Store) -> None:
    found(store, AXIS, "a\n")
    reduced(store, "F1", AXIS)
    moved = "functionalization:-:sum"
    anew = reproducer("again\n", report=bug(moved), shown={"plain": "print(1)"}, program="p" * 64)
    assert store.add_reproducer("F1", anew, replaces=reproducer("repro\n").sha256) == StoredReproducer(1, moved)
    (stored,) = store.reproducers("F1")
    assert (stored.source, stored.shown, stored.program) == ("again\n", {"plain": "print(1)"}, "p" * 64)
    assert store.finding(AXIS).public_id == "F1", "what it was called goes on meaning it"


def test_a_finding_judged_again_is_merged_with_what_it_turns_out_to_be(store: Store) -> None:
    found(store, AXIS, "a\n")
    found(store, DTYPE, "b\n")
    reduced(store, "F2", DTYPE)
    anew = reproducer("again\n", report=bug(AXIS))
    assert store.add_reproducer("F2", anew, replaces=reproducer("repro\n").sha256) == StoredReproducer(
        1, AXIS, merged=(2,)
    )
