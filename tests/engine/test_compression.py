"""Compressed messages in whole rounds: against a plain loop, in every executor, in a federation and in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedflat as ff
from fedflat.core.compression import Compression
from fedflat.core.errors import InputError
from fedflat.core.local import LocalResult
from fedflat.core.records import Delta, Model
from fedflat.core.wrapper import Alternation
from fedflat.experiments.budget import simulation_budget
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.records import to_records, vector_bytes
from fedflat.federation.messages import TrainReply
from fedflat.federation.terms import RoundTerms
from fedflat.methods import find
from fedflat.rounds.compression import compress, with_compression
from fedflat.rounds.model_parts import check_parts
from support.effort import covering_methods, for_few_rounds, in_turns
from support.federation import federation, final_w, simulation, tanh_network, whole_and_resumed
from support.transports import InProcessTransport, federated_clients, federated_server

TOP, BITS = ff.Compression(share=0.2), ff.Compression(kind="quantise", bits=4)
PLAIN = {"top-k": ff.Compression(share=0.2, error_feedback=False),
         "quantise": ff.Compression(kind="quantise", bits=4, error_feedback=False)}  # fmt: skip
EVERY = [TOP, BITS, *PLAIN.values()]


def plain_rounds(cohorts: list[list[int]], share: float, feedback: bool) -> torch.Tensor:
    """Federated averaging, three full batches a round, with top-k by hand."""
    data, net = federation(), tanh_network()
    w = parameters_to_vector(net.parameters()).detach()
    error, k = torch.zeros(data.clients, len(w), dtype=w.dtype), round(share * len(w))
    for cohort in cohorts:
        messages = []
        for i in cohort:
            (x, y), local = data.client(i), deepcopy(net)
            vector_to_parameters(w.clone(), local.parameters())
            sgd = torch.optim.SGD(local.parameters(), lr=0.3)
            for _ in range(3):
                sgd.zero_grad()
                cross_entropy(local(x), y).backward()
                sgd.step()
            v = parameters_to_vector(local.parameters()).detach() - w + feedback * error[i]
            largest = v.abs().argsort(descending=True)[:k]
            message = torch.zeros_like(v)
            message[largest] = v[largest]
            error[i] = v - message
            messages.append(message)
        w = w + torch.stack(messages).mean(0)
    return w


@pytest.mark.parametrize("feedback", [True, False])
def test_top_k_is_the_plain_loop(feedback: bool) -> None:
    """Clients come back after rounds without them, with what they had kept."""
    cohorts, how = [[0, 1, 3], [1, 2, 5], [0, 3, 4], [1, 3, 5], [0, 1, 2]], {"share": 0.1, "error_feedback": feedback}
    sim = ff.Simulation(tanh_network(), federation(), find("FedAvg")(), ff.Client(lr=0.3, steps=3, batch_size=None),
                        participation=cohorts, compress=ff.Compression(**how), executor="sequential")  # fmt: skip
    list(sim)
    torch.testing.assert_close(sim.w, plain_rounds(cohorts, 0.1, feedback), rtol=0, atol=1e-12)
    other = plain_rounds(cohorts, 0.1, not feedback)
    assert (sim.w - other).abs().max() > 1e-3, "or nothing was kept"


@pytest.mark.parametrize("name", covering_methods())
def test_all_entries_are_the_message_itself(name: str) -> None:
    method = for_few_rounds(find(name))
    settings = {"rounds": 2, "executor": "sequential"}
    full = final_w(method, **settings)
    assert torch.equal(final_w(method, compress=ff.Compression(share=1.0), **settings), full)
    assert not torch.equal(final_w(method, compress=TOP, **settings), full)


@pytest.mark.parametrize(("how", "name"), in_turns(EVERY, ["FedSMOO", "Scaffold"]), ids=str)
def test_stacks_train_as_one_client_after_another(how: Compression, name: str) -> None:
    one, many = (final_w(find(name)(), compress=how, executor=kind) for kind in ("sequential", "stacked"))
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("traced")
def test_a_traced_step_leaves_the_unsent_part_as_it_is() -> None:
    kinds = ("sequential", "compiled")
    sims = [simulation(find("FedSMOO")(), compress=TOP, executor=kind, rounds=2) for kind in kinds]
    for sim in sims:
        list(sim)
    assert sims[1].executor.step.works
    torch.testing.assert_close(sims[1].w, sims[0].w, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("forked_processes")
def test_workers_change_no_bit() -> None:
    sims = [simulation(find("FedSAM")(), workers=n, compress=BITS, executor="sequential", rounds=2) for n in (1, 2)]
    for sim in sims:
        list(sim)
        sim.close()
    assert torch.equal(sims[0].w, sims[1].w)


def test_chance_depends_on_seed_round_and_client_alone() -> None:
    """Eight messages of one vector, and the same ones again, whoever is trained beside."""
    method, x = with_compression(find("FedAvg")(), PLAIN["quantise"], 50), torch.linspace(-1, 1, 50).expand(2, -1)
    result = LocalResult(Delta(x), method.init_client(Model(x)), *3 * (x[:, :1],), 0, x[:, 0])

    def sent(seed: int, t: int, clients: list[int]) -> torch.Tensor:
        return compress(result, method, seed, t, np.array(clients)).up.delta

    every = {(seed, t, i): sent(seed, t, [5, 8])[i] for seed in (0, 1) for t in (0, 1) for i in (0, 1)}
    assert len({tuple(message.tolist()) for message in every.values()}) == 8
    assert torch.equal(sent(1, 1, [8, 5])[0], every[1, 1, 1])


@pytest.mark.parametrize("how", [TOP, BITS], ids=str)
def test_a_run_resumes_to_the_same_bits(how: Compression, tmp_path: Path) -> None:
    """Also with what else clients keep, and with records in a file."""
    client = {"optimizer": "adamw", "lr": 0.02, "optimizer_state": "kept"}
    make = lambda: simulation(find("Scaffold")(), client=client, compress=how, executor="sequential",  # noqa: E731
                              store_budget=0)  # fmt: skip
    whole, resumed = whole_and_resumed(make, 3, tmp_path)
    assert torch.equal(resumed.w, whole.w)
    with pytest.raises(InputError, match=r"compress was Compression\(.*\), now it is None"):
        simulation(find("Scaffold")(), client=client, executor="sequential").load(tmp_path / "state.safetensors")


@pytest.mark.parametrize(("name", "how"), in_turns(["FedSAM", "FedSMOO", "FedWMSAM", "FedAdamW"], EVERY), ids=str)
def test_a_federation_has_the_bits_of_a_simulation_and_its_bytes(name: str, how: Compression, tmp_path: Path) -> None:
    method, client, rounds = find(name)(), ff.Client(lr=0.1, epochs=2, batch_size=4), 4
    replies: list[TrainReply] = []

    def counted(name: str, reply: TrainReply) -> TrainReply:
        replies.append(reply)
        return reply

    transport = InProcessTransport(federated_clients(method, tmp_path, client, rounds=rounds, compress=how), counted)
    server = federated_server(method, client, rounds=rounds, compress=how)
    sim = ff.Simulation(tanh_network().float(), federation().to("cpu", torch.float32), method, client, rounds, 3,
                        executor="sequential", workers=1, compress=how)  # fmt: skip
    for _ in range(rounds):
        metrics = server.round(transport).metrics
        assert metrics["drift"] == pytest.approx(sim.round().metrics["drift"])
        assert torch.equal(server.w, sim.w)
    assert {vector_bytes(to_records(reply)) for reply in replies} == {sim.upload_bytes}
    assert sim.history[-1]["bytes_up"] == len(replies) * sim.upload_bytes
    assert sim.upload_bytes < 4 * sim.cost.up


def test_a_reply_that_is_lost_leaves_what_was_kept(tmp_path: Path) -> None:
    """As if its client had not been asked."""
    method, client, lost = find("FedAvg")(), ff.Client(lr=0.1, steps=2, batch_size=None), "clinic-01"
    rule, without = [[0, 1], [0, 1], [1, 2]], [[0, 1], [0], [1, 2]]
    silent: Mapping[int, str] = {1: lost}
    transport = InProcessTransport(
        federated_clients(method, tmp_path, client, rule=rule, rounds=3, compress=TOP),
        lambda name, reply: None if silent.get(reply.t) == name else reply,
    )
    server = federated_server(method, client, rule=rule, rounds=3, compress=TOP, terms=RoundTerms(quorum=0.5))
    for _ in rule:
        server.round(transport)
    sim = ff.Simulation(tanh_network().float(), federation().to("cpu", torch.float32), method, client, 3, without,
                        executor="sequential", compress=TOP)  # fmt: skip
    list(sim)
    assert torch.equal(server.w, sim.w)


def test_squares_statistics_and_cosines_are_sent_in_full() -> None:
    """And counted so: FedAdamW's second moment, FedWMSAM's cosine; 73 parameters, 15 of them sent."""
    d, wide = 73, TOP.bytes_of(73, 8)
    assert wide == 15 * 8 + 10
    expected = {"FedAvg": wide, "Scaffold": 2 * wide, "FedWMSAM": wide + 8, "FedAdamW": wide + 8 * d}
    assert {name: simulation(find(name)(), compress=TOP).upload_bytes for name in expected} == expected


def test_what_is_sent_is_in_the_summary_and_in_the_budget() -> None:
    sim = simulation(find("FedAvg")(), compress=TOP, rounds=1)
    assert sim.message_bytes == (130, 73 * 8)
    assert "by a client a round   0.00013 MB, 22 % of the 0.000584 MB of an uncompressed message" in (
        simulation_budget(sim).lines()
    )
    assert sim.run().summary.items() >= {"message_bytes": 130, "message_bytes_full": 584}.items()
    assert sim.history[-1]["bytes_up"] == 3 * 130


RUN = {"data": {"clients": 5}, "rounds": 2, "flatness": []}
REFUSED = [
    ({"method": "Local"}, "compress: Local is local training, in which no client sends"),
    ({"method": "Centralised"}, "compress: Centralised is centralised training, in which no client sends"),
    ({"attack": {"kind": "sign-flip"}}, "compress does not go with attack"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=str)
def test_what_compression_does_not_go_with_is_refused(settings: dict[str, object], message: str) -> None:
    spec = validated(RunSpec, RUN | {"compress": {"share": 0.1}} | settings)
    with pytest.raises(InputError, match=message):
        spec.build()


def test_privacy_factors_in_turns_a_secure_sum_and_an_object_of_another_class_are_refused() -> None:
    with pytest.raises(InputError, match="compress does not go with privacy"):
        check_parts(with_compression(find("FedAvg")(), TOP, 3), None, is_private=True)
    with pytest.raises(InputError, match=r"compress does not go with adapter\.mode = 'alternate'"):
        with_compression(Alternation.of(find("FedAvg")(), torch.zeros(3)), TOP, 3)
    with pytest.raises(InputError, match="compress does not go with secure-sum"):
        federated_server(find("FedAvg")(), ff.Client(), compress=TOP,
                         terms=RoundTerms(norm_multiple=float("inf"), secure_sum=0.6))  # fmt: skip
    with pytest.raises(InputError, match="compress must be a Compression such as"):
        simulation(find("FedAvg")(), compress={"share": 0.1})


def test_a_table_reaches_the_simulation_and_its_settings() -> None:
    plain = validated(RunSpec, RUN)
    spec = validated(RunSpec, RUN | {"compress": {"kind": "quantise", "bits": 4}})
    assert spec.compress == BITS
    assert "compress" not in plain.decisive()
    assert spec.digest() != plain.digest()
    assert spec.build().settings()["compress"] == {
        "class": "Compression", "kind": "quantise", "share": None, "bits": 4, "error_feedback": True,
    }  # fmt: skip
    assert "compress" not in plain.build().settings()


def test_guards_and_parts_that_stay_go_with_compression() -> None:
    """A guard bounds what is left of a message; what stays is not counted."""
    guarded = simulation(find("FedAvg")(), compress=TOP, guard=ff.Guard(bound=1e-3), participation=1.0)
    before = guarded.w.clone()
    assert guarded.round().metrics["clipped"] == 6
    assert (guarded.w - before).norm() <= 1.001e-3
    kept = simulation(find("FedSAM")(), compress=TOP, keep=["2"], executor="sequential")
    list(kept)
    assert kept.upload_bytes == TOP.bytes_of(49, 8)
