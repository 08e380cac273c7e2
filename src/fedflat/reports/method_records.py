"""What a method sends and keeps: the fields of its records by role, and the comments that say what they are."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent
from typing import Any

from ..core.method import Method
from ..core.records import Record
from .method_facts import ROLES

WIDE = 10**9  # parameters of a model beside which windows and scalars are small
FIELD = re.compile(r"^(?:    # *(\S.*)\n)?    (\w+):[^#\n]*(?:# *(\S.*))?$", re.MULTILINE)  # above, name, beside


def all_records(cls: type[Method]) -> dict[str, Any]:
    """Return what a method sends, averages and keeps, by role."""
    method = cls()  # a method around another one has records of its own in each instance
    roles = ROLES if cls.training == "federated" else ("client", "server")
    return {role: getattr(method, role) for role in roles}


def records(cls: type[Method]) -> dict[str, Any]:
    """Return what a method sends and keeps, by role; the mean is among them only where it is not what clients send."""
    found = all_records(cls)
    return {role: record for role, record in found.items() if role != "mean" or record is not found["up"]}


def widths(record: Any, cls: type[Method]) -> dict[str, int]:
    """Return the width of every field for a very large model and default hyper-parameters."""
    found: dict[str, int] = record.widths(WIDE, cls())
    return found


def meanings(cls: type[Method]) -> dict[tuple[Any, str], str]:
    """Return what each field of the records of a method is, by record and name.

    That is the comment beside the field, or else the one above it. A field without a comment is what the field of that
    name in another record of the method is: in the server's if it has one, since the server sends fields of its own.
    """
    comments = {record: _comments(record) for record in reversed(records(cls).values())}
    by_name: dict[str, str] = {}
    for of_record in comments.values():
        by_name = of_record | by_name
    return {
        (record, name): of_record.get(name) or by_name.get(name, "")
        for record, of_record in comments.items() for name in record.__match_args__
    }  # fmt: skip


def _comments(record: type[Record]) -> dict[str, str]:
    """Return the comments of the fields of a record by name, of inherited fields, too."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__[: record.__mro__.index(Record)]):
        try:
            source = dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class of an interactive session
            continue
        found |= {name: beside or above for above, name, beside in FIELD.findall(source) if beside or above}
    return found
