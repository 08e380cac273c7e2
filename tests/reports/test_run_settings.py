"""Every setting of a run has a name, and what is not used is none."""

from __future__ import annotations

from math import inf

import pytest

import fedflat as ff
from fedflat.data.partition import all_partitions
from fedflat.reports.run_settings import settings_by_name, settings_of_all
from fedflat.rounds.participation import Bernoulli, Explicit, Number, Share
from fedflat.rounds.settings import table_of
from support.finished_runs import Fake, model_of, split_data


def test_every_field_of_a_client_comes_back() -> None:
    client = ff.Client(lr=0.3, steps=7, batch_size=5, max_norm=10.0, momentum=0.9)
    found = settings_by_name(Fake("FedAvg", 0, [0.1], client=client))
    assert {f"client.{name}": value for name, value in vars(client).items()}.items() <= found.items()


def test_no_clipping_is_none_and_one_epoch_is_one_epoch() -> None:
    """`Client()` takes one epoch and does not clip."""
    found = settings_by_name(Fake("FedAvg", 0, [0.1], client=ff.Client()))
    assert found["client.max_norm"] is None
    assert found == settings_by_name(Fake("FedAvg", 0, [0.1], client=ff.Client(epochs=1, max_norm=inf)))


@pytest.mark.parametrize("name", all_partitions())
def test_data_and_every_partition_scheme_come_apart(name: str) -> None:
    scheme = all_partitions()[name]()
    found = settings_by_name(Fake("FedAvg", 0, [0.1], data=split_data("a, b", 50, scheme)))
    assert (found["data"], found["clients"]) == ("a, b", 50)
    own = {f"partition.{field}": value for field, value in vars(scheme).items()}
    assert own.items() <= found.items()
    assert found["partition"] == type(scheme).__name__


def test_every_field_of_an_adapter_comes_back() -> None:
    adapter = ff.LoRA(targets=("query", "value"), r=4, mode="freeze_a")
    found = settings_by_name(Fake("FedAvg", 0, [0.1], more={"adapter": table_of(adapter)}))
    expected = {f"adapter.{name}": value for name, value in vars(adapter).items()}
    assert expected | {"adapter.targets": "query+value"} == {n: x for n, x in found.items() if n.startswith("adapter.")}
    assert not any(name.startswith("adapter") for name in settings_by_name(Fake("FedAvg", 0, [0.1])))


def test_guard_and_attack_are_taken_apart_and_what_is_not_set_is_left_out() -> None:
    more = {"guard": table_of(ff.Guard(multiple=3.0)), "attack": table_of(ff.Attack(kind="noise", share=0.2))}
    found = settings_by_name(Fake("FedAvg", 0, [0.1], more=more))
    assert {name: value for name, value in found.items() if name.startswith(("guard", "attack"))} == {
        "guard.multiple": 3.0, "guard.action": "clip", "attack.kind": "noise", "attack.share": 0.2,
        "attack.scale": 10.0, "attack.claims": 1,
    }  # fmt: skip


def test_rows_of_one_method_are_called_by_the_mode_of_their_adapters() -> None:
    """A fixed A has fewer parameters, which nobody needs to be told beside the mode."""
    sizes = {"both": 50, "freeze_a": 38, "alternate": 50}
    runs = [
        Fake("FedAvg", 0, [0.1], more={"adapter": table_of(ff.LoRA(targets=("0",), mode=mode)),
                                       "model": model_of("Sequential", size)})
        for mode, size in sizes.items()
    ]  # fmt: skip
    assert [row.label for row in ff.compare(runs).rows] == [f"FedAvg(mode={mode})" for mode in sizes]


def test_rules_of_participation_are_told_apart() -> None:
    rules = (Share(1.0), Number(1), Bernoulli(1.0), Explicit([[0]]), Explicit([[1]]))
    values = [
        settings_by_name(Fake("A", 0, [0.1], more={"participation": table_of(r)}))["participation"] for r in rules
    ]
    assert values[:2] == [1.0, "1 clients"]
    assert len(set(map(str, values))) == 5
    assert values[3] == "Explicit(cohorts=[[0]])"


def test_a_hash_is_a_setting_only_where_nothing_else_differs() -> None:
    seeds = [Fake("FedAvg", seed, [0.1], partition_hash=f"of {seed}") for seed in (0, 1)]
    assert all("partition_hash" not in one for one in settings_of_all(seeds)), "it belongs to the seed"
    by_hand = [Fake("FedAvg", 0, [0.1], partition_hash=text) for text in ("a", "b")]
    assert [one["partition_hash"] for one in settings_of_all(by_hand)] == ["a", "b"]


def test_the_number_of_parameters_is_a_setting_only_where_the_name_of_the_model_is_not_enough() -> None:
    def found(*models: str) -> list[dict]:
        return settings_of_all([Fake("A", 0, [0.1], more={"model": model_of(*m.split())}) for m in models])

    assert all("parameters" not in one for one in found("LeNet 60", "MLP 70"))
    assert [one["parameters"] for one in found("MLP 60", "MLP 70")] == ["60", "70"]
