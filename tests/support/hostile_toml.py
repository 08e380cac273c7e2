"""Configurations that nobody should write: names and contents of files, always the same ones in the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from support.effort import effort

DEEP = 5000
MANY = effort(100_000, 1_000_000)  # numbers in a list; tomllib takes seconds for a million, of which KNOWN has one
VALUES = {
    "NaN": "nan", "-inf": "-inf", "inf": "inf", "-1": "-1", "0": "0", "1e15": "1e15", "1e308": "1e308",
    "1e-320": "1e-320", "2**63": str(2**63), "2**200": str(2**200), "-2**200": str(-(2**200)),
    "10**12": str(10**12), "[10**12]": f"[{10**12}]", "5000 digits": "9" * 5000, "6000 hex digits": "0x" + "f" * 6000,
    "date": "1979-05-27", "time": "07:32:00", "moment": "1979-05-27T07:32:00Z", "true": "true", "false": "false",
    "empty": '""', "blank": '" "', "escape": '"\\u001b[2J\\u001b]0;x\\u0007"', "null byte": '"a\\u0000b"',
    "line feeds": '"a\\nfedflat: b"', "markup": '"[/x]"', "unicode": '"☃é\\U0001F600"', "right to left": '"\\u202Ex"',
    "path": '"../../etc/passwd"', "format": '"%s{0}{x}"', "long text": '"' + "x" * 300_000 + '"',
    "list": "[]", "list of lists": "[[]]", "mixed list": '["x", 1, {}, nan]', "list of dates": "[1979-05-27]",
    "many numbers": "[" + "2," * MANY + "]", "hundred thousand texts": "[" + '"x",' * 100_000 + "]",
    "many cohorts": "[" + "[0]," * (MANY // 3) + "]", "table": "{}", "name is a number": "{name = 1}",
    "name is a table": "{name = {}}", "name is empty": '{name = ""}', "name is markup": '{name = "[red]"}',
    "options": "{options = {name = 1}}", "table of NaN": "{rho = nan, name = nan}", "classes": "{classes = 3}",
    "deep list": "[" * DEEP + "]" * DEEP, "deep table": "{a = " * DEEP + "1" + "}" * DEEP,
    "less deep list": "[" * 60 + "]" * 60, "less deep table": "{a = " * 60 + "1" + "}" * 60,
}  # fmt: skip
SHARED = (
    "data", "data.name", "data.clients", "data.augment", "data.partial", "data.train_samples", "data.test_samples",
    "data.test_domain", "data.image_size", "data.validation", "data_dir", "partition", "partition.name",
    "partition.alpha", "model", "model.name", "model.options", "model.options.name", "model.options.classes",
    "model.options.hidden", "model.options.unknown", "client", "client.lr", "client.lr_decay", "client.epochs",
    "client.steps", "client.batch_size", "client.weight_decay", "client.max_norm", "client.momentum",
    "client.wd_scope", "rounds", "participation", "participation.bernoulli", "weights", "device", "dtype",
    "precision", "executor", "workers", "eval_every", "last", "targets", "checkpoint_every", "store_megabytes",
    "flatness", "probes", "probe_every", "unknown", '"[/x]\\u001b"',
)  # fmt: skip
OWN = {
    "run": ("method", "method.name", "method.rho", "method.server_lr", "method.unknown", "seed"),
    "study": ("methods", "seeds", "client_of", "client_of.FedSAM", "client_of.FedSAM.lr", "client_of.x", "protocol"),
}
KNOWN = (  # what once gave a traceback, or took minutes
    ("run", "model.options", "{name = 1}"), ("study", "model.options", "{name = 1}"), ("run", "client.epochs", "1e15"),
    ("study", "client.epochs", "1e15"), ("run", "seed", str(2**200)), ("run", "rounds", "0x" + "f" * 6000),
    ("run", "client.steps", str(10**15)), ("run", "model.options.hidden", f"[{10**12}]"),
    ("run", "model.options.hidden", f"[{10**8}]"), ("run", "model.options.hidden", "[0]"),
    ("run", "model.options.hidden", "1979-05-27"), ("study", "targets", "[" + "2," * 1_000_000 + "]"),
    ("run", "data_dir", '"a\\u0000b"'), ("run", "device", '"cuda:99999999999999999999"'),
    ("run", "client.batch_size", str(2**62)), ("run", "workers", str(10**9)), ("run", "data.clients", str(10**18)),
)  # fmt: skip
FILES = {
    "empty": b"", "not UTF-8": b"rounds = 1 # \xff\xfe", "NUL": b"rounds = 1\x00",
    "byte order mark": b"\xef\xbb\xbfrounds = 1",
    "UTF-16": "rounds = 1".encode("utf-16"), "carriage returns": b"rounds = 1\rseed = 2\r", "no value": b"rounds =",
    "no key": b"= 1", "twice": b"rounds = 1\nrounds = 2", "open string": b'device = "cpu',
    "open list": b"targets = [0.5",
    "escape": b'device = "\x1b[2J"', "escaped key": b'"\\u001b[2J" = 1', "line feed in a key": b'"a\\nfedflat: b" = 1',
    "surrogate": b'device = "\\ud800"', "binary": bytes(range(256)) * 100,
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(1000),
    "deep list": b"targets = " + b"[" * 100_000, "deep table": b"model = " + b"{a = " * 100_000,
    "deep key": b".".join([b"a"] * 30_000) + b" = 1", "deep header": b"[" + b".".join([b"a"] * 30_000) + b"]",
    "deep quoted key": b" . ".join([b'"a b"'] * 30_000) + b" = 1", "long key": b"a" * 1_000_000 + b" = 1",
    "many keys": b"".join(b"a%d = 1\n" % i for i in range(50_000)), "long number": b"rounds = " + b"9" * 1_000_000,
    "many tables": b"[[methods]]\n" * 100_000, "underscores": b"rounds = " + b"1_" * 100_000 + b"1",
    "long fraction": b"rounds = 1." + b"9" * 1_000_000, "long comment": b"#" + b"x" * 1_000_000,
    "html": b"<!doctype html>",
    "JSON": b'{"rounds": 1}', "nothing but brackets": b"[" * 1000, "dots": b"." * 1000, "equals": b"=" * 1000,
}  # fmt: skip


def mutations(number: int) -> Iterator[tuple[str, bytes]]:
    """The first `number` of them; a name begins with the kind of configuration, `run` or `study`."""
    return islice(_all(), number)


def _all() -> Iterator[tuple[str, bytes]]:
    """What once went wrong, then whole files, then hostile values of every field in a shuffled order, without end."""
    for kind, field, value in KNOWN:
        yield f"{kind} {field} = {value[:30]}", _file(field, value)
    for name, content in FILES.items():
        for kind in OWN:
            yield f"{kind} file: {name}", content
    rng = random.Random(20)
    pairs = [(kind, field, name) for kind, own in OWN.items() for field in (*SHARED, *own) for name in VALUES]
    rng.shuffle(pairs)
    for kind, field, name in pairs:
        yield f"{kind} {field} = {name}", _file(field, VALUES[name])
    while True:
        kind, first, name = rng.choice(pairs)
        _, second, other = rng.choice([pair for pair in pairs if pair[0] == kind])
        yield (
            f"{kind} {first} = {name}, {second} = {other}",
            _file(first, VALUES[name]) + b"\n" + _file(second, VALUES[other]),
        )


def _file(field: str, value: str) -> bytes:
    return f"{field} = {value}\n".encode()
