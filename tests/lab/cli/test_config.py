"""Configuration files: a run's own trains it again, what is printed can be read, what is wrong is named."""

import tomllib

import pytest

from gossamer.lab.record import Run


def read(gossamer, *arguments):
    code, out, err = gossamer("train", *arguments, "--print-config")
    assert (code, err) == (0, ""), err
    return tomllib.loads(out)


@pytest.fixture
def write(tmp_path):
    def make(text, name="my config.toml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


def test_what_is_printed_has_every_option_and_can_be_read(gossamer, write):
    _, out, _ = gossamer("train", "ssvi", "digits", "--density", "0.2", "--epochs", "7", "--print-config")
    config = tomllib.loads(out)
    assert (config["method"], config["data"], config["epochs"]) == ("ssvi", "digits", 7)
    assert config["options"]["density"] == 0.2
    assert config["options"]["removal"] == "snr_abs"  # a default
    assert gossamer("train", "--config", write(out), "--print-config") == (0, out, "")


def test_a_run_trains_again_by_its_own_config(gossamer, finished, tmp_path):
    code, _, err = gossamer("train", "--config", finished / "config.toml", "--out", tmp_path / "again", "--quiet")
    assert (code, err) == (0, "")
    one, other = Run.open(finished), Run.open(tmp_path / "again")
    assert one.config == other.config
    assert one.result()["metrics"] == other.result()["metrics"]


def test_a_run_records_its_defaults_too(gossamer, finished, tmp_path):
    """They may be others in the next version. Told or not, it is the same run."""
    options = Run.open(finished).config["options"]
    assert options["replacement_rate"] == 0.3
    told = [f"--{name}={value}" for name, value in options.items() if not isinstance(value, bool)]
    arguments = [*told, "--config", finished / "config.toml", "--out", tmp_path / "told", "--quiet"]
    assert gossamer("train", *arguments)[0] == 0
    assert Run.open(tmp_path / "told").config == Run.open(finished).config


def test_flags_win_over_the_file(gossamer, write):
    path = write('method = "ssvi"\ndata = "digits"\nepochs = 5\n[options]\ndensity = 0.2\n')
    for arguments in (["--config", path, "--epochs", "9"], ["--epochs", "9", "--config", path]):
        config = read(gossamer, *arguments)
        assert (config["epochs"], config["options"]["density"]) == (9, 0.2)


def test_names_win_over_the_file(gossamer, write):
    path = write('method = "ssvi"\ndata = "digits"\nepochs = 5\n')
    assert read(gossamer, "--config", path, "two_moons")["data"] == "two_moons"
    assert read(gossamer, "vi", "--config", path)["method"] == "vi"
    config = read(gossamer, "vi", "two_moons", "--config", path)
    assert (config["method"], config["data"], config["epochs"]) == ("vi", "two_moons", 5)
    assert read(gossamer, "sgd", "digits", "--config", write("epochs = 3\n", "part.toml"))["epochs"] == 3


def test_options_may_stand_among_the_settings(gossamer, write):
    assert (
        read(gossamer, "--config", write('method = "ssvi"\ndata = "digits"\ndensity = 0.3\n'))["options"]["density"]
        == 0.3
    )


def test_a_file_may_name_the_folder(gossamer, write, tmp_path):
    path = write(f'method = "sgd"\ndata = "digits"\nepochs = 1\nn_draws = 1\nout = "{tmp_path}/named"\n')
    assert gossamer("train", "--config", path, "--quiet")[0] == 0
    assert (tmp_path / "named" / "result.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "ssvi"\ndata = "digits"\nepoch = 3\n', "unknown key 'epoch'; did you mean 'epochs'?"),
        ('method = "ssvi"\ndata = "digits"\n[options]\ndensty = 3\n', "unknown key 'densty'; did you mean 'density'?"),
        ('method = "sgd"\ndata = "digits"\n[options]\ndensity = 0.1\n', "unknown key 'density'"),
        ('method = "svi"\ndata = "digits"\n', "unknown method 'svi'; did you mean 'ssvi'?"),
        (
            'method = "ssvi"\ndata = "digits"\nepochs = "many"\n',
            "config.toml: --epochs must be a whole number or none; got 'many'",
        ),
        (
            'method = "ssvi"\ndata = "digits"\n[options]\ndensity = [1]\n',
            "config.toml: --density must be a number; got",
        ),
        ('method = "ssvi"\n', "the following arguments are required: data"),
        ('data = "digits"\n', "the file names no method"),
        ("method = \n", "is broken: Invalid value (at line 1, column 10)"),
        ("options = 3\n", "options must be a table; got 3; write keys and values"),
        ('data = "digits"\n[methods.vi]\n', "config.toml is a recipe: gossamer compare '"),
    ],
)
def test_what_is_wrong_in_a_file(refused, write, text, message):
    assert message in refused(2, "train", "--config", write(text))


def test_files_that_cannot_be_read(refused, tmp_path):
    assert "cannot read" in refused(2, "train", "--config", tmp_path / "no.toml")
    assert "Is a directory" in refused(2, "train", "--config", tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "codec can't decode" in refused(2, "train", "--config", tmp_path / "bytes.toml")
