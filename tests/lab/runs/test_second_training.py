"""Own examples that leave too few to hold out: a second training tells how sure the network may be."""

import numpy as np
import pytest

import gossamer
from gossamer.lab import Settings, train
from gossamer.train import Training
from gossamer.train.divergence import DivergenceError


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """300 images whose classes can hardly be told, and 200 to test on: a network learns them by heart."""
    rng, file = np.random.default_rng(0), tmp_path_factory.mktemp("few") / "images.npz"
    y = rng.integers(0, 3, 500)
    x = rng.normal(110, 60, (500, 8, 8, 1)) + 5 * (y[:, None, None, None] - 1)
    x = x.clip(0, 255).astype(np.uint8)
    np.savez(file, x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    return file


def trained(file, tmp_path, **settings):
    given = {"model": "conv_net", "epochs": 40, "n_draws": 5, "device": "cpu", **settings}
    return train(Settings("ssvi", str(file), **given), tmp_path / "run", quiet=True)


def test_the_predictions_of_few_own_images_are_as_sure_as_they_may_be(few, tmp_path):
    plain = trained(few, tmp_path / "plain", calibrate=False).result()
    run = trained(few, tmp_path / "fitted")
    result = run.result()
    assert plain["metrics"]["nll"] > np.log(3)  # worse than the frequencies of the classes
    assert result["metrics"]["nll"] < min(np.log(3), plain["metrics"]["nll"] - 0.3)
    assert result["second_training"]["n_held_out"] == 60
    assert result["calibration"]["logit_temperature"] > 1.5
    assert "second_training" not in plain
    again = gossamer.lab.load_run(run.folder)
    assert again.posterior.temperature == result["calibration"]["logit_temperature"]
    assert len(again.task.train[1]) == 300


def test_named_sets_tables_and_the_few_that_are_too_few_train_once(few, tmp_path):
    assert "second_training" not in trained("digits", tmp_path / "named", epochs=1, n_train=300).result()
    assert "second_training" not in trained(few, tmp_path / "few", epochs=1, n_train=200).result()
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "\n".join(f"{i},{'yes' if i % 3 else 'no'}" for i in range(400)))
    settings = {"model": None, "target": "b", "epochs": 1}
    assert "second_training" not in trained(table, tmp_path / "table", **settings).result()


def test_a_second_training_that_diverges_leaves_the_first(few, tmp_path, monkeypatch, caplog):
    runs, run = [], Training.run

    def first_only(training):
        runs.append(training)
        if len(runs) == 2:
            raise DivergenceError("step 3: the loss is nan")
        return run(training)

    monkeypatch.setattr(Training, "run", first_only)
    result = trained(few, tmp_path, epochs=1).result()
    assert not {"second_training", "calibration"} & set(result)
    assert "the second training diverged, and nothing is calibrated: step 3" in caplog.text
