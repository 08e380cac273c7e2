"""The program that runs an untrusted tokenizer: `python -P THIS_FILE TOKENIZER LENGTH PADDING MEMORY PARENT`.

It is a process of its own because a tokenizer can be made to use unlimited time, by its regular expressions, or
unlimited memory, by its replacements of text. The library `tokenizers` may then raise a panic that `except Exception`
does not catch, or end the process. The program reads texts as JSON, one per line, and writes their token numbers
(n, LENGTH) as int32. After a failure, the last line of stderr states the reason. The program imports only NumPy and
`tokenizers`, so that it starts at once.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from fedflat.parent_process import end_with  # not relative: this file is a program of its own

TEXTS = 1000  # encoded at a time
NO_TOKENIZER = 3  # exit code for a file that is no tokenizer


def main(path: str, length: int, padding: int, memory: int, parent: int) -> None:
    """Encode the texts of stdin. Exits with NO_TOKENIZER, or with 1 if a text cannot be encoded."""
    end_with(parent)
    with suppress(ImportError, ValueError, OSError):  # of a system without this limit, or with a lower one
        import resource  # which Windows lacks

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    from tokenizers import Tokenizer  # after the limit, as its threads are

    try:
        reader = Tokenizer.from_file(path)
    except BaseException as error:  # a panic is no Exception
        _fail(NO_TOKENIZER, error)
    try:
        reader.no_padding()
        reader.enable_truncation(length)
        for lines in iter(lambda: list(islice(sys.stdin.buffer, TEXTS)), []):
            rows = np.full((len(lines), length), padding, dtype=np.int32)
            encoded = reader.encode_batch_fast([json.loads(line) for line in lines])
            for row, one in zip(rows, encoded, strict=True):
                row[: len(one.ids)] = one.ids
            sys.stdout.buffer.write(rows.tobytes())
    except BaseException as error:
        _fail(1, error)


def _fail(code: int, error: Any) -> NoReturn:
    print("\n" + " ".join(f"{error}".split())[:200], file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
