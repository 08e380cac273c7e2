"""A client app with a configuration, samples or programs that do not work: a reason, and nothing about samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.transport import GatheringError
from support.flower_fixtures import OWN_SAMPLES, GridFederation, failing, own_study
from support.local_grid import Node


def test_an_error_in_a_clients_program_does_not_reveal_its_samples(tmp_path: Path) -> None:
    def broken(node):
        raise ValueError("patient 17")

    federation = GridFederation(own_study(), tmp_path / "federation", wait=0.3, **OWN_SAMPLES)
    with pytest.raises(GatheringError, match="node 4 is none: ValueError, of which the client's log has more") as e:
        federation.serve({4: Node(client_app(federation.folder, broken), federation.own_node("a").config)})
    assert "17" not in str(e.value)


@pytest.mark.parametrize(
    ("config", "line"),
    [({"partition-id": 0}, "partition-id does not go with this study, whose clients have their own samples"),
     ({}, "name 'None' must be up to 64 letters"), ({"name": "../x"}, "name '../x' must be up to 64 letters"),
     ({"name": "a"}, "node-config: data is missing"), ({"name": "a", "data": "none"}, "none/x.npy cannot be read"),
     ({"name": "a", "colour": "red"}, "node-config: colour: unknown key")],
)  # fmt: skip
def test_node_configurations_that_make_no_sense(tmp_path: Path, config, line: str) -> None:
    federation = GridFederation(own_study(), tmp_path / "federation", wait=0.2, **OWN_SAMPLES)
    with failing(GatheringError, line):
        federation.serve({4: Node(client_app(federation.folder), config)})
