"""`fedflat flower`: carries out a study as a real federation."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from ..core.errors import InputError, MissingPackageError, shortened
from ..core.object_references import allow_code
from ..experiments.interrupt import Interrupted, signals_handled_by
from ..federation.flower.json_logs import set_up_logs
from ..federation.terms import SETTINGS, key_of
from ..operating_system import refuse_on_windows
from ..reports.text_table import literal
from .console import Console
from .flag_names import SettingsCommand, check_flags

app = typer.Typer(
    help="Run real federations with Flower: export a study, try it on this machine, make keys. "
    "docs/deploy.md describes a federation over many machines.",
    no_args_is_help=True,
)
MOST_NODES = 16  # on one machine; each starts several processes with torch
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder of the federation.")]
MemberArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of a member.")]
DigestOption = Annotated[list[str], typer.Option(help="Digest of an app that may run here; may repeat.")]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each of the `SETTINGS` to `command`, whose argument `settings` receives the values by key."""

    @wraps(command)
    def called(**given: Any) -> None:
        command(settings={key_of(name): given.pop(name) for name in SETTINGS}, **given)

    flags = []
    for name, setting in SETTINGS.items():
        option = typer.Option(setting.default, help=f"{setting.meaning[0].upper()}{setting.meaning[1:]}.")
        flags.append(Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=setting.kind))
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.name != "settings"]
    called.__signature__ = Signature([*own, *flags])  # type: ignore[attr-defined]
    return called


@app.command("export", cls=SettingsCommand, options_metavar="[OPTIONS] [--KEY VALUE]...")
@with_settings
def export_study(
    context: typer.Context,
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="Settings of one run, as for `fedflat run`.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the app.")],
    clients: Annotated[
        int | None, typer.Option(help="Number of clients to start with; default data.clients, unless --shape is given.")
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    r"""Write a Flower app that carries out one run, for `flwr run`.

    Clients have either parts of the study's data set, by the partition-id of their node, or samples of their own,
    described by --shape and --classes. All machines need fedflat\[flower]; the app itself installs nothing.

    fedflat flower export run.toml app

    fedflat flower export run.toml app --method.name scaffold --shape 1x8x8 --classes 10 --clients 5
    """
    check_flags([str(study), *context.args])
    from ..experiments.spec import RunSpec
    from .flags import resolve

    with _flower_imports():
        from ..federation.flower.export import export
        from ..federation.flower.settings import RunSettings
    context.with_resource(allow_code())  # the user's own command line and file may name code
    spec = resolve(RunSpec, [str(study), *context.args])
    has_own_samples = settings["shape"] is not None or _has_own_files(spec.data.name)
    known = len(settings["members"].split()) or (None if has_own_samples else spec.data.clients)
    number = known if clients is None else clients
    if number is None:
        raise InputError("--clients is missing: the number of clients that the federation starts with")
    settings |= {"clients": number, "out": f"runs/{spec.label}-federation"}
    export(spec, RunSettings.parse("flower export", settings), folder)
    Console().say(f"app in {folder}; start it with `flwr run {folder} LINK`",
                  f"nodes that run only approved apps need its digest: `fedflat flower digest {folder}`")  # fmt: skip


@app.command("run", cls=SettingsCommand, options_metavar="[STUDY.toml] [--KEY VALUE]...")
@with_settings
def run_here(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; default runs/METHOD-seedN-HASH-federation.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use no TLS and no keys; all processes are on the loopback in any case.")
    ] = False,
    own: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            help="NAME=PLACE of a client's own files, in the format of data.name, or of x.npy and y.npy, which need "
            "--shape; may repeat.",
        ),
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run a federation on this machine, to try it: a SuperLink, a SuperNode for each client, and the app.

    All processes use the loopback, with TLS and keys, and end with the command. The same command resumes a stopped
    federation from its last completed round.

    fedflat flower run --data.name digits --data.clients 3 --method.name fedsmoo --rounds 3 --out runs/tried

    fedflat flower run study.toml --shape 3x32x32 --classes 10 --client north=data/north --client south=data/south

    fedflat flower run schema.toml --client north=sites/north.csv --client south=sites/south.csv
    """
    check_flags(context.args)
    from ..experiments.spec import RunSpec
    from .execution import prepare_data
    from .flags import resolve

    context.with_resource(allow_code())  # the user's own command line and file may name code
    spec, console = resolve(RunSpec, context.args), Console()
    places = _places(own or [], spec.data.name, settings["shape"])
    if settings["test"]:
        settings["test"] = str(Path(settings["test"]).absolute())  # the server has another working folder
    clients = len(places) or spec.data.clients
    if clients > MOST_NODES:
        asked = "--client" if places else "data.clients"
        raise InputError(f"{asked} = {clients}: each is a SuperNode on this machine, and {MOST_NODES} are the most")
    with _flower_imports():
        from ..federation.flower.client_reports import check_places, client_reports, write_reports
        from ..federation.launch.local_federation import local_deployment, local_study
        from ..reports.federation import reports_table
    path = out or Path("runs") / f"{spec.label}-{spec.digest()}-federation"
    if places:
        study = local_study(spec, path, settings, places)
        check_places(study, places)
    else:
        prepare_data(console, spec)
    with (
        signals_handled_by(_stop),
        local_deployment(spec, path, settings, not insecure, places) as events,
        console.doing("starting") as status,
    ):
        for event in events:
            console.say(*event_lines(event))
            status.update(literal(_activity(event, spec.rounds)))
    if places and spec.privacy is None:
        reports = client_reports(study, path, places)
        write_reports(path, reports)
        console.show(reports_table(reports))
    elif places:
        console.say("privacy: the scores of the final model on clients' own samples are not reported")
    console.say(f"results in {path}")


@app.command("digest")
def show_digest(folder: Annotated[Path, typer.Argument(metavar="APP", help="The folder of an exported app.")]) -> None:
    """Print the digest of all files of an app, for `fedflat flower node --app-digest`.

    Operators of nodes should read the app's code before they approve its digest.

    fedflat flower digest app
    """
    with _flower_imports():
        from ..federation.flower.approved_apps import app_digest
    Console().say(app_digest(folder))


@app.command("node", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_node(
    context: typer.Context,
    app_digest: Annotated[
        list[str] | None, typer.Option(help="Digest of an app that may run here; may repeat.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="The site's TOML file with its apps and limits, in place of --app-digest.")
    ] = None,
) -> None:
    """Run a SuperNode that runs only approved apps. Other arguments are those of flower-supernode.

    Any other app is neither unpacked nor stored, and the server receives an error. The node's operator approves an app
    by its digest, which `fedflat flower digest` prints. A policy lists approved apps, and limits of the site, such as
    the least `secure_sum`: a run beyond them is refused, and the reason names the line.

    fedflat flower node --app-digest sha256:1a2b... --superlink fl.example.org:8443 --root-certificates ca.crt

    fedflat flower node --policy policy.toml --superlink fl.example.org:8443 --root-certificates ca.crt
    """
    with _flower_imports():
        from ..federation.flower.site_policy import approved_apps, node_arguments
        from ..federation.flower.supernode import run_supernode
    apps = approved_apps(app_digest or [], policy)
    set_up_logs()
    run_supernode(apps, context.args if policy is None else node_arguments(policy, context.args))


@app.command("superlink", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_superlink(
    context: typer.Context,
    control_secret_file: Annotated[
        Path, typer.Option(help="File with the secret that `fedflat flower login` stores for `flwr`.")
    ],
) -> None:
    """Run a SuperLink whose control API requires a secret. Other arguments are those of flower-superlink.

    Flower's own SuperLink starts a run for anybody who can reach its port, including every user of the machine.

    fedflat flower superlink --control-secret-file control.secret --host 127.0.0.1 --port 8000 --isolation process
    """
    with _flower_imports():
        from ..federation.flower import superlink
    set_up_logs()
    superlink.run_superlink(control_secret_file, context.args)


@app.command("superexec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_superexec(context: typer.Context, app_digest: DigestOption) -> None:
    """Run a SuperExec that runs the server part of approved apps only. Other arguments are those of flower-superexec.

    fedflat flower superexec --app-digest sha256:1a2b... --runtime-api-address 127.0.0.1:8000 --root-certificates ca.crt
    """
    with _flower_imports():
        from ..federation.flower import superexec
    set_up_logs()
    superexec.run_superexec(app_digest, context.args)


@app.command("login")
def log_in(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Address of the control API, e.g. 127.0.0.1:8000.")],
    control_secret_file: Annotated[Path, typer.Option(help="File with the secret of the SuperLink.")],
) -> None:
    """Store the secret of a SuperLink's control API for the `flwr` commands of this user.

    The secret is stored in $FLWR_HOME, in a file that only this user can read.

    fedflat flower login 127.0.0.1:8000 --control-secret-file /etc/fedflat/control.secret
    """
    with _flower_imports():
        from ..federation.flower.superlink import log_in, read_secret
    Console().say(f"stored in {log_in(address, read_secret(control_secret_file))}")


@app.command("rollback")
def roll_back(
    folder: FolderArgument,
    to_round: Annotated[int, typer.Option(min=1, help="Round to return to: one of the last three checkpoints.")],
) -> None:
    """Return a stopped federation to an earlier checkpoint, such as the last one before a client damaged the model.

    Later checkpoints, the model and its result are renamed and ignored; nothing is deleted. The command that started
    the federation resumes it from the checkpoint. Clients keep their records of the last three checkpoints, so they
    resume, too.

    fedflat flower rollback runs/first --to-round 12
    """
    from ..federation.flower.directory import FederationDirectory  # needs no Flower

    renamed = FederationDirectory(folder).roll_back(to_round)
    Console().say(f"{folder} is as it was after {to_round} rounds", *(f"set aside: {name}" for name in renamed))


@app.command("metrics")
def serve_metrics(
    folder: FolderArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 9101,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine can reach 0.0.0.0.")
    ] = "127.0.0.1",
) -> None:
    """Serve metrics of a federation for Prometheus, and its health, until the process ends.

    Everything is read from the server's folder at each request, so it does not matter whether the federation runs.
    /health answers 200 while the federation goes on or is finished, and 503 if it has failed or is stalled. There is no
    access control: keep it on the loopback, or put a proxy in front.

    fedflat flower metrics runs/first --port 9101
    """
    with _flower_imports():
        from ..federation.flower.metrics import serve
    with signals_handled_by(_end), serve(folder, host, port) as server:
        address = f"http://{host}:{server.server_port}"
        Console().say(f"{address}/metrics and {address}/health; Ctrl-C ends it")
        server.serve_forever()


@app.command("eject")
def eject_member(
    folder: FolderArgument,
    name: MemberArgument,
    reason: Annotated[str, typer.Option(help="Reason for the log.")] = "",
) -> None:
    """Stop sending training requests to a member, from the next round, also while the federation runs.

    The member keeps its number and its record, like a client that is never sampled, and `fedflat flower admit` lets it
    come back. Its earlier updates stay in the model unless `fedflat flower rollback` returns to an earlier round. Also
    revoke its key: docs/operate.md.

    fedflat flower eject runs/first clinic-b --reason "scanner replaced"
    """
    from ..federation.flower.ejections import Ejections

    Ejections(folder).eject(name, reason)
    Console().say(f"{name} is ejected from the next round on")


@app.command("remove")
def remove_member(
    folder: FolderArgument,
    name: MemberArgument,
    reason: Annotated[str, typer.Option(help="Reason for the log.")] = "",
) -> None:
    """Let a member leave for good, from the next round, also while the federation runs.

    The number of clients N in the method's equations becomes that of the others. Its number and name are not used again
    in this federation. Its earlier updates stay in the model. Also revoke its key: docs/operate.md.

    fedflat flower remove runs/first clinic-b --reason "left the study"
    """
    from ..federation.flower.ejections import Ejections

    Ejections(folder).remove(name, reason)
    Console().say(f"{name} leaves for good from the next round on")


@app.command("admit")
def admit_member(folder: FolderArgument, name: MemberArgument) -> None:
    """Send training requests to an ejected member again, from the next round.

    fedflat flower admit runs/first clinic-b
    """
    from ..federation.flower.ejections import Ejections

    Ejections(folder).admit(name)
    Console().say(f"{name} is admitted from the next round on")


@app.command("certs")
def make_certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for certificates and keys.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server for the nodes; may repeat.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="Name of a client that gets a key; may repeat.")] = None,
    days: Annotated[int, typer.Option(help="Days that the server's certificate is valid.")] = 365,
) -> None:
    """Make the files of TLS and node authentication: an authority, the server's certificate, a key for every node.

    Existing files are never overwritten, so nodes can be added later. Anybody with `ca.key` can impersonate the server:
    keep it offline. Copy a node's key to its machine, and only its `.pub` to the server.

    fedflat flower certs keys --host fl.example.org --node clinic-a --node clinic-b
    """
    with _flower_imports():
        from ..federation.launch.certificates import Certificates
    made = Certificates(folder).make(host or [], node or [], days)
    Console().say(*(map(str, made) if made else ["nothing was missing"]))


@app.command("units")
def write_unit_files(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the units; copy them to /etc/systemd/system.")
    ],
) -> None:
    """Write sandboxed systemd units for SuperLink, SuperExec and a SuperNode that runs only one app.

    The units expect this package in /opt/fedflat, keys in /etc/fedflat and a user fedflat: docs/deploy.md.

    fedflat flower units units
    """
    from ..federation.launch.unit_files import write_units

    Console().say(*map(str, write_units(folder)))


def _has_own_files(name: str) -> bool:
    """Return whether clients have files of their own in the format `name`; npz is a format of simulations."""
    from ..data.sources import is_folder

    return is_folder(name) and name != "npz"


def _places(texts: list[str], name: str, shape: str | None) -> dict[str, Path]:
    """Parse `--client NAME=PLACE`. Raises InputError for a place that is missing, or a name that is given twice.

    name, shape: `data.name` and --shape, which say whether clients have samples of their own. If they do, a place is
    needed for each, with files in the format `name` or with x.npy and y.npy; if not, none may be given.
    """
    own_files = _has_own_files(name)
    if texts and not own_files and shape is None:
        raise InputError("--client goes with samples of clients' own: set data.name to the format of their files, "
                         "or give --shape and --classes for x.npy and y.npy")  # fmt: skip
    if not texts and (own_files or shape is not None):
        raise InputError("--client NAME=PLACE is needed for each client, because they have samples of their own")
    folders: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in folders:
            raise InputError(f"--client {shortened(text)}: write NAME=PLACE, with a different NAME each time")
        if own_files and not Path(folder).exists():
            raise InputError(f"--client {shortened(text)}: {folder} does not exist")
        if not own_files and not (Path(folder) / "x.npy").is_file():
            raise InputError(f"--client {shortened(text)}: {folder} has no x.npy")
        folders[name] = Path(folder)
    return folders


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise Interrupted on a signal; ignore later signals, so that this process can terminate its child processes."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    raise Interrupted(number, "started again with the same settings, it resumes from the last completed round")


def _end(number: int, frame: FrameType | None) -> None:
    """Raise Interrupted on a signal."""
    raise Interrupted(number, "the federation goes on")


@contextmanager
def _flower_imports() -> Iterator[None]:
    """Raise MissingPackageError if an import inside the block needs a missing package of the extra flower.

    Raises InputError on Windows.
    """
    refuse_on_windows("flower", "federations", "`fedflat run` simulates one")
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("flwr", "cryptography", "httpx", "prometheus_client"):
            raise
        raise MissingPackageError("this needs the extra flower: pip install 'fedflat[flower]'") from error


def event_lines(event: dict[str, Any]) -> list[str]:
    """Return one line for the event, and one for every client that is missing or has not answered yet."""
    words = [f"{event['time'][11:19]} {event['event']}"]
    for key, value in event.items():
        if key not in ("time", "event", "missing", "waiting", "counted"):
            words.append(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}")
    clients = {**event.get("missing", {}), **event.get("waiting", {})}
    return ["  ".join(words), *(f"  {name}: {reason}" for name, reason in clients.items())]


def _activity(event: dict[str, Any], rounds: int) -> str:
    """Describe what the federation does after `event`."""
    if event["event"] in ("begun", "round"):
        done = event.get("done", event.get("t", -1) + 1)
        return "saving the model" if done == rounds else f"round {done + 1} of {rounds}"
    return str(event["event"])
