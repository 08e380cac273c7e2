"""What the fields of records are is read off the comments beside them, or above them, and of no other field."""

from __future__ import annotations

from fedflat.core.records import Delta, Model, Record, Vector, mean_of_clients, per_round
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.local import Local
from fedflat.reports.method_records import meanings, records, widths


class Kept(Model):
    """What the server keeps. A word: like this, is no field."""

    # mean of all that clients keep, in parameter units
    h: Vector = mean_of_clients()
    m: Vector  # momentum, in parameter units


class Own(Record):
    h: Vector  # sum of a client's moves, in parameter units
    s: Vector = per_round()


class Sent(Model):
    m: Vector
    h: Vector


class Mine(FedAvg, server=Kept, client=Own, down=Sent):
    """A method."""


def test_a_comment_is_that_of_its_own_field() -> None:
    told = {(record.__name__, name): text for (record, name), text in meanings(Mine).items()}
    assert told["Kept", "h"] == "mean of all that clients keep, in parameter units"
    assert told["Kept", "m"] == "momentum, in parameter units"
    assert told["Own", "h"] == "sum of a client's moves, in parameter units"
    assert told["Own", "s"] == "", "it has none"
    assert told["Sent", "w"] == told["Kept", "w"] == "parameters", "the comment of the record that both extend"


def test_a_field_without_a_comment_is_what_the_field_of_that_name_in_another_record_is() -> None:
    told = {(record.__name__, name): text for (record, name), text in meanings(Mine).items()}
    assert told["Sent", "m"] == told["Kept", "m"]
    assert told["Sent", "h"] == told["Kept", "h"], "the server sends what it keeps, and not what a client keeps"


def test_records_of_training_that_sends_nothing_are_what_is_kept() -> None:
    assert records(Local) == {"client": Model, "server": Model}
    assert records(Mine) == {"down": Sent, "up": Delta, "client": Own, "server": Kept}
    assert list(widths(Kept, Mine)) == ["w", "h", "m"]


def test_a_record_without_a_file_has_no_comments() -> None:
    typed = type("Typed", (Model,), {"__annotations__": {"m": Vector}, "__module__": "__console__"})
    cls = type("Own", (FedAvg,), {"__module__": "__console__"}, server=typed)
    assert meanings(cls)[typed, "m"] == ""
    assert meanings(cls)[typed, "w"] == "parameters"
