"""`fedflat flower`: a study as a real federation."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from ..core.errors import InputError, MissingPackageError, shortened
from ..core.object_references import allow_code
from ..experiments.interrupt import Interrupted, signals_handled_by
from ..reports.text_table import literal
from .completion import SettingsCommand
from .console import Console

app = typer.Typer(
    help="Real federations by Flower, each client with its own samples: export a study, try it out, make keys. "
    "docs/deploy.md says how to run one over many machines.",
    no_args_is_help=True,
)
MOST_NODES = 16  # on one machine; each is several processes with torch
ShapeOption = Annotated[str | None, typer.Option(help="Of a client's own samples, e.g. 3x32x32; with --classes.")]
ClassesOption = Annotated[int | None, typer.Option(help="Number of classes of clients' own samples.")]
NumbersOption = Annotated[str, typer.Option(help="What own samples are: floats, pixels (uint8), or tokens.")]
ClientsOption = Annotated[int | None, typer.Option(help="Clients to begin with; for a named set, its data.clients.")]
DeadlineOption = Annotated[float, typer.Option(help="Seconds for a round; whoever answers later does not count.")]
QuorumOption = Annotated[float, typer.Option(help="Share of a round's clients that must answer.")]
WaitOption = Annotated[float, typer.Option(help="Seconds until all clients must have come.")]
MembersOption = Annotated[
    str,
    typer.Option(help="Who may take part, with how many samples: 'clinic-a=1200 clinic-b=800'; else who comes first."),
]
MaxSamplesOption = Annotated[
    int, typer.Option(help="Samples that a client may say it has, where --members does not say it.")
]
NormMultipleOption = Annotated[
    float, typer.Option(help="Of the largest norm seen before, which no client's vector may be beyond.")
]
SecureSumOption = Annotated[
    float | None,
    typer.Option(help="Let the server see sums alone: share of a round's clients needed to unmask one, e.g. 0.6."),
]
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder of a federation.")]
MemberArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of a member.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder for the results; default runs/METHOD-seedN-HASH-federation.")
]
DigestOption = Annotated[
    list[str], typer.Option(help="Digest of an app that may run here; several times, if there are several.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and keys; all of it is on the loopback in any case.")
]


@app.command("export", cls=SettingsCommand, options_metavar="[OPTIONS] [--KEY VALUE]...")
def export_study(
    context: typer.Context,
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="One run, as for `fedflat run`.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
    shape: ShapeOption = None,
    classes: ClassesOption = None,
    numbers: NumbersOption = "floats",
    clients: ClientsOption = None,
    deadline: DeadlineOption = 600.0,
    quorum: QuorumOption = 0.5,
    wait: WaitOption = 600.0,
    members: MembersOption = "",
    max_samples: MaxSamplesOption = 1_000_000,
    norm_multiple: NormMultipleOption = 100.0,
    secure_sum: SecureSumOption = None,
) -> None:
    r"""Write a Flower app that carries out one run, for `flwr run`.

    Clients have parts of the study's data set, by their node's partition-id, or samples of their own, of which --shape
    and --classes say what they are. All machines have fedflat\[flower] installed; the app brings no dependency.

    fedflat flower export run.toml app

    fedflat flower export run.toml app --method.name scaffold --shape 1x8x8 --classes 10 --clients 5
    """
    from ..experiments.spec import RunSpec
    from .flags import resolve

    with _flower_imports():
        from ..federation.flower.export import export
        from ..federation.flower.settings import RunSettings
    context.with_resource(allow_code())  # what the user's own command line and file name
    spec = resolve(RunSpec, [str(study), *context.args])
    terms = _terms(deadline, quorum, wait, members, max_samples, norm_multiple, secure_sum)
    given = {"shape": shape, "classes": classes, "numbers": numbers, **terms}
    known = len(members.split()) or (spec.data.clients if shape is None else None)
    number = known if clients is None else clients
    if number is None:
        raise InputError("--clients is missing: with how many clients of their own samples the federation begins")
    settings = RunSettings.parse("flower export", {**given, "clients": number, "out": f"runs/{spec.label}-federation"})
    export(spec, settings, folder)
    Console().say(f"app in {folder}; start it with `flwr run {folder} LINK`",
                  f"nodes that run no other app need its digest: `fedflat flower digest {folder}`")  # fmt: skip


@app.command("run", cls=SettingsCommand, options_metavar="[STUDY.toml] [--KEY VALUE]...")
def run_here(
    context: typer.Context,
    out: OutOption = None,
    insecure: InsecureOption = False,
    deadline: DeadlineOption = 600.0,
    quorum: QuorumOption = 0.5,
    wait: WaitOption = 600.0,
    members: MembersOption = "",
    max_samples: MaxSamplesOption = 1_000_000,
    norm_multiple: NormMultipleOption = 100.0,
    secure_sum: SecureSumOption = None,
    shape: ShapeOption = None,
    classes: ClassesOption = None,
    numbers: NumbersOption = "floats",
    own: Annotated[
        list[str] | None,
        typer.Option("--client", help="NAME=FOLDER with a client's own x.npy and y.npy, with --shape; several times."),
    ] = None,
) -> None:
    """Try a study out as a whole federation on this machine: SuperLink, a SuperNode for each client, and the app.

    Everything is started on the loopback, with TLS and keys, and ended with the command. A federation that was stopped
    goes on from its last round when started again with the same settings.

    fedflat flower run --data.name digits --data.clients 3 --method.name fedsmoo --rounds 3 --out runs/tried

    fedflat flower run study.toml --shape 3x32x32 --classes 10 --client north=data/north --client south=data/south
    """
    from ..experiments.spec import RunSpec
    from .execution import prepare_data
    from .flags import resolve

    context.with_resource(allow_code())  # what the user's own command line and file name
    spec, console = resolve(RunSpec, context.args), Console()
    folders = _folders(own or [])
    if bool(folders) != (shape is not None):
        raise InputError("--shape, --classes and --client NAME=FOLDER go together: all for clients' own samples")
    clients = len(folders) or spec.data.clients
    if clients > MOST_NODES:
        asked = "--client" if folders else "data.clients"
        raise InputError(f"{asked} = {clients}: each is a SuperNode here, and {MOST_NODES} are the most to try out")
    with _flower_imports():
        from ..federation.launch.local_deployment import local_deployment
    if not folders:
        prepare_data(console, spec)
    path = out or Path("runs") / f"{spec.label}-{spec.digest()}-federation"
    settings = _terms(deadline, quorum, wait, members, max_samples, norm_multiple, secure_sum)
    settings |= {"shape": shape, "classes": classes, "numbers": numbers} if folders else {}
    with (
        signals_handled_by(_stop),
        local_deployment(spec, path, settings, not insecure, folders) as events,
        console.doing("starting") as status,
    ):
        for event in events:
            console.say(*event_lines(event))
            status.update(literal(_activity(event, spec.rounds)))
    console.say(f"results in {path}")


@app.command("digest")
def show_digest(folder: Annotated[Path, typer.Argument(metavar="APP", help="The folder of an exported app.")]) -> None:
    """Print the digest of an app, which names its every byte, for `fedflat flower node --app-digest`.

    Whoever runs a node gets the folder, reads it, and prints the digest of what was read.

    fedflat flower digest app
    """
    with _flower_imports():
        from ..federation.flower.approved_app import app_digest
    Console().say(app_digest(folder))


@app.command("node", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_node(
    context: typer.Context,
    app_digest: DigestOption,
) -> None:
    """Be a SuperNode that runs only approved apps, whatever the server sends. Other arguments are flower-supernode's.

    Another app is neither unpacked nor stored, and the server is told so. What may run is decided here: the digest is
    of the app as `fedflat flower digest` reads it from its folder.

    fedflat flower node --app-digest sha256:1a2b... --superlink fl.example.org:8443 --root-certificates ca.crt
    """
    with _flower_imports():
        from ..federation.flower.approved_app import run_supernode
    run_supernode(app_digest, context.args)


@app.command("superlink", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_superlink(
    context: typer.Context,
    control_secret_file: Annotated[
        Path, typer.Option(help="File with the secret that `fedflat flower login` stores for `flwr`.")
    ],
) -> None:
    """Be a SuperLink whose control API asks for a secret. Other arguments are flower-superlink's.

    Flower's own SuperLink starts a run for whoever reaches its port, every user of the machine among them.

    fedflat flower superlink --control-secret-file control.secret --host 127.0.0.1 --port 8000 --isolation process
    """
    with _flower_imports():
        from ..federation.flower import control_access
    control_access.run_superlink(control_secret_file, context.args)


@app.command("superexec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_superexec(context: typer.Context, app_digest: DigestOption) -> None:
    """Be a SuperExec that runs the server's part of approved apps only. Other arguments are flower-superexec's.

    fedflat flower superexec --app-digest sha256:1a2b... --runtime-api-address 127.0.0.1:8000 --root-certificates ca.crt
    """
    with _flower_imports():
        from ..federation.flower import task_executor
        from ..federation.flower.approved_app import checked_digests
    task_executor.run_superexec(checked_digests(app_digest), context.args)


@app.command("login")
def log_in(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="As `flwr` has it, such as 127.0.0.1:8000.")],
    control_secret_file: Annotated[Path, typer.Option(help="The file that the SuperLink has been given.")],
) -> None:
    """Let the `flwr` commands of this user use a SuperLink's control API, which asks for a secret.

    The secret is stored in $FLWR_HOME, in a file that this user alone can read.

    fedflat flower login 127.0.0.1:8000 --control-secret-file /etc/fedflat/control.secret
    """
    with _flower_imports():
        from ..federation.flower import control_access
    Console().say(f"stored in {control_access.log_in(address, control_access.read_secret(control_secret_file))}")


@app.command("rollback")
def roll_back(
    folder: FolderArgument,
    to_round: Annotated[
        int, typer.Option(min=1, help="Rounds that are kept; the last three states can be gone back to.")
    ],
) -> None:
    """Go back to an earlier state of a federation that is not running, such as before a client spoilt the model.

    Later states, the model and its result are renamed and no longer count; nothing is deleted. The same command as
    before then goes on from there, and clients with it: they keep their records as of each of these states.

    fedflat flower rollback runs/first --to-round 12
    """
    from ..federation.flower.directory import FederationDirectory  # needs no Flower

    aside = FederationDirectory(folder).roll_back(to_round)
    Console().say(f"{folder} is as it was after {to_round} rounds", *(f"set aside: {name}" for name in aside))


@app.command("eject")
def eject_member(
    folder: FolderArgument,
    name: MemberArgument,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
) -> None:
    """Ask no more of a member from the next round on, while the federation runs or before it goes on.

    It keeps its number and its record, and is as if it were never drawn; what it has sent stays in the model unless
    `fedflat flower rollback` goes back before it. Revoke its key, too: docs/deploy.md.

    fedflat flower eject runs/first clinic-b --reason "scanner replaced"
    """
    from ..federation.flower.ejections import Ejections

    Ejections(folder).eject(name, reason)
    Console().say(f"{name} is ejected from the next round on")


@app.command("admit")
def admit_member(folder: FolderArgument, name: MemberArgument) -> None:
    """Ask an ejected member again from the next round on; nobody else can join a federation that has begun.

    fedflat flower admit runs/first clinic-b
    """
    from ..federation.flower.ejections import Ejections

    Ejections(folder).admit(name)
    Console().say(f"{name} is admitted from the next round on")


@app.command("certs")
def make_certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for certificates and keys.")],
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address by which nodes reach the server; several times.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="A client's name, for its key; several times.")] = None,
    days: Annotated[int, typer.Option(help="For which the server's certificate is valid.")] = 365,
) -> None:
    """Make what TLS and node authentication need: an authority, the server's certificate, a key for every node.

    What is there is never written over, so further nodes can be added later. Whoever has `ca.key` can pretend to be
    the server: take it offline. A node's key goes to its machine, and only its `.pub` to the server.

    fedflat flower certs keys --host fl.example.org --node clinic-a --node clinic-b
    """
    with _flower_imports():
        from ..federation.launch.certificates import Certificates
    made = Certificates(folder).make(host or [], node or [], days)
    Console().say(*(map(str, made) if made else ["nothing was missing"]))


@app.command("units")
def write_unit_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder, to be copied to /etc/systemd/system.")],
) -> None:
    """Write systemd units for SuperLink, SuperExec and a SuperNode that runs one app only; each has a sandbox.

    They expect this package in /opt/fedflat, keys in /etc/fedflat and a user fedflat: docs/deploy.md.

    fedflat flower units units
    """
    from ..federation.launch.unit_files import write_units

    Console().say(*map(str, write_units(folder)))


def _terms(
    deadline: float, quorum: float, wait: float, members: str, max_samples: int, norm_multiple: float,
    secure_sum: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The settings that both commands have, by their keys."""
    terms = {"deadline": deadline, "quorum": quorum, "wait": wait, "members": members}
    return {**terms, "max-samples": max_samples, "norm-multiple": norm_multiple, "secure-sum": secure_sum}


def _folders(texts: list[str]) -> dict[str, Path]:
    """Parse `--client NAME=FOLDER`. Raises InputError for a folder that is missing, or a name that is given twice."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in found:
            raise InputError(f"--client {shortened(text)}: write NAME=FOLDER, with another NAME each time")
        if not (Path(folder) / "x.npy").is_file():
            raise InputError(f"--client {shortened(text)}: {folder} has no x.npy")
        found[name] = Path(folder)
    return found


def _stop(number: int, frame: FrameType | None) -> None:
    """A signal handler that raises Interrupted, once: after it, the processes that were started must be ended."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number, "started again with the same settings, it goes on from the last full round")


@contextmanager
def _flower_imports() -> Iterator[None]:
    """Around imports of modules that need Flower. Raises MissingPackageError if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("flwr", "cryptography", "httpx"):
            raise
        raise MissingPackageError("this needs the extra flower: pip install 'fedflat[flower]'") from error


def event_lines(event: dict[str, Any]) -> list[str]:
    """An event as a line, and a line for every client that is missing or waited for."""
    words = [f"{event['time'][11:19]} {event['event']}"]
    for key, value in event.items():
        if key not in ("time", "event", "missing", "waiting", "counted"):
            words.append(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}")
    clients = {**event.get("missing", {}), **event.get("waiting", {})}
    return ["  ".join(words), *(f"  {name}: {reason}" for name, reason in clients.items())]


def _activity(event: dict[str, Any], rounds: int) -> str:
    """What the federation does after `event`."""
    if event["event"] in ("begun", "round"):
        done = event.get("done", event.get("t", -1) + 1)
        return "saving the model" if done == rounds else f"round {done + 1} of {rounds}"
    return str(event["event"])
