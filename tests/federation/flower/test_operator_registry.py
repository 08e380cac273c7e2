"""The operator's registry: who may take part, with which samples and which key."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from cryptography.hazmat.primitives import serialization as form

from fedflat.core.errors import InputError
from fedflat.federation.flower.settings import OperatorRegistry
from fedflat.federation.flower.transport import GatheringError
from fedflat.federation.launch.certificates import Certificates
from support.flower_fixtures import OWN_SAMPLES, GridFederation, failing, own_clients, own_study
from support.local_grid import Node

SIZES = {"a": 9, "b": 4, "c": 6}


def public_line(keys: Certificates, name: str) -> str:
    """The line of a node's public key, which is made if it is missing."""
    keys.make(["localhost"], [name])
    return keys.node_key(name).with_name(f"{name}.pub").read_text().strip()


def public_pem(keys: Certificates, name: str) -> bytes:
    """The same key as Flower's command sends it to the SuperLink."""
    private = form.load_ssh_private_key(keys.node_key(name).read_bytes(), None)
    return private.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    keys = Certificates(tmp_path / "keys")
    table = {name: {"samples": size, "keys": [public_line(keys, name)]} for name, size in SIZES.items()}
    (tmp_path / "members.toml").write_text(tomli_w.dumps(table))
    return tmp_path / "members.toml"


def federation_of(registry: Path, holders: str = "abc") -> tuple[GridFederation, dict[int, Node]]:
    """A federation with this registry; nodes of a, b and c, which have the keys of `holders`."""
    keys = Certificates(registry.parent / "keys")
    settings = {**OWN_SAMPLES, "registry": str(registry), "wait": 0.5}
    federation = GridFederation(own_study(rounds=1), registry.parent / "federation", **settings)
    samples = dict(zip("abc", own_clients(), strict=True))
    nodes = federation.own_nodes(samples.__getitem__)
    for node, holder in zip(nodes.values(), holders, strict=True):
        keys.make(["localhost"], [holder])
        node.key = public_pem(keys, holder)
    return federation, nodes


def test_clients_with_the_keys_and_samples_of_the_registry_train(registry: Path) -> None:
    federation, nodes = federation_of(registry)
    federation.serve(nodes)
    assert [event["client"] for event in federation.events("client")] == ["a", "b", "c"]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.slow
def test_whoever_claims_otherwise_is_refused_in_one_line(registry: Path) -> None:
    """Another member's key, no key, a key that nobody knows, and another number of samples."""
    federation, nodes = federation_of(registry, "acb")
    with failing(
        GatheringError, "node 2 is none: b: its key is not one that the registry lists for it; node 3 is none: c"
    ):
        federation.serve(nodes)
    for wrong in (b"", public_pem_of_stranger(registry)):
        federation, nodes = federation_of(registry)
        nodes[1].key = wrong
        with failing(GatheringError, "node 1 is none: a: its key is not one that the registry lists for it"):
            federation.serve(nodes)
    registry.write_text(registry.read_text().replace("samples = 4", "samples = 5"))
    with failing(GatheringError, "b: has 4 samples, and the run-config members say 5"):
        federation_of(registry)[0].serve(federation_of(registry)[1])


def public_pem_of_stranger(registry: Path) -> bytes:
    keys = Certificates(registry.parent / "keys")
    keys.make(["localhost"], ["stranger"])
    return public_pem(keys, "stranger")


def test_a_key_is_renewed_while_a_federation_runs(registry: Path) -> None:
    """The file is read for every question: first both keys are listed, then only the new one."""
    keys, known = Certificates(registry.parent / "keys"), OperatorRegistry(registry)
    old, new = public_pem(keys, "a"), public_line(keys, "a2")
    assert known.keys_of("a") == {old}
    line = public_line(keys, "a")
    registry.write_text(registry.read_text().replace(f'"{line}"', f'"{line}", "{new}"'))
    assert known.keys_of("a") == {old, public_pem(keys, "a2")}
    registry.write_text(registry.read_text().replace(f'"{line}", ', ""))
    assert known.keys_of("a") == {public_pem(keys, "a2")}


@pytest.mark.parametrize(
    ("text", "line"),
    [("", "lists no client"), ("a = 5", "'a': keys"), ("[a]\nsamples = 0\nkeys = ['x']", "'a': samples"),
     ("[a]\nsamples = 3\nkeys = []", "'a': keys"), ("['../a']\nsamples = 3\nkeys = ['x']", "name '../a' must be"),
     ("[a]\nsamples = 3\nkeys = ['x']\nkind = 1", "'a': kind"), ("[a\n", "cannot be read")],
)  # fmt: skip
def test_mistakes_are_one_line_that_names_the_file(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "members.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        OperatorRegistry(tmp_path / "members.toml").samples()
    assert str(tmp_path / "members.toml") in str(caught.value)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_mistakes(registry: Path) -> None:
    known = OperatorRegistry(registry)
    with failing(InputError, f"d is not in {registry}"):
        known.keys_of("d")
    registry.write_text("[a]\nsamples = 9\nkeys = ['ssh-nothing AAAA']\n")
    with failing(InputError, f"{registry}: a: keys: 'ssh-nothing AAAA' is not the line of a .pub file"):
        known.keys_of("a")
    federation, nodes = federation_of(registry)
    with failing(InputError, "clients is 3, and 1 are named as members: too few"):
        federation.serve(nodes)
    federation.config["members"] = "a=9 b=4 c=6"
    with failing(InputError, "registry and members both say who may take part; give one of them"):
        federation.serve(nodes)
