"""What is used of Flower beyond its public API, in the installed version; any other version is refused in one line.

These tests are the contract with a version of Flower, and so are those of what the replacements do, in
`test_control_access.py`, `test_task_executor.py`, `test_approved_app.py` and `test_limits.py`. `make matrix` runs them
with each supported version.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.common.config import parse_config_args
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.proto.task_pb2 import Task as TaskProto
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

import fedflat
from fedflat.core.errors import InputError
from fedflat.federation.flower import internals
from fedflat.federation.flower.internals import (
    ACCOUNT_CHECK,
    EXECUTOR,
    RECEIVING,
    REPLACED,
    TESTED,
    Task,
    TokenCheck,
    check_apps,
    check_tokens,
    check_version,
    node_api,
    node_config,
    run_program,
    start_tasks_by,
)
from support.flower_fixtures import failing

INSTALLED = metadata.version("flwr")
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}


class StopError(BaseException):
    """Ends a loop of Flower's that has no end."""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions that a test replaces are Flower's again after it."""
    for one in (ACCOUNT_CHECK, EXECUTOR, RECEIVING):
        owner = resolve_name(one.owner)
        monkeypatch.setattr(owner, one.name, getattr(owner, one.name))


@pytest.mark.parametrize("one", REPLACED, ids=lambda one: one.name)
def test_flower_has_what_is_replaced_and_calls_it(one: internals.ReplacedFunction) -> None:
    assert callable(one.original())


@pytest.mark.parametrize("one", REPLACED, ids=lambda one: one.name)
def test_another_function_is_refused_with_the_version_and_what_to_install(one: internals.ReplacedFunction) -> None:
    """One that has moved, has lost an argument, or is not called any more, as a later version may have it."""
    install = f"pip install 'flwr=={TESTED[-1]}'"
    for other, problem in (
        (replace(one, name="moved"), "has no function moved as federations need it"),
        (replace(one, owner="flwr.moved:"), f"has no function {one.name} as federations need it"),
        (replace(one, arguments=one.arguments | {"more"}), f"has another function {one.name}, without more"),
        (replace(one, caller="flwr.supercore.address:parse_address"), f"does not call {one.name} in flwr.supercore"),
    ):
        with pytest.raises(InputError, match=re.escape(f"flwr {INSTALLED} {problem}")) as caught:
            other.original()
        assert str(caught.value).endswith(install)
        assert "\n" not in str(caught.value)


def test_tested_versions_are_accepted_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert INSTALLED in TESTED
    for version in (*TESTED, "1.42.7"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        check_version()
    for version in ("1.40.0", "1.43.0", "1.43.0.dev20261201", "2.0.0"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        with failing(InputError, f"flwr {version} is installed, and a federation needs flwr>=1.41,<1.43: pip install"):
            check_version()


def imported_anew() -> None:
    """Import the module as a new process would, without a trace in this one."""
    spec = importlib.util.find_spec(internals.__name__)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_nothing_is_imported_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    imported_anew()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "flwr.supercore.address", ModuleType("flwr.supercore.address"))
        with failing(InputError, f"flwr {INSTALLED} lacks something that federations need in flwr.supercore.address"):
            imported_anew()
    monkeypatch.setattr(metadata, "version", lambda name: "1.43.0")
    with failing(InputError, "flwr 1.43.0 is installed, and a federation needs"):
        imported_anew()


def test_a_function_that_is_imported_later_is_named_if_it_is_missing() -> None:
    for place in ("flwr.app:flies", "flwr.lands:flies"):
        with failing(InputError, f"flwr {INSTALLED} lacks something that federations need in {place[:-6]}"):
            internals.flower_function(place)


def imported_modules(path: Path) -> Iterator[str]:
    """By import statements, and by names in texts, as `import_module` takes them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and re.fullmatch(r"flwr(\.\w+)+:?.*", str(node.value)):
            yield str(node.value)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_other_module_imports_more_than_flowers_public_api() -> None:
    package = Path(fedflat.__file__).parent
    found = {path.name: {name for name in imported_modules(path) if name.partition(".")[0] == "flwr"} - PUBLIC
             for path in package.rglob("*.py")}  # fmt: skip
    assert {name for name, more in found.items() if more} == {Path(internals.__file__).name}


def test_a_superlink_asks_our_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flower-superlink", "--insecure"])
    program = import_module("flwr.superlink.cli.flower_superlink")
    assert not isinstance(program._parse_superlink_lifespan_config().authn_plugin, TokenCheck)
    check_tokens("token".__eq__)
    access = program._parse_superlink_lifespan_config().authn_plugin
    assert access.validate_tokens_in_metadata([]) == (False, None)
    assert access.validate_tokens_in_metadata([("flwr-oidc-access-token", "token")])[0]


def test_a_superexec_leaves_its_tasks_to_our_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own loop, with a SuperLink that has one task."""
    task = TaskProto(task_id=1, run_id=7, type=TaskType.SERVER_APP, fab_hash="a" * 64)
    answers = iter([AcquireTaskResponse(task=task, token="the token")])
    started: list[Task] = []

    class Client:
        def AcquireTask(self, request: Any) -> AcquireTaskResponse:
            assert set(request.supported_task_types) == {TaskType.SERVER_APP, TaskType.CLIENT_APP}
            if answer := next(answers, None):
                return answer
            raise StopError

        def close(self) -> None:
            pass

    program = import_module("flwr.supercore.superexec.run_superexec")
    monkeypatch.setattr(program.RuntimeHttpClient, "from_server_address", lambda **_: Client())
    monkeypatch.setattr(program, "register_signal_handlers", lambda **_: None)
    monkeypatch.setattr(program.time, "sleep", lambda seconds: None)
    called: list[str] = []

    class Starter:
        def start(self, task: Task) -> None:
            started.append(task)

        def prepare(self) -> None:
            called.append("prepare")

        def close(self) -> None:
            called.append("close")

    start_tasks_by(Starter())
    with pytest.raises(StopError):
        program.run_superexec("127.0.0.1:1", insecure=True)
    [one] = started
    assert called.count("prepare") >= 1
    assert called[-1] == "close"
    assert (one.token, one.is_server, one.app) == ("the token", True, f"sha256:{'a' * 64}")
    assert "the token" not in one.command


def test_a_supernode_asks_our_check_and_replies_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own loop, with a SuperLink that sends one message and takes one reply."""
    asked: list[tuple[bytes, str]] = []
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
    message = Message(RecordDict(), 5, "query")
    message.metadata.__dict__["_message_id"] = message.object_id
    run = Run(**vars(Run.create_empty(7)) | {"fab_hash": "named", "primary_task_type": TaskType.SERVER_APP})

    def send(reply: Message, *_: Any) -> Any:
        raise StopError(reply.error.reason)

    @contextmanager
    def connection(**_: Any) -> Iterator[Any]:
        receive, fab = (lambda: (message, get_object_tree(message))), Fab("named", b"an app", {})
        yield 5, receive, send, lambda run_id: run, lambda fab_hash, run_id: fab, None, None, None

    program = import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(program, "_init_connection", connection)
    monkeypatch.setattr(program, "register_signal_handlers", lambda **_: None)
    check_apps(lambda content, named: asked.append((content, named)) or "no such app here")
    with pytest.raises(StopError, match="no such app here"):
        program.start_client_internal(
            state_factory=NodeStateFactory(ObjectStoreFactory()), server_address="127.0.0.1:1", node_config={},
            insecure=True, isolation="process",
        )  # fmt: skip
    assert asked == [(b"an app", "named")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("127.0.0.1:9094", None)),
        (["--host", "0.0.0.0", "--port", "9100"], ("127.0.0.1:9100", None)),
        (["--host=::", "--port=9100", "--node-config", "name='a'"], ("[::1]:9100", None)),
        (["--ssl-certfile", "a.crt", "--ssl-ca-certfile", "ca.crt"], ("127.0.0.1:9094", "ca.crt")),
        (["--ssl-ca-certfile", "ca.crt"], ("127.0.0.1:9094", None)),
    ],
)
def test_a_nodes_address_is_read_as_flower_reads_it(arguments: list[str], expected: tuple[str, str | None]) -> None:
    assert node_api(arguments) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('name="clinic a" partition-id=3', {"name": "clinic a", "partition-id": 3}),
        ("name='a' device=\"cuda:1\"", {"name": "a", "device": "cuda:1"}),
        ("", {}),
    ],
)
def test_a_nodes_configuration_is_read_as_flower_reads_it(config: str, expected: dict[str, Any]) -> None:
    assert node_config(["--insecure", "--node-config", config]) == expected
    assert parse_config_args([config]) == expected


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("name", "--node-config: 'name' is no KEY=VALUE"),
        ('name="a" data = "b"', "is no KEY=VALUE"),
        ("name=clinic-a", "--node-config: 'name=clinic-a' cannot be read; a text is in quotes"),
    ],
)
def test_a_configuration_that_flower_would_leave_out_is_refused(config: str, line: str) -> None:
    """Of a word that is no pair Flower says nothing: the node would run without it."""
    with failing(InputError, line):
        node_config(["--node-config", config])


@pytest.mark.parametrize("missing", ["--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"])
def test_what_flowers_program_refuses_in_words_is_an_error_of_one_line(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    (there := tmp_path / "there").touch()
    flags = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile")
    files = [word for name in flags for word in (name, str(tmp_path / "gone" if name == missing else there))]
    with failing(InputError, f"Path argument `{missing}` does not point to a file"):
        run_program("flower-superlink", ["--host", "127.0.0.1", "--port", "8000", *files])  # it never listens


def test_a_program_that_ends_with_a_number_ends_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit) as ending:
        run_program("flower-superlink", ["--help"])
    assert ending.value.code == 0
