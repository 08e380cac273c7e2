"""What a configuration and the classes that it names say of good and bad values of every field.

    python -m benchmarks.verdicts --out verdicts.json [--before older.json]

Every field of all methods, partitions, measures and of Client, Guard, Attack, Privacy, LoRA and DataOptions is given
each of `VALUES`, once in a table as a file of settings has it, and once as a keyword of the class. The file has a row
for each trial. Printed are the fields whose class accepts what a table does not, and with --before all differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from math import inf, nan
from typing import Any

import fedflat as ff
from benchmarks.compared_rows import write_rows
from fedflat.core.errors import InputError
from fedflat.data.partition import all_partitions
from fedflat.data.selection import DataOptions
from fedflat.experiments.config_errors import validated
from fedflat.experiments.measuring import MeasureList
from fedflat.experiments.spec import RunSpec
from fedflat.methods import all_methods
from fedflat.metrics.flatness import all_measures

VALUES: tuple[Any, ...] = (-1, 0, 1, 0.5, 3, 2.5, 1e300, inf, nan, True, "text", "none", None, "0.5", ["q"], {})
Row = tuple[str, str, str | None, str | None]  # field, value, and what table and class make of it; None is refused
GIVEN: dict[type[Any], dict[str, Any]] = {  # what a class needs besides the field that is tried
    ff.Guard: {"bound": 3.0},
    ff.LoRA: {"targets": ["q"]},
    ff.Privacy: {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "rate": 0.5},
}


def subjects() -> Iterator[tuple[str, type[Any], dict[str, Any]]]:
    """List the key, the class and the table without the tried field of everything that is configured."""
    named = {"method": all_methods(), "partition": all_partitions(), "measures": all_measures(),
             "adapter": {"lora": ff.LoRA}}  # fmt: skip
    for key, classes in named.items():
        yield from ((key, cls, {"name": name}) for name, cls in classes.items())
    sections = {"client": ff.Client, "guard": ff.Guard, "attack": ff.Attack, "privacy": ff.Privacy, "data": DataOptions}
    yield from ((key, cls, {}) for key, cls in sections.items())


def rows() -> Iterator[Row]:
    """Try every value of every field."""
    for key, cls, named in subjects():
        given = GIVEN.get(cls, {})
        for field in fields(cls):
            for value in VALUES:
                table = named | given | {field.name: value}
                told = _told(lambda table=table, key=key, name=field.name: _of_table(key, table)[name])
                made = _told(lambda cls=cls, given=given, name=field.name, value=value:
                             getattr(cls(**given | {name: value}), name))  # fmt: skip
                yield f"{key}.{named.get('name', '')}.{field.name}", repr(value), told, made


def _of_table(key: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the table after it was read as a part of a configuration."""
    if key == "measures":
        found: dict[str, Any] = validated(MeasureList, {"measures": [table]}).model_dump()["measures"][0]
        return found
    read: dict[str, Any] = validated(RunSpec, {key: table}).model_dump()[key]
    return read


def _told(make: Callable[[], Any]) -> str | None:
    """Return the repr of what is made; None if it is refused in one line."""
    try:
        return repr(make())
    except InputError:
        return None


def main() -> None:
    """Write all rows, and print those to look at."""
    found, before = write_rows(__doc__, rows())
    holes = [row for row in found if row[2] is None and row[3] is not None]
    same = sum((table is None) == (made is None) for _, _, table, made in found)
    print(f"{len(found)} trials; {same} verdicts are the same; {len(holes)} times only the class accepts")
    for field, value, _, made in holes:
        print(f"  only the class accepts {field} = {value}: {made}")
    for field, value, table, made in found:
        if table is not None and made is None:
            print(f"  only a table accepts {field} = {value}: {table}")
    if before is not None:
        old = {(field, value): (table, made) for field, value, table, made in before}
        for field, value, *now in found:
            if (was := old.get((field, value))) != tuple(now):
                print(f"  {field} = {value}: (table, class) were {was}, are {tuple(now)}")


if __name__ == "__main__":
    main()
