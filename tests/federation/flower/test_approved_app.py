"""A node runs approved apps only: on Flower's own state of a node, with a network that sends what it wants."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import partial
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory

from fedflat.core.errors import InputError
from fedflat.federation.flower.approved_apps import app_digest, archive
from fedflat.federation.flower.export import export
from fedflat.federation.flower.internals import ANSWER, RECEIVING, checked_apps, flower_function
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.supernode import app_refusal, run_supernode
from support.flower_fixtures import failing, study_of

RUN, NODE = 7, 5


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "app"
    export(study_of(), RunSettings(clients=5), folder)
    return folder


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class SentApp:
    """A node's state after a message of a run of some app has come."""

    def __init__(self, approved: set[str], content: bytes, named: str | None = None) -> None:
        """named: what the server says the SHA-256 is."""
        factory = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(factory).state(), factory.store()
        self.state.set_node_id(NODE)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 3
        message = Message(RecordDict(), NODE, "query")
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {number: one.deflate() for number, one in get_all_nested_objects(message).items()}
        digest = named or sha256(content)
        run = Run(**vars(Run.create_empty(RUN)) | {"fab_hash": digest, "primary_task_type": TaskType.SERVER_APP})
        pull = checked_apps(RECEIVING.original(), partial(app_refusal, frozenset(approved)), flower_function(ANSWER))
        self.returned = pull(
            state=self.state, object_store=self.store, node_config={},
            receive=lambda: (message, get_object_tree(message)),
            get_run=lambda run_id: run, get_fab=lambda fab_hash, run_id: Fab(digest, content, {}),
            pull_object=lambda run_id, number: objects[number], confirm_message_received=lambda run_id, number: None,
            trusted_entities=None,
        )  # fmt: skip

        replies = self.state.get_messages_legacy(is_reply=True)
        self.error = replies[0].error if replies else None  # what the server is told

    @property
    def stored(self) -> bool:
        """Whether the app is where Flower's programs take it from."""
        return self.state.get_run(RUN) is not None


def test_an_approved_app_is_taken(app: Path) -> None:
    sent = SentApp({app_digest(app)}, archive(app))
    assert (sent.returned, sent.stored, sent.error) == (RUN, True, None)


def rewritten(fab: bytes, change: str) -> bytes:
    """The archive with one file changed, added or left out."""
    source, target = zipfile.ZipFile(io.BytesIO(fab)), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for info in source.infolist():
            content = source.read(info)
            if change == "changed" and info.filename == "federated/client.py":
                content += b"\nimport os\n"
            if not (change == "left out" and info.filename == "federated/__init__.py"):
                made.writestr(info, content)
        if change == "added":
            made.writestr("federated/more.py", "import os\n")
    return target.getvalue()


@pytest.mark.parametrize("change", ["changed", "added", "left out"])
def test_any_other_app_is_answered_with_an_error_and_not_kept(app: Path, change: str) -> None:
    content = rewritten(archive(app), change)
    sent = SentApp({app_digest(app)}, content)
    assert (sent.returned, sent.stored) == (RUN, False)
    assert sent.error.code == ErrorCode.INVALID_FAB
    assert sent.error.reason == f"this node was sent the app sha256:{sha256(content)}, and runs only {app_digest(app)}"


def test_what_the_server_says_of_an_app_is_not_believed(app: Path) -> None:
    """A changed app under the approved one's SHA-256, and the approved one under another."""
    approved, fab = app_digest(app), archive(app)
    assert not SentApp({approved}, rewritten(fab, "changed"), approved.removeprefix("sha256:")).stored
    assert not SentApp({approved}, fab, "0" * 64).stored


def test_several_apps_may_be_approved(app: Path) -> None:
    assert SentApp({"sha256:" + "0" * 64, app_digest(app)}, archive(app)).stored


def test_the_digest_is_of_what_is_sent_and_changes_with_every_setting(app: Path, tmp_path: Path) -> None:
    """Files that running an app leaves do not matter, for they are not sent."""
    assert app_digest(app) == f"sha256:{sha256(archive(app))}"
    same, other = tmp_path / "same", tmp_path / "other"
    export(study_of(), RunSettings(clients=5), same)
    export(study_of(rounds=5), RunSettings(clients=5), other)
    (same / "federated" / "__pycache__").mkdir()
    (same / "federated" / "__pycache__" / "client.cpython-311.pyc").touch()
    assert app_digest(same) == app_digest(app) != app_digest(other)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--node-config", 'nmae="a"'], "--node-config: nmae: unknown key; did you mean name?"),
        (["--node-config", 'name="../a"'], "name '../a' must be up to 64 letters"),
        (["--node-config", "partition-id=-1"], "--node-config: partition-id: Input should be"),
        (["--node-config", "name"], "--node-config: 'name' is no KEY=VALUE"),
        (["--root-certificates", "gone.crt"], "--root-certificates: gone.crt is not a file"),
        (["--auth-supernode-private-key=gone"], "--auth-supernode-private-key: gone is not a file"),
    ],
)
def test_a_node_that_could_not_take_part_does_not_start(arguments: list[str], line: str) -> None:
    """Otherwise the node would wait for a run, and the server would be the first to read of it."""
    with failing(InputError, line):
        run_supernode(["sha256:" + "0" * 64], arguments)


def test_mistakes_are_one_line_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with failing(InputError, "--app-digest is missing"):
        run_supernode([], [])
    with failing(InputError, "--app-digest 'sha256:12' must be sha256: and 64 hexadecimal digits"):
        run_supernode(["sha256:12"], [])
    with failing(InputError, f"{tmp_path} is no app: it has no pyproject.toml"):
        app_digest(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with failing(InputError, f"{tmp_path} is no app: Invalid Flower App configuration"):
        app_digest(tmp_path)
    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", lambda state: None)
    with failing(InputError, "has another function _pull_and_store_message, without get_fab, object_store, receive"):
        run_supernode(["sha256:" + "0" * 64], [])
