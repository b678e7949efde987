"""``gossamer reproduce``: a recipe trained, its measured figures beside the published ones."""

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


def test_published_figures_stand_beside_the_measured_ones(gossamer, recipe, tmp_path):
    code, out, err = gossamer("reproduce", recipe, "--quiet", "--out", tmp_path / "out")
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


@pytest.mark.parametrize("name", ["em-mcmc-table4", "em-mcmc-figure1", "show"])
def test_what_it_knew_by_name_is_named(refused, name):
    why = refused(2, "reproduce", name)
    assert f"run python -m reproductions {name}" in why


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[published.plain]", "[published.plane]", "unknown method 'plane'; did you mean 'plain'?"),
        ("accuracy", "acuracy", "unknown metric 'acuracy'; did you mean 'accuracy'?"),
        ('"99.1 %"', "99.1", "accuracy must be a text, the figure as printed; got 99.1"),
        ("source", "#", "must name the source of its figures"),
    ],
)
def test_a_recipe_that_misquotes_is_refused_before_anything_is_trained(refused, recipe, old, new, why):
    recipe.write_text(RECIPE.replace(old, new))
    assert why in refused(1, "reproduce", recipe)


def test_a_recipe_without_published_figures_is_for_compare(refused, recipe):
    recipe.write_text(RECIPE.partition("[published")[0])
    assert "quotes no published figures" in refused(2, "reproduce", recipe)


def test_bench_names_what_replaced_it(refused):
    assert "make bench in a checkout of the repository" in refused(2, "bench", "cpu", "--quick")
