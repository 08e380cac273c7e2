"""Limits on the sizes that a data file may claim, which every reader enforces; comments give the reasons.

Real data sets stay far below every limit. A file above one is refused by name before memory is allocated.
"""

from __future__ import annotations

MIB = 2**20  # bytes

MAX_FILE_BYTES = 1024 * MIB  # of one unpacked file; the largest known, EMNIST's training pictures, has 547 MB
ALWAYS_ALLOWED_BYTES = 16 * MIB  # that any file may unpack to: a thousand blank pictures pack into very few bytes
MAX_RATIO = 100  # unpacked to packed size of a larger file; MNIST's pictures reach 5, a gzip bomb 1,000
CHUNK_BYTES = MIB  # unpacked at once
MAX_SAMPLES = 10_000_000  # of one part; the largest known data set, FEMNIST, has 814,000

MAX_MEMBERS = 100_000  # of an archive; MNIST as single pictures would have 70,000
MAX_HEADER_BYTES = 64 * 2**10  # of a tar member's header with its extensions; names and times take some hundred
MAX_DIRECTORY_BYTES = 8 * MIB  # of a zip's directory; one of 70,000 pictures takes 6 MB

MAX_ENCODED_BYTES = 64 * MIB  # of one encoded picture; photographs take up to some 20 MB
MAX_PIXELS = 89_478_485  # of one picture, before and after it is resized: Pillow's limit, 256 MiB at 3 bytes each
LARGE_PIXELS = 4 * MIB  # larger pictures are decoded one at a time, so that not every core holds one

MAX_TEXT = 2**17  # characters of one text, the limit of Python's csv module; articles have up to some 10,000
MAX_ROW = MIB  # characters of one row of a csv file; known data sets have two texts a row

MAX_FOOTER_BYTES = 16 * MIB  # of a parquet file's description; FEMNIST in groups of 100 rows would take some 6
MAX_ENTRIES = 100_000  # of any list in that description; FEMNIST would have 8,140 such groups
MAX_VALUES = 2_000_000  # in that description; FEMNIST would have a million

MAX_OPCODES = 1_000_000  # of a pickled CIFAR batch; CIFAR-100's training batch has some 200,000
MAX_TUPLES = 1_000  # of a pickled CIFAR batch, which has some ten: hashing a deep tuple overflows Python's stack


def archive_limit(packed: int) -> int:
    """Return the bytes that an archive of `packed` bytes may unpack to."""
    return max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * packed)


def file_limit(packed: int) -> int:
    """Return the bytes that one file of `packed` bytes may unpack to."""
    return min(MAX_FILE_BYTES, archive_limit(packed))
