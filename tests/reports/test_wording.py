"""Settings in words: nothing of Python is left in them, and nothing that is set is lost."""

from __future__ import annotations

import pytest

import fedflat as ff
from fedflat.reports import wording
from fedflat.reports.run_settings import settings_by_name
from fedflat.rounds.participation import Bernoulli, Explicit, Number, Share
from support.finished_runs import Fake


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Share(0.2), "20 % of the clients each round"), (Share(0.005), "0.5 % of the clients each round"),
        (Number(5), "5 clients each round"), (Number(1), "1 client each round"),
        (Bernoulli(0.1), "each client with probability 10 % in each round"), (Explicit([[0, 1]]), "listed cohorts"),
    ],
)  # fmt: skip
def test_participation(rule: object, words: str) -> None:
    assert wording.participation_in_words(repr(rule)) == words


def test_local_training_says_what_is_on_only() -> None:
    assert wording.training_in_words(repr(ff.Client())) == "step size 0.1; 1 epoch on all samples of a client at once"
    client = ff.Client(lr=0.5, lr_decay=0.99, steps=3, batch_size=10, weight_decay=1e-3, max_norm=10.0, momentum=0.9)
    assert wording.training_in_words(repr(client)) == (
        "step size 0.5, times 0.99 each round; 3 steps in batches of 10; weight decay 0.001; clipping at norm 10; "
        "momentum 0.9"
    )


def test_data_and_model() -> None:
    data = ff.data.load("digits", clients=5, partition=ff.Dirichlet(alpha=0.3))
    text = f"{data.name}, {data.clients} clients, {data.partition}"
    assert wording.data_in_words(text) == "digits, 5 clients, Dirichlet, alpha 0.3"
    assert wording.data_in_words("given") == "given"
    assert wording.model_in_words("LeNet, 62006 parameters, torch.float32") == "LeNet with 62,006 parameters, float32"


def test_what_is_not_there_is_not_said() -> None:
    assert wording.augmentation_in_words("None") == ""
    assert wording.hyper_in_words({"rho": 0.1, "c": None, "adaptive": False}) == "rho = 0.1, adaptive = no"


def test_a_text_of_another_version_stays_as_it_is() -> None:
    assert wording.training_in_words("Trainer of tomorrow") == "Trainer of tomorrow"
    assert wording.participation_in_words("Waves()") == "participation Waves()"


@pytest.mark.parametrize(
    "text", ["Client(lr='x')", "Client(lr=None)", "Client()", "Client(lr=0.1, weight_decay=[1])", "Client(lr=[])",
             "Share(share='x')", "Share(share=None)", "Number(number=[1])", "Bernoulli(p={})", "f(x={})"]
)  # fmt: skip
def test_a_hostile_text_stays_as_it_is(text: str) -> None:
    words = (wording.training_in_words, wording.participation_in_words, wording.augmentation_in_words)
    assert wording.training_in_words(text) == text
    assert all(isinstance(say(text), str) for say in words)
    assert settings_by_name(
        Fake("A", 0, [0.1], client=text, data=f"d, 5 clients, {text}", more={"participation": text})
    )
