from __future__ import annotations

from fedflat.core.method import Sources
from fedflat.methods.fedavg import FedAvg
from fedflat.reports.catalogue import describe

READINGS = "how we read what the papers leave open"


class Read(FedAvg):
    """A method of which a paper leaves two things open."""

    sources = Sources(readings=("The first is read so.", "The second is read so."))


def test_readings_are_a_list_under_a_title_of_their_own() -> None:
    parts = describe(Read).split("\n\n")
    assert f"{READINGS}\n  - The first is read so.\n  - The second is read so." in parts


def test_a_method_without_readings_or_departures_has_no_title_for_them() -> None:
    class Plain(FedAvg):
        """A method."""

        sources = Sources()

    assert READINGS not in describe(Plain)
    assert "depart" not in describe(Plain)
