"""The example files for clusters say what the how-to page promises of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml
from typer.main import get_command

from fedflat.cli.app import app
from fedflat.cli.flag_names import check_flags

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUND = 60  # seconds; a round takes less on most hardware


def accept(words: list[str]) -> None:
    """Parse the words of `fedflat work`."""
    context = get_command(app).commands["work"].make_context("work", words)
    check_flags(context.args, "study")
    assert str(context.params["out"]).startswith("/")


def test_the_job_of_kubernetes_starts_pods_that_share_a_study_and_have_time_to_save() -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes" / "study.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    assert pod["restartPolicy"] == "Never", "which podFailurePolicy needs"
    assert spec["backoffLimitPerIndex"] > 0
    assert pod["terminationGracePeriodSeconds"] > ROUND
    (container,) = pod["containers"]
    program, command, *words = container["command"]
    assert (program, command) == ("fedflat", "work")
    accept(words)
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
    assert all(word.startswith(mount["mountPath"]) for word in words if word.startswith("/"))
    not_again, ignored = spec["podFailurePolicy"]["rules"]
    assert not_again["onExitCodes"]["containerName"] == container["name"]
    assert (not_again["action"], not_again["onExitCodes"]["values"]) == ("FailIndex", [1, 2])
    assert (ignored["action"], ignored["onPodConditions"]) == ("Ignore", [{"type": "DisruptionTarget"}])


def test_the_script_of_slurm_is_told_of_the_time_limit_in_time_and_goes_on_in_its_log() -> None:
    lines = (EXAMPLES / "slurm" / "work.sbatch").read_text().splitlines()
    options = dict(
        shlex.split(line.removeprefix("#SBATCH "), comments=True)[0].partition("=")[::2]
        for line in lines
        if line.startswith("#SBATCH ")
    )
    assert options["--signal"].startswith("TERM@")
    assert int(options["--signal"].removeprefix("TERM@")) > ROUND
    assert (options["--requeue"], options["--open-mode"], options["--ntasks"]) == ("", "append", "1")
    assert "%a" in options["--output"]
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:]), "sbatch would not read it"
