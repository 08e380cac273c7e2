"""How the samples of a data set are stored, as far as users choose it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import InputError
from .tokenizer import Tokenizer

LENGTH = 128  # tokens of a text, unless another length is given


@dataclass(frozen=True)
class SampleFormat:
    """The size of photographs, and the length and the numbers of texts; None is the set's own."""

    image_size: int | None = None  # pixels that photographs are resized to
    text_length: int | None = None  # tokens; longer texts are cut, shorter ones padded
    tokenizer: Tokenizer | None = None  # makes the token numbers of texts

    @property
    def length(self) -> int:
        """The number of tokens of a text."""
        return self.text_length or LENGTH

    @property
    def text_key(self) -> tuple[object, ...]:
        """What names the converted texts in the cache, beside their length."""
        return () if self.tokenizer is None else (self.tokenizer.digest, self.tokenizer.padding)

    def refuse_image_size(self, why: str) -> None:
        """Raise InputError if photographs are to be resized; `why` says what the samples are instead."""
        if self.image_size is not None:
            raise InputError(f"data.image_size = {self.image_size} goes with photographs{why}")

    def refuse_text_options(self) -> None:
        """Raise InputError if something is chosen about texts: the samples are none."""
        if self.tokenizer is not None:
            raise InputError("data.tokenizer goes with texts, and this set has none; leave it out")
        if self.text_length is not None:
            raise InputError(
                f"data.text_length = {self.text_length} goes with texts, and this set has none; leave it out"
            )


OWN_FORMAT = SampleFormat()  # the one that a set has by itself
