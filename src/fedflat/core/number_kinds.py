"""The kinds of numbers of which samples consist; `fedflat.data.numbers` tells what each one means for a model."""

from __future__ import annotations

from typing import Literal

NumberKind = Literal["floats", "pixels", "tokens"]
