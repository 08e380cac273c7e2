"""Which lines need a GPU, of code whose answer is plain to see."""

from __future__ import annotations

from textwrap import dedent

import pytest

from docs.gpu_lines import SOURCE, gpu_lines


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1", []),
        ("torch.cuda.synchronize()\n    return 1", ["all 2 of its body"]),
        ("with torch.cuda.stream(s):\n        go()", ["all 2 of its body"]),
        ("if torch.cuda.is_available():\n        go()\n        end()", ["go()", "end()"]),
        ("if x.is_cuda:\n        go()\n    else:\n        stay()", ["go()"]),
        ("if x.type != 'cuda':\n        return 0\n    return go()", ["return go()"]),
        ("if x and y.type != 'cuda':\n        raise ValueError('cuda')", []),
        ("return torch.cuda.get_rng_state() if x.is_cuda else 0",
         ["return torch.cuda.get_rng_state() if x.is_cuda else 0"]),
        ("with fork(devices=[x] if x.is_cuda else []):\n        go()",
         ["with fork(devices=[x] if x.is_cuda else []):"]),
        ("while busy:\n        if x.type == 'cuda':\n            wait()", ["wait()"]),
    ],
)  # fmt: skip
def test_lines_that_need_a_gpu(code: str, expected: list[str]) -> None:
    assert [line for _, line in gpu_lines(f"def f():\n    {dedent(code)}")] == expected


def test_no_module_names_a_gpu_outside_of_functions() -> None:
    """Those lines would run when it is imported, and are not looked for."""
    for path in SOURCE.rglob("*.py"):
        outside = [line for line in path.read_text().splitlines() if "torch.cuda" in line and not line.startswith(" ")]
        assert not outside, path
