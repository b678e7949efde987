"""``python -m reproductions learned-std``: finished runs predicted in several ways, alone and together."""

import json

import pytest
import torch
from sklearn.metrics import roc_auc_score

from gossamer import data
from gossamer.lab import Settings, evaluate_run, train
from gossamer.lab.runs.result import restored
from gossamer.layers import sparse_weights
from gossamer.posterior import SingleNetwork, predict
from reproductions import StoredParts, fill, learned_std

NAME = "learned-std"
OWN = """
import torch
from gossamer.data import digits
from gossamer.types import Task

def noise(root=None):
    task = digits.load()
    x = torch.rand(150, *task.test[0].shape[1:], generator=torch.Generator().manual_seed(0)) * task.test[0].max()
    return task._replace(test=(x.to(task.test[0].dtype), torch.zeros(150, dtype=torch.long)), name="noise")
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Four seeds of a Bayesian network, two of a plain sparse one."""
    root, trained = tmp_path_factory.mktemp("runs"), []
    for method, seeds, options in (("ssvi", 4, {"density": 0.1}), ("rigl", 2, {"density": 0.1})):
        for seed in range(seeds):
            settings = Settings(method, "digits", epochs=2, n_draws=20, seed=seed, device="cpu", options=options)
            trained.append(train(settings, root / f"{method}-{seed}", quiet=True).folder)
    return trained


@pytest.fixture
def noise(own_modules, monkeypatch):
    monkeypatch.syspath_prepend(own_modules)
    (own_modules / "own_noise.py").write_text(OWN)
    return "own_noise:noise"


@pytest.mark.slow
def test_end_to_end(command, folders, noise, tmp_path):
    out = tmp_path / "out"
    code, text, err = command(NAME, *folders, "--outside", noise, "--out", out)
    assert code == 0, err
    assert "[7/7] digits, ssvi" in err
    stored = StoredParts.read(out / "results.json", NAME)
    runs, ensembles = stored.parts[:6], stored.parts[6:]
    ways = [row["way"] for row in runs[0].rows if "way" in row]
    assert ways == ["means", "5 draws", "20 draws", "20 local passes"]
    assert [row["way"] for row in runs[4].rows] == ["one network"]
    assert [part.settings["seeds"] for part in ensembles] == [[0, 1, 2, 3]]  # two runs make no ensemble of four
    assert [row["way"] for row in ensembles[0].rows] == ["20 draws of 4 networks", "80 draws of 4 networks"]
    for part in stored.parts:
        for row in (row for row in part.rows if "way" in row):
            assert 0.1 < row["accuracy"] <= 1
            assert 0 <= row["ece"] <= 1
            assert 0 <= row["brier"] <= 2
            assert 0 <= row[f"auroc_{noise}"] <= 1
    for words in ("Predictions", "Widths", "80 draws of 4 networks"):
        assert words in text
    assert "<svg" in (out / "plot.svg").read_text()
    # A second time, nothing is measured again; tables are made of the file alone.
    before = (out / "results.json").read_text()
    assert command(NAME, *folders, "--outside", noise, "--out", out, "--quiet")[0] == 0
    assert (out / "results.json").read_text() == before


@pytest.fixture
def measured(folders):
    (part,) = learned_std.plan([str(folders[0])])
    return learned_std.measure(part, lambda *_: None)


def test_the_numbers_are_those_of_the_package(folders, measured):
    rows = {row["way"]: row for row in measured if "way" in row}
    expected = evaluate_run(folders[0])  # by 20 draws
    for key in ("accuracy", "nll", "ece", "brier"):
        assert rows["20 draws"][key] == pytest.approx(expected[key], abs=1e-6)
    result = json.loads((folders[0] / "result.json").read_text())
    for way, name in (("means", "mean"), ("20 local passes", "local")):
        assert rows[way]["nll"] == pytest.approx(result["predictions"][name]["nll"], abs=1e-5)


def test_layers_have_the_quantiles_of_their_entries(folders, measured):
    weights = sparse_weights(restored(folders[0]).training.posterior().model)
    layers = {row["layer"]: row for row in measured if "layer" in row}
    assert list(layers) == list(weights)
    shares = torch.tensor([0.05, 0.5, 0.95])
    for name, weight in weights.items():
        row, std = layers[name], weight.std.detach()
        assert row["n_active"] == len(std)
        nearest = std.quantile(shares, interpolation="nearest")
        torch.testing.assert_close(torch.tensor(row["std"]), nearest, rtol=1e-4, atol=0)
        assert row["snr"] == sorted(row["snr"])
        torch.testing.assert_close(
            torch.tensor(row["curvature"]),
            weight.curvature.quantile(shares, interpolation="nearest"),
            rtol=1e-4,
            atol=0,
        )


def test_auroc_is_that_of_scikit_learn(folders, noise):
    (part,) = learned_std.plan([str(folders[4])], outside=noise)
    (row,) = learned_std.measure(part, lambda *_: None)
    job = restored(folders[4])
    posterior = job.training.posterior()
    assert isinstance(posterior, SingleNetwork)
    inside, outside = (job.task.transform(task.test[0]) for task in (job.task, data.load(noise)))
    scores = [predict(posterior, x, n_draws=1).entropy for x in (inside, outside)]
    labels = torch.cat([torch.full_like(score, number) for number, score in enumerate(scores)])
    expected = roc_auc_score(labels.numpy(), torch.cat(scores).double().numpy())
    assert row[f"auroc_{noise}"] == pytest.approx(expected, abs=1e-5)


def test_tables_fill_a_page(command, folders, tmp_path):
    assert command(NAME, folders[0], folders[1], folders[4], "--out", tmp_path, "--quiet")[0] == 0
    stored = StoredParts.read(tmp_path / "results.json", NAME)
    places = "\n\n".join(
        f"<!-- reproduce:{NAME}:{table} -->\n<!-- /reproduce -->" for table in learned_std.tables(stored)
    )
    filled = fill(places, stored, learned_std)
    assert fill(filled, stored, learned_std) == filled
    both = [part.rows[0]["accuracy"] for part in stored.parts[:2]]
    line = next(line for line in filled.splitlines() if "| means |" in line)
    assert line.startswith("| digits | ssvi | means | 2 | ")
    assert f"{50 * sum(both):.2f} ±" in line
    assert "| digits | rigl | one network | 1 |" in filled


def test_what_it_refuses(command, folders, tmp_path):
    code, _, err = command(NAME, tmp_path / "none", "--out", tmp_path / "out")
    assert (code, "does not exist: check the path" in err) == (1, True)
    code, _, err = command(NAME, folders[0], "--outside", "two_moons", "--out", tmp_path / "out", "--quiet")
    assert (code, "--outside needs inputs of the form that digits has" in err) == (1, True)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.toml").write_text((folders[0] / "config.toml").read_text())
    code, _, err = command(NAME, unfinished, "--out", tmp_path / "out")
    assert (code, "is not finished: continue it with" in err) == (2, True)
