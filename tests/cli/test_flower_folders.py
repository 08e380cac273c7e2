"""`fedflat flower run` with clients' own folders: what is given is checked before anything is started."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from fedflat.federation.flower import client_reports
from fedflat.federation.launch import local_federation

TRY = "flower run --rounds 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--client north=north", "set data.name to the format of their files, or give --shape and --classes"),
        ("--shape 1x8x8 --classes 10", "--client NAME=PLACE is needed for each client"),
        ("--shape 1x8x8 --client north=north", "shape and classes go together"),
        ("--shape 1x8x8 --classes 10 --client north", "write NAME=PLACE"),
        ("--shape 1x8x8 --classes 10 --client a=north --client a=north", "a different NAME each time"),
        ("--shape 1x8x8 --classes 10 --client north=nothing", "nothing has no x.npy"),
        ("--data.name csv --client north=north", "data.numeric_columns is needed for sites with tables of their own"),
        ("--data.name csv --client north=nothing", "nothing does not exist"),
        ("--data.name csv --data.clients 2 --data_dir north", "--client NAME=PLACE is needed for each client"),
        ("--data.name npz --data.clients 2 --data_dir north", "a site has x.npy and y.npy: give --shape and --classes"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_one_line(fedflat, flags: str, words: str) -> None:
    Path("north").mkdir()
    np.save("north/x.npy", np.zeros((4, 1, 8, 8), np.float32))
    np.savez("north/train.npz", x=np.zeros((4, 1, 8, 8), np.float32), y=np.arange(4))
    np.savez("north/test.npz", x=np.zeros((4, 1, 8, 8), np.float32), y=np.arange(4))
    code, _, err = fedflat(f"{TRY} {flags} --out fed")
    assert (code, len(err.splitlines())) == (2, 1)
    assert words in err


@pytest.mark.parametrize("private", [False, True])
def test_a_private_rehearsal_reports_nothing_of_its_clients(
    fedflat, monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    """Scores on a client's own samples, beside a model with noise, are what the noise should hide."""
    asked, report = [], client_reports.ClientReport("north", 4, 4)
    monkeypatch.setattr(local_federation, "local_deployment", lambda *_: nullcontext(()))
    monkeypatch.setattr(client_reports, "client_reports", lambda *_: asked.append("reports") or [report])
    monkeypatch.setattr(client_reports, "write_reports", lambda *_: asked.append("file"))
    Path("north").mkdir()
    np.save("north/x.npy", np.zeros((4, 1, 8, 8), np.float32))
    np.save("north/y.npy", np.arange(4))
    settings = "--client.steps 1 --privacy.epsilon 8 --privacy.delta 1e-2 --privacy.clip 1 --privacy.rate 0.5"
    data = "--shape 1x8x8 --classes 10 --client north=north --client south=north"
    code, out, err = fedflat(f"{TRY} {data} {settings if private else ''} --out fed")
    assert (code, err) == (0, "")
    assert asked == ([] if private else ["reports", "file"])
    assert ("not reported" in out) == private
