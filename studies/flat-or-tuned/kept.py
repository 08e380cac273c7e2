"""Keeps what the study has finished in one small file beside this one, so that it can go on on another machine.

    python studies/flat-or-tuned/kept.py write --runs runs/flat-or-tuned
    python studies/flat-or-tuned/kept.py restore --runs runs/flat-or-tuned

Of every finished run all files are kept but its model and its checkpoints, and of every search its ledger. Restored
runs are finished ones to `run.py` and `collect.py`. A trial that goes on to the next step of a search is trained anew,
since its checkpoint is not there. The same runs always give the same bytes. A run's folder gets the name that this
version gives to its settings, whatever it is called in the file.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from lzma import LZMAError
from pathlib import Path, PureWindowsPath

from fedflat.cli.console import in_one_line
from fedflat.core.errors import InputError, printable
from fedflat.experiments import tuning
from fedflat.experiments.ledger import CURVES, LEDGER
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.spec import RunSpec
from fedflat.files import make_folder, system_errors, write_atomically
from fedflat.rounds.checksums import FILE as SUMS
from fedflat.rounds.checksums import Checksums

FILE = Path(__file__).parent / "kept.tar.xz"
MODEL = "model.safetensors"
SETTINGS = ("study.toml", tuning.SETTINGS, LEDGER, CURVES, tuning.WINNERS)  # of studies and searches


def kept_files(runs: Path) -> Iterator[Path]:
    """Yield the files below the folder `runs` that are kept, in order."""
    for part in sorted(path for path in runs.glob("*") if path.is_dir()):
        yield from (part / name for name in SETTINGS if (part / name).exists())
        for folder in sorted([*part.glob("runs/*"), *part.glob("trials/*")]):
            if RunDirectory(folder).is_finished:
                files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
                yield from (path for path in sorted(files) if path.name != MODEL)


def kept_content(path: Path) -> bytes:
    """Return what is kept of a file: all of it, but the place of the data on this machine."""
    content = path.read_bytes()
    if path.suffix == ".toml":
        return without_data_dir(content)
    if path.name == SUMS:
        config = (path.parent / "config.toml").read_bytes()
        before, after = (sha256(some).hexdigest().encode() for some in (config, without_data_dir(config)))
        # A file that has a digest and is missing counts as damaged.
        without_model = re.sub(rb".*  model\.safetensors\n", b"", content)
        return without_model.replace(before, after)
    return content


def without_data_dir(toml: bytes) -> bytes:
    """Return a configuration without the line of its folder of data, which no result depends on."""
    return re.sub(rb"^data_dir = .*\n", b"", toml, flags=re.MULTILINE)


@contextmanager
def opened(file: Path) -> Iterator[tarfile.TarFile]:
    """Open the archive `file`. Raises InputError that names it, if it is missing or damaged."""
    try:
        with system_errors(file, "read"), tarfile.open(file) as archive:
            yield archive
    except (tarfile.TarError, LZMAError, EOFError) as error:
        raise InputError(f"{file} is damaged: {error}; take it from the repository again") from error


def write(runs: Path, file: Path = FILE) -> int:
    """Write the kept files of the folder `runs` to `file`, and return how many runs it has then.

    Runs in `file` that are not finished in the folder, or have fewer rounds there, stay in it, as do longer ledgers.
    """
    contents = {path.relative_to(runs).as_posix(): kept_content(path) for path in kept_files(runs)}
    if not contents:
        raise InputError(f"--runs {runs} holds nothing of the study; `run.py --out {runs}` carries it out")
    if file.exists():
        contents = with_longest(contents_of(file), contents)

    def write_archive(target: Path) -> None:
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for name in sorted(contents):
                entry = tarfile.TarInfo(name)  # without time and owner
                entry.size = len(contents[name])
                archive.addfile(entry, io.BytesIO(contents[name]))

    write_atomically(file, write_archive)
    return sum(Path(name).name == "summary.json" for name in contents)


def inner_name(entry: tarfile.TarInfo) -> str:
    """Return the name of a file of an archive. Raises TarError for what is no file, or is outside the archive."""
    path = PureWindowsPath(entry.name)  # it knows slashes, backslashes and drives
    if not entry.isfile() or path.anchor or ".." in path.parts:
        raise tarfile.TarError(f"{printable(entry.name)!r} is no file in it")
    return entry.name


def contents_of(file: Path) -> dict[str, bytes]:
    """Return the files of the archive `file`, by name. Raises InputError that names it, if it is missing or damaged."""
    with opened(file) as archive:
        contents = {inner_name(entry): archive.extractfile(entry).read() for entry in archive}
    folders = {Path(name).parent for name in contents if Path(name).name == "summary.json"}
    names = {folder: folder.with_name(name_of(folder, contents)) for folder in folders}
    return {str(names.get(path.parent, path.parent) / path.name): x
            for path, x in ((Path(name), x) for name, x in contents.items())}  # fmt: skip


def name_of(folder: Path, contents: dict[str, bytes]) -> str:
    """Return the name of the folder of a run: a trial is named by the last step of its search."""
    table = tomllib.loads(contents[f"{folder}/config.toml"].decode())
    if folder.parent.name == "trials":
        search = tomllib.loads(contents[f"{folder.parents[1]}/{tuning.SETTINGS}"].decode())
        table["rounds"] = search["tune"]["rounds"][-1]
    spec = RunSpec(**table)
    return f"{spec.label}-{spec.digest()}"


def with_longest(old: dict[str, bytes], new: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of both, by name.

    Of a folder in both, those that have come further, all of one or all of the other.
    """
    lengths = [lengths_of(old), lengths_of(new)]
    stays = {folder for folder, length in lengths[0].items() if length > lengths[1].get(folder, -1)}
    return old | {name: content for name, content in new.items() if Path(name).parent not in stays}


def lengths_of(contents: dict[str, bytes]) -> dict[Path, int]:
    """Return the rounds of each run, and the entries of each search's ledger, by folder."""
    found = {}
    for path, content in ((Path(name), content) for name, content in contents.items()):
        if path.name == "summary.json":
            found[path.parent] = int(json.loads(content)["summary"]["rounds"])
        elif path.name == LEDGER:
            found[path.parent] = len(json.loads(content))
    return found


def restore(runs: Path, file: Path = FILE) -> int:
    """Put the runs of `file` that the folder `runs` does not have there, and return how many these are."""
    contents = contents_of(file)
    make_folder(runs)
    folders = {Path(name).parent for name in contents if Path(name).name == "summary.json"}
    new = {folder for folder in folders if is_missing(RunDirectory(runs / folder))}
    for path, content in ((Path(name), content) for name, content in contents.items()):
        if path.parent in new:  # the summary is the last file of a run
            make_folder(runs / path.parent)
            with system_errors(runs / path, "written"):
                (runs / path).write_bytes(content)
        elif path.parent not in folders and not (runs / path).exists():  # the settings of a study or a search
            make_folder(runs / path.parent)
            sums = Checksums(runs / path.parent, required=True)
            sums.write(path.name, lambda file, content=content: file.write_bytes(content))
    return len(new)


def is_missing(run: RunDirectory) -> bool:
    """Tell whether a folder holds no run, or only a part of one that was being restored, without end or state."""
    return not run.is_finished and not run.checkpoints


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "restore"))
    parser.add_argument("--runs", type=Path, required=True, help="the folder that run.py writes (its --out)")
    parser.add_argument("--file", type=Path, default=FILE, help="default %(default)s")
    arguments = parser.parse_args()
    with in_one_line():
        number = {"write": write, "restore": restore}[arguments.what](arguments.runs, arguments.file)
        print(f"{arguments.file}: {number} finished runs {'kept' if arguments.what == 'write' else 'put back'}")
