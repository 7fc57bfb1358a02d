"""What ``--cluster`` takes, and what it says of anything else."""

from __future__ import annotations

import json

import pytest

from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.errors import UsageError


@pytest.mark.parametrize(
    ("text", "scheduler"),
    [
        ("tcp://host:8786", "tcp://host:8786"),
        ("tls://10.0.0.1:9000/", "tls://10.0.0.1:9000"),
        ("tcp://host", "tcp://host:8786"),
        ("tcp://[::1]:8786", "tcp://[::1]:8786"),
    ],
)
def test_addresses_are_taken_with_their_port(text, scheduler):
    assert ClusterAddress.parse(text).scheduler() == scheduler


def test_workers_of_this_machine_are_a_number():
    assert ClusterAddress.parse("local:3").local == 3


def test_a_scheduler_file_is_read_again_each_time(tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": "tcp://10.0.0.1:1"}))
    address = ClusterAddress.parse(str(file))
    file.write_text(json.dumps({"address": "tcp://10.0.0.2:2"}))
    assert address.scheduler() == "tcp://10.0.0.2:2"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("local:0", "from 1 to 256"),
        ("local:many", "local:N"),
        ("host:8786", "write tcp://host:8786"),
        ("http://host:1", "tcp://"),
        ("tcp://:1", "HOST:PORT"),
        ("tcp://host:port", "host:port"),
        ("nowhere.json", "no such scheduler file"),
        ("", "no such scheduler file"),
    ],
)
def test_anything_else_is_one_sentence_of_advice(text, advice):
    with pytest.raises(UsageError, match=advice) as refused:
        ClusterAddress.parse(text)
    assert "\n" not in str(refused.value)


def test_a_file_without_an_address_is_refused(tmp_path):
    file = tmp_path / "notes.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match="no scheduler file"):
        ClusterAddress.parse(str(file))
