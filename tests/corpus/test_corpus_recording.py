"""What goes in comes out; a case, an environment and a root cause are stored once."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from corpus_examples import (
    ENVIRONMENT,
    FIRED,
    REFUSED,
    SDPA,
    STREAM,
    TORCH,
    bug,
    campaign,
    case,
    report,
    reproducer,
    sha256,
)
from sqlalchemy.exc import IntegrityError

from fuzzcompile.corpus.records import Counters, Coverage, identify_compiler
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError


def rows(store: Store, query: str) -> list[tuple[object, ...]]:
    with store._engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


# Runs


def test_a_run_that_is_no_bug(store: Store) -> None:
    recorded = store.record(None, case(), ENVIRONMENT, report())
    assert (recorded.finding_id, recorded.is_new_finding) == (None, False)
    assert store.findings() == []
    assert store.counters() == Counters(cases=1, runs=1, by_verdict={"rounding": 1}, findings=0)
    assert rows(store, "select verdict, is_bug, seconds, compiles from runs") == [("rounding", 0, 0.75, 1)]


def test_a_source_is_stored_once_and_its_runs_are_counted(store: Store) -> None:
    first = store.record(None, case(), ENVIRONMENT, report())
    again = store.record(None, case(), ENVIRONMENT, report(verdict="equal"))
    other = store.record(None, case("y = 2\n"), ENVIRONMENT, report())
    assert first.case_id == again.case_id != other.case_id
    assert len({first.run_id, again.run_id, other.run_id}) == 3
    assert store.counters() == Counters(2, 3, {"equal": 1, "rounding": 2}, 0)


def test_has_source(store: Store) -> None:
    store.record(None, case("a = 1\n"), ENVIRONMENT, report())
    assert store.has_source(sha256("a = 1\n"))
    assert not store.has_source(sha256("b = 1\n"))


def test_all_fields_of_a_case_are_kept(store: Store) -> None:
    full = case(spec={"b": [1, {"c": None}]}, choices=b"\x00\xff", idioms=["sdpa"], near_misses=["k_permuted"])
    store.record(None, full, ENVIRONMENT, report())
    texts = "cast(spec as text), choices, cast(idioms as text), cast(near_misses as text)"
    stored = rows(store, f"select source, origin, {texts} from cases")
    assert stored == [(full.source, "generated", '{"b": [1, {"c": null}]}', b"\x00\xff", '["sdpa"]', '["k_permuted"]')]


def test_a_case_first_read_from_a_file_learns_its_recipe_when_it_is_drawn(store: Store) -> None:
    store.record(None, case(origin="file"), ENVIRONMENT, report())
    store.record(None, case(spec={"b": 1}, choices=b"x"), ENVIRONMENT, report())
    store.record(None, case(origin="file"), ENVIRONMENT, report())
    assert rows(store, "select origin, cast(spec as text), choices from cases") == [("file", '{"b": 1}', b"x")]


def test_an_environment_is_stored_once_by_content(store: Store) -> None:
    reordered = dict(reversed(ENVIRONMENT.items()))
    for environment in (ENVIRONMENT, reordered, {**ENVIRONMENT, "cores": 4}):
        store.record(None, case(), environment, report())
    store.start_campaign(campaign())
    stored = rows(store, "select torch, device, driver, compiler, cpu from environments")
    assert stored == [(TORCH, "cpu", None, "gcc 12.2", "Xeon")] * 2


def test_odd_text_survives(store: Store) -> None:
    odd = "nul \x00, é, \U0001f600, undecodable \udc80, {}%s'\""
    store.record(None, case("s = 'é\U0001f600'\n"), ENVIRONMENT, bug(evidence={"error": odd}))
    found = store.finding(1)
    assert found.evidence == {"error": odd}
    assert found.source == "s = 'é\U0001f600'\n"


@pytest.mark.parametrize("signature", [None, ""])
def test_a_bug_without_a_signature_is_refused(store: Store, signature: str | None) -> None:
    with pytest.raises(ValueError, match="signature"):
        store.record(None, case(), ENVIRONMENT, bug(signature=signature))
    assert store.counters().runs == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_json_is_refused_whole(store: Store, number: float) -> None:
    with pytest.raises(ValueError):
        store.record(None, case(), ENVIRONMENT, report(evidence={"error": number}))
    with pytest.raises(ValueError):
        store.record(None, case(spec={"scale": number}), ENVIRONMENT, report())
    with pytest.raises(ValueError):
        store.record(None, case(), {**ENVIRONMENT, "load": number}, report())
    with pytest.raises(ValueError):
        store.start_campaign(campaign(settings={"tolerance": number}))
    assert store.counters().cases == 0
    assert store.campaigns() == []


def test_what_lacks_its_identity_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="torch"):
        store.record(None, case(), {"device": "cpu"}, report())
    with pytest.raises(ValueError, match="verdict"):
        store.record(None, case(), ENVIRONMENT, report(verdict=None))


def test_a_run_of_no_campaign_that_exists_leaves_nothing_behind(store: Store) -> None:
    with pytest.raises(IntegrityError):
        store.record(7, case(), ENVIRONMENT, bug(), [FIRED])
    assert store.counters() == Counters(0, 0, {}, 0)
    assert (store.findings(), store.coverage()) == ([], [])


# Findings


def test_one_finding_per_signature(store: Store) -> None:
    first = store.record(None, case("a = 1\n"), ENVIRONMENT, bug())
    again = store.record(None, case("b = 1\n"), ENVIRONMENT, bug(verdict="compile_error"))
    other = store.record(None, case("c = 1\n"), ENVIRONMENT, bug("lowering/softmax"))
    assert (first.is_new_finding, again.is_new_finding, other.is_new_finding) == (True, False, True)
    assert first.finding_id == again.finding_id != other.finding_id
    assert [(f.public_id, f.signature, f.hits) for f in store.findings()] == [
        ("F1", SDPA, 2),
        ("F2", "lowering/softmax", 1),
    ]
    assert store.counters().findings == 2
    assert rows(store, "select finding_id from runs order by id") == [(1,), (1,), (2,)]


def test_a_finding_round_trips(store: Store) -> None:
    before = datetime.now(UTC)
    judged = bug()
    store.record(None, case(), ENVIRONMENT, judged)
    found = store.finding("F1")
    assert (found.status, found.verdict, found.confidence) == ("open", "miscompile", "high")
    assert (found.culprit, found.evidence, found.report) == (judged["culprit"], judged["evidence"], judged)
    assert (found.source, found.source_sha256) == (case().source, case().sha256)
    assert found.torch_versions == (TORCH,)
    assert found.first_seen == found.last_seen
    assert before <= found.first_seen <= datetime.now(UTC)
    assert found.first_seen.utcoffset() == timedelta(0)


def test_hits_move_last_seen_and_gather_torch_versions(store: Store) -> None:
    for torch in (TORCH, "2.11.0+cpu", TORCH):
        store.record(None, case(), {**ENVIRONMENT, "torch": torch}, bug())
    found = store.finding(1)
    assert found.torch_versions == (TORCH, "2.11.0+cpu")
    assert found.first_seen < found.last_seen


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"confidence": "high"}, {"confidence": "low"}),
        ({"culprit": {"necessary": True}}, {"culprit": {"necessary": None}}),
        ({"culprit": {"necessary": True}}, {"culprit": None}),
        (
            {"culprit": {"necessary": True, "sufficient": True}},
            {"culprit": {"necessary": True, "sufficient": None}},
        ),
        ({"source": "a = 1\n"}, {"source": "a = 1000000\n"}),
        ({"source": "a = 1000000\n"}, {"source": "a = 1\n", "confidence": "low"}),
    ],
)
@pytest.mark.parametrize("better_first", [True, False])
def test_the_best_run_stands_for_the_finding(
    store: Store, better: dict[str, object], worse: dict[str, object], better_first: bool
) -> None:
    for fields in (better, worse) if better_first else (worse, better):
        rest = {key: value for key, value in fields.items() if key != "source"}
        store.record(None, case(str(fields.get("source", "x = 1\n"))), ENVIRONMENT, bug(**rest))
    found = store.finding(1)
    assert found.hits == 2
    for key, value in better.items():
        assert getattr(found, key) == value
        if key != "source":
            assert found.report[key] == value


def test_a_finding_answers_to_id_signature_and_unique_beginning(store: Store) -> None:
    store.record(None, case(), ENVIRONMENT, bug("joint_graph/a/sfdp"))
    store.record(None, case(), ENVIRONMENT, bug("joint_graph/b/sfdp"))
    store.record(None, case(), ENVIRONMENT, bug("1"))
    for name in (2, "2", "F2", "f2", " F2 ", "joint_graph/b/sfdp", "joint_graph/b"):
        assert store.finding(name).signature == "joint_graph/b/sfdp", name
    assert store.finding("1").signature == "1", "a signature comes before an id"
    assert store.finding(1).signature == "joint_graph/a/sfdp"


def test_an_unknown_or_ambiguous_name_says_what_there_is(store: Store) -> None:
    with pytest.raises(UsageError, match="holds none yet"):
        store.finding("F1")
    for index in range(12):
        store.record(None, case(), ENVIRONMENT, bug(f"joint_graph/{index:02}"))
    for name in ("F99", 99, "nosuch", "", "%", "JOINT"):
        with pytest.raises(UsageError, match=r"F1 \(joint_graph/00\).* and 2 more") as raised:
            store.finding(name)
        assert raised.value.exit_status == 2
    with pytest.raises(UsageError, match=r"could be F11 \(joint_graph/10\), F12 \(joint_graph/11\)"):
        store.finding("joint_graph/1")


def test_findings_can_be_chosen(store: Store) -> None:
    first, second = store.start_campaign(campaign()), store.start_campaign(campaign(seed=1))
    store.record(first, case(), ENVIRONMENT, bug("a"))
    store.record(second, case(), ENVIRONMENT, bug("a"))
    store.record(second, case(), ENVIRONMENT, bug("b"))
    assert [f.signature for f in store.findings(campaign_id=first)] == ["a"]
    assert [f.signature for f in store.findings("open", campaign_id=second)] == ["a", "b"]
    assert store.findings("fixed") == []


# Reproducers


def test_a_confirmed_reproducer_is_best_then_the_shortest(store: Store) -> None:
    store.record(None, case(), ENVIRONMENT, bug())
    assert store.best_reproducer(1) is None
    store.add_reproducer(1, reproducer("short\n", confirmed=False))
    assert store.best_reproducer("F1") == reproducer("short\n", confirmed=False)
    store.add_reproducer("F1", reproducer("long\n" * 9))
    assert store.best_reproducer(1) == reproducer("long\n" * 9)
    full = reproducer("mid\n" * 5, report=bug(), neighbour="passes\n", kind="source")
    store.add_reproducer(SDPA, full)
    assert store.best_reproducer(1) == full


def test_the_same_reproducer_again_replaces_what_was_known(store: Store) -> None:
    store.record(None, case(), ENVIRONMENT, bug())
    store.add_reproducer(1, reproducer(confirmed=False))
    store.add_reproducer(1, reproducer(confirmed=True))
    assert store.reproducers(1) == [reproducer(confirmed=True)]


def test_a_reproducer_of_no_finding(store: Store) -> None:
    with pytest.raises(UsageError):
        store.add_reproducer(1, reproducer())


# Streams, counters, coverage


def test_the_places_of_a_stream_that_were_judged(store: Store) -> None:
    for index in (0, 1, 5):
        store.record(None, case(f"x = {index}\n", stream=STREAM, index=index), ENVIRONMENT, report())
    store.record(None, case("x = 0\n", stream=STREAM, index=9), ENVIRONMENT, report())
    store.record(None, case("x = 0\n", stream="seed=1", index=2), ENVIRONMENT, report())
    store.record(None, case("x = 7\n", origin="file"), ENVIRONMENT, report())
    assert store.recorded_indices(STREAM) == {0, 1, 5, 9}, "two places may draw one source"
    assert store.recorded_indices("seed=1") == {2}
    assert store.recorded_indices("seed=2") == set()


def test_counters_of_a_stream(store: Store) -> None:
    store.record(None, case("a = 1\n", stream=STREAM, index=0), ENVIRONMENT, report())
    store.record(None, case("b = 1\n", stream=STREAM, index=1), ENVIRONMENT, bug())
    store.record(None, case("c = 1\n", stream="other", index=0), ENVIRONMENT, bug("x"))
    assert store.counters(STREAM) == Counters(2, 2, {"miscompile": 1, "rounding": 1}, 1)
    assert store.counters("nosuch") == Counters(0, 0, {}, 0)
    assert store.counters() == Counters(3, 3, {"miscompile": 2, "rounding": 1}, 2)


def test_coverage_adds_up_by_torch_and_names_the_first_case(store: Store) -> None:
    first = store.record(None, case("a = 1\n"), ENVIRONMENT, report(), [FIRED, REFUSED, FIRED])
    store.record(None, case("b = 1\n"), ENVIRONMENT, report(), [FIRED])
    store.record(None, case("b = 1\n"), {**ENVIRONMENT, "torch": "2.11.0"}, report(), [FIRED])
    also_refused = Coverage(FIRED.stage, FIRED.pass_name, FIRED.rewrite, "refused", 1)
    store.record(None, case("b = 1\n"), ENVIRONMENT, report(), [also_refused])
    assert [(c.torch, c.rewrite, c.outcome, c.count) for c in store.coverage()] == [
        ("2.11.0", FIRED.rewrite, "fired", 1),
        (TORCH, REFUSED.rewrite, "refused", 2),
        (TORCH, FIRED.rewrite, "fired", 3),
        (TORCH, FIRED.rewrite, "refused", 1),
    ]
    fired = store.coverage(TORCH)[1]
    assert fired.first_case_id == first.case_id
    assert len(store.coverage("2.11.0")) == 1


def test_what_was_reached_for_a_target_is_counted_apart(store: Store) -> None:
    store.record(None, case(), ENVIRONMENT, report(), [FIRED])
    store.record(None, case(), {**ENVIRONMENT, "target": "cuda:sm_90"}, report(), [FIRED, REFUSED])
    told = identify_compiler({"torch": TORCH, "target": "cuda:sm_90"})
    assert [row.rewrite for row in store.coverage(TORCH)] == [FIRED.rewrite]
    assert {row.rewrite for row in store.coverage(told)} == {FIRED.rewrite, REFUSED.rewrite}
    assert store.counters(compiler=TORCH).runs == store.counters(compiler=told).runs == 1


def test_a_device_that_ran_shows_a_finding_better_than_a_target(store: Store) -> None:
    target = {"device": "cuda:sm_90", "stages": {}, "confirmed_on_device": False}
    environment = {**ENVIRONMENT, "target": "cuda:sm_90"}
    store.record(None, case("a\n"), environment, bug(target=target))
    assert store.finding("F1").devices == ("cuda:sm_90",) and store.environment_of("F1")["target"] == "cuda:sm_90"
    store.record(None, case("a longer one\n"), ENVIRONMENT, bug(confidence="low", target=None))
    found = store.finding("F1")
    assert (found.devices, found.report["target"], found.hits) == (("cuda:sm_90", "cpu"), None, 2)
    store.record(None, case("b\n"), environment, bug(target=target))
    assert store.finding("F1").report["target"] is None


# Campaigns


def test_a_campaign_from_start_to_end(store: Store) -> None:
    key = store.start_campaign(campaign())
    store.heartbeat(key, {"cases": 3})
    (running,) = store.campaigns()
    assert (running.counters, running.ended, running.finished) == ({"cases": 3}, None, None)
    assert running.started < running.last_heard
    store.finish_campaign(key, {"cases": 5}, "interrupted")
    (ended,) = store.campaigns()
    assert (ended.id, ended.counters, ended.ended) == (key, {"cases": 5}, "interrupted")
    assert ended.finished is not None and ended.finished.utcoffset() == timedelta(0)
    assert (ended.seed, ended.environment) == (0, ENVIRONMENT) and ended.settings.items() >= campaign().settings.items()


def test_a_campaign_that_does_not_exist(store: Store) -> None:
    with pytest.raises(ValueError, match="no campaign 3"):
        store.heartbeat(3, {})
    with pytest.raises(ValueError, match="no campaign 3"):
        store.finish_campaign(3, {}, "budget")


def test_large_seeds_and_reports(store: Store, tmp_path: Path) -> None:
    store.start_campaign(campaign(seed=2**63 - 1))
    nodes = [f"node_{index}" for index in range(20_000)]
    store.record(None, case("x = 1\n" * 50_000), ENVIRONMENT, bug(changed_bits=nodes))
    assert store.campaigns()[0].seed == 2**63 - 1
    assert store.finding(1).report["changed_bits"] == nodes


def test_a_case_of_one_job_is_stored_once(store: Store) -> None:
    first = store.record(None, case(), ENVIRONMENT, bug(), token="job 1")
    again = store.record(None, case(), ENVIRONMENT, bug(), token="job 1")
    other = store.record(None, case(), ENVIRONMENT, bug(), token="job 2")
    assert again == first, "the caller may never have heard the first answer"
    assert other.run_id != first.run_id and store.finding("F1").hits == 2


def test_of_a_long_stream_the_latest_cases_are_read_in_its_order(store: Store) -> None:
    for place in (5, 1, 3):
        store.record(None, case(source=f"# {place}\n", stream="s", index=place), ENVIRONMENT, report())
    compiler = identify_compiler(ENVIRONMENT)
    assert [run.index for run in store.stream_runs("s", compiler)] == [1, 3, 5]
    assert [run.index for run in store.stream_runs("s", compiler, 2)] == [1, 3]
