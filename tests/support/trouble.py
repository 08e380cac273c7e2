"""Federations in trouble: a schedule of mishaps, all drawn from one seed, and what must hold after each.

Server, transport, aggregator, directory, log, lists of ejected members and clients are those of the package; below the
transport is `troubled_network`, and time is virtual. `run(seed, folder)` carries out one schedule, and raises
`BrokenPromise` with the seed and what happened before.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from safetensors.torch import load_file

from fedflat.federation.client import ClientState
from fedflat.federation.flower import client_app
from fedflat.federation.flower.directory import FederationDirectory, check, log_problem
from fedflat.federation.flower.ejections import Ejections
from fedflat.federation.flower.event_log import read_events
from fedflat.federation.flower.records import read_message, to_records
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import FILE, Study, own_samples
from fedflat.federation.membership import FederationError
from fedflat.federation.messages import RefusedError, TrainReply
from fedflat.federation.update_aggregator import NO_REPLY
from fedflat.rounds import checkpoint
from support.flower_fixtures import study_of
from support.malicious_replies import MUTATIONS, one_number
from support.trouble_reference import Counted, Reference, Remembered, Round
from support.troubled_network import Machine, Network, TroubledGrid
from support.virtual_time import SERVER, BrokenPromise, KilledError, Kills, VirtualTime, install

VARIABLE = "FEDFLAT_TROUBLE_SEED"
REPLAY = f"{VARIABLE}={{}} pytest -s tests/federation/test_trouble.py"
HOUR = 3600.0
NAMES = "abcde"
STARTS = 3  # of the server while there is trouble
SLACK = 60.0  # seconds by which a round may be longer than its deadline: for uploads, and replies that come in parts
REPEATED = "the round is repeated as it was"  # a reason for which a client does not count that is nobody's fault
LAST = 80  # lines of the trace in a message
# Replies that are refused whatever the model's size.
WRONG = {name: MUTATIONS[name] for name in ("NaN", "infinity", "minus infinity", "dtype", "missing", "one more",
         "renamed", "samples", "steps", "drift", "gradients")} | {"huge": one_number(1e30)}  # fmt: skip


@cache
def own_samples_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(NAMES.index(name))
    n = 3 + 2 * NAMES.index(name)
    return rng.normal(NAMES.index(name) / 2, 1, (n, 3)).astype("float32"), rng.integers(2, size=n)


@dataclass(frozen=True)
class Plan:
    """What is drawn from a seed before anything begins."""

    method: str
    clients: int
    participation: int
    rounds: int
    secure: bool
    deadline: float
    troubles: tuple[str, ...]

    @classmethod
    def drawn(cls, rng: random.Random, troubles: Collection[str] | None) -> Plan:
        clients = rng.choice((4, 5))
        share = rng.choice((0.1, 0.25, 0.4))
        kinds = [name for name in TROUBLES if (rng.random() < share if troubles is None else name in troubles)]
        is_secure = rng.random() < 0.2 and troubles is None
        return cls(
            method=rng.choice(("fedavg", "scaffold", "fedsmoo")), clients=clients,
            participation=rng.choice((clients, clients - 1)), rounds=rng.choice((3, 4)), secure=is_secure,
            deadline=rng.choice((30.0, 100.0)),
            troubles=tuple(kind for kind in kinds if not (is_secure and kind in ("wrong", "ejections"))),
        )  # fmt: skip

    @property
    def study(self) -> tuple[Any, ...]:
        """What the results depend on, beside who counts."""
        return self.method, self.clients, self.participation, self.rounds


@dataclass
class Attempt:
    """One attempt at a round."""

    t: int
    asked: tuple[str, ...]
    sent: int  # orders before it
    read: int  # replies before it
    accepted: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


class World:
    """One federation, and what happens to it."""

    def __init__(self, seed: int, folder: Path, troubles: Collection[str] | None = None) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.plan, self.time = Plan.drawn(self.rng, troubles), VirtualTime()
        self.folder, self.out = folder, folder / "out"
        self.study = study_in(folder, self.plan, self.out)
        self.kills = Kills(self.time, folder)
        self.samples = {name: own_samples_of(name) for name in NAMES[: self.plan.clients]}
        app = client_app.client_app(folder, lambda node: self._loaded(node["data"]))
        machines = {name: Machine(name, app, self._node(name, name)) for name in self.samples}
        self.network = Network(self.time, self.kills, self.rng, machines, {}, spoiled)
        self.app = app
        self.timeline: dict[int, Attempt] = {}  # the attempts that the model has come from, by round
        self.saved = 0  # rounds in the newest checkpoint
        self.logged: list[tuple[Any, ...]] = []  # what the log must say
        self.optional: set[int] = set()  # places in it of what a kill may have kept from it
        self.ejected: set[str] = set()
        self.is_calm = False
        self.ends: list[str] = []  # how each start of the server ended

    def _node(self, name: str, data: str) -> dict[str, Any]:
        return {"name": name, "state": str(self.folder / "state"), "data": data}

    def _loaded(self, data: str) -> tuple[np.ndarray, np.ndarray]:
        x, y = own_samples_of(data.removeprefix("other-"))
        return (x[:-1], y[:-1]) if data.startswith("other-") else (x, y)

    # --- trouble ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.time.boot(SERVER, self.rng.uniform(0, 1e6))
        for machine in self.network.machines.values():
            self.time.after(self.rng.uniform(0, 20), partial(self.network.connect, machine))
        for kind in self.plan.troubles:
            TROUBLES[kind](self)
        self.time.note(f"seed {self.seed}: {self.plan}")

    def sometimes(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen again and again while there is trouble, on average every so many seconds."""

        def again() -> None:
            if not self.is_calm:
                act()
                self.sometimes(seconds, act)

        self.time.after(self.rng.expovariate(1 / seconds), again)

    def machine(self) -> Machine:
        return self.network.machines[self.rng.choice(sorted(self.samples))]

    def cut(self) -> None:
        """Some machines cannot reach the SuperLink for a while."""
        some = self.rng.sample(sorted(self.samples), self.rng.randint(1, len(self.samples)))
        self.time.note(f"{', '.join(sorted(some))} cannot reach the SuperLink")
        for name in some:
            self.network.machines[name].is_cut = True

        def heal() -> None:
            for name in some:
                self.network.machines[name].is_cut = False
            self.time.note(f"{', '.join(sorted(some))} can reach the SuperLink")

        self.time.after(self.rng.choice((5.0, 40.0, 150.0)) * self.rng.uniform(0.5, 1.5), heal)

    def jump(self) -> None:
        """A clock of the time of day jumps."""
        process = self.rng.choice([SERVER, SERVER, *sorted(self.samples)])
        by = self.rng.choice((-1, 1)) * self.rng.choice((20.0, HOUR, 6 * HOUR)) * self.rng.uniform(0.5, 1.5)
        self.time.offsets[process] = self.time.offsets.get(process, 0.0) + by
        self.time.note(f"the clock of {process} jumps by {by:.0f} s")

    def leave(self) -> None:
        """A node ends, and a while later another one runs on the machine, or the same."""
        machine = self.machine()
        if machine.node is None:
            return
        before = machine.node
        self.network.stop(machine, tells=self.rng.random() < 0.5)
        number = before if self.rng.random() < 0.3 else None
        self.time.after(
            self.rng.choice((2.0, 30.0, 90.0)) * self.rng.uniform(0.5, 1.5), partial(self.network.back, machine, number)
        )

    def kill_server(self) -> None:
        if self.rng.random() < 0.5:
            self.network.kill_server = True
        else:
            self.kills.left[SERVER] = self.rng.randrange(40)

    def impostor(self) -> None:
        """A node with the name of a member and other samples, or with a name of nobody."""
        if not FederationDirectory(self.out).states:
            return  # as long as it has not begun, whoever comes is a member
        name = self.rng.choice([*sorted(self.samples), "zz"])
        data = f"other-{name}" if name != "zz" else "a"
        node = Machine(f"impostor-{self.network.next_node}", self.app, self._node(name, data), impostor=True)
        self.network.machines[node.name] = node
        self.network.connect(node)
        self.time.after(self.rng.uniform(30, 200), partial(self.network.stop, node, True))

    def eject(self) -> None:
        """The operator ejects a member, or admits it again."""
        if not FederationDirectory(self.out).states:
            return
        with self.time.running("operator"):
            if self.ejected:
                name = self.ejected.pop()
                Ejections(self.out).admit(name)
                return self.time.note(f"the operator admits {name}")
            name = self.rng.choice(sorted(self.samples))
            Ejections(self.out).eject(name, "for a test")
            self.ejected.add(name)
            self.time.note(f"the operator ejects {name}")

    def roll_back(self) -> None:
        """The operator goes back to one of the states, while no server runs."""
        states = list(FederationDirectory(self.out).states)
        if not states:
            return
        self.saved = self.rng.choice(states)
        self.time.note(f"the operator goes back to the state after {self.saved} rounds")
        with self.time.running("operator"):
            FederationDirectory(self.out).roll_back(self.saved)
        self.logged.append(("rolled back", self.saved))

    def calm(self) -> None:
        """All trouble ends, and everybody comes back; what is still on its way arrives."""
        self.is_calm = True
        self.network.calm()
        self.network.kill_server = False
        self.time.note("all trouble ends")
        self.time.offsets.clear()
        for machine in self.network.machines.values():
            machine.is_cut = False
            self.network.stop(machine, tells=True)
        self.network.online_until = dict.fromkeys(self.network.online_until, -1.0)
        self.time.pass_time(3 * HOUR)
        for name in sorted(self.samples):
            self.network.back(self.network.machines[name])

    # --- the server ------------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        """Start the server, and say whether it has finished; what must hold whenever it ends is checked."""
        self.kills.dead.discard(SERVER)
        self.network.kill_server = False
        self.time.server_starts += 1
        self.time.boot(SERVER, self.rng.uniform(0, 1e6))
        self.time.note("the server starts")
        end = "finished"
        try:
            server_module().serve(self.study, TroubledGrid(self.network))
        except KilledError:
            end = "killed"
        except (FederationError, httpx.HTTPError) as error:
            end = f"failed: {type(error).__name__}: {error}"
        finally:
            self.time.limits.clear()
            self.kills.left.pop(SERVER, None)
        self.kills.dead.discard(SERVER)
        self.ends.append(end)
        self.time.note(f"the server has ended: {end}")
        self.check_log(end)
        return end == "finished"

    def run(self) -> None:
        self.begin()
        finished = False
        for _ in range(STARTS):
            if finished := self.serve():
                break
            self.time.pass_time(self.rng.choice((1.0, 60.0, 400.0)))
            if "rollback" in self.plan.troubles and self.rng.random() < 0.4:
                self.roll_back()
        if not finished:
            self.calm()
            expect(self.serve(), f"without trouble it does not finish: {self.ends[-1]}")
        self.check_end()
        if "rollback" in self.plan.troubles:
            self.calm()
            self.roll_back()
            expect(self.serve(), f"after a rollback it does not finish: {self.ends[-1]}")
            self.check_end()

    # --- what is seen of it ----------------------------------------------------------------------------------------

    def observe(self, patch: pytest.MonkeyPatch) -> None:
        """Watch rounds, refusals and checkpoints as they come, below and beside what the log says."""
        at = server_module()
        for owner, name, watch in (
            (at.FederatedServer, "round", self._round), (at.FlowerTransport, "exchange", self._exchange),
            (at.FlowerTransport, "gather", self._gather), (at.ClientRegistry, "refuse", self._refuse),
            (at.FederationDirectory, "save", self._save),
        ):  # fmt: skip
            original = getattr(owner, name)
            patch.setattr(owner, name, _watching(original, watch))

    def _round(self, original: Callable[..., Any], server: Any, transport: Any) -> Any:
        if isinstance(transport, Counted):
            return original(server, transport)
        expect(server.t >= self.saved, f"round {server.t} begins, and {self.saved} were saved")
        self.saved = server.t
        self.timeline = {t: one for t, one in self.timeline.items() if t < server.t}
        asked = tuple(server.names[i] for i in server.cohort(server.t))
        attempt = Attempt(server.t, asked, len(self.network.sent), len(self.network.read))
        self.time.note(f"round {server.t} begins, and asks {', '.join(asked)}")
        expect(not self.ejected & set(asked), f"{self.ejected & set(asked)} were asked, and are ejected")
        try:
            report = original(server, transport)
        except FederationError as error:
            self._check_orders(attempt)
            self.logged.append(("round failed", attempt.t, str(error)))
            raise
        attempt.accepted, attempt.missing = tuple(report.accepted), dict(report.missing)
        self.time.note(
            f"round {report.t} is over: {', '.join(attempt.accepted)} counted, missing are {attempt.missing}"
        )
        self._check_orders(attempt)
        self._check_round(attempt)
        self.timeline[attempt.t] = attempt
        self.logged.append(("round", attempt.t, list(attempt.accepted), dict(attempt.missing)))
        return report

    def _exchange(self, original: Callable[..., Any], transport: Any, requests: Any, deadline: float) -> Iterator[Any]:
        what = f"an exchange with {len(requests)} clients"
        self.time.limits[what] = self.time.now + deadline + SLACK
        yield from original(transport, requests, deadline)
        self.time.limits.pop(what, None)

    def _gather(self, original: Callable[..., Any], transport: Any, number: int, seconds: float) -> None:
        self.time.limits["gathering"] = self.time.now + seconds + SLACK
        original(transport, number, seconds)
        self.time.limits.pop("gathering", None)

    def _refuse(self, original: Callable[..., Any], registry: Any, node: int, reason: str) -> None:
        original(registry, node, reason)
        self.logged.append(("node refused", str(node), registry.refused[node]))

    def _save(self, original: Callable[..., Any], directory: Any, server: Any, *others: Any) -> None:
        original(directory, server, *others)
        self.saved = server.t

    # --- what must hold --------------------------------------------------------------------------------------------

    def _check_orders(self, attempt: Attempt) -> None:
        """Nobody but those that the round asks is sent anything."""
        sent = {order.client for order in self.network.sent[attempt.sent :]
                if order.message.metadata.message_type == "train"}  # fmt: skip
        expect(sent <= set(attempt.asked), f"{sorted(sent)} were sent orders, asked are {attempt.asked}")

    def _check_round(self, attempt: Attempt) -> None:
        """Each client counts or is missing with a reason; who counts has sent a good reply to an order of it."""
        accepted, missing = set(attempt.accepted), set(attempt.missing)
        expect(len(attempt.accepted) == len(accepted), f"somebody counts twice: {attempt.accepted}")
        expect(accepted | missing == set(attempt.asked) and not accepted & missing,
               f"asked {attempt.asked}, counted {sorted(accepted)}, missing {sorted(missing)}")  # fmt: skip
        last = {order.client: order for order in self.network.sent[attempt.sent :]}
        now = [order for order, _ in self.network.read[attempt.read :] if order in self.network.sent[attempt.sent :]]
        good = {order.client for order in now if order.kind == "honest"}
        expect(accepted <= good, f"{sorted(accepted - good)} counted without a good reply to an order of this attempt")
        for order in now:
            refused = order.kind != "honest" and order is last[order.client] and not order.was_late
            if refused and order.client in missing:  # who refuses to unmask a sum that it is in still counts
                why = attempt.missing[order.client]
                expect(NO_REPLY not in why, f"a {order.kind} reply of {order.client} came, the round says: {why}")
        if self.is_calm:
            lost = {name: why for name, why in attempt.missing.items() if REPEATED not in why}
            expect(not lost, f"without trouble {lost}")

    def check_log(self, end: str) -> None:
        """The log is whole, and says each round and refusal in order; a kill may have kept the last one from it."""
        problem = log_problem(self.out, self.study.digest) if self.out.exists() else ""
        expect(not problem, problem)
        if end != "finished":
            self.optional.add(len(self.logged) - 1)
        found = [fact for event in read_events(self.out) if (fact := _logged(event)) is not None]
        needed = [fact for number, fact in enumerate(self.logged) if number not in self.optional]
        rest = iter(found)
        for fact in needed:
            expect(fact in rest, f"the log lacks {fact}, or has it too early: it has {found[-5:]}")
        allowed = [fact for number, fact in enumerate(self.logged) if number in self.optional]
        other = (Counter(map(str, found)) - Counter(map(str, needed))) - Counter(map(str, allowed))
        expect(not other, f"the log says {list(other)}, which did not happen")

    def check_end(self) -> None:
        """The model is that of those that counted, `verify` finds nothing, and a round was unmasked for one set."""
        problems = [(name, problem) for name, problem in check(self.out) if problem]
        expect(not problems, f"verify: {problems}")
        expect(list(self.timeline) == list(range(self.plan.rounds)), f"the rounds are {list(self.timeline)}")
        rounds: list[Round] = [(one.asked, one.accepted) for one in self.timeline.values()]
        state, model = reference(self.plan.study).end(rounds)
        file = FederationDirectory(self.out).states[self.plan.rounds]
        tensors, meta = checkpoint.load(file)
        expect(_same_bits(state, tensors), f"the state is not that of the clients that counted: {rounds}")
        expect(_same_bits(model, load_file(self.out / "model.safetensors")), "the model is not that of the state")
        counted = {name: t for t, one in self.timeline.items() for name in one.accepted}
        expect(meta["counted"] == counted, f"counted are {meta['counted']}, and were {counted}")
        expect([row["clients"] for row in meta["history"]] == [len(one.accepted) for one in self.timeline.values()],
               "the history has other numbers of clients")  # fmt: skip
        said = {event["t"]: (tuple(event["counted"]), event["missing"]) for event in read_events(self.out)
                if event["event"] == "round"}  # fmt: skip
        for t, one in self.timeline.items():
            expect(said.get(t) == (one.accepted, one.missing), f"of round {t} the log says {said.get(t)}, it was {one}")
        told = set(self.network.told)
        expect(len(told) == len({one[:3] for one in told}), f"unmasked for more than one set: {sorted(told)}")


def _watching(original: Callable[..., Any], watch: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: watch(original, *arguments)


def _logged(event: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What an event says, as `World.logged` has it."""
    match event["event"]:
        case "round":
            return "round", event["t"], event["counted"], event["missing"]
        case "round failed":
            return "round failed", event["t"], event["reason"]
        case "node refused":
            return "node refused", event["node"], event["reason"]
        case "rolled back":
            return "rolled back", event["done"]
    return None


def _same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        x.detach().numpy().tobytes() == other[name].detach().numpy().tobytes() for name, x in one.items()
    )


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise BrokenPromise(otherwise)


def spoiled(rng: random.Random, order: Message, content: RecordDict) -> RecordDict | None:
    """A reply that must not count, made of a good one."""
    try:
        reply = read_message(content, TrainReply)
        return to_records(WRONG[rng.choice(sorted(WRONG))](rng, reply))
    except (RefusedError, TypeError, ValueError):  # Flower's records cannot hold it
        return None


# What may go wrong: each kind is part of a schedule or is not.
def _rates(**rates: float) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.network.rates = replace(world.network.rates, **rates)

    return act


def _often(seconds: float, name: str) -> Callable[[World], None]:
    return lambda world: world.sometimes(seconds, getattr(world, name))


TROUBLES: dict[str, Callable[[World], None]] = {
    "late": _rates(late=0.15, lateness=300.0),
    "disorder": _rates(latency=5.0),
    "slow": _rates(training=15.0),
    "lost": _rates(lost=0.08),
    "doubled": _rates(doubled=0.3, doubled_replies=0.3),
    "blocked": _rates(blocked=0.1),
    "refused": _rates(refused=0.2),
    "broken": _rates(broken=0.0005),
    "wrong": _rates(wrong=0.15),
    "stale": _rates(stale=0.15),
    "killed": _rates(killed=0.1),
    "orphans": _rates(orphans=0.5),
    "cuts": _often(60.0, "cut"),
    "clocks": _often(50.0, "jump"),
    "leaving": _often(30.0, "leave"),
    "kills": _often(100.0, "kill_server"),
    "impostors": _often(100.0, "impostor"),
    "ejections": _often(30.0, "eject"),
    "forgetting": lambda world: world.sometimes(150.0, world.network.forget),
    "rollback": lambda world: None,
}


# --- one schedule --------------------------------------------------------------------------------------------------


def server_module() -> Any:
    """`server_app` as it is now: a test may have put another in its place."""
    return sys.modules["fedflat.federation.flower.server_app"]


@cache
def study_spec(study: tuple[Any, ...]) -> Any:
    method, _, participation, rounds = study
    return study_of(
        model={"name": "mlp", "options": {"hidden": [2]}}, method=method, participation=participation, rounds=rounds,
        client={"lr": 0.1, "steps": 1, "batch_size": 4},
    )  # fmt: skip


def study_in(folder: Path, plan: Plan, out: Path) -> Study:
    (folder / FILE).write_text(study_spec(plan.study).to_toml())
    settings = {"out": str(out), "clients": plan.clients, "shape": "3", "classes": 2, "deadline": plan.deadline,
                "wait": 600.0, "quorum": 0.5}  # fmt: skip
    settings |= {"secure-sum": 0.6, "norm-multiple": inf} if plan.secure else {}
    return KnownStudy(study_spec(plan.study), RunSettings.parse("run-config", settings))


class KnownStudy(Study):
    """A study that computes its digest and its initial model once."""

    digest = cached_property(Study.digest.fget)

    def module(self) -> torch.nn.Module:
        return deepcopy(INITIAL.setdefault(str(self.spec), super().module()))


INITIAL: dict[str, torch.nn.Module] = {}


@cache
def reference(study: tuple[Any, ...]) -> Reference:
    clients = study[1]
    settings = RunSettings.parse("run-config", {"clients": clients, "shape": "3", "classes": 2})
    return Reference(KnownStudy(study_spec(study), settings), {name: own_samples_of(name) for name in NAMES[:clients]})


def quick_clients(world: World, patch: pytest.MonkeyPatch) -> None:
    """Read the study once, make each client once, and train once for the same message and record.

    Clients keep nothing in memory from one message to the next, and training is a function of what it is given.
    """
    session = client_app.ClientSession
    original = session._client

    def client(self: Any, request: Any) -> Any:
        key = world.plan.study, self._node_config["data"], request.number, request.digest
        if key not in MADE:
            MADE[key] = original(self, request)
            MADE[key]._executor = Remembered(MADE[key]._executor)
        found = copy(MADE[key])
        found._state = ClientState(self._state_folder(request.federation), found._method.client)
        return found

    patch.setattr(session, "_client", client)
    patch.setattr(client_app, "Study", SimpleNamespace(load=lambda folder, settings: world.study))
    patch.setattr(client_app, "own_samples", known_samples)


MADE: dict[Any, Any] = {}


def known_samples(study: Study, samples: tuple[np.ndarray, np.ndarray], number: int) -> Any:
    key = id(samples[1]), number
    if key not in KNOWN:
        KNOWN[key] = own_samples(study, samples, number), samples
    return KNOWN[key][0]


KNOWN: dict[Any, Any] = {}  # with the arrays, so that no other ones get their ids


def run(seed: int, parent: Path, troubles: Collection[str] | None = None) -> World:
    """Carry out one schedule in a folder of its own. Raises BrokenPromise, saying how to see it again.

    troubles: the kinds that there are in it, if they are not to be drawn, too.
    """
    with TemporaryDirectory(dir=parent, prefix=f"{seed}-") as folder, pytest.MonkeyPatch.context() as patch:
        world = World(seed, Path(folder), troubles)
        install(world.time, patch, world.network.pull_delay)
        patch.setattr(sys.modules["fedflat.federation.flower.transport"], "POLL_SECONDS", 2.0)
        patch.setattr(logging.getLogger("flwr"), "disabled", True)
        world.observe(patch)
        world.kills.watch(patch)
        quick_clients(world, patch)
        try:
            world.run()
        except (Exception, BrokenPromise) as error:
            trace = "\n".join(world.time.trace if VARIABLE in os.environ else world.time.trace[-LAST:])
            what = f"{error}" if isinstance(error, BrokenPromise) else f"{type(error).__name__}: {error}"
            raise BrokenPromise(f"seed {seed}: {what}\n{trace}\nagain: {REPLAY.format(seed)}") from error
    return world
