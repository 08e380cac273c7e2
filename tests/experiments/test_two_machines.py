"""A run over two machines in separate networks that one cable connects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedflat.experiments import runner
from support.effort import in_test_all
from support.processes import PATIENCE
from support.studies import run_spec
from support.two_machines import two_machines

pytestmark = [in_test_all, pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")]


def test_torchrun_over_two_machines_ends_with_the_bits_of_one_process(tmp_path: Path) -> None:
    spec = run_spec(method="fedsmoo", executor="stacked", flatness=[])
    runner.run(spec, tmp_path / "alone")
    (tmp_path / "run.toml").write_text(spec.to_toml())
    with two_machines() as machines:
        processes = [
            machine.start(
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}",
                "--nproc-per-node=1", f"--master-addr={machines[0].address}", "--master-port=29511",
                "-m", "fedflat", "run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "two"),
                GLOO_SOCKET_IFNAME=machine.interface, OMP_NUM_THREADS="1",
            )
            for rank, machine in enumerate(machines)
        ]  # fmt: skip
        try:
            output = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert [process.returncode for process in processes] == [0, 0], output
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("alone", "two")]
    assert models[0] == models[1]
