from __future__ import annotations

from fedflat.core.method import Method
from fedflat.experiments.forecast import forecast
from support.studies import run_spec


def test_the_forecast_is_what_the_run_then_spends(method: Method) -> None:
    spec = run_spec(method=type(method).__name__, participation={"bernoulli": 0.4}, rounds=4)
    expected = forecast(spec.build())
    sim = spec.build()
    for _ in sim:
        pass
    spent = sim.history[-1]
    assert spent["gradients"] == expected.gradients
    assert (spent["bytes_down"], spent["bytes_up"]) == (expected.bytes_down, expected.bytes_up)
    kept = sum(x.nbytes for name, x in sim._store.tensors().items() if name != "slots")
    assert kept <= expected.client_state_bytes
