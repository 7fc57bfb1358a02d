"""The likeliest report comes first, and the reasons are the words that it shares with the finding."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fuzzcompile.report.github_search import Hit, SearchTerms, ranked

TODAY = datetime(2026, 11, 22, tzinfo=UTC)
TERMS = SearchTerms(
    names=("hoist_norms",), places=("norm_rules",), operators=("group_norm", "mul"), arguments=("eps",),
    symptoms=("stride", "layout"), errors=("ValueError", "cannot hoist a norm"), context=("inductor", "torch.compile"),
)  # fmt: skip


def hit(number, title, body="", *, state="open", days=10, kind="issue"):
    return Hit(f"https://example/{number}", kind, title, body, state, TODAY - timedelta(days=days))


def urls(*hits, terms=TERMS):
    return [int(report.url.rpartition("/")[2]) for report in ranked(terms, hits, TODAY)]


def test_the_name_of_the_pass_counts_more_than_operator_and_symptom_and_more_in_the_title():
    order = urls(
        hit(1, "[inductor] group_norm mul have another stride"),
        hit(2, "Refactor", "moves hoist_norms and group_norm with its strides"),
        hit(3, "hoist_norms gives group_norm another stride"),
    )
    assert order == [3, 2, 1]


def test_an_operator_alone_is_no_relation_and_neither_is_another_word_that_holds_its_name():
    assert (
        urls(
            hit(1, "group_norm is slow on MPS"),
            hit(2, "inductor: regroup_normal stride"),
            hit(3, "mul stride inductor"),
        )
        == []
    )
    assert urls(hit(4, "inductor: GroupNorm loses its memory layout")) == [4]


def test_the_words_of_an_error_relate_and_its_type_alone_does_not():
    assert urls(hit(1, "ValueError", "cannot hoist a norm over zero elements"), hit(2, "ValueError in inductor")) == [1]


def test_of_equal_reports_the_recent_one_goes_first_and_being_open_decides_only_a_tie():
    same = "inductor: hoist_norms"
    assert urls(hit(1, same, days=900), hit(2, same, state="closed", days=2)) == [2, 1]
    assert urls(hit(1, same, state="closed"), hit(2, same)) == [2, 1]


def test_the_reasons_name_the_words_and_where_they_stand():
    (report,) = ranked(TERMS, [hit(1, "hoist_norms broken", "group_norm on torch.compile, eps=0, strides")], TODAY)
    assert report.why == "title: hoist_norms; text: group_norm, eps, stride, torch.compile"


def test_a_report_that_two_queries_return_stands_once_and_ten_are_enough():
    many = [hit(number, "hoist_norms") for number in range(30)]
    assert len(urls(*many, *many)) == 10
