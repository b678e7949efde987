"""The posterior and the network of a run, in Python and in files."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer
from gossamer import models
from gossamer.evaluate import predict_inputs, summarize
from gossamer.lab import Settings, evaluate_run, train, trusting
from gossamer.lab.record import RecordError
from gossamer.lab.runs.progress import Interrupted
from gossamer.layers import sparse_weights


def test_every_method_gives_its_posterior(whole, each_method):
    """It predicts what the run predicted when it was evaluated."""
    trained = gossamer.load_run(whole(each_method), device="cpu")
    again = predict_inputs(
        trained.posterior, trained.task, trained.task.test[0], trained.settings.n_draws, seed=trained.settings.seed
    )
    assert summarize(again, trained.task, trained.task.test[1]) == evaluate_run(whole(each_method))
    assert trained.predict(trained.task.test[0][:5]).probs.shape == (5, 10)
    assert trained.settings.method == each_method


def test_each_posterior_is_saved_and_loaded_as_it_is(whole, each_method, tmp_path):
    trained = gossamer.load_run(whole(each_method), device="cpu")
    posterior, file = trained.posterior, gossamer.save(trained.posterior, tmp_path / "saved.safetensors")
    x, outputs = trained.task.test[0][:5], []
    for one in (posterior, gossamer.load(file, models.mlp(64))):
        torch.manual_seed(0)
        outputs.append(gossamer.predict(one, x, n_draws=3).outputs)
    assert torch.equal(*outputs)


@pytest.mark.slow
def test_each_posterior_is_exported(whole, each_method, tmp_path):
    trained = gossamer.load_run(whole(each_method), device="cpu")
    x = trained.task.test[0][:5]
    file = gossamer.export(trained.posterior, tmp_path / "n.pt2", x, format="torch-export", what="draws", n_draws=2)
    program = torch.export.load(file).module()
    assert program(x).shape[1:] == (5, 10)
    assert program(x[:3]).isfinite().all()


def test_the_network_is_plain_torch(whole):
    trained = gossamer.load_run(str(whole("ssvi")))
    network = trained.network()
    assert {type(layer).__module__.split(".")[0] for layer in network.modules()} == {"torch"}
    assert not network.training
    expected = gossamer.draw(trained.model, at_mean=True).eval()
    x = trained.task.transform(trained.task.test[0])
    assert torch.equal(network(x), expected(x))


def what_predicts(model):
    """The state of a network as a file has it: curvatures as σ uses them, without what only training needs."""
    state = dict(model.state_dict())
    for name, weight in sparse_weights(model).items():
        del state[f"{name}.weight.grad_square"]
        state |= {f"{name}.weight.{key}": value for key, value in weight.stored().items()}
    return state


def test_saved_and_exported(whole, tmp_path):
    trained = gossamer.load_run(whole("ssvi"))
    x = trained.task.test[0]
    file = trained.save(tmp_path / "net.safetensors")
    again = gossamer.load(file, models.build("mlp", trained.task.input_shape, trained.task.n_outputs))
    states = [what_predicts(model) for model in (again.model, trained.model)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    exported = trained.export(tmp_path / "net.pt2", format="torch-export")
    found = torch.export.load(exported).module()(x)["probs"]
    torch.testing.assert_close(found, trained.network()(x).softmax(1), rtol=1e-5, atol=1e-5)


def test_a_run_that_is_not_finished(settings, tmp_path):
    with pytest.raises(Interrupted):
        train(settings("sgd", epochs=200), tmp_path / "run", quiet=True, stop_after=0.2)
    with pytest.raises(
        RecordError, match=r"run is not finished: continue it with gossamer train --resume .*unfinished=True"
    ):
        gossamer.load_run(tmp_path / "run")
    trained = gossamer.load_run(tmp_path / "run", unfinished=True)
    assert trained.predict(trained.task.test[0][:2]).probs.shape == (2, 10)


def test_another_device_is_refused_or_taken(whole):
    assert next(gossamer.load_run(whole("sgd"), device=torch.device("cpu")).model.parameters()).is_cpu
    with pytest.raises(ValueError, match="device must be 'auto' or 'cpu' or 'cuda'; got 'tpu'"):
        gossamer.load_run(whole("sgd"), device="tpu")


def test_folders_that_hold_no_run(tmp_path):
    with pytest.raises(RecordError, match="does not exist"):
        gossamer.load_run(tmp_path / "nothing")
    with pytest.raises(RecordError, match=r"config\.toml is missing"):
        gossamer.load_run(tmp_path)


def own_network(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return models.mlp(shape[1] * shape[2], (width,), n_outputs)


width = 16


def test_a_network_or_data_that_have_changed(whole, tmp_path, monkeypatch):
    module = f"{__name__}:own_network"
    run = train(
        Settings("sgd", "digits", model=module, epochs=1, n_draws=1, device="cpu"), tmp_path / "run", quiet=True
    )
    with pytest.raises(RecordError, match="names code that is not part of Gossamer"):
        gossamer.load_run(run.folder)
    with trusting(module):
        assert gossamer.load_run(run.folder).network()[1].out_features == 16
        monkeypatch.setitem(globals(), "width", 17)
        with pytest.raises(RecordError, match=r"does not fit the data .*have they changed .*size mismatch"):
            gossamer.load_run(run.folder)
    copied = Path(shutil.copytree(run.folder, tmp_path / "copy"))
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace(module, "a_module_of_mine:network"))
    found = pytest.raises((RecordError, ValueError), match="Python finds no module 'a_module_of_mine': install it")
    with trusting("a_module_of_mine:network"), found:
        gossamer.load_run(copied)
