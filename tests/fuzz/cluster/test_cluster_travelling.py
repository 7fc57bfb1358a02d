"""Files that conditions name travel as their content."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fuzzcompile.fuzz.cluster.cluster_messages import HostCharter, read_named_files
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.custom import Custom
from fuzzcompile.model.errors import UsageError


def test_plants_passes_and_backends_arrive_where_their_files_are_not(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "a").mkdir(parents=True)
    there.mkdir()
    first, second, own = here / "bug.py", here / "a" / "bug.py", here / "own.py"
    first.write_text("FIRST = 1")
    second.write_text("SECOND = 2")
    own.write_text("def p(graph): ...")
    custom = Custom.parse([f"{own}:p@post_grad", "installed.module:p2@post_grad"], (), f"{own}:p")
    conditions = Conditions(plants=(first, second), custom=custom)
    packed = pickle.loads(pickle.dumps(HostCharter("campaign", conditions, read_named_files(conditions), len)))
    for path in (first, second, own):
        path.unlink()
    moved = packed.unpack(there)
    assert [path.read_text() for path in moved.plants] == ["FIRST = 1", "SECOND = 2"]
    assert {path.name for path in moved.plants} == {"bug.py"}
    targets = [*(each.target for each in moved.custom.passes), moved.custom.backend]
    assert [target.name for target in targets] == ["own:p", "installed.module:p2", "own:p"]
    assert all(Path(target.module).is_relative_to(there) for target in targets if target.is_file)
    assert moved.custom.passes[0].at == "post_grad"


def test_a_file_that_is_no_text_is_refused(tmp_path):
    plant = tmp_path / "plant.py"
    plant.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be sent to a cluster"):
        read_named_files(Conditions(plants=(plant,)))
