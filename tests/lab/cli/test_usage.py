"""What is asked for, and what is asked for wrongly: one line, the nearest name, exit code 2."""

import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from gossamer import __version__, data, methods, models
from gossamer.data import digits
from gossamer.lab.cli import COMMANDS, main
from gossamer.metrics.registry import texts
from gossamer.sparsity import criteria


def test_version(gossamer):
    assert gossamer("--version") == (0, f"gossamer {__version__}\n", "")


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_the_command_do_not_wait_by_spinning(gossamer, monkeypatch, given, expected):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    gossamer("--version")
    assert os.environ["OMP_WAIT_POLICY"] == expected


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_names_every_command(gossamer, flag):
    code, out, err = gossamer(flag)
    assert (code, err) == (0, "")
    assert all(f"  {command} " in out for command in COMMANDS)


def test_no_command_is_a_question_for_help(gossamer):
    code, out, _ = gossamer()
    assert code == 2
    assert out.startswith("usage: gossamer COMMAND")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(gossamer, command):
    code, out, err = gossamer(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: gossamer {command}")


@pytest.mark.parametrize("method", methods.names())
def test_the_help_of_a_method_lists_its_options_with_their_meaning(gossamer, method):
    code, out, _ = gossamer("train", method, "--help")
    assert code == 0
    for option in (*methods.options_of(method), "epochs", "batch_size", "seed", "device", "precision", "out", "config"):
        assert f"--{option}" in out
        described = out.split(f"\n  --{option} ")[1].split("\n  --")[0]
        assert len(described.split()) > 3, option  # the name of the value, and some words about it
    assert "torch." not in out  # types of the library mean nothing to whoever types a flag
    assert "``" not in out
    assert not re.search(r"\b(None|True|False)\b", out)  # words of Python mean as little


def test_the_help_shows_what_an_option_takes(gossamer):
    out = gossamer("train", "ssvi", "--help")[1]
    for values in (
        "--device {auto,cpu,cuda}",
        "--precision {auto,32,bf16}",
        "--on_nan {stop,skip,rollback}",
        "--task {classification,regression}",
        "--calibrate {true,false}",
        "--optimizer {sgd,adam}",
        f"--model {{{','.join(models.names())}}}",
        f"--removal {{{','.join(criteria.REMOVAL)}}}",
        "--regrow_std {mean,mean_raw,NUMBER}",
    ):
        assert values in out
    assert "--split {train,val,test}" in gossamer("evaluate", "--help")[1]
    assert "--format {onnx,torch-export}" in gossamer("export", "--help")[1]
    assert "--pruner {none,median,hyperband}" in gossamer("sweep", "--help")[1]


def test_the_usage_names_what_a_command_needs(gossamer):
    usages = {
        "train": "METHOD DATA [options]",
        "compare": "METHODS [options]",
        "evaluate": "RUN [options]",
        "predict": "RUN INPUT [options]",
        "report": "RUN … [options]",
        "runs": "[FOLDER] [options]",
        "sweep": "METHOD [options]",
    }
    for command, usage in usages.items():
        assert gossamer(command, "--help")[1].startswith(f"usage: gossamer {command} {usage}\n")
    assert gossamer("train", "ssvi", "--help")[1].startswith("usage: gossamer train ssvi DATA [options]\n")


def test_lists(gossamer):
    known = {
        "methods": methods.names(),
        "data": data.names(),
        "models": models.names(),
        "criteria": [*criteria.REMOVAL, *criteria.ADDITION],
    }
    for kind, names in known.items():
        code, out, err = gossamer("list", kind)
        assert (code, err) == (0, "")
        rows = [line.split(maxsplit=1) for line in out.splitlines()]
        assert [row[0] for row in rows] == names
        assert all(len(row) == 2 for row in rows)


def test_recipes_are_those_of_the_working_directory(gossamer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = gossamer("list", "recipes")
    assert (code, out) == (0, "")
    assert "which gossamer compare FILE trains" in err
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "table1.toml").write_text("# Table 1 of the paper\n[methods.sgd]\n")
    assert gossamer("list", "recipes")[1] == "recipes/table1.toml  Table 1 of the paper\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'? gossamer --help lists them"),
        (["xyz"], "unknown command 'xyz'. gossamer --help lists them"),
        (["list"], "list takes one of methods, data, models, criteria, recipes."),
        (["list", "method"], "list takes one of methods, data, models, criteria, recipes; did you mean 'methods'?"),
        (["completion", "tcsh"], "completion takes one of bash, zsh, fish"),
        (["train"], f"train needs a method: gossamer train METHOD DATA; methods are {', '.join(methods.names())}"),
        (["train", "--epochs", "3"], "train needs a method"),
        (["train", "svi", "digits"], f"unknown method 'svi'; did you mean 'ssvi'? Known: {methods.names()[0]}"),
        (["train", "ssvi"], "the following arguments are required: data. gossamer train ssvi --help"),
        (["train", "ssvi", "digit"], "unknown data set 'digit'; did you mean 'digits'? Known: cifar10"),
        (
            ["train", "ssvi", "digits", "--densty", "0.1"],
            "gossamer train ssvi takes no --densty; did you mean '--density'?",
        ),
        (["train", "sgd", "digits", "--density", "0.1"], "gossamer train sgd takes no --density. gossamer train sgd"),
        (["train", "a file.csv", "ssvi"], "the method comes first: gossamer train ssvi 'a file.csv'"),
        (
            ["train", "ssvi", "digits", "--density", "x"],
            "--density must be a number; got 'x'. gossamer train ssvi --help",
        ),
        (["train", "ssvi", "digits", "--lr", "x"], "--lr must be a number or none; got 'x'."),
        (["train", "ssvi", "digits", "--epochs", "1.5"], "--epochs must be a whole number or none; got '1.5'."),
        (["train", "ssvi", "digits", "--epochs", "0"], "epochs must be at least 1; got 0"),
        (["train", "ssvi", "digits", "--seed", "-1"], "seed must be from 0 to 4294967295; got -1"),
        (["train", "ssvi", "digits", "--mode", "fast"], "--mode must be 'default' or 'reference'; got 'fast'."),
        (["train", "ssvi", "digits", "--model", "mpl"], "unknown model 'mpl'; did you mean 'mlp'?"),
        (["train", "ssvi", "digits", "extra"], "unrecognized arguments: extra."),
        (["train", "--resume"], "argument --resume: expected one argument."),
        (["train", "--resume", "run", "--density", "0.1"], "gossamer train takes no --density."),
        (["train", "--config"], "--config needs a file"),
        (["evaluate"], "the following arguments are required: run."),
        (["evaluate", "run", "--split", "tset"], "--split must be 'train' or 'val' or 'test'; got 'tset'."),
        (["predict", "run"], "the following arguments are required: input."),
        (["compare"], "the following arguments are required: methods."),
        (["compare", "sgd,svi"], "unknown method 'svi'; did you mean 'ssvi'?"),
        (["compare", ","], "compare needs a method"),
        (["compare", "sgd", "--data", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        (["compare", "sgd", "--epochs", "0"], "epochs must be at least 1; got 0"),
        (["report"], "the following arguments are required: run."),
        (["show"], "the following arguments are required: run."),
    ],
)
def test_usage_errors(refused, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert refused(2, *arguments).startswith(message)
    assert not list(tmp_path.iterdir())  # nothing was made


def test_flags_take_hyphens_and_underscores_before_and_after_the_names(gossamer):
    expected = gossamer("train", "ssvi", "digits", "--batch_size", "32", "--update_period=7", "--print_config")[1]
    assert "batch_size = 32" in expected
    assert "update_period = 7" in expected
    for arguments in (
        ["ssvi", "digits", "--batch-size", "32", "--update-period=7", "--print-config"],
        ["--batch-size", "32", "ssvi", "--update-period", "7", "digits", "--print-config"],
        ["--print_config", "--batch-size=32", "--update-period=7", "ssvi", "digits"],
        ["--quiet", "ssvi", "digits", "--batch_size=32", "--update_period=7", "--print_config"],
    ):
        assert gossamer("train", *arguments) == (0, expected, "")


def test_evaluate(gossamer, finished):
    code, out, err = gossamer("evaluate", finished)
    assert (code, err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    metrics = json.loads((finished / "result.json").read_text())["metrics"]
    assert shown == texts(metrics)
    code, out, _ = gossamer("evaluate", finished, "--json")
    assert json.loads(out) == metrics
    assert json.loads(gossamer("evaluate", finished, "--json", "--split=val", "--n-draws=2")[1]) != metrics


def test_predict(gossamer, finished, tmp_path):
    np.save(tmp_path / "new inputs.npy", digits.load().test[0][:3].numpy())
    code, out, err = gossamer("predict", finished, tmp_path / "new inputs.npy")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    probs = ",".join(f"p_{name}" for name in range(10))
    assert lines[0] == f"class,confidence,entropy,mutual_information,{probs}"
    assert len(lines) == 4
    _, out, _ = gossamer("predict", finished, tmp_path / "new inputs.npy", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["class"] for row in rows] == [line.split(",")[0] for line in lines[1:]]


def test_show(gossamer, finished):
    code, out, err = gossamer("show", finished)
    assert (code, err) == (0, "")
    assert out.startswith(f"{finished}\n  settings   method=ssvi  data=digits")


def test_report(gossamer, finished, tmp_path):
    code, out, err = gossamer("report", finished)
    assert (code, out, err) == (0, f"{finished / 'report.html'}\n", "")
    assert (finished / "report.html").read_text().startswith("<!doctype html>")
    assert gossamer("report", finished, "--out", tmp_path / "page.html")[1] == f"{tmp_path / 'page.html'}\n"
    (finished / "report.html").unlink()


def test_a_finished_run_is_resumed_by_showing_it(gossamer, finished):
    code, out, err = gossamer("train", "--resume", finished)
    assert (code, err) == (0, f"{finished} is finished already; nothing was trained\n")
    assert out.endswith(f"run: {finished}\n")
    assert out == gossamer("train", f"--resume={finished}", "--quiet")[1]


def test_it_runs_outside_of_the_main_thread():
    codes = []
    worker = threading.Thread(target=lambda: codes.append(main(["--version"])))
    worker.start()
    worker.join()
    assert codes == [0]


def test_a_reader_that_goes_away_is_no_accident(tmp_path):
    """As ``gossamer list data | head -0`` would."""
    code = "import sys; from gossamer.lab.cli import main; sys.exit(main(['list', 'data']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1


def test_evaluate_tells_how_well_doubt_finds_the_outside(gossamer, finished):
    code, out, err = gossamer("evaluate", finished, "--ood", "uniform, permuted", "--n-draws", "2")
    assert (code, err) == (0, "")
    table = out.split("\n\n")[1].splitlines()
    assert table[0].split()[-6:] == ["AUROC", "AUPR", "out", "AUPR", "in", "FPR95"]
    assert [line.split()[0] for line in table[1:]] == ["uniform"] * 4 + ["permuted"] * 4
    code, out, _ = gossamer("evaluate", finished, "--ood", "uniform", "--n-draws", "2", "--json")
    assert code == 0
    assert set(json.loads(out)["ood"]) == {"uniform"}


def test_evaluate_prints_a_table_for_each_thing_asked(gossamer, finished):
    asked = ["--temperature", "--selective", "--risk", "0.3", "--conformal", "0.9"]
    code, out, err = gossamer("evaluate", finished, *asked, "--n-draws", "2")
    assert (code, err) == (0, "")
    heads = [table.split("  ")[0] for table in out.split("\n\n")[1:]]
    assert heads == ["temperature of the logits", "accuracy on the surest", "promised"]
    found = json.loads(gossamer("evaluate", finished, "--conformal", "0.9", "--json")[1])
    assert set(found["conformal"]["0.9"]["kinds"]) == {"aps", "lac"}


def test_probabilities_are_no_percentages(refused, finished):
    assert refused(2, "evaluate", finished, "--conformal", "90").endswith("as 0.9 for 90 %; got 90.0")


def test_the_network_of_a_run_is_exported(gossamer, finished, tmp_path):
    file = tmp_path / "net.pt2"
    told = ["export", finished, "--format", "torch-export", "--what", "draws", "--n-draws", "2", "--out", file]
    assert gossamer(*told)[:2] == (0, f"{file}\n")
    assert sorted(torch.export.load(file).module()(torch.rand(3, 1, 8, 8))) == [
        "entropy",
        "mutual_information",
        "probs",
    ]
    code, _, err = gossamer("export", finished, "--what", "all")
    assert (code, "--what must be 'mean' or 'noise' or 'draws'; got 'all'" in err) == (2, True)
