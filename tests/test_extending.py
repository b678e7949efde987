"""With the extending guide alone, somebody adds a method, a criterion, a data set and a metric; every command works.

The files are those of ``docs/guides/extending.md``, word for word, in an empty folder that is not on Python's path.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from gossamer import data, load, methods, models, predict, save
from gossamer._text.names import lookup
from gossamer.files import container
from gossamer.lab import trusting
from gossamer.lab.cli import listing, main
from gossamer.metrics import METRICS
from gossamer.posterior import InLayers
from gossamer.sparsity.criteria import REMOVAL
from gossamer.types import LayerStats, WeightStats

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "extending.md"
FILES = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
QUICK = ("--epochs=4", "--n_draws=3", "--quiet", "--debug")


@pytest.fixture(autouse=True)
def files(own_modules):
    """The files of the guide, in an empty folder."""
    for name, text in FILES.items():
        (own_modules / name).write_text(text, encoding="utf-8")


@pytest.fixture
def importable(own_modules):
    """Python finds the files, as it does for a script beside them."""
    sys.path.insert(0, str(own_modules))


def gossamer(*arguments: str) -> int:
    return main([*arguments])


def result(run: str) -> dict:
    return json.loads(Path(run, "result.json").read_text("utf-8"))


def test_the_guide_has_a_file_for_each_kind_of_addition():
    additions = {"lamp", "square_root", "worst_class", "breast_cancer", "visits", "residual", "evolution", "causal"}
    assert {Path(name).stem for name in FILES} == additions | {"dropconnect", "stacked"}


def test_a_posterior_and_weights_of_ones_own_come_back_from_a_file_that_is_trusted(importable):
    from dropconnect import drop_connect
    from stacked import Stacked

    def network() -> torch.nn.Module:
        return models.mlp(4, (16,), 2)

    posterior = Stacked([InLayers(drop_connect(network(), density=0.5)) for _ in range(2)], [0.75, 0.25])
    weight = posterior.model[1].weight
    draws = torch.stack([weight.sample() for _ in range(4000)])
    error = 4 * weight.std / 4000**0.5  # four standard errors
    assert bool(((draws.mean(0) - weight.expected()).abs() <= error).all())
    file = save(posterior, Path("stacked.safetensors"))
    with pytest.raises(ValueError, match=r"not part of Gossamer: stacked:Stacked.*trusting"):
        load(file, network())
    with trusting("stacked:Stacked", "dropconnect:DropConnectWeight"):
        again = load(file, network())
    assert (type(again), again.shares) == (Stacked, [0.75, 0.25])
    x, outputs = torch.randn(3, 4), []
    for one in (posterior, again):
        torch.manual_seed(0)
        outputs.append(predict(one, x, n_draws=8).outputs)
    assert torch.equal(*outputs)
    config = container.from_bytes(file.read_bytes())
    config["content"]["posterior"] = "os:system"  # named by somebody who hopes that it is called
    file.write_bytes(container.to_bytes(config))
    with pytest.raises(ValueError, match="not part of Gossamer: os:system"):
        load(file, network())
    with trusting("os:system"), pytest.raises(ValueError, match="is 'os:system', which is no Posterior"):
        load(file, network())


def test_the_method_trains_and_leaves_a_complete_run():
    assert gossamer("train", "evolution:evolution", "digits", "--density=0.2", "--out=run", *QUICK) == 0
    config = tomllib.loads(Path("run/config.toml").read_text("utf-8"))
    assert (config["method"], config["options"]["density"]) == ("evolution:evolution", 0.2)
    assert config["options"]["update_period"] == 10  # the signature is the configuration
    found = result("run")
    assert found["metrics"]["accuracy"] > 0.6
    assert found["cost"]["density"] == pytest.approx(0.2, abs=1e-3)
    updates = Path("run/subspace.jsonl").read_text("utf-8").splitlines()
    assert sum(json.loads(updates[0])["replaced"].values()) > 0


def test_the_method_resumes_to_the_bit(monkeypatch):
    given = ("train", "evolution:evolution", "breast_cancer:load", *QUICK)
    assert gossamer(*given, "--out=whole") == 0
    assert gossamer(*given, "--out=stopped", "--stop_after=0", "--checkpoint_seconds=0") == 130
    assert not Path("stopped/result.json").exists()
    sys.modules.pop("evolution")  # as in a new process
    trust = "--trust=evolution:evolution,breast_cancer:load"
    assert gossamer("train", "--resume", "stopped", trust, "--quiet", "--debug") == 0
    assert result("stopped")["metrics"] == result("whole")["metrics"]


def test_a_run_cannot_have_the_code_beside_it_executed(own_modules):
    """A run that came with a module of the name that its configuration holds: nobody typed that name."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        sys.executable,
        "-P",
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from gossamer.lab.cli import main; sys.exit(main())",
    ]
    source = str(Path(methods.__file__).parents[2])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, source, *arguments], env=environment, capture_output=True, text=True)

    given = ("train", "evolution:evolution", "breast_cancer:load", "--out=run", *QUICK)
    assert run(*given, "--stop_after=0", "--checkpoint_seconds=0").returncode == 130
    for module in own_modules.glob("*.py"):
        module.write_text("from pathlib import Path\nPath('executed').touch()\n")
    Path("run").rename("a:b")  # nor does the name of a folder count as one that was typed
    for asked in (("train", "--resume"), ("evaluate",), ("train", "--config", "a:b/config.toml", "--out")):
        refused = run(*asked, "a:b")
        assert refused.returncode in (1, 2)
        assert "--trust breast_cancer:load,evolution:evolution" in refused.stderr
    assert not Path("executed").exists()


def test_a_run_cannot_call_what_is_imported_already(capsys):
    """A configuration can name any function of any module, os.system among them: it is not even looked up."""
    assert gossamer("train", "sgd", "digits", "--out=run", *QUICK) == 0
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace('"digits"', '"os:system"') + "\n", encoding="utf-8")
    config.write_text('data_dir = "touch executed"\n' + config.read_text("utf-8"), encoding="utf-8")
    for command in (("evaluate", "run"), ("predict", "run", "-"), ("train", "--config", "run/config.toml")):
        assert gossamer(*command) != 0
        assert "names code that is not part of Gossamer: os:system" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_the_method_the_data_set_and_the_metric_are_compared_and_reported(capsys):
    given = ("compare", "evolution:evolution,ssvi", "--data=breast_cancer:load", "--seeds=1", "--out=both")
    assert gossamer(*given, *QUICK) == 0
    printed = capsys.readouterr().out
    assert "worst class" in printed
    assert "evolution:evolution" in printed
    page = Path("both/report.html").read_text("utf-8")
    assert "Worst class" in page
    assert "Accuracy on the class that it recognises worst." in page
    assert "Comparison on breast_cancer" in page
    assert "breast_cancer:load" in Path("both/ssvi-0/report.html").read_text("utf-8")
    assert gossamer(*given, *QUICK) == 0  # finished runs are found again


def test_the_likelihood_is_trained_evaluated_reported_and_predicted(own_modules, capsys):
    given = ("train", "ssvi", "visits:load", "--density=0.2", "--lr=0.005", "--epochs=30", "--n_draws=5", "--out=run")
    assert gossamer(*given, "--quiet", "--debug") == 0
    measured = result("run")["metrics"]
    assert set(measured) == {"rmse", "nll", "crps", "coverage90", "width90", "std", "epistemic_std"}
    import visits

    x, y = visits.load().test
    truth = torch.distributions.Poisson((1 + 0.7 * x[:, :1] + 0.5 * x[:, 1:2].sin()).exp())
    best = -float(truth.log_prob(y).mean())
    assert best < measured["nll"] < best + 0.1
    assert measured["rmse"] < 1.1 * float((truth.mean - y).square().mean().sqrt())
    curves = result("run")["curves"]
    assert {"points", "coverage", "errors"} <= curves.keys()
    # Of as many counts as rows, half of the rows lie in the intervals of 50 %: three standard errors, and the fit.
    half = dict(zip(curves["coverage"]["nominal"], curves["coverage"]["actual"], strict=True))[0.5]
    assert half == pytest.approx(0.5, abs=3 * 0.5 / len(y) ** 0.5 + 0.05)
    trust = "--trust=visits:load"
    capsys.readouterr()
    assert gossamer("evaluate", "run", "--quiet", "--debug", "--json", trust) == 0
    assert json.loads(capsys.readouterr().out)["nll"] == pytest.approx(measured["nll"])
    (own_modules / "new.csv").write_text("\n".join(",".join(f"{value:.6f}" for value in row) for row in x[:4].tolist()))
    assert gossamer("predict", "run", "new.csv", "--out=predicted.jsonl", "--quiet", "--debug", trust) == 0
    rows = [json.loads(line) for line in Path("predicted.jsonl").read_text("utf-8").splitlines()]
    assert [row["low90"] <= row["mean"] <= row["high90"] for row in rows] == [True] * 4
    assert all(row["high90"] == round(row["high90"]) for row in rows)
    assert [row["mean"] for row in rows] == pytest.approx(truth.mean[:4, 0].tolist(), rel=0.35)
    assert gossamer("report", "run", "--out=page.html", "--debug") == 0
    assert "CRPS" in Path("page.html").read_text("utf-8")


def test_a_report_by_itself_shows_the_metric():
    assert gossamer("train", "evolution:evolution", "breast_cancer:load", "--out=run", *QUICK) == 0
    assert 0 < result("run")["metrics"]["worst_class"] <= 1
    METRICS.pop("worst_class")  # as in a new process, which imports nothing of ours
    assert gossamer("report", "run", "--out=page.html", "--debug") == 0
    assert "worst class" in Path("page.html").read_text("utf-8").lower()


def test_the_criterion_the_allocation_and_the_network_work_by_name():
    given = ("train", "ssvi", "breast_cancer:load", "--removal=lamp:lamp", "--allocation=square_root:square_root")
    assert gossamer(*given, "--model=residual:residual", "--out=run", *QUICK) == 0
    config = tomllib.loads(Path("run/config.toml").read_text("utf-8"))
    assert (config["model"], config["options"]["removal"]) == ("residual:residual", "lamp:lamp")
    assert config["options"]["allocation"] == "square_root:square_root"
    trust = "--trust=breast_cancer:load,residual:residual,lamp:lamp,square_root:square_root"
    assert gossamer("evaluate", "run", "--n_draws=2", trust, "--debug") == 0


def test_the_criterion_is_lamp(importable):
    weights = torch.tensor([3.0, -1.0, 0.0, 2.0, -2.0])
    score = lookup("removal criterion", "lamp:lamp", REMOVAL)(WeightStats(weights))
    torch.testing.assert_close(score[[0, 1, 2]].float(), torch.tensor([1.0, 1 / 18, 0.0]))
    assert sorted(score[[3, 4]].tolist()) == pytest.approx([4 / 17, 4 / 13])  # a tie counts once above the other


def test_what_the_names_lead_to(importable):
    task = data.load("breast_cancer:load")
    assert (task.input_shape, task.n_data, task.n_outputs) == ((30,), 369, 2)
    assert methods.build("evolution:evolution", task, 10).lr(0) == 0.1
    from square_root import square_root

    assert square_root([LayerStats("a", (10, 10)), LayerStats("b", (5, 5), keep_dense=True)], 0.1) == [10, 25]


def test_in_the_library_the_folder_is_the_registry(own_modules, monkeypatch, capsys):
    """The same files in the folders of the library need no other line: they have a short name and are listed."""
    for room, name in ((methods, "evolution"), (data, "breast_cancer")):
        folder = own_modules / "library" / room.__name__.rpartition(".")[2]
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(FILES[f"{name}.py"], encoding="utf-8")
        monkeypatch.setattr(room, "__path__", [*room.__path__, str(folder)])
        monkeypatch.setattr(room, name, None, raising=False)  # importing it sets this attribute
        monkeypatch.setitem(sys.modules, f"{room.__name__}.{name}", None)
        del sys.modules[f"{room.__name__}.{name}"]
    monkeypatch.syspath_prepend(own_modules)  # for the metric that the data set imports
    monkeypatch.setitem(REMOVAL, "lamp", lookup("removal criterion", "lamp:lamp", REMOVAL))
    monkeypatch.setattr(listing, "PACKAGE", own_modules / "library")
    assert gossamer("list", "methods") == 0
    assert "SET: sparse evolutionary training" in capsys.readouterr().out
    assert gossamer("train", "evolution", "breast_cancer", "--removal=lamp", "--out=run", *QUICK) == 0
    assert 0 < result("run")["metrics"]["worst_class"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "evolutoin:evolution", "digits"), "evolutoin"),
        (("train", "evolution:evoltion", "digits"), "did you mean 'evolution'"),
        (("train", "ssvi", "breast_cancer:laod"), "did you mean 'load'"),
        (("train", "ssvi", "digits", "--removal=lamp:lmap"), "did you mean 'lamp'"),
    ],
)
def test_a_misspelt_name_is_an_error_before_training(arguments, message, capsys):
    assert gossamer(*arguments, "--out=run", *QUICK) in (1, 2)
    assert message in capsys.readouterr().err
    assert not Path("run/metrics.jsonl").exists()
