"""Which Dask workers a campaign takes, and the sentence for each that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fuzzcompile
from fuzzcompile.fuzz.cluster.cluster_messages import (
    WorkerOffer,
    WorkerRequirements,
    compute_code_digest,
    explain_difference,
)
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.judge_task import WorkerDescription

HERE = WorkerOffer(fuzzcompile.__version__, compute_code_digest(), "2.15.0+cpu", gpu=False, slots=4)
FIRST = WorkerDescription({"torch": "2.15.0+cpu"}, "cpu", lacks=("a",))


@pytest.mark.parametrize("torch", [None, "2.15.0", "2.15.0+cpu"])
def test_a_worker_of_the_same_code_and_torch_fits(torch):
    assert WorkerRequirements(torch).explain_refusal(HERE) is None


@pytest.mark.parametrize(
    ("offer", "wanted", "why"),
    [
        (replace(HERE, version="0.0.9"), WorkerRequirements(), "fuzzcompile 0.0.9"),
        (replace(HERE, code="0" * 12), WorkerRequirements(), "install the same"),
        (replace(HERE, torch=""), WorkerRequirements(), "no torch"),
        (HERE, WorkerRequirements("2.13.0"), "has torch 2.15.0.cpu, and the campaign is for torch 2.13.0"),
        (HERE, WorkerRequirements("2.15"), "for torch 2.15"),
        (HERE, WorkerRequirements(gpu=True), "no GPU"),
        (replace(HERE, gpu=True), WorkerRequirements(gpu=False), "has a GPU"),
        (replace(HERE, slots=0), WorkerRequirements(), "fuzzcompile=0"),
    ],
)
def test_any_other_is_refused_with_what_differs(offer, wanted, why):
    assert why.replace(".cpu", "+cpu") in (wanted.explain_refusal(offer) or "")


def test_a_campaign_takes_the_kind_of_worker_that_has_most_slots():
    offers = [HERE, replace(HERE, torch="2.13.0+cpu", slots=3), replace(HERE, torch="2.13.0+cpu", slots=2)]
    assert WorkerRequirements().narrow(offers, any_device=True) == WorkerRequirements("2.13.0+cpu")
    assert WorkerRequirements("2.15.0").narrow(offers, any_device=False) == WorkerRequirements("2.15.0+cpu", gpu=False)


def test_workers_that_do_not_fit_do_not_count():
    offers = [replace(HERE, code="other", slots=100), replace(HERE, gpu=True, slots=2)]
    assert WorkerRequirements().narrow(offers, any_device=False) == WorkerRequirements("2.15.0+cpu", gpu=True)
    assert WorkerRequirements("2.11.0").narrow(offers, any_device=False) == WorkerRequirements("2.11.0")


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (replace(FIRST, environment={"torch": "2.15.0+cu130"}), "torch 2.15.0+cu130"),
        (replace(FIRST, device="cuda"), "run on cuda"),
        (replace(FIRST, lacks=("a", "b")), "lacks what the campaign draws: b"),
        (replace(FIRST, custom=(LoadedCustom("p:f", "pass", digest="1"),)), "of your own"),
    ],
)
def test_results_of_unlike_workers_are_not_mixed(here, why):
    assert explain_difference(FIRST, replace(FIRST, lacks=())) is None
    assert why in (explain_difference(FIRST, here) or "")
