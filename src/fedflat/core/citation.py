"""The paper that describes a method, and what papers and released code say about it besides its equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Citation:
    """A paper, with the fields that a line of text and a BibTeX entry need."""

    key: str  # BibTeX key
    authors: str  # "Last, First and Last, First", the format of BibTeX
    title: str
    venue: str
    year: int
    arxiv: str | None = None

    def __str__(self) -> str:
        """One line, e.g. `Qu et al., ICML 2022, arXiv:2206.02618`."""
        return f"{self.short}, arXiv:{self.arxiv}" if self.arxiv else self.short

    @property
    def short(self) -> str:
        """Authors, venue and year, e.g. `Qu et al., ICML 2022`."""
        names = [author.split(",")[0] for author in self.authors.split(" and ")]
        who = names[0] if len(names) == 1 else " and ".join(names) if len(names) == 2 else f"{names[0]} et al."
        return f"{who}, {self.year}" if self.venue == "arXiv" else f"{who}, {self.venue} {self.year}"

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        kind = "misc" if self.venue == "arXiv" else "inproceedings"
        entries = {"author": self.authors, "title": self.title, "year": str(self.year)}
        if kind == "inproceedings":
            entries["booktitle"] = self.venue
        if self.arxiv:
            entries |= {"eprint": self.arxiv, "archivePrefix": "arXiv"}
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in entries.items())
        return f"@{kind}{{{self.key},\n{body}\n}}"


@dataclass(frozen=True)
class Sources:
    """Published hyper-parameters of a method, known differences between papers and released code, and our readings."""

    published: Mapping[str, str] = field(default_factory=dict)  # by field: "0.1 (FedSMOO), 0.05 (FedVSSAM)"
    grids: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # what papers or code tried, by field
    departures: tuple[str, ...] = ()  # where released code, or a paper's text, computes something else
    readings: tuple[str, ...] = ()  # how we read what a paper leaves open, or states in two ways
    # Communication relative to FedAvg as FedSMOO's Table 3 and FedLESAM's Tables 5, 7 and 9 count it.
    charged: int | None = None
