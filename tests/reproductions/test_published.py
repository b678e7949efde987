"""``python -m reproductions RECIPE``: a recipe trained, its measured figures beside the published ones."""

import pytest

RECIPE = """
data = "two_moons"
epochs = 1
n_draws = 2
seeds = 2

[methods.plain]
method = "sgd"

[methods.other]
method = "sgd"

[published.plain]
source = "a paper, Table 1"
seeds = 5
accuracy = "99.1 %"
active_parameters = "0.56M"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "moons.toml"
    path.write_text(RECIPE)
    return path


def test_published_figures_stand_beside_the_measured_ones(command, recipe, tmp_path):
    code, out, err = command(recipe, "--quiet", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    lines = out[out.index("Beside the published figures") :].splitlines()
    measured, printed = (line for line in lines if line.startswith(("plain", "published")))
    assert printed.split()[-5:] == ["1", "5", "99.1", "%", "0.56M"]
    assert measured.split()[:2] == ["plain", "2"]
    assert measured.split()[3] == "±"
    assert not [line for line in lines if line.startswith("other")]
    assert (tmp_path / "out" / "report.html").exists()


def test_compare_trains_the_same_recipe_without_them(gossamer, recipe, tmp_path):
    code, out, _ = gossamer("compare", recipe, "--quiet", "--seeds", "1", "--out", tmp_path / "out")
    assert code == 0
    assert "published" not in out


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[published.plain]", "[published.plane]", "unknown method 'plane'; did you mean 'plain'?"),
        ("accuracy", "acuracy", "unknown metric 'acuracy'; did you mean 'accuracy'?"),
        ('"99.1 %"', "99.1", "accuracy must be a text, the figure as printed; got 99.1"),
        ("source", "#", "must name the source of its figures"),
    ],
)
def test_a_recipe_that_misquotes_is_refused_before_anything_is_trained(command, recipe, tmp_path, old, new, why):
    recipe.write_text(RECIPE.replace(old, new))
    code, out, err = command(recipe, "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    assert why in err
    assert not (tmp_path / "out").exists()


def test_a_recipe_without_published_figures_is_for_compare(command, recipe):
    recipe.write_text(RECIPE.partition("[published")[0])
    code, _, err = command(recipe)
    assert code == 1
    assert "quotes no published figures" in err


def test_published_figures_are_of_one_data_set(command, recipe, tmp_path):
    given = ["--data", "two_moons,digits", "--n-train", "64", "--seeds", "1", "--quiet"]
    code, _, err = command(recipe, *given, "--out", tmp_path / "out")
    assert code == 1
    assert "published figures are of one data set" in err
