"""All that is used of Flower beyond its public API: `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and its programs.

No other module imports it. Flower has no public way to do the following, so functions of Flower are replaced, each of
which is a `ReplacedFunction` below:

* check who calls a SuperLink's control API, without an OpenID server and a commercial plugin (`check_tokens`);
* decide what a SuperExec starts, and how (`start_tasks_by`);
* check an app between its download and its use at a SuperNode (`check_apps`);
* limit the size of a received array, and the waiting time for a reply (`array_limit`, `pull_deadline`).

A replacement is refused, with an error of one line, where Flower's function is not the one that is known. Versions
outside of `SUPPORTED` are refused when this module is imported. So nothing runs without its checks.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import pkgutil
import re
import subprocess
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module, metadata
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from click import ClickException
from packaging.specifiers import SpecifierSet

from ...core.errors import InputError, shortened

TESTED = ("1.41.0", "1.42.0")  # the versions of Flower with which all tests of federations pass
SUPPORTED = ">=1.41,<1.43"  # the same in pyproject.toml
PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # of a configuration on a command line, as Flower finds them


def wrong_flower(problem: str) -> InputError:
    """Return the error that names the version of Flower that is installed, what is wrong, and what to install."""
    return InputError(f"flwr {metadata.version('flwr')} {problem}: pip install 'flwr=={TESTED[-1]}'")


def check_version() -> None:
    """Raise InputError if the installed version of Flower is not supported."""
    if not SpecifierSet(SUPPORTED).contains(metadata.version("flwr"), prereleases=True):
        raise wrong_flower(f"is installed, and a federation needs flwr{SUPPORTED}")


try:
    check_version()
    import httpx
    from flwr.app import Array, Error, Message
    from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
    from flwr.common.config import parse_config_args
    from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, AuthnType, ErrorCode
    from flwr.supercore.address import resolve_bind_address
    from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
    from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND, TaskType
    from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
    from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.utils import get_flwr_home, get_metadata_str
    from flwr.superlink.auth_plugin import ControlAuthnPlugin
except ImportError as error:
    if not (error.name or "").startswith("flwr."):
        raise  # a package is missing
    raise wrong_flower(f"lacks something that federations need in {error.name}") from error


def flower_function(place: str) -> Callable[..., Any]:
    """Return the function of Flower at `place`, MODULE:NAME. Raises InputError if it is missing.

    For modules that few programs need: with their libraries for databases they take longer to import than all others.
    """
    try:
        found: Callable[..., Any] = pkgutil.resolve_name(place)
    except (ImportError, AttributeError) as error:
        raise wrong_flower(f"lacks something that federations need in {place.partition(':')[0]}") from error
    return found


NetworkError = httpx.HTTPError  # raised by a grid if the SuperLink cannot be reached, or refuses
UploadError = ObjectPushError  # raised by a grid for a message whose upload was interrupted
# The error codes of a reply for a lost message, reply or node.
LOST = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
TASKS = {TaskType.SERVER_APP, TaskType.CLIENT_APP}
Metadata = Sequence[tuple[str, str | bytes]]
log = logging.getLogger("flwr")
_thread = threading.local()


@dataclass(frozen=True)
class ReplacedFunction:
    """A function of Flower that is replaced, and what has to hold for that to have an effect.

    Modules and functions are named as `pkgutil.resolve_name` reads them: MODULE:FUNCTION, or MODULE: for a module.
    """

    owner: str  # the module or class whose attribute it is
    name: str
    arguments: frozenset[str]  # that the replacement passes or reads by their names
    caller: str  # the function of Flower that calls it as the attribute of this name

    def original(self) -> Callable[..., Any]:
        """Return Flower's function. Raises InputError if it is not the function that is known."""
        try:
            function: Callable[..., Any] = getattr(pkgutil.resolve_name(self.owner), self.name)
            names = inspect.unwrap(pkgutil.resolve_name(self.caller)).__code__.co_names
        except (ImportError, AttributeError) as error:
            raise wrong_flower(f"has no function {self.name} as federations need it ({error})") from error
        missing = self.arguments - set(inspect.signature(function).parameters)
        if missing:
            raise wrong_flower(f"has another function {self.name}, without {', '.join(sorted(missing))}")
        if self.name not in names:
            raise wrong_flower(f"does not call {self.name} in {self.caller}, so it cannot be checked")
        return function

    def replace(self, replacement: object) -> None:
        """Replace the function, for all that this process does from now on."""
        setattr(pkgutil.resolve_name(self.owner), self.name, replacement)


ACCOUNT_CHECK = ReplacedFunction(
    "flwr.superlink.cli.flower_superlink:", "load_control_authn_plugin", frozenset(),
    "flwr.superlink.cli.flower_superlink:_parse_superlink_lifespan_config",
)  # fmt: skip
EXECUTOR = ReplacedFunction(
    "flwr.supercore.superexec.run_superexec:", "get_executor", frozenset(),
    "flwr.supercore.superexec.run_superexec:run_superexec",
)  # fmt: skip
RECEIVING = ReplacedFunction(
    "flwr.supernode.start_client_internal:", "_pull_and_store_message",
    frozenset({"receive", "get_fab", "state", "object_store"}),
    "flwr.supernode.start_client_internal:start_client_internal",
)  # fmt: skip
PULLING = ReplacedFunction(
    "flwr.superlink.grid.http_grid:", "pull_objects", frozenset({"pull_object_fn", "max_time"}),
    "flwr.superlink.grid.http_grid:HttpGrid.pull_messages",
)  # fmt: skip
ASSEMBLING = ReplacedFunction(
    "flwr.app:Array", "inflate", frozenset({"object_content", "children"}),
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents",
)  # fmt: skip
ANSWER = "flwr.supernode.start_client_internal:_insert_message"  # it stores a reply, to be sent
REPLACED = (ACCOUNT_CHECK, EXECUTOR, RECEIVING, PULLING, ASSEMBLING)


def load_program(name: str) -> Callable[[], None]:
    """Import one of Flower's programs; return the function that runs it with the arguments in `sys.argv`."""
    (program,) = metadata.entry_points(group="console_scripts", name=name)
    loaded: Callable[[], None] = program.load()
    return loaded


def run_program(name: str, arguments: Sequence[str]) -> None:
    """Run one of Flower's programs in this process, until the process ends. Raises InputError for what it refuses."""
    sys.argv = [name, *arguments]
    try:
        load_program(name)()
    except SystemExit as error:
        if isinstance(error.code, str):  # Flower's words about an argument, where it does not end with a number
            raise InputError(error.code) from error
        raise


# The SuperLink's control API


class TokenCheck(ControlAuthnPlugin):
    """The control API's check of its callers. All callers whose token is accepted are one account."""

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        self._accepts = accepts

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        return None

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        if not self._accepts(get_metadata_str(metadata, ACCESS_TOKEN_KEY) or ""):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        return None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        return None, None


def check_tokens(accepts: Callable[[str], bool]) -> None:
    """Make the control API of a SuperLink in this process accept only callers whose token `accepts`."""
    ACCOUNT_CHECK.original()
    ACCOUNT_CHECK.replace(lambda: TokenCheck(accepts))


def store_token(address: str, token: str, home: Path | None = None) -> tuple[Path, bool]:
    """Store the token that Flower's command sends to `address`; return the file, and whether it was written.

    home: the folder of Flower's command; by default $FLWR_HOME. Only its owner can read the file.
    """
    path = (home or get_flwr_home()) / "credentials.yaml"
    store = FileCredentialStore(path)
    entries = {
        AUTHN_TYPE_STORE_KEY: AuthnType.OIDC,  # the only kind of account whose token Flower's command sends
        ACCESS_TOKEN_STORE_KEY: token,
        REFRESH_TOKEN_STORE_KEY: token,  # never asked for: the token does not expire
    }
    for key, value in entries.items():
        store.set(key % address, value.encode())
    return path, store.get(ACCESS_TOKEN_STORE_KEY % address) == token.encode()  # Flower's store reports no errors


# The SuperExec's tasks


@dataclass(frozen=True)
class Task:
    """A process that a SuperExec is to start."""

    command: list[str]  # without the token; `--token-file FILE` passes it
    token: str  # suffices to read the task's model, and to write its result
    is_server: bool
    app: str  # digest of the server's app: "sha256:" and 64 digits
    output: int | None  # of the process, as `subprocess.Popen` takes it


class TaskStarter(Protocol):
    """What starts the tasks of a SuperExec."""

    def start(self, task: Task) -> str | None:
        """Start a task, or return the reason why not."""

    def prepare(self) -> None:
        """Prepare for the next task; is called often."""

    def close(self) -> None:
        """End what has been prepared."""


class TaskExecutor(SubprocessExecutor):
    """An executor that leaves the tasks of servers and clients to a `TaskStarter`, and asks for no others."""

    def __init__(self, starter: TaskStarter) -> None:
        self._starter = starter

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & TASKS, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        is_server, output = spec.task_type is TaskType.SERVER_APP, subprocess.DEVNULL if spec.suppress_output else None
        problem = self._starter.start(Task(_command(spec), spec.token, is_server, f"sha256:{spec.fab_hash}", output))
        return LaunchResult.accepted() if problem is None else LaunchResult.failed(problem)

    def reconcile(self) -> None:
        self._starter.prepare()

    def close(self) -> None:
        self._starter.close()


def _command(spec: ExecutionSpec) -> list[str]:
    """Return the command of a task, without its token."""
    name = TASK_TYPE_TO_COMMAND[spec.task_type]
    path = Path(sysconfig.get_path("scripts")) / name
    words = [str(path) if path.exists() else name, TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[spec.task_type]]
    words += [spec.runtime_api_address, *["--insecure"] * spec.insecure]
    if spec.root_certificates_path and not spec.insecure:
        words += ["--root-certificates", spec.root_certificates_path]
    return words if spec.parent_pid is None else [*words, "--parent-pid", str(spec.parent_pid)]


def start_tasks_by(starter: TaskStarter) -> None:
    """Make a SuperExec in this process leave its tasks to `starter`."""
    EXECUTOR.original()
    EXECUTOR.replace(lambda *_, **__: TaskExecutor(starter))


# The SuperNode's apps and address


class AppRefusedError(Exception):
    """An app may not run; the message is one line."""


def check_apps(refusal: Callable[[bytes, str], str | None]) -> None:
    """Make a SuperNode in this process ask `refusal` about each app that it receives, before it unpacks or stores it.

    refusal: returns the reason why an app is refused, from its archive and from the SHA-256 that the server says it
    has. The server receives the reason as an error.
    """
    RECEIVING.replace(checked_apps(RECEIVING.original(), refusal, flower_function(ANSWER)))


def checked_apps(
    pull: Callable[..., int | None], refusal: Callable[[bytes, str], str | None], answer: Callable[..., None]
) -> Callable[..., int | None]:
    """Wrap Flower's function `pull`, which receives a message and downloads the app of the message's run.

    answer: Flower's function `ANSWER`.
    """

    def checked(
        *, receive: Callable[[], Any], get_fab: Callable[..., Any], state: Any, object_store: Any, **others: Any
    ) -> int | None:
        messages: list[Message] = []

        def receive_message() -> Any:
            received = receive()
            messages.extend(received[:1] if received is not None else ())
            return received

        def get_checked(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            if reason := refusal(fab.content, fab.hash_str):
                raise AppRefusedError(reason)
            return fab

        try:
            return pull(receive=receive_message, get_fab=get_checked, state=state, object_store=object_store, **others)
        except AppRefusedError as error:
            log.error("%s", error)
            reply = Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=messages[0])
            answer(reply, state, object_store)
            return messages[0].metadata.run_id

    return checked


def build_app(folder: Path) -> bytes:
    """Build the archive of an app, as `flwr run` sends it. Raises ValueError for a folder that is no app."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's use of a library
        archive: bytes = flower_function("flwr.cli.build:build_fab_from_disk")(folder)
        return archive


def node_api(arguments: Sequence[str]) -> tuple[str, str | None]:
    """Return where a SuperNode with these arguments has its API, and the file of its authority if it uses TLS."""
    given = _node_arguments(arguments)
    host = f"[{given.host}]" if ":" in given.host else given.host
    return resolve_bind_address(f"{host}:{given.port}"), given.ssl_ca_certfile if given.ssl_certfile else None


def node_config(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the `--node-config` of a SuperNode with these arguments.

    Raises InputError for words that are no pairs, which Flower leaves out, and for values that it cannot read.
    """
    text = _node_arguments(arguments).node_config
    words = "" if text is None or text.endswith(".toml") else PAIR.sub(" ", text)
    if words.strip():
        raise InputError(f"--node-config: {shortened(words.strip())!r} is no KEY=VALUE; a text is in quotes")
    try:
        return dict(parse_config_args([text] if text else None))
    except ClickException as error:
        raise InputError(f"--node-config: {shortened(text)!r} cannot be read; a text is in quotes") from error


def node_files(arguments: Sequence[str]) -> dict[str, str]:
    """Return the files that a SuperNode with these arguments reads to connect, by the name of the argument."""
    given = _node_arguments(arguments)
    found = {"--root-certificates": given.root_certificates,
             "--auth-supernode-private-key": given.auth_supernode_private_key}  # fmt: skip
    return {name: path for name, path in found.items() if path is not None}


def _node_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments of a SuperNode as Flower does."""
    parser: argparse.ArgumentParser = import_module("flwr.supernode.cli.flower_supernode")._parse_args_run_supernode()
    return parser.parse_args(list(arguments))


# Replies at the server


@contextmanager
def pull_deadline(deadline: float, count: Callable[[int], None] = lambda size: None) -> Iterator[None]:
    """Limit, inside the block, how long Flower waits in this thread for the rest of a reply.

    deadline: on the monotonic clock. Flower checks the time every few seconds, so it may stop a few seconds late.
    Without a deadline Flower waits for two hours.

    count: called with the size in bytes of each received part of the reply, from several threads.
    """
    _install_deadlines()
    _thread.deadline, _thread.count = deadline, count
    try:
        yield
    finally:
        del _thread.deadline, _thread.count


@cache
def _install_deadlines() -> None:
    PULLING.replace(within_deadline(PULLING.original()))


def within_deadline(pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    """Wrap Flower's function `pull`, whose argument for the deadline Flower's grid does not pass on."""

    @wraps(pull)
    def pull_objects(*arguments: Any, **named: Any) -> dict[str, bytes]:
        if hasattr(_thread, "deadline"):
            named["max_time"] = max(_thread.deadline - monotonic(), 0.0)
            named["pull_object_fn"] = _counting(named["pull_object_fn"], _thread.count)
        return pull(*arguments, **named)

    return pull_objects


def _counting(pull: Callable[[str], bytes], count: Callable[[int], None]) -> Callable[[str], bytes]:
    def pull_and_count(object_id: str) -> bytes:
        content = pull(object_id)
        count(len(content))
        return content

    return pull_and_count


@contextmanager
def array_limit(limit: int) -> Iterator[None]:
    """Raise ValueError inside the block for a received array of more than `limit` bytes, before it is assembled.

    Flower sends an array as chunks and a list of their order. A short list can name the same chunk many times, so the
    array may be much larger than its message.
    """
    original = ASSEMBLING.original()

    def inflate(object_content: bytes, children: dict[str, Any] | None = None) -> Array:
        chunks = get_object_children_ids_from_object_content(object_content)
        _, _, body = object_content.partition(b"\x00")
        size = sum(len((children or {})[chunks[place]].data) for place in json.loads(body)["arraychunk_ids"])
        if size > limit:
            raise ValueError(f"an array has {size:,} bytes, {limit:,} are the most")
        array: Array = original(object_content, children)
        return array

    ASSEMBLING.replace(inflate)
    try:
        yield
    finally:
        ASSEMBLING.replace(original)
