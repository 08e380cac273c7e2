"""How much a data file may ask for. Whatever a file claims, no reader takes more than this; each bound says why.

A real set stays far below every one of them; a file that does not is refused with its name, before memory is taken.
"""

from __future__ import annotations

MIB = 2**20  # bytes

CONTENT = 1024 * MIB  # bytes of one file, unpacked; the largest of a known set, EMNIST's training pictures, has 547 MB
SMALL = 16 * MIB  # bytes that any file may unpack to, however small it is: a thousand blank pictures pack very well
RATIO = 100  # times its own size that a larger file may unpack to; MNIST's pictures reach 5, a bomb of gzip 1,000
PIECE = MIB  # bytes that are unpacked at once
SAMPLES = 10_000_000  # of one part; the largest known set, FEMNIST, has 814,000

MEMBERS = 100_000  # of an archive; MNIST as single pictures would have 70,000
HEADER = 64 * 2**10  # bytes of a tar member's header with its extensions; names and times take some hundred
DIRECTORY = 8 * MIB  # bytes of a zip's directory; one of 70,000 pictures takes 6 MB

ENCODED = 64 * MIB  # bytes of one encoded picture; photographs take up to some 20 MB
PIXELS = 89_478_485  # of one picture, as it comes and when it is resized: Pillow's limit, 256 MiB at 3 bytes each
LARGE = 4 * MIB  # pixels from which on pictures are decoded one at a time, so that not every core holds a large one

TEXT = 2**17  # characters of one text, the limit of Python's csv module; articles have up to some 10,000
ROW = MIB  # characters of one row of a csv file; known sets have two texts a row

FOOTER = 16 * MIB  # bytes of a parquet file's description; FEMNIST in groups of 100 rows would take some 6
ENTRIES = 100_000  # of any list in that description; FEMNIST would have 8,140 such groups
VALUES = 2_000_000  # in that description; FEMNIST would have a million

OPCODES = 1_000_000  # of a pickled CIFAR batch; CIFAR-100's training batch has some 200,000
TUPLES = 1_000  # of a pickled CIFAR batch, which has some ten: Python's hash of a deep tuple overruns the stack


def allowed(packed: int) -> int:
    """The bytes that `packed` bytes may unpack to."""
    return min(CONTENT, max(SMALL, RATIO * packed))
