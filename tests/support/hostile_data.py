"""Data files that mean harm, or are damaged in ways that files are: each must end in one line that names the trouble.

`cases()` writes them; `python -m support.hostile_data FOLDER` prints what comes of loading each, in JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from scipy.io import savemat

from fedflat.data.readers.parquet_headers import ThriftReader
from support.files import (
    encoded,
    idx,
    pickled,
    picture_column,
    random_labels,
    random_pictures,
    write_files,
    write_parquet,
    write_tar,
    write_zip,
    zipped,
)

Case = Callable[[Path], str]  # writes files below a folder and gives the name of the set that they claim to be

MIB = 2**20
ZIPPED = 256 * MIB  # bytes of each file in a zip that unpacks to too much
PROGRAMS = ("gs", "gswin32c", "gswin64c", "xv", "display", "bzip2", "xz", "unzip", "tar")  # that a reader might start
MARK = "FEDFLAT_MARK"  # environment variable: the file that `PROGRAMS` of ours make
DEEP = 1_500  # folders inside each other
N, M = 12, 5  # samples for training and for test of the sets that are damaged here
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n%%EOF\n"


# Small whole sets


def mnist() -> dict[str, bytes]:
    files = {}
    for part, n in (("train", N), ("t10k", M)):
        files[f"{part}-images-idx3-ubyte"] = idx(random_pictures(n)[:, 0])
        files[f"{part}-labels-idx1-ubyte"] = idx(random_labels(n))
    return files


def batch(n: int = 2) -> dict[str, Any]:
    return {"labels": random_labels(n).tolist(), "data": random_pictures(n, 3, 32).reshape(n, -1)}


def cifar10(**changes: bytes) -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name: pickled(batch()) for name in names} | changes


def news(rows: str = '"1","a","b"\n') -> dict[str, bytes]:
    return {"train.csv": rows.encode(), "test.csv": b'"1","a","b"\n'}


def photographs(**changes: bytes) -> dict[str, bytes]:
    domains = ("art_painting", "cartoon", "photo", "sketch")
    files = {f"{domain}/dog/{i}.jpg": encoded(random_pictures(1, 3, 30, i)[0]) for i, domain in enumerate(domains)}
    return files | {"photo/dog/2.jpg": changes["photo"]} if changes else files


def png(width: int, height: int, pixels: bytes | None = None) -> bytes:
    """A picture of that size in its header; its pixels are all black and deflated unless they are given."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = packed_zeros(height * (1 + (width + 7) // 8)) if pixels is None else zlib.compress(pixels, 9)
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


# How a file becomes hostile


def of(name: str, files: Mapping[str, bytes]) -> Case:
    """The files of the set `name`."""

    def write(folder: Path) -> str:
        write_files(folder / name, files)
        return name

    return write


def made(name: str, write: Callable[[Path], object], files: Mapping[str, bytes] = {}) -> Case:
    """The files of the set `name`, and what `write` does in its folder."""

    def both(folder: Path) -> str:
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_files(folder / name, files)
        write(folder / name)
        return name

    return both


def without(files: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    return {other: content for other, content in files.items() if other != name}


def columns(name: str = "mnist", **changes: Any) -> Case:
    """A set of pictures in parquet with other columns; None leaves one out."""

    def write(folder: Path) -> None:
        given = {"image": picture_column(list(random_pictures(N))), "label": random_labels(N)} | changes
        write_parquet(folder / "train.parquet", {key: value for key, value in given.items() if value is not None})

    return made(name, write)


def texts(text: Any, labels: Any = None, **options: Any) -> Case:
    """AG News in parquet, with options of the writer."""

    def write(folder: Path) -> None:
        table = pa.table({"text": text, "label": np.zeros(len(text), int) if labels is None else labels})
        for part in ("train", "test"):
            pq.write_table(table, folder / f"{part}.parquet", **options)

    return made("ag_news", write)


def patched(change: Callable[[bytes], bytes], **options: Any) -> Case:
    """MNIST in parquet, its training file changed."""

    def write(folder: Path) -> None:
        path = folder / "train.parquet"
        pq.write_table(pa.table({"image": picture_column(list(random_pictures(N))), "label": random_labels(N)}), path)
        path.write_bytes(change(path.read_bytes()))

    return made("mnist", write)


def lying(content: bytes) -> bytes:
    """A parquet file whose description says of every column that it unpacks to no more than it has packed."""
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], bytearray(content[-8 - length :])
    metadata = pq.read_metadata(io.BytesIO(content))
    for group in range(metadata.num_row_groups):
        for column in map(metadata.row_group(group).column, range(metadata.num_columns)):
            said = varint(2 * column.total_uncompressed_size)
            small = bytes([0x80] * (len(said) - 1) + [0]) if len(said) > 1 else b"\0"
            place = footer.find(said)
            footer[place : place + len(said)] = small
    return body + bytes(footer)


def other_columns(content: bytes) -> bytes:
    """A parquet file whose group of rows has two columns, where its description has three."""
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], content[-8 - length : -8]
    place = footer.index(b"\x19\x1c\x19\x3c") + 3  # the groups, a list of one; its columns, a list of three
    end = last_column(footer)
    footer = footer[:place] + b"\x2c" + footer[place + 1 : end[0]] + footer[end[1] :]
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def last_column(footer: bytes) -> tuple[int, int]:
    """Where the last of the columns of the only group begins and ends in the footer of a parquet file."""
    reader = ThriftReader(footer, footer.index(b"\x19\x1c\x19\x3c") + 4)
    for _ in range(2):
        reader.struct()
    begin = reader.position
    reader.struct()
    return begin, reader.position


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def one_large_text(folder: Path, size: int = 128 * MIB, change: Callable[[bytes], bytes] = bytes) -> None:
    table = pa.table({"text": pa.array(["a" * size]), "label": [0]})
    for part in ("train", "test"):
        path = folder / f"{part}.parquet"
        pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
        path.write_bytes(change(path.read_bytes()))


def dictionary(value: Any, rows: int) -> pa.Array:
    """One value in all rows, kept once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))


def write_dictionary(folder: Path) -> None:
    """One picture of 4 MiB, which is none, in 20,000 rows."""
    rows = 20_000
    image = dictionary(b"\0" * (4 * MIB), rows)
    for part in ("train", "test"):
        table = pa.table({"image": image, "label": np.zeros(rows, int)})
        pq.write_table(table, folder / f"{part}.parquet", compression="zstd", dictionary_pagesize_limit=64 * MIB)


def many_rows(folder: Path) -> None:
    """More rows than any set has, in some hundred bytes a group."""
    rows = 4 * MIB
    table = pa.table({"label": np.zeros(rows, np.int64), "image": dictionary(b"", rows)})
    with pq.ParquetWriter(folder / "train.parquet", table.schema, compression="zstd") as writer:
        for _ in range(3):
            writer.write_table(table)


def beyond_dictionary(folder: Path) -> None:
    """The third of three texts, in all rows to the end, is made the fourth."""
    table = pa.table({"text": ["a", "b", *["c"] * 98], "label": [0] * 100})
    for part in ("train", "test"):
        path = folder / f"{part}.parquet"
        pq.write_table(table, path, compression="NONE")
        content, column = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0).column(0)
        last = column.dictionary_page_offset + column.total_compressed_size - 1
        assert content[last] == 2
        content[last] = 3
        path.write_bytes(bytes(content))


def delta_texts(folder: Path) -> None:
    """Texts that each repeat the one before, which is long."""
    table = pa.table({"text": ["a" * 120_000] * 4_000, "label": [0] * 4_000})
    options = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "label": "PLAIN"}}
    pq.write_table(table, folder / "train.parquet", write_statistics=False, **options)
    shutil.copy(folder / "train.parquet", folder / "test.parquet")


@cache
def deflated_zeros(size: int) -> bytes:
    """`size` zero bytes, deflated; as all pieces of them pack alike, only one is packed."""
    packer, rest = zlib.compressobj(9, zlib.DEFLATED, -15), zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * (size // MIB) + rest.compress(bytes(size % MIB)) + rest.flush()


@cache
def checksum_of_zeros(size: int) -> int:
    checksum = zlib.crc32(bytes(size % MIB))
    for _ in range(size // MIB):
        checksum = zlib.crc32(bytes(MIB), checksum)
    return checksum


def packed_zeros(size: int) -> bytes:
    """`size` zero bytes as zlib packs them; their Adler-32 has the number of bytes above, and 1 below."""
    return b"\x78\xda" + deflated_zeros(size) + struct.pack(">I", size % 65521 << 16 | 1)


def bomb(size: int = 512 * MIB) -> bytes:
    """`size` zero bytes, gzipped."""
    end = struct.pack("<II", checksum_of_zeros(size), size)
    return b"\x1f\x8b\x08\x00" + bytes(4) + b"\x02\xff" + deflated_zeros(size) + end


def zip_bomb(folder: Path) -> None:
    """Its members are written as they are, packed already, and said to be deflated."""
    packed = deflated_zeros(ZIPPED)
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in mnist():
            archive.writestr(name, packed)
    content = bytearray((folder / "a.zip").read_bytes())
    change_headers(content, method=8, crc=checksum_of_zeros(ZIPPED), size=ZIPPED)
    (folder / "a.zip").write_bytes(bytes(content))


def change_headers(content: bytearray, method: int, crc: int, size: int) -> None:
    """Say of every member of a zip how it was packed, and what it unpacks to."""
    for mark, first in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = content.find(mark)
        while place >= 0:
            struct.pack_into("<H", content, place + first, method)
            struct.pack_into("<I", content, place + first + 6, crc)
            struct.pack_into("<I", content, place + first + 14, size)
            place = content.find(mark, place + 4)


def lying_zip(folder: Path) -> None:
    """Its directory says that a member has 100 bytes."""
    zip_bomb(folder)
    content = bytearray((folder / "a.zip").read_bytes())
    size = struct.pack("<I", ZIPPED)
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        assert content[place + 24 : place + 28] == size
        content[place + 24 : place + 28] = struct.pack("<I", 100)
        place = content.find(b"PK\x01\x02", place + 4)
    (folder / "a.zip").write_bytes(bytes(content))


def encrypted(folder: Path) -> None:
    path = write_zip(folder / "a.zip", mnist())
    content = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(mark)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(mark, place + 4)
    path.write_bytes(bytes(content))


def wrong_crc(folder: Path) -> None:
    path = write_zip(folder / "a.zip", mnist())
    content = bytearray(path.read_bytes())
    for mark, crc in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        place = content.find(mark)
        while place >= 0:
            content[place + crc] ^= 1
            place = content.find(mark, place + 4)
    path.write_bytes(bytes(content))


def tar_of(**kinds: bytes) -> Case:
    """An archive whose members of the set are not files: links to and devices of this machine."""

    def write(folder: Path) -> None:
        with tarfile.open(folder / "a.tar", "w") as archive:
            for name in cifar10():
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kinds["kind"], "/etc/passwd"
                archive.addfile(member)

    return made("cifar10", write)


def negative_tar(folder: Path) -> None:
    """A member of -512 bytes, so that the next one is itself."""
    header = bytearray(tarfile.TarInfo("data_batch_1").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = b"\xff" * 4 + struct.pack(">q", -1024)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (folder / "a.tar").write_bytes(bytes(header) + bytes(1024))


def huge_header_tar(folder: Path) -> None:
    """An extended header of 512 MiB, zipped to half a MiB."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 512 * MIB
    write_files(folder, {"a.tar.gz": zipped(member.tobuf(tarfile.USTAR_FORMAT)) + bomb()})


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self._call


def runs(folder: Path) -> None:
    call = Calls(os.system, f"touch '{os.environ.get(MARK, folder / 'ran')}'")
    write_files(folder, cifar10(data_batch_1=pickle.dumps({"labels": [0], "data": call})))


def animated(kind: str) -> bytes:
    file = io.BytesIO()
    frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "green")]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


def sparse(folder: Path) -> None:
    """A file of a TiB that takes no room on disk."""
    write_files(folder, mnist())
    os.truncate(folder / "train-images-idx3-ubyte", 2**40)


def deep_folders(folder: Path) -> None:
    """Deeper than Python recurses; made step by step, as no path may be that long."""
    with contextlib.chdir(folder):
        for _ in range(DEEP):
            os.mkdir("d")
            os.chdir("d")


def remove_deep_folders(folder: Path) -> None:
    """As `shutil.rmtree` cannot."""
    with contextlib.chdir(folder):
        while os.path.isdir("d"):
            os.chdir("d")
        while not os.path.samefile(".", folder):
            os.chdir("..")
            os.rmdir("d")


def loop(folder: Path) -> None:
    (folder / "round").symlink_to(folder)
    (folder / "train.csv").symlink_to(folder / "test.csv")
    (folder / "test.csv").symlink_to(folder / "train.csv")


BIG = "a" * (10 * MIB)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
FORGED = "x\x1b[2J\nfedflat: all is well\r\u2028\u202e"  # a name that would begin a line of its own


def million_columns(folder: Path) -> None:
    write_files(folder, {"train.csv": b",".join(b"c%d" % i for i in range(10**6)) + b"\n"})


def cases() -> dict[str, Case]:
    """What to call each, and how to write it below a folder; it gives the name of the set to load from there."""
    return {
        # idx
        "idx truncated": of("mnist", mnist() | {IMAGES: mnist()[IMAGES][:-1]}),
        "idx of another magic": of("mnist", mnist() | {IMAGES: b"\x01" + mnist()[IMAGES][1:]}),
        "idx of floats": of("mnist", mnist() | {IMAGES: struct.pack(">HBB", 0, 13, 3) + mnist()[IMAGES][4:]}),
        "idx with a huge header": of("mnist", mnist() | {IMAGES: struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3)}),
        "idx of no huge pictures": of("mnist", mnist() | {IMAGES: struct.pack(">HBB3I", 0, 8, 3, 0, *[2**32 - 1] * 2)}),
        "idx of nothing": of("mnist", mnist() | {IMAGES: idx(np.zeros((0, 28, 28))), LABELS: idx(np.zeros(0))}),
        "idx label out of range": of("mnist", mnist() | {LABELS: idx(np.full(N, 200))}),
        "idx of a TiB on no disk": made("mnist", sparse),
        # gzip, zip, tar
        "gzip truncated": of("mnist", without(mnist(), IMAGES) | {f"{IMAGES}.gz": zipped(mnist()[IMAGES])[:-9]}),
        "gzip of another magic": of("mnist", without(mnist(), IMAGES) | {f"{IMAGES}.gz": b"BZh9" + bytes(50)}),
        "gzip bomb": made("mnist", lambda f: write_files(f, {f"{IMAGES}.gz": bomb()}), without(mnist(), IMAGES)),
        "gzip bomb in a zip": made("mnist", lambda f: write_zip(f / "a.zip", {f"{n}.gz": bomb() for n in mnist()})),
        "zip bomb": made("mnist", zip_bomb),
        "zip that lies about its sizes": made("mnist", lying_zip),
        "zip encrypted": made("mnist", encrypted),
        "zip with a wrong checksum": made("mnist", wrong_crc),
        "zip truncated": made(
            "mnist", lambda f: (f / "a.zip").write_bytes(write_zip(f / "b.zip", mnist()).read_bytes()[:-30])
        ),
        "zip that is a web page": of("mnist", {"a.zip": b"<html>\nnot found\n</html>\n"}),
        "tar of symbolic links": tar_of(kind=tarfile.SYMTYPE),
        "tar of hard links": tar_of(kind=tarfile.LNKTYPE),
        "tar of devices": tar_of(kind=tarfile.CHRTYPE),
        "tar of pipes": tar_of(kind=tarfile.FIFOTYPE),
        "tar with names outside": made(
            "cifar10", lambda f: write_tar(f / "a.tar", {f"/../../{n}": b"" for n in cifar10()})
        ),
        "tar bomb": made("cifar10", lambda f: write_tar(f / "a.tar.gz", {"other": bytes(128 * MIB)} | cifar10())),
        "tar with a huge header": made("cifar10", huge_header_tar),
        "tar that goes in circles": made("cifar10", negative_tar),
        "tar truncated": of("cifar10", {"a.tar": write_tar_bytes(cifar10())[:9_000]}),
        # CIFAR's pickles
        "pickle that names os.system": made("cifar10", runs),
        "pickle truncated": of("cifar10", cifar10(data_batch_2=pickled(batch())[:-100])),
        "pickle of deep lists": of("cifar10", cifar10(data_batch_2=b"\x80\x02" + b"(l" * 500_000 + b".")),
        "pickle of deep tuples as a key": of(
            "cifar10", cifar10(data_batch_2=b"\x80\x02})" + b"\x85" * 900_000 + b"K\x00s.")
        ),
        "pickle with a huge memo": of("cifar10", cifar10(data_batch_2=b"\x80\x02]r\x00\x00\x00\x10.")),
        "pickle of many sets": of("cifar10", cifar10(data_batch_2=b"\x80\x04(" + b"\x8f" * (8 * MIB) + b"l.")),
        "pickle with a huge text": of(
            "cifar10", cifar10(data_batch_2=b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b".")
        ),
        "pickle with huge labels": of("cifar10", cifar10(data_batch_2=pickled(batch() | {"labels": [2**80, 1]}))),
        "pickle of an array never made": of(
            "cifar10",
            cifar10(data_batch_2=b"\x80\x02}(X\x06\x00\x00\x00labels]X\x04\x00\x00\x00datacnumpy\nndarray\n)\x81u."),
        ),
        "pickle with NaN labels": of("cifar10", cifar10(data_batch_2=pickled(batch() | {"labels": [float("nan"), 1]}))),
        "npz in place of a batch": of("cifar10", cifar10(data_batch_2=npz())),
        # csv
        "csv with zero bytes": of("ag_news", news('"1","a\0b","c"\n')),
        "csv with a field of 10 MB": of("ag_news", news(f'"1","{BIG}","b"\n')),
        "csv with ten million fields": of("ag_news", news("1" + "," * (10 * MIB) + "\n")),
        "csv with a row of many lines": of("ag_news", news('"1' + '","\n' * (4 * MIB))),
        "csv with a class of 10,000 digits": of("ag_news", news(f'"{"9" * 10_000}","a","b"\n')),
        "csv with a class beyond 64 bits": of("ag_news", news(f'"{2**70}","a","b"\n')),
        "csv with a class out of range": of("ag_news", news('"5","a","b"\n')),
        "csv with a negative class": of("ag_news", news('"-1","a","b"\n')),
        "csv cut off inside quotes": of("ag_news", news('"1","a","b')),
        "csv that is a pipe": made("ag_news", lambda f: os.mkfifo(f / "train.csv"), without(news(), "train.csv")),
        "csv that is a folder": made("ag_news", lambda f: (f / "train.csv").mkdir(), without(news(), "train.csv")),
        "links in circles": made("ag_news", loop),
        "folders beyond any depth": made("ag_news", deep_folders),
        # parquet
        "parquet truncated": patched(lambda content: content[: len(content) // 2]),
        "parquet of another magic": patched(lambda content: content[:-4] + b"PAR2"),
        "parquet with a huge footer": patched(lambda content: content[:-8] + b"\xff\xff\xff\x7fPAR1"),
        "parquet with its middle gone": patched(lambda content: content[:200] + bytes(2_000) + content[2_200:]),
        "parquet labels are texts": columns(label=["cat"] * N),
        "parquet labels are floats": columns(label=[float("nan")] * N),
        "parquet labels are missing": columns(label=pa.array([None] * N, pa.int64())),
        "parquet labels are nested": columns(label=[[1]] * N),
        "parquet labels are negative": columns(label=[-1] * N),
        "parquet labels out of range": columns(label=[10] * N),
        "parquet labels beyond 64 bits": columns(label=pa.array([2**64 - 1] * N, pa.uint64())),
        "parquet labels are decimals": columns(label=pa.array([1] * N).cast(pa.decimal128(38, 0))),
        "parquet pictures are nested": columns(image=[[[1, 2]]] * N),
        "parquet pictures are missing": columns(image=pa.array([None] * N, pa.binary())),
        "parquet pictures are PostScript": columns(image=[POSTSCRIPT] * N),
        "parquet with names that forge a line": columns(label=None, **{FORGED: random_labels(N)}),
        "parquet with names that are not UTF-8": patched(
            lambda content: content.replace(b"label", b"\xff\xfe\xff\xfe\xff")
        ),
        "parquet with a column twice": made("mnist", twice),
        "parquet with users that forge a line": columns(
            "femnist", label=None, character=random_labels(N), writer_id=[FORGED] * N
        ),
        "parquet with a description nested too deep": made("pacs", deep_description),
        "parquet texts are missing": texts(pa.array([None, "a"])),
        "parquet texts are not UTF-8": texts(not_utf8()),
        "parquet with one large text": made("ag_news", one_large_text),
        "parquet that lies about its sizes": made("ag_news", lambda f: one_large_text(f, change=lying)),
        "parquet with one text in many rows": texts(dictionary("a" * 100_000, 200_000), compression="zstd"),
        "parquet with one picture in many rows": made("mnist", write_dictionary),
        "parquet with rows without end": made("mnist", many_rows),
        "parquet with places beyond its dictionary": made("ag_news", beyond_dictionary),
        "parquet with other columns in its rows": patched(other_columns),
        "parquet with texts that repeat the last": made("ag_news", delta_texts),
        # arrays of a user's own
        "npz truncated": of("npz", {"train.npz": arrays()[:-40]}),
        "npz that is a web page": of("npz", {"train.npz": b"<html>\nnot found\n</html>\n"}),
        "npz with a pickle that runs": of("npz", {"train.npz": arrays(x=np.array([Runs()] * 2, dtype=object))}),
        "npz with pickled labels": of("npz", {"train.npz": arrays(y=np.array([Runs()] * 2, dtype=object))}),
        "npz with records": of("npz", {"train.npz": arrays(x=np.zeros((2, 3), "i4,f8"))}),
        "npz with dates": of("npz", {"train.npz": arrays(x=np.zeros((2, 3), "M8[s]"))}),
        "npz bomb": made("npz", npz_bomb),
        "npz that claims a TiB": of("npz", {"train.npz": claiming("(2, 549755813888)")}),
        "npz of no huge samples": of("npz", {"train.npz": claiming("(0, 549755813888)")}),
        "npz of a negative shape": of("npz", {"train.npz": claiming("(-2, -3)")}),
        "npz of a thousand axes": of("npz", {"train.npz": claiming(f"({'1,' * 1000})")}),
        "npz with a header that is code": of("npz", {"train.npz": claiming("__import__('os').system('gs')")}),
        "npz with a header without end": of("npz", {"train.npz": claiming("(" * 9_000)}),
        "npz with NaN labels": of("npz", {"train.npz": arrays(y=np.full(2, np.nan))}),
        "npz with a negative class": of("npz", {"train.npz": arrays(y=np.array([0, -1]))}),
        "npz with a class beyond any table": of("npz", {"train.npz": arrays(y=np.array([0, 2**62]))}),
        "npz with too few labels": of("npz", {"train.npz": arrays(y=np.zeros(1, int))}),
        "npz of one number": of("npz", {"train.npz": arrays(x=np.float32(1))}),
        "npz with domains that forge a line": of("npz", {"train.npz": arrays(domain=np.array([FORGED] * 2))}),
        "npz with users that are floats": of("npz", {"train.npz": arrays(user=np.full(2, 0.5))}),
        "npz without samples": of("npz", {"train.npz": arrays(x=np.zeros((0, 3)), y=np.zeros(0, int))}),
        "npz whose parts differ": of("npz", {"train.npz": arrays(), "test.npz": arrays(x=np.zeros((2, 4)))}),
        "npz without labels": of("npz", {"train.npz": npz()}),
        "npz that is a pipe": made("npz", lambda f: os.mkfifo(f / "train.npz")),
        "own parquet of numbers": made(
            "parquet", lambda f: write_parquet(f / "train.parquet", {"x": [1], "label": [0]})
        ),
        "own parquet without rows": made("parquet", own_parquet([], [])),
        "own parquet with no picture": made("parquet", own_parquet([b"<html>"], [0])),
        "own parquet with PostScript": made("parquet", own_parquet([POSTSCRIPT], [0])),
        "own parquet with a large picture": made("parquet", own_parquet([png(60_000, 60_000)], [0])),
        "own parquet of pictures not square": made("parquet", own_parquet([png(6, 4)], [0])),
        "own parquet with a class beyond any table": made("parquet", own_parquet([png(8, 8)], [2**40])),
        # tables, texts, LEAF's files and class folders of a user's own
        "table without the end of a line": of("csv", {"train.csv": b"a,label\n" + b"1" * 2**22}),
        "table whose text has no end": of("csv", {"train.csv": b'a,label\n"' + b"x\n" * 2**21}),
        "table with a zero byte": of("csv", {"train.csv": b"a,label\n1,\x00\n"}),
        "table of a million columns": made("csv", million_columns),
        "table with a column that forges a line": of("csv", {"train.csv": b'"a\x1b[2J\nb",b\n1,2\n'}),
        "table with a value that forges a line": of("csv", {"train.csv": b'a,label\n1,0\n"\x1b[2J\nx",0\n'}),
        "table with a class that forges a line": of("csv", {"train.csv": b'a,label\n1,"\x1b[2J\nx"\n2,b\n'}),
        "table that is a picture": of("csv", {"train.csv": png(8, 8)}),
        "table that is a pipe": made("csv", lambda f: os.mkfifo(f / "train.csv")),
        "table of too large numbers": of(
            "csv", {"train.csv": b"a,label\n1e999,0\n1,1\n", "test.csv": b"a,label\n1,1\n"}
        ),
        "jsonl nested too deep": of("jsonl", {"train.jsonl": b'{"text": ' + b"[" * 10**5}),
        "jsonl without the end of a line": of("jsonl", {"train.jsonl": b'{"text": "' + b"x" * 2**22}),
        "jsonl with a number of a million digits": of("jsonl", {"train.jsonl": b'{"text": ' + b"1" * 10**6 + b"}"}),
        "LEAF nested too deep": of("leaf", {"train/a.json": b"[" * 10**6}),
        "LEAF with a number of a million digits": of("leaf", {"train/a.json": leaf("[[" + "1" * 10**6 + "]]")}),
        "LEAF with NaN": of("leaf", {"train/a.json": leaf("[[NaN]]")}),
        "LEAF with a user that forges a line": of("leaf", {"train/a.json": leaf("[[1]]", user="\x1b[2J\nx" * 99)}),
        "class folder with PostScript": of("folder", {"train/a/1.png": POSTSCRIPT}),
        "class folder that forges a line": of(
            "folder", {"train/\x1b[2J\nx/1.png": png(8, 8), "train/b/1.png": png(8, 8)}
        ),
        "MATLAB file that claims a TiB": of("svhn", matlab(claim=2**40)),
        "MATLAB file truncated": of("svhn", {name: content[:-99] for name, content in matlab().items()}),
        "MATLAB file of objects": of("svhn", matlab(X=np.array([Runs], dtype=object))),
        "MedMNIST that claims a TiB": of("pathmnist", {"pathmnist.npz": claiming("(2, 549755813888)")}),
        "plays nested too deep": of("shakespeare", {"train/a.json": b"[" * 10**6}),
        "play without roles": of("shakespeare", {"input.txt": b"x" * 2**20}),
        # pictures
        "picture that is PostScript": of("pacs", photographs(photo=POSTSCRIPT)),
        "picture that is a page of text": of("pacs", photographs(photo=b"<html>\n</html>")),
        "picture truncated": of("pacs", photographs(photo=encoded(random_pictures(1, 3, 64)[0], "JPEG")[:800])),
        "picture of 60000 x 1": of("pacs", photographs(photo=png(60_000, 1))),
        "picture of 1 x 60000": of("pacs", photographs(photo=png(1, 60_000))),
        "picture of 13,000 x 13,000": of("pacs", photographs(photo=png(13_000, 13_000))),
        "picture of 50,000 x 50,000": of("pacs", photographs(photo=png(50_000, 50_000, b""))),
        "picture of nothing": of("pacs", photographs(photo=png(0, 0, b""))),
        "picture in motion": of("pacs", photographs(photo=animated("GIF"))),
        "picture that is a TIFF": of("pacs", photographs(photo=encoded(random_pictures(1, 3, 30)[0], "TIFF"))),
        "picture of a TiB on no disk": made(
            "pacs", lambda f: os.truncate(f / "photo/dog/2.jpg", 2**40), photographs(photo=b"x")
        ),
        "picture with a name that forges a line": of("pacs", photographs() | {f"photo/dog/{FORGED}.jpg": b"x"}),
        "domain missing": of("pacs", without(photographs(), "photo/dog/2.jpg")),
    }


def write_tar_bytes(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def leaf(samples: str, user: str = "a") -> bytes:
    """LEAF's JSON with one user, whose samples are this text."""
    name = json.dumps(user)
    return f'{{"users": [{name}], "user_data": {{{name}: {{"x": {samples}, "y": [0]}}}}}}'.encode()


def matlab(claim: int = 0, **changes: np.ndarray) -> dict[str, bytes]:
    """Both files of SVHN; with a `claim` the first axis of X has this length in its header."""
    file, x = io.BytesIO(), np.zeros((32, 32, 3, 2), np.uint8)
    savemat(file, {"X": x, "y": np.ones((2, 1), np.uint8)} | changes)
    content = file.getvalue()
    if claim:
        content = content.replace(struct.pack("<4i", *x.shape), struct.pack("<4i", 2**30, 32, 3, 2), 1)
    return dict.fromkeys(("train_32x32.mat", "test_32x32.mat"), content)


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, labels=np.zeros(2, int), data=np.zeros((2, 3072), np.uint8))
    return file.getvalue()


class Runs:
    """Unpickling it starts a program of ours."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("gs",)


def arrays(**changes: np.ndarray) -> bytes:
    """A whole `train.npz` with some of its arrays replaced."""
    file = io.BytesIO()
    np.savez_compressed(file, **({"x": np.zeros((2, 3)), "y": np.zeros(2, int)} | changes), allow_pickle=True)
    return file.getvalue()


def npz_bomb(folder: Path) -> None:
    write_files(folder, {"train.npz": arrays(x=np.zeros((2, ZIPPED // 2), np.uint8))})


def claiming(shape: str) -> bytes:
    """A `train.npz` whose x says that it has this shape, and has 16 bytes."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)
    file, labels = io.BytesIO(), io.BytesIO()
    np.save(labels, np.zeros(2, int))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", array)
        archive.writestr("y.npy", labels.getvalue())
    return file.getvalue()


def own_parquet(pictures: list[bytes], labels: list[int]) -> Callable[[Path], object]:
    """A `train.parquet` with these encoded pictures."""
    columns = {"image": pa.array(pictures, pa.binary()), "label": pa.array(labels, pa.int64())}
    return lambda folder: write_parquet(folder / "train.parquet", columns)


def not_utf8() -> pa.Array:
    """Texts whose bytes are none, which pyarrow takes from a buffer without looking."""
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<3i", 0, 2, 4)), pa.py_buffer(b"\xff\xfe" * 2)]
    )


def twice(folder: Path) -> None:
    arrays = [picture_column(list(random_pictures(N))), pa.array(random_labels(N)), pa.array(random_labels(N))]
    pq.write_table(pa.Table.from_arrays(arrays, ["image", "label", "label"]), folder / "train.parquet")


def deep_description(folder: Path) -> None:
    """Named by its numbers, as the description of the names cannot be read; then the label is out of range."""
    table = pa.table(
        {"image": picture_column([encoded(p) for p in random_pictures(2, 3, 30)]), "domain": [0, 1], "label": [7, 7]}
    )
    described = table.replace_schema_metadata({b"huggingface": b'{"a":' * 100_000})
    pq.write_table(described, folder / "train.parquet")


# Loading them


def watch_programs(folder: Path) -> Path:
    """Put programs of ours before all others in PATH; the file that they make if one of them is started."""
    mark, ours = folder / "it ran", folder / "programs"
    for name in PROGRAMS:
        write_files(ours, {name: f"#!/bin/sh\ntouch '{mark}'\nexit 0\n".encode()})
        (ours / name).chmod(0o755)
    os.environ["PATH"] = f"{ours}{os.pathsep}{os.environ['PATH']}"
    os.environ[MARK] = str(mark)
    return mark


def outcomes(folder: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """What becomes of loading each: error, message, seconds, bytes of memory above those before, whether it ran."""
    from fedflat.data import load, prepare
    from fedflat.data.loading import labelled

    load("digits", clients=2)  # what any first load imports
    mark = watch_programs(folder)
    os.environ["FEDFLAT_CACHE"] = str(folder / "cache")
    for number, (name, write) in enumerate(cases().items()):
        if names and name not in names:
            continue
        known = write(folder / str(number))
        before, begun = begin(), time.monotonic()
        outcome = {"name": name, "folder": str(folder / str(number)), "error": "", "message": ""}
        try:
            labelled(prepare(known, str(folder / str(number)), partial=True), "classification", known)
        except BaseException as error:
            outcome |= {"error": type(error).__name__, "message": str(error)}
        seconds, ran = time.monotonic() - begun, mark.exists()
        mark.unlink(missing_ok=True)
        remove_deep_folders(folder / str(number) / known)
        yield outcome | {"seconds": seconds, "bytes": status("VmHWM") - before, "ran": ran}


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def begin() -> int:
    """The peak is counted from here; bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


if __name__ == "__main__":
    for one in outcomes(Path(sys.argv[1]), sys.argv[2:]):
        print(json.dumps(one), flush=True)
