"""Settings in words: nothing of Python is left in them, and nothing that is set is lost."""

from __future__ import annotations

import pytest

import fedflat as ff
from fedflat.reports import run_settings
from fedflat.rounds.participation import Bernoulli, Explicit, HeldOut, Number, Share
from fedflat.rounds.settings import table_of
from support.finished_runs import model_of, split_data


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Share(0.2), "20 % of the clients each round"), (Share(0.005), "0.5 % of the clients each round"),
        (Number(5), "5 clients each round"), (Number(1), "1 client each round"),
        (Bernoulli(0.1), "each client with probability 10 % in each round"),
        (Explicit([[0, 1]]), "listed cohorts"),
        (HeldOut(0.5, 0.2), "participation HeldOut(rule=Share(share=0.5), share=0.2)"),
        (HeldOut(Bernoulli(0.1), 0.2), "participation HeldOut(rule=Bernoulli(p=0.1), share=0.2)"),
    ],
)  # fmt: skip
def test_participation(rule: object, words: str) -> None:
    assert run_settings.participation_in_words(table_of(rule)) == words


def test_a_rule_of_somebodys_own_stays_as_it_is() -> None:
    assert run_settings.participation_in_words({"class": "Waves", "width": 2}) == "participation Waves(width=2)"


def test_local_training_says_what_is_on_only() -> None:
    assert (
        run_settings.training_in_words(table_of(ff.Client()))
        == "step size 0.1; 1 epoch on all samples of a client at once"
    )
    client = ff.Client(lr=0.5, lr_decay=0.99, steps=3, batch_size=10, weight_decay=1e-3, max_norm=10.0, momentum=0.9)
    assert run_settings.training_in_words(table_of(client)) == (
        "step size 0.5, times 0.99 each round; 3 steps in batches of 10; weight decay 0.001; clipping at norm 10; "
        "momentum 0.9"
    )


def test_data_and_model() -> None:
    data = split_data("digits", 5, ff.Dirichlet(alpha=0.3))
    assert run_settings.data_in_words(data) == "digits, 5 clients, Dirichlet, alpha 0.3"
    assert run_settings.data_in_words(split_data("x", 5, "given")) == "x, 5 clients, given"
    assert run_settings.model_in_words(model_of("LeNet", 62006)) == "LeNet with 62,006 parameters, float32"


def test_what_is_not_there_is_not_said() -> None:
    assert run_settings.augmentation_in_words(None) == ""
    method = {"class": "A", "rho": 0.1, "c": None, "adaptive": False}
    assert run_settings.fields_in_words(method) == "rho = 0.1, adaptive = no"
    assert run_settings.fields_in_words(None) == ""
    assert run_settings.fields_in_words(table_of(ff.Guard(multiple=3.0))) == "multiple = 3.0, action = clip"
