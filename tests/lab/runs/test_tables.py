"""A table by the command is trained as the estimators train it."""

import copy
import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

from gossamer import methods
from gossamer.data import load
from gossamer.distributed import OneProcess
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor, base
from gossamer.estimators.members import MemberSteps
from gossamer.lab import Settings, load_run, train
from gossamer.lab.runs.job import start
from gossamer.lab.runs.settings import prepared
from gossamer.models import build
from gossamer.train import Training


def written(path, x, y):
    names = [f"x{j}" for j in range(x.shape[1])]
    rows = [",".join(map(str, row)) for row in np.column_stack([x, y])]
    path.write_text("\n".join([",".join([*names, "y"]), *rows]))
    return str(path)


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """Three columns, of which the first is all that matters, and little noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    return written(tmp_path_factory.mktemp("tables") / "line.csv", x, x[:, 0] + rng.normal(0, 0.02, 300))


@pytest.fixture
def plans(monkeypatch):
    """What the estimators have planned, stage by stage."""
    plan_of, made = base.plan_of, []
    monkeypatch.setattr(base, "plan_of", lambda *parts: made.append(plan_of(*parts)) or made[-1])
    return made


def test_what_is_left_open_is_the_estimators(line, plans):
    settings, task = prepared(Settings("ssvi", line, target="y"))
    x, y = task.train[0].numpy(), task.train[1].numpy().ravel()
    model = SparseBayesRegressor(random_state=0).fit(x, y)
    plan = plans[-1]
    assert task.record["selected"] == model._inputs.columns.tolist() == [0]
    assert (settings.batch_size, settings.rounds) == (plan.batch_size, plan.rounds)
    assert 0 <= settings.epochs * -(-len(y) // settings.batch_size) - plan.steps < -(-len(y) // settings.batch_size)
    assert settings.options["members"] == plan.members
    assert {name: settings.options[name] for name in plan.options} == plan.options
    network = build(settings.model, task.input_shape, task.n_outputs)
    assert str(network) == str(plan.architecture.build())


@pytest.mark.parametrize(
    ("given", "density"), [({}, 0.2), ({"options": {"density": 0.5}}, 0.5), ({"model": "mlp"}, 0.05)]
)
def test_images_of_ones_own_get_a_convolutional_network(given, density, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2)
    chosen, _ = prepared(Settings("ssvi", str(tmp_path / "x.npz"), **given))
    assert (chosen.model, chosen.options["density"]) == (given.get("model", "pooled_conv_net"), density)


def test_what_is_given_stays(line):
    given = {"density": 0.05, "std": "curvature", "members": 1}
    settings, _ = prepared(Settings("ssvi", line, target="y", epochs=3, batch_size=10, model="mlp", options=given))
    assert (settings.epochs, settings.batch_size, settings.model, settings.rounds) == (3, 10, "mlp", 1)
    assert given.items() <= settings.options.items()
    assert prepared(settings)[0] == settings


def test_other_methods_keep_their_mathematics(line, plans):
    settings, task = prepared(Settings("sgd", line, target="y"))
    SparseBayesRegressor("sgd", random_state=0).fit(task.train[0].numpy(), task.train[1].numpy().ravel())
    assert settings.model == "table_one_noise"
    assert settings.batch_size == plans[-1].batch_size == 256
    assert settings.options["lr"] is None  # chosen at the start, and lowered to what the loss bears


def test_a_run_predicts_with_the_inputs_that_were_selected(line, tmp_path):
    run = train(Settings("ssvi", line, target="y", epochs=5, n_draws=3), tmp_path / "run", quiet=True)
    assert json.loads((tmp_path / "run" / "data.json").read_text())["own"]["selected"] == [0]
    trained = load_run(run.folder)
    assert trained.task.input_shape == (1,)
    x = trained.task.test[0]
    same, other = torch.cat([x[:, :1], x[:, 1:] + 5], 1), x + 5
    assert torch.equal(trained.task.transform(same), trained.task.transform(x))
    assert not torch.equal(trained.task.transform(other), trained.task.transform(x))
    assert trained.task.likelihood.error == (min(1.0, 2 * run.result()["largest_error"]),)
    assert trained.predict(x).std.min() > 0.02


def test_the_noise_of_a_run_that_knows_its_rows_by_heart_is_that_of_rows_held_out(tmp_path):
    """A signal of std 3 in one of ten columns and noise of std 2, so 0.55 of the target's std."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 10))
    y = 3 * x[:, 0] + 2 * rng.normal(size=1000)
    file = written(tmp_path / "few.csv", x[:300], y[:300])
    run = train(Settings("sgd", file, target="y", n_draws=1), tmp_path / "run", quiet=True)
    (noise,) = run.result()["held_out_noise"]
    assert 0.45 < noise < 0.75
    trained = load_run(run.folder)
    assert trained.task.likelihood.likelihood.least == (noise,)
    low, high = trained.predict(torch.from_numpy(x[300:])).interval(0.9)
    target = torch.from_numpy(y[300:, None] - trained.task.target_mean) / trained.task.target_std
    assert 0.86 < ((low < target) & (target < high)).double().mean() < 0.94


def test_rounds_go_on_while_the_loss_falls_and_resume_to_the_bit(line):
    task = load(line, target="y")
    make = {"steps": 60, "batch_size": 64, "rounds": 3, "build": lambda: build("table", (3,), 2)}
    options = {"density": 0.3, "std": "gradient", "kl_weight": 0.5, "members": 2}

    def training():
        torch.manual_seed(0)
        method = methods.build("ssvi", task, 60, **options)
        return Training(method, build("table", (3,), 2), task, **make)

    whole = training()
    rates = [whole.lr for _ in whole.run()]
    assert whole.step == whole.steps > 120  # at least one of two members took another round
    tops = {max(rates[i : i + 60]) for i in range(0, whole.step, 60)}
    assert 0.01 in tops <= {0.02, 0.01, 0.005}  # half the rate in each round
    parts = training()
    for _ in parts.run(90):
        pass
    state = copy.deepcopy(parts.state_dict())
    again = training()
    again.load_state_dict(state)
    for _ in again.run():
        pass
    assert again.step == whole.step
    same = zip(whole.model.state_dict().values(), again.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


def test_one_network_takes_native_steps(line):
    settings, task = prepared(Settings("ssvi", line, target="y", epochs=2))
    training = start(settings, task, OneProcess())
    training.advance()
    assert isinstance(training.taking, MemberSteps)


@pytest.mark.slow
@pytest.mark.parametrize("of_numbers", [True, False])
def test_both_doors_are_as_good(of_numbers, tmp_path):
    """The difference of two trainings by chance is below these 0.03 nats; means of three seeds."""
    loaded = load_diabetes() if of_numbers else load_breast_cancer()
    path = written(tmp_path / "table.csv", loaded.data, loaded.target)
    nlls = []
    for seed in range(3):
        run = train(Settings("ssvi", path, target="y", seed=seed), tmp_path / str(seed), quiet=True)
        task = load_run(run.folder).task
        (x, y), (x_test, y_test) = task.train, task.test
        if of_numbers:
            model = SparseBayesRegressor(random_state=seed).fit(x.numpy(), y.numpy().ravel())
            other = -model.predict_log_density(x_test.numpy(), y_test.numpy().ravel()).mean() + np.log(task.target_std)
            assert 0.8 < run.result()["metrics"]["coverage90"] < 0.98
        else:
            model = SparseBayesClassifier(random_state=seed).fit(x.numpy(), y.numpy())
            other = -np.log(model.predict_proba(x_test.numpy())[np.arange(len(y_test)), y_test.numpy()]).mean()
        nlls.append((run.result()["metrics"]["nll"], other))
    command, estimator = np.mean(nlls, axis=0)
    assert command < estimator + 0.03
