"""Exported networks predict in onnxruntime and in torch what the posterior predicts, for batches of any size."""

import contextlib
import copy
import json
import math
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer.data import Normalize
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.methods.mc_dropout import Dropped, with_dropout
from gossamer.posterior import InLayers, Mixture, Prediction, Refresh, SingleNetwork
from gossamer.types import Task

FORMATS = {"onnx": ".onnx", "torch-export": ".pt2"}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def convolutions() -> nn.Module:
    first = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[0][:, -1]


NETWORKS = {"mlp": (mlp, (6,)), "conv": (convolutions, (2, 6, 6)), "lstm": (Recurrent, (5, 4))}
EACH = ["mlp", pytest.param("conv", marks=pytest.mark.slow), pytest.param("lstm", marks=pytest.mark.slow)]


def run(file: Path, *inputs: Tensor) -> dict[str, Tensor]:
    """The outputs of an exported network by name."""
    if file.suffix == ".pt2":
        found = torch.export.load(file).module()(*inputs)
        return {k: v.detach() for k, v in found.items()} if isinstance(found, dict) else {"output": found.detach()}
    session = onnx_session(file)
    names = [node.name for node in session.get_inputs()]
    found = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
    return {node.name: torch.from_numpy(value) for node, value in zip(session.get_outputs(), found, strict=True)}


def onnx_session(file: Path):
    runtime = pytest.importorskip("onnxruntime")
    runtime.set_seed(0)
    return runtime.InferenceSession(str(file))


def near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


@pytest.fixture(params=FORMATS)
def form(request) -> str:
    if request.param == "onnx":
        pytest.importorskip("onnxscript")
    return request.param


@pytest.fixture(params=[pytest.param("onnx", marks=pytest.mark.slow), "torch-export"])
def each_form(request) -> str:
    """The same, for what takes the exporter of ONNX long."""
    return request.param


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def bayesian(name: str, **options) -> tuple[nn.Module, Tensor]:
    make, shape = NETWORKS[name]
    model = gossamer.bayesianize(make(), **{"density": 0.2, "keep_dense": (), **options})
    return model.eval(), torch.randn(7, *shape)


@pytest.mark.parametrize("name", EACH)
def test_the_mean_network(name: str, form: str, tmp_path: Path):
    model, x = bayesian(name)
    file = gossamer.export(model, tmp_path / f"net{FORMATS[form]}", x[:2], format=form)
    near(run(file, x), {"output": gossamer.draw(model, at_mean=True)(x).detach()})


@pytest.mark.parametrize("name", EACH)
def test_draws_in_one_graph(name: str, form: str, tmp_path: Path):
    model, x = bayesian(name, init_std=0.3)
    file = tmp_path / f"net{FORMATS[form]}"
    torch.manual_seed(1)
    expected = gossamer.predict(model, x, 4)
    torch.manual_seed(1)
    gossamer.export(model, file, x[:2], format=form, what="draws", n_draws=4, likelihood=Categorical())
    names = ("probs", "entropy", "mutual_information")
    near(run(file, x), {name: getattr(expected, name) for name in names})
    assert (expected.mutual_information > 1e-4).any()


@pytest.mark.parametrize("name", EACH)
def test_noise_at_each_call(name: str, form: str, tmp_path: Path):
    """Outputs of many calls have the moments of the model's own passes."""
    model, x = bayesian(name, init_std=0.3, density=0.5)
    file = gossamer.export(model, tmp_path / f"net{FORMATS[form]}", x, format=form, what="noise")
    n = 400
    if form == "onnx":
        session = onnx_session(file)
        found = torch.stack([torch.from_numpy(session.run(None, {"x": x.numpy()})[0]) for _ in range(n)])
    else:
        program = torch.export.load(file).module()
        found = torch.stack([program(x).detach() for _ in range(n)])
    with torch.no_grad():
        expected = torch.stack([model(x) for _ in range(n)])
    error = expected.std(0) * math.sqrt(2 / n)  # of the difference of two means
    assert ((found.mean(0) - expected.mean(0)).abs() < 5 * error).all()
    # The standard error of a variance of n numbers is √((κ - 1)/n) of it, that of the ratio of two √2 times that.
    # Behind a noisy layer tails are heavier than the κ = 3 of a normal distribution, which 400 numbers hardly show.
    both = torch.cat([found - found.mean(0), expected - expected.mean(0)])
    kurtosis = (both**4).mean(0) / both.square().mean(0) ** 2
    ratio = found.var(0) / expected.var(0)
    assert (ratio.log().abs() < 5 * (2 * (kurtosis.clamp_min(4) - 1) / n).sqrt()).all()


def test_outputs_of_draws_without_a_likelihood_are_stacked(each_form: str, tmp_path: Path):
    model, x = bayesian("mlp")
    file = gossamer.export(model, tmp_path / f"net{FORMATS[each_form]}", x, format=each_form, what="draws", n_draws=3)
    assert run(file, x)["output"].shape == (3, 7, 3)


def test_a_task_brings_its_transform_and_units(each_form: str, tmp_path: Path):
    pixels = torch.randint(256, (9, 1, 4, 4), dtype=torch.uint8)
    split = (pixels, torch.zeros(9, 1))
    task = Task(
        split, split, split, Gaussian(), 2, transform=Normalize((0.5,), (0.25,)), target_mean=10.0, target_std=3.0
    )
    model = gossamer.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), density=0.5, init_std=0.2)
    file = tmp_path / f"net{FORMATS[each_form]}"
    torch.manual_seed(1)
    expected = gossamer.predict(model, task.transform(pixels), 5, likelihood=Gaussian())
    torch.manual_seed(1)
    gossamer.export(InLayers(model), file, format=each_form, what="draws", n_draws=5, task=task)
    stds = {"std": 3 * expected.std, "epistemic_std": 3 * expected.epistemic_std}
    near(run(file, pixels), {"mean": 10 + 3 * expected.mean} | stds)


@pytest.mark.parametrize("what", ["mean", "draws"])
def test_a_file_says_what_it_holds_and_nothing_of_the_machine_that_wrote_it(form: str, what: str, tmp_path: Path):
    pixels = torch.randint(256, (9, 1, 4, 4), dtype=torch.uint8)
    split = (pixels, torch.zeros(9, dtype=torch.int64))
    classes = ("T-shirt", "naïve", "bag")
    task = Task(split, split, split, Categorical(), 3, transform=Normalize((0.5,), (0.25,)), class_names=classes)
    model = gossamer.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), density=0.5)
    file = tmp_path / f"net{FORMATS[form]}"
    gossamer.export(InLayers(model), file, format=form, what=what, n_draws=2, task=task)
    if form == "onnx":
        onnx = pytest.importorskip("onnx")
        written = onnx.load(file)
        notes = {entry.key: entry.value for entry in written.metadata_props}
        axes = [[size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
                for value in (*written.graph.input, *written.graph.output)]  # fmt: skip
        assert axes == [["batch", 1, 4, 4], ["batch", 3], ["batch"], ["batch"]][: 3 + (what == "draws")]
        each = (*written.graph.node, *written.graph.value_info, *written.graph.initializer)
        assert not any(part.metadata_props or part.doc_string for part in (*each, written.graph))
    else:
        extra = {"gossamer.json": ""}
        torch.export.load(file, extra_files=extra)
        notes = json.loads(extra["gossamer.json"])
    networks = 1 if what == "mean" else 2
    assert json.loads(notes.pop("class_names")) == list(classes)
    numbers = 51 if what == "mean" else 3 + 24 * (1 + networks)  # biases, positions, and a value for each draw
    held = {"what": what, "networks": str(networks), "numbers": str(numbers), "bytes": str(4 * numbers)}
    assert notes == {"gossamer": gossamer.__version__, **held}
    with zipfile.ZipFile(file) if form != "onnx" else contextlib.nullcontext() as archive:
        parts = [file.read_bytes()] if archive is None else [archive.read(name) for name in archive.namelist()]
    home = str(Path(gossamer.__file__).parents[2]).encode()
    assert not any(path in part for part in parts for path in (home, b"site-packages", b"test_programs.py"))


def test_draws_of_dropout_and_of_ensembles(each_form: str, tmp_path: Path):
    x = torch.randn(7, 6)
    for posterior in (Dropped(with_dropout(mlp())), Mixture([SingleNetwork(mlp()), SingleNetwork(mlp())])):
        file = tmp_path / f"net{FORMATS[each_form]}"
        torch.manual_seed(1)
        expected = gossamer.predict(posterior, x, 2)
        torch.manual_seed(1)
        gossamer.export(posterior, file, x[:2], format=each_form, what="draws", n_draws=2, likelihood=Categorical())
        torch.testing.assert_close(run(file, x)["probs"], expected.probs, rtol=1e-5, atol=1e-5)


def test_a_network_of_two_inputs(each_form: str, tmp_path: Path):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.left(a) + self.right(b)

    model, inputs = gossamer.sparsify(Sum(), density=0.5), (torch.randn(6, 4), torch.randn(6, 5))
    file = gossamer.export(
        model, tmp_path / f"net{FORMATS[each_form]}", [part[:2] for part in inputs], format=each_form
    )
    near(run(file, *inputs), {"output": model(*inputs).detach()})


def test_the_model_is_as_it_was(tmp_path: Path):
    model, x = bayesian("conv")
    model.train()
    before = copy.deepcopy(model.state_dict())
    for what in ("mean", "noise", "draws"):
        gossamer.export(model, tmp_path / "net.pt2", x, format="torch-export", what=what, n_draws=2)
    assert model.training
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert gossamer.kernels.in_use() == "auto"


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch):
    model, x = bayesian("mlp")
    file = tmp_path / "net.pt2"

    def export(posterior=model, file=file, x=x, **options):
        return gossamer.export(posterior, file, x, **{"format": "torch-export", **options})

    ensemble = Mixture([InLayers(model), InLayers(model)])
    refreshed = InLayers(bayesian("conv")[0], refresh=Refresh(torch.randn(4, 2, 6, 6)))
    for call, words in [
        (lambda: export(x=x[:1]), "x must have two examples or more"),
        (lambda: export(x=None), "export needs x"),
        (lambda: export(file=tmp_path / "net.bin"), r"is called ….pt2; got"),
        (lambda: export(format="tflite"), "format must be one of 'onnx', 'torch-export'; got 'tflite'"),
        (lambda: export(what="all"), "what must be one of"),
        (lambda: export(what="draws", n_draws=0), "n_draws must be at least 1"),
        (lambda: export(ensemble), "Mixture has no mean network: take several draws"),
        (lambda: export(ensemble, what="noise"), "a Mixture has no noise .* what='draws'"),
        (lambda: export(refreshed, what="noise"), "batch normalisation that is not refreshed"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ValueError, match="torch cannot export this network as torch-export"):
        export(SingleNetwork(Branching()))
    with pytest.raises(FileNotFoundError, match="no does not exist: make this folder first"):
        export(file=tmp_path / "no" / "net.pt2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs onnx: pip install 'gossamer\[onnx\]'"):
        gossamer.export(model, tmp_path / "net.onnx", x)


def test_mean_networks_of_posteriors():
    """At the mean of the weights: of one draw where nothing is drawn, and with nothing dropped."""
    x = torch.randn(4, 6)
    network = mlp()
    for posterior in (SingleNetwork(network), Mixture([SingleNetwork(network)]), Dropped(network)):
        assert torch.equal(posterior.mean_network()(x), network(x))
    model, _ = bayesian("mlp")
    expected = Prediction(gossamer.draw(model, at_mean=True)(x)[None])
    assert torch.equal(Prediction(InLayers(model).mean_network()(x)[None]).probs, expected.probs)
