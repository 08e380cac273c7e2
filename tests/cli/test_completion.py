"""What the shell is offered when a user presses the tabulator."""

from __future__ import annotations

import pytest

from fedflat.cli import flag_names
from fedflat.cli.flags import keys
from fedflat.data import source_names
from fedflat.data.partition import all_partitions
from fedflat.experiments.recipe import all_recipes
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.methods import all_methods, plain
from fedflat.models import model_names
from fedflat.reports.listing import paper_names, recipe_names
from support.fresh_process import output_of

COMPLETE = """
import sys
from fedflat.cli import main
sys.argv = ["fedflat"]
try:
    main()
finally:
    assert not {"torch", "numpy", "pydantic"} & set(sys.modules)
"""


def test_the_names_of_files_are_the_names_that_commands_accept() -> None:
    assert set(flag_names.method_names("F")) == set(all_methods())
    assert {plain(name) for name in flag_names.method_names()} == {plain(name) for name in all_methods()}
    assert flag_names.source_names() == source_names()
    assert flag_names.model_names() == model_names()
    assert set(flag_names.partition_names()) == set(all_partitions())
    assert set(recipe_names()) == set(all_recipes())
    assert set(paper_names()) == {recipe.paper for recipe in all_recipes().values()}


@pytest.mark.parametrize(("kind", "spec"), [("run", RunSpec), ("study", StudySpec), ("search", TuningSpec)])
def test_the_settings_are_those_that_flags_accept(kind: flag_names.Kind, spec: type[RunSpec | StudySpec]) -> None:
    """Lists of sections, such as probes, are one flag each."""
    lists = {name for name, info in spec.model_fields.items() if getattr(info.annotation, "__origin__", None) is list}
    expected = {key.partition(".")[0] if key.partition(".")[0] in lists else key for key in keys(spec)}
    found = flag_names.setting_names(kind)
    assert sorted(found) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rec", ["recipes"]),
        ("run --str", ["--strict"]),
        ("methods fedlesam_", ["fedlesam_d", "fedlesam_s"]),
        ("methods FedSM", ["FedSMOO"]),
        ("recipes show fedgf/table", ["fedgf/table1", "fedgf/table2", "fedgf/table3", "fedgf/table5", "fedgf/table9"]),
        ("recipes list feds", ["fedsam", "fedsmoo"]),
        ("data prepare ci", ["cifar10", "cifar100", "cinic10"]),
        ("run file.toml --method.name fedsm", ["fedsmoo"]),
        ("compare --methods fedavg --methods fedsm", ["fedsmoo"]),
        ("recipes run fedgf/table1 --model lene", ["lenet", "lenet5"]),
        ("data partition --partition pathological-", ["pathological-refill"]),
        ("flower export run.toml app --data dig", ["digits"]),
        ("run --rounds 3", []),
        ("run --client.l", ["--client.lr", "--client.lr_decay", "--client.lr_end"]),
        ("run study.toml --method.warm", ["--method.warm_up"]),
        ("compare --see", ["--seeds"]),
        ("tune --tune.conf", ["--tune.configurations"]),
        ("compare --method", ["--methods"]),
        ("recipes run fedgf/table1 --partition.sh", ["--partition.shards_per_client"]),
    ],
)
def test_what_is_offered(words: str, offered: list[str]) -> None:
    """In a new process, as the shell asks; it must be quick, so no library is imported."""
    said = output_of(
        COMPLETE,
        _FEDFLAT_COMPLETE="complete_bash",
        COMP_WORDS=f"fedflat {words}",
        COMP_CWORD=str(len(words.split())),
    )
    assert sorted(said.split()) == offered
