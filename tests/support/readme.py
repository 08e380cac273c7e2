"""The commands of docs/reference/commands.md and the README's program, as tests run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text()
SHORT = {"--seeds": "0", "--rounds": "2", "--methods": '["fedavg", "fedsam"]', "--flatness": "sharpness"}


def commands() -> list[list[str]]:
    """The words of every command of the page's first list, with fewer rounds, seeds, methods and measures."""
    block = re.findall(r"```bash\n(.*?)```", COMMANDS, re.DOTALL)[0]
    lines = [line.split(" #")[0].strip() for line in block.replace("\\\n", " ").splitlines()]
    return [_shortened(shlex.split(re.sub(r"--rounds \d+", "--rounds 2", line))) for line in lines]


def _shortened(words: list[str]) -> list[str]:
    """With flags that make a comparison short, but for those that it has."""
    missing = [word for flag, value in SHORT.items() if flag not in words for word in (flag, value)]
    return [*words, *(missing if words[1] == "compare" else [])]


def python_example() -> str:
    """The README's program."""
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return example
