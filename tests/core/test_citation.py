from __future__ import annotations

from fedflat.core.method import Citation


def test_one_line_and_bibtex() -> None:
    paper = Citation("key2020", "Doe, Jane and Roe, Rick and Poe, Pat", "A Title", "ICML", 2020, "2001.00001")
    assert str(paper) == "Doe et al., ICML 2020, arXiv:2001.00001"
    assert "author = {Doe, Jane and Roe, Rick and Poe, Pat}" in paper.bibtex
    assert paper.bibtex.count("{") == paper.bibtex.count("}")


def test_one_and_two_authors() -> None:
    assert str(Citation("k", "Doe, Jane", "T", "ICML", 2020)) == "Doe, ICML 2020"
    assert str(Citation("k", "Doe, Jane and Roe, Rick", "T", "ICML", 2020)) == "Doe and Roe, ICML 2020"
