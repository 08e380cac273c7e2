from __future__ import annotations

import pytest

from fedflat.files import write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(temporary) -> None:
        temporary.write_text("half of the ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
