"""Models as ONNX files: onnxruntime, a program without torch, computes the scores of `run.predict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.sample_kind import SampleKind
from fedflat.engine.evaluation import predict
from fedflat.experiments import onnx_file, runner
from fedflat.experiments.onnx_file import onnx_bytes
from fedflat.models import build
from support.studies import run_spec
from support.transformers import picture_folder, text_folder

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
DIGITS = SampleKind((1, 8, 8), "floats", "classification", 10)
PHOTOGRAPHS = SampleKind((3, 32, 32), "pixels", "classification", 10, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
TEXTS = SampleKind((16,), "tokens", "classification", 10)
MODELS = [
    ("mlp", DIGITS), ("cnn", PHOTOGRAPHS), ("lenet5", PHOTOGRAPHS), ("textcnn", TEXTS),
    pytest.param("resnet18-gn", PHOTOGRAPHS, marks=pytest.mark.slow),
    pytest.param("resnet18-bn-cifar", PHOTOGRAPHS, marks=pytest.mark.slow),
]  # fmt: skip


def scores(content: bytes, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["scores"], {"x": x.numpy()})[0])


def samples(kind: SampleKind, number: int, tokens: int = 100) -> Tensor:
    """Samples from torch's random state, which the check in the package does not use."""
    if kind.numbers == "floats":
        return torch.randn(number, *kind.shape)
    if kind.numbers == "pixels":
        return torch.randint(256, (number, *kind.shape), dtype=torch.uint8)
    return torch.randint(tokens, (number, *kind.shape))


@pytest.mark.parametrize(("name", "kind"), MODELS)
def test_scores_are_those_of_predict(name: str, kind: SampleKind) -> None:
    """To 1e-5, for numbers of samples that the file was neither made nor checked with."""
    torch.manual_seed(1)
    model = build(name, classes=10, shape=kind.shape).eval()
    content = onnx_bytes(model, kind)
    for number in (4, 7):
        x = samples(kind, number)
        torch.testing.assert_close(scores(content, x), predict(model, kind, x), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "kind"), [(text_folder, TEXTS), (picture_folder, DIGITS)])
def test_transformers_too_with_padded_texts(folder: Callable[[Path], Path], kind: SampleKind, tmp_path: Path) -> None:
    model = build("transformer", classes=10, shape=kind.shape, path=str(folder(tmp_path / "net"))).eval()
    content, x = onnx_bytes(model, kind), samples(kind, 5, tokens=10)
    if kind is TEXTS:
        x[1, 3:] = x[4, 9:] = 0
    torch.testing.assert_close(scores(content, x), predict(model, kind, x), rtol=0, atol=1e-5)


def test_double_precision_stays_double() -> None:
    model = build("mlp", classes=10, shape=(1, 8, 8)).double().eval()
    content, x = onnx_bytes(model, DIGITS), samples(DIGITS, 4).double()
    torch.testing.assert_close(scores(content, x), predict(model, DIGITS, x), rtol=0, atol=1e-12)


def test_the_file_needs_no_other_file_and_no_code_and_names_no_path() -> None:
    content = onnx_bytes(build("mlp", classes=10, shape=(1, 8, 8)).eval(), DIGITS)
    made = onnx.load_model_from_string(content)
    assert {one.domain for one in made.opset_import} <= {"", "ai.onnx"}
    assert not list(made.functions)
    assert all(one.data_location == onnx.TensorProto.DEFAULT for one in made.graph.initializer)
    assert str(Path(ff.__file__).parents[1]).encode() not in content
    assert str(Path(torch.__file__).parents[1]).encode() not in content


def test_equal_models_give_equal_files() -> None:
    model = build("mlp", classes=10, shape=(1, 8, 8)).eval()
    assert onnx_bytes(model, DIGITS) == onnx_bytes(model, DIGITS)


class Bessel(nn.Linear):
    """A layer with an operator that ONNX lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.special.i0(x.flatten(1)))


class ByNumber(nn.Linear):
    """A layer that depends on the number of samples, which a trace takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * float(len(x))


def test_an_operator_that_torch_cannot_convert_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """And torch's picture of the graph is not printed."""
    with pytest.raises(InputError, match=r"^--format onnx: torch cannot convert the model: .*'aten::i0'.*$") as caught:
        onnx_bytes(Bessel(64, 10).eval(), DIGITS)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_file_with_other_scores_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--format onnx: onnxruntime's scores differ by \S+ from the model's$"):
        onnx_bytes(ByNumber(64, 10).eval(), DIGITS)


def test_an_operator_of_somebody_else_is_refused() -> None:
    node = onnx.helper.make_node("Twice", ["x"], ["scores"], domain="com.example")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "scores")]
    graph = onnx.helper.make_graph([node], "graph", ends[:1], ends[1:])
    domains = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.example", 1)]
    made = onnx.helper.make_model(graph, opset_imports=domains, ir_version=9)
    with pytest.raises(InputError, match=r"^--format onnx: com.example::Twice is no operator of ONNX"):
        onnx_file._check_operators(onnx, made.SerializeToString())


def test_a_model_too_large_for_one_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mlp", classes=10, shape=(1, 8, 8)).eval()
    monkeypatch.setattr(onnx_file, "LARGEST", 4 * 4810 - 1)  # 64 * 64 + 64 + 64 * 10 + 10 parameters
    with pytest.raises(InputError, match=r"^--format onnx: the model has 19,240 bytes, and one ONNX file"):
        onnx_bytes(model, DIGITS)


def test_the_command_writes_it_and_load_py_runs_it_without_torch(fedflat, tmp_path: Path) -> None:
    run = runner.run(run_spec(rounds=1, flatness=[]), tmp_path / "run")
    assert run is not None
    code, out, err = fedflat("export run out --format onnx")
    assert (code, err) == (0, "")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(line.rpartition("/")[2] for line in out.split() if "/" in line)
    assert {"model.onnx", "load.py"} <= set(names)
    x = torch.rand(6, 1, 8, 8)
    space: dict[str, Any] = {"__file__": str(tmp_path / "out" / "load.py")}
    text = (tmp_path / "out" / "load.py").read_text()
    assert "torch" not in text
    exec(text, space)
    torch.testing.assert_close(torch.from_numpy(space["scores"](x.numpy())), run.predict(x), rtol=0, atol=1e-5)
