"""The command that tries every promise finds all of them, and calls none held whose tests failed or did not run."""

from __future__ import annotations

from io import StringIO
from xml.etree import ElementTree

import pytest

from benchmarks.promises import ROOT, UNPROTECTED, Statement, judge, outcomes, statements

REPORT = """<testsuite><testcase classname="tests.a.test_b" name="test_c[1]"/>
<testcase classname="tests.a.test_b" name="test_c[2]"/>
<testcase classname="tests.a.test_b" name="test_d"><failure/></testcase>
<testcase classname="tests.a.test_e" name="test_f"><skipped/></testcase>
<testcase classname="tests.a.test_e" name="test_g"/></testsuite>"""


@pytest.mark.parametrize(
    ("tests", "verdict", "cases"),
    [
        (("tests/a/test_b.py::test_c",), "held", 2),
        (("tests/a/test_b.py::test_d",), "NOT HELD: tests/a/test_b.py::test_d", 1),
        (("tests/a/test_b.py",), "NOT HELD: tests/a/test_b.py", 3),
        (("tests/a/test_b.py::test_c", "tests/a/test_x.py::test_y"), "NOT HELD: tests/a/test_x.py::test_y", 2),
        (("tests/a/test_e.py",), "held, 1 left out", 1),
        (("tests/a/test_e.py::test_f",), "NOT TRIED: needs --all", 0),
        ((), UNPROTECTED, 0),
    ],
)
def test_a_statement_is_held_only_if_all_its_tests_ran_and_passed(
    tests: tuple[str, ...], verdict: str, cases: int
) -> None:
    judged = judge(Statement("page", "text", tests), outcomes(ElementTree.parse(StringIO(REPORT))))
    assert (judged.verdict, judged.tests) == (verdict, cases)


def test_all_statements_of_all_pages_are_found_and_their_tests_are_there() -> None:
    found = statements()
    pages = {one.page for one in found}
    assert pages == {"promises", "docs/threat_model.md", "SECURITY.md"}
    assert sum(not one.tests for one in found) >= 10, "what is not protected"
    files = {test.partition("::")[0] for one in found for test in one.tests}
    assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []
    protected = [one.says for one in found if one.page == "SECURITY.md"]
    assert any("other users of the same machine" in says for says in protected)
